"""Initial weights and loss curves of small runs, bit for bit: the proof that a change of the code changed no number.

    python -m tests.benchmarks.loss_curves --write BEFORE.json
    python -m tests.benchmarks.loss_curves --against BEFORE.json     # exit code 1 where anything differs
    cd OTHER && PYTHONPATH=. python THIS/tests/benchmarks/loss_curves.py --write OTHER.json     # the code of another checkout

The runs are in ``loss_curves.toml``: every architecture on small versions of the quickstart's three sets, one rank and
two, fp64, fp32 and bf16. Only ``hydragnn.train``, the makers of the sets and torch are used, so that old code can be asked
too; which code it was is printed first. Bits depend on the processor and the libraries: compare on one machine.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

Table = dict[str, Any]

HERE = Path(__file__).resolve().parent
CLOSE = 1e-12
"""Relative difference up to which two losses count as equal: a sum in another order."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; gives the exit code."""
    options = parsed(arguments)
    torch.set_num_threads(1)
    if options.single:
        config, out, result = options.single
        actual = trained(json.loads(config.read_text()), out)
        if is_first_rank():
            result.write_text(json.dumps(actual))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        actual = all_runs(Path(folder), options.only)
    if options.write:
        options.write.write_text(json.dumps(actual, indent=1) + "\n")
    return 0 if options.against is None else compared(json.loads(options.against.read_text()), actual, options.only)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep what the runs gave")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with what was kept before")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose name contains this")
    parser.add_argument("--single", type=Path, nargs=3, help=argparse.SUPPRESS)  # one run, in the ranks of a launcher
    return parser.parse_args(arguments)


def all_runs(folder: Path, only: str) -> dict[str, Table]:
    """What every run gave, by its name and number of ranks; ``only`` chooses names that contain it."""
    table = tomllib.loads((HERE / "loss_curves.toml").read_text(encoding="utf-8"))
    chosen = {name: run for name, run in table["runs"].items() if only in name}
    if not chosen:
        raise SystemExit(f"--only {only}: no such run; {HERE / 'loss_curves.toml'} has {', '.join(table['runs'])}")
    print(f"code: {code()}", file=sys.stderr)
    make_stores(folder)
    actual = {}
    for name, run in chosen.items():
        for ranks in run.pop("ranks", [1]):
            config = with_defaults(run, table["common"])
            config["data"]["store"] = str(folder / f"{run['data']['store'].removesuffix('.h5')}.h5")
            label = f"{name}, {ranks} rank{'s'[: ranks > 1]}"
            print(label, file=sys.stderr)
            out = folder / label.replace(", ", "-").replace(" ", "-")
            actual[label] = trained(config, out) if ranks == 1 else trained_by_ranks(config, out, ranks)
    return actual


def with_defaults(run: Table, common: Table) -> Table:
    """The run's sections over the common ones; a section of the run replaces keys, not the section."""
    merged = {key: dict(value) for key, value in common.items()}
    for key, value in run.items():
        merged[key] = merged.get(key, {}) | value if isinstance(value, dict) else value
    return merged


def make_stores(folder: Path) -> None:
    """Small versions of the quickstart's sets, and what relational networks and stress need beside them."""
    from hydragnn.scripts.demo import make_alloys, make_plates, make_polycrystals

    make_alloys(folder / "alloys.h5", samples=40, seed=1)
    make_polycrystals(folder / "polycrystals.h5", samples=20, seed=1)
    make_plates(folder / "plates.h5", samples=16, seed=1)
    write_graphs(folder / "cells.h5", [cell(number) for number in range(16)])
    write_graphs(
        folder / "directions.h5",
        [with_directions(graph, 8) for graph in graphs_of(folder / "polycrystals.h5")],
    )


def with_directions(graph: Any, sectors: int) -> Any:
    """The graph with each edge's direction as its kind."""
    import numpy as np

    from hydragnn.graphs import edge_vectors, with_relations

    vectors = edge_vectors(graph).double().numpy()
    if graph.dim == 2:
        turns = np.arctan2(vectors[:, 1], vectors[:, 0]) / (2 * np.pi) * sectors
        kinds = np.floor(turns + 0.5 + 1e-9).astype(np.int64) % sectors
    else:  # the nearest of six axes
        axes = np.concatenate([np.eye(3), -np.eye(3)[::-1]])
        kinds = (vectors @ axes.T).round(9).argmax(axis=1)
    return with_relations(graph, kinds, sectors)


def graphs_of(path: Path) -> Iterator[Any]:
    """The graphs of a store, one after the other."""
    from hydragnn.datasets import open_store

    store = open_store(path)
    return (store.read([number]) for number in range(len(store)))


def write_graphs(path: Path, graphs: Sequence[Any]) -> None:
    """A store of the graphs."""
    from hydragnn.datasets import StoreWriter

    with StoreWriter(path, list(graphs[0].fields.values()), dim=graphs[0].dim) as writer:
        for graph in graphs:
            writer.write(graph)


def cell(number: int) -> Any:
    """A strained cubic cell of four or eight atoms with energy, forces and stress by EMT, edges named by direction."""
    import numpy as np
    from ase.build import bulk
    from ase.calculators.emt import EMT

    from hydragnn.graphs import Field, from_ase

    generator = np.random.default_rng([7, number])
    atoms = bulk("Cu", "fcc", a=3.7, cubic=True) * (1 + number % 2, 1, 1)
    atoms.symbols[:] = generator.choice(["Cu", "Au", "Pd"], size=len(atoms))
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + generator.normal(0.0, 0.03, (3, 3))), scale_atoms=True)
    atoms.positions += generator.normal(0.0, 0.06, atoms.positions.shape)
    atoms.calc = EMT()
    atoms.get_forces()
    atoms.get_stress()
    labels = (
        Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
        Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
        Field(name="stress", on="graph", shape=(3, 3), unit="eV/Angstrom^3", parity="tensor", role="target"),
    )
    return with_directions(from_ase(atoms, 4.5, fields=labels), 6)


def trained(config: Table, out: Path) -> Table:
    """What a run gives: its first parameters, its curves and its best values, with every bit."""
    import hydragnn

    with first_parameters() as first:
        record = hydragnn.train(config, out)
    return {
        "data": record.data_hash,
        "status": record.status,
        **first,
        "curves": {name: [hexadecimal(value) for value in curve] for name, curve in sorted(record.curves.items())},
        "best": {name: hexadecimal(value) for name, value in sorted(record.best.items())},
    }


def trained_by_ranks(config: Table, out: Path, ranks: int) -> Table:
    """The same from several ranks under torchrun."""
    paths = [out.with_suffix(".config.json"), out, out.with_suffix(".json")]
    paths[0].write_text(json.dumps(config))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*launcher, __file__, "--single", *map(str, paths)]
    # the ranks import what this process did, whatever is installed
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(code()), "OMP_NUM_THREADS": "1"})
    actual: Table = json.loads(paths[2].read_text())
    return actual


def code() -> Path:
    """The folder that the package is imported from."""
    import hydragnn

    return Path(hydragnn.__file__).resolve().parent.parent


@contextmanager
def first_parameters() -> Iterator[Table]:
    """Hashes of the parameters of the first module that computes in the block, filled in before it does.

    ``named``: names and values, sorted by name. ``ordered``: values in the order in which the model lists them, and
    ``tensors``: the hash of each, sorted; both stay as they are when parameters get other names.
    """
    actual: Table = {}

    def note(module: nn.Module, arguments: Any) -> None:
        values = {name: parameter.detach() for name, parameter in module.named_parameters()}
        count = sum(value.numel() for value in values.values())
        if count <= actual.get("parameters", 0):
            return
        each = {name: digest(tensor_bytes(value)) for name, value in values.items()}
        actual["parameters"] = count
        actual["named"] = digest("".join(f"{name} {each[name]}\n" for name in sorted(each)).encode())
        actual["ordered"] = digest("".join(each.values()).encode())
        actual["tensors"] = sorted(value[:16] for value in each.values())

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield actual
    finally:
        handle.remove()


def tensor_bytes(value: torch.Tensor) -> bytes:
    """Type, shape and every bit of a tensor."""
    head = f"{value.dtype} {list(value.shape)} ".encode()
    return head + value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def hexadecimal(value: float | None) -> str | None:
    """A number with all its bits; None stays None."""
    return None if value is None else float(value).hex()


def is_first_rank() -> bool:
    """Whether this process is the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def compared(before: dict[str, Table], now: dict[str, Table], only: str) -> int:
    """Print a table of what agrees; gives 1 where anything differs or a run of before is missing."""
    names = [name for name in before if only in name]
    rows = [(name, *verdicts(before[name], now.get(name))) for name in names]
    new = [name for name in now if name not in before]
    width = max(len(name) for name in [*names, "run"])
    print(f"{'run':{width}}  {'data':9}  {'weights':9}  {'curves':18}  best")
    for name, data, weights, curves, best in rows:
        print(f"{name:{width}}  {data:9}  {weights:9}  {curves:18}  {best}")
    for name in new:
        print(f"{name:{width}}  not known before")
    differing = sum(any(verdict.startswith("different") for verdict in row[1:]) for row in rows)
    exact = sum(all(verdict in ("identical", "renamed") for verdict in row[1:]) for row in rows)
    print(
        f"{len(rows)} runs: {exact} identical, {len(rows) - exact - differing} equal to {CLOSE:g}, {differing} different"
    )
    return 1 if differing else 0


def verdicts(before: Table, now: Table | None) -> tuple[str, str, str, str]:
    """What became of data, first weights, curves and best values of one run."""
    if now is None:
        return ("different",) * 3 + ("different: no such run",)
    if before["status"] != now["status"]:
        return ("", "", f"different: {now['status']}", "")
    data = "identical" if before["data"] == now["data"] else "different"
    best = {name: [value] for name, value in before["best"].items()}
    best_now = {name: [value] for name, value in now["best"].items()}
    return (
        data,
        weights_verdict(before, now),
        curves_verdict(before["curves"], now["curves"]),
        curves_verdict(best, best_now),
    )


def weights_verdict(before: Table, now: Table) -> str:
    """identical; renamed: equal values in the same order; reordered: the same tensors in another order; different."""
    if before["tensors"] != now["tensors"]:
        return "different"
    if before["ordered"] != now["ordered"]:
        return "reordered"
    return "identical" if before["named"] == now["named"] else "renamed"


def curves_verdict(before: dict[str, list[str | None]], now: dict[str, list[str | None]]) -> str:
    """identical, equal with the largest relative difference, or different with it; names count."""
    if before == now:
        return "identical"
    if before.keys() != now.keys():
        return f"different: {', '.join(sorted(before.keys() ^ now.keys())[:3])}"
    pairs = [(name, a, b) for name in before for a, b in zip(before[name], now[name])]
    if any(len(before[name]) != len(now[name]) for name in before) or any(
        (a is None) != (b is None) for _, a, b in pairs
    ):
        return "different: lengths"
    gaps = {name: relative_gap(a, b) for name, a, b in pairs if a is not None and b is not None and a != b}
    worst = max(gaps, key=lambda name: gaps[name])
    return f"equal to {gaps[worst]:.0e}" if gaps[worst] <= CLOSE else f"different: {worst} by {gaps[worst]:.0e}"


def relative_gap(before: str, now: str) -> float:
    """The difference of two numbers over the larger of them."""
    a, b = float.fromhex(before), float.fromhex(now)
    return abs(a - b) / max(abs(a), abs(b))


if __name__ == "__main__":
    sys.exit(main())
