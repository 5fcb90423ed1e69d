"""Prediction of small molecules by three members, beside a plain loop of PyTorch Geometric, and beside another checkout.

    python tests/benchmarks/bench_predict.py [--graphs 20000] [--rounds 3] [--kind schnet] [--works store,xyz,xyz-xyz] [--against CHECKOUT]

Rattled molecules of 4 to 8 atoms, all neighbours within 5 Angstrom, hidden 64, 3 layers, energies, one thread. Works: ``store`` predicts a store into
.h5, ``xyz`` extended XYZ into .h5, ``xyz-xyz`` extended XYZ into extended XYZ, ``build`` stops where the graphs are made. The loop has the graphs in memory, a ``DataLoader`` of 64 and
three models of the same sizes (``geometric_layers.py``); it takes mean and deviation. Graphs per CPU second of whole calls, medians over rounds;
ratios are medians over rounds.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from harness import KEPT, Server

HERE = Path(__file__).resolve().parents[2]
CUTOFF, HIDDEN, LAYERS, RADIAL = 5.0, 64, 3, 20


def molecules(count: int) -> list[Any]:
    """Return rattled molecules."""
    import numpy as np
    from ase.build import molecule
    from ase.collections import g2

    random = np.random.default_rng(0)
    kinds = [one for one in map(molecule, g2.names) if 4 <= len(one) <= 8]
    frames = []
    for number in range(count):
        atoms = kinds[number * 7 % len(kinds)].copy()
        atoms.positions += random.normal(scale=0.05, size=atoms.positions.shape)
        frames.append(atoms)
    return frames


def made(folder: Path, kind: str, count: int) -> None:
    """Train three members; write the molecules as a store and as extended XYZ."""
    import numpy as np
    from ase.io import write

    from hydragnn.config import RunConfig
    from hydragnn.datasets import StoreWriter, open_store
    from hydragnn.ensemble.building.build import build_ensemble
    from hydragnn.graphs import Field, concatenate
    from hydragnn.graphs.atomic import from_ase
    from hydragnn.runs import train

    field = Field(name="energy", on="graph", unit="eV", role="target", dtype="float64")
    random, frames = np.random.default_rng(1), molecules(count)
    for name, some in (("training", frames[:200]), ("molecules", frames)):
        for atoms in some:
            atoms.info = {"energy": float(random.normal()) - len(atoms)} if name == "training" else {}
        fields = (field,) if name == "training" else ()
        batch = concatenate([from_ase(atoms, CUTOFF, fields=fields) for atoms in some])
        own, attributes = tuple(batch.fields.values()), {"cutoff": CUTOFF, "source": "ase"}
        with StoreWriter(folder / f"{name}.h5", own, dim=3, attributes=attributes) as writer:
            writer.write(batch)
    write(folder / "molecules.xyz", frames, format="extxyz")
    model = {"kind": kind, "hidden_dim": HIDDEN, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    table = {"data": {"store": str(folder / "training.h5")}, "split": {"train": 0.5, "valid": 0.3}, "model": model}
    table |= {"heads": [{"kind": "energy", "field": "energy"}]}
    runs = [folder / f"run-{seed}" for seed in range(3)]
    for seed, run in enumerate(runs):
        train(RunConfig.parse({**table, "train": {"epochs": 1, "seed": seed}}), run)
    build_ensemble(runs, folder / "ensemble", store=open_store(folder / "training.h5"))


def plain_loop(kind: str, count: int) -> Callable[[], object]:
    """Return the loop of PyTorch Geometric."""
    import math

    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    from hydragnn.graphs.atomic import from_ase
    from tests.benchmarks.geometric_layers import Potential

    graphs = []
    for atoms in molecules(count):
        graph = from_ase(atoms, CUTOFF)
        ends = torch.stack([graph.senders, graph.receivers])
        numbers, shifts = graph.nodes["atomic_numbers"], graph.edge_shifts.float()
        graphs.append(Data(z=numbers, pos=graph.positions.float(), edge_index=ends, shift=shifts))
    sizes: dict[str, Any] = {"channels": HIDDEN, "layers": LAYERS, "radial": RADIAL, "cutoff": CUTOFF}
    models = [Potential(kind, **sizes).eval() for _ in range(3)]

    def energies(model: Potential, data: Any) -> torch.Tensor:
        senders, receivers = data.edge_index
        vectors = data.pos[senders] + data.shift - data.pos[receivers]
        lengths = vectors.norm(dim=-1, keepdim=True)
        x = lengths / CUTOFF
        basis = math.sqrt(2 / CUTOFF) * torch.sin(math.pi * x * model.orders) / lengths
        basis = torch.cat([basis, torch.ones_like(lengths)], dim=-1)
        envelope = 0.5 * (torch.cos(math.pi * x.clamp_max(1.0)) + 1)
        return model.energies(data, (data.edge_index, basis, envelope, vectors / lengths))

    def loop() -> object:
        with torch.no_grad():
            every = [torch.stack([energies(one, data) for one in models]) for data in DataLoader(graphs, batch_size=64)]
        together = torch.cat(every, dim=1)
        return together.mean(0), together.std(0)

    return loop


def serve(options: argparse.Namespace) -> None:
    """Do the work that each line names; write its CPU seconds."""
    import torch

    torch.set_num_threads(1)
    from hydragnn.base.allocator import keep_memory

    keep_memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.serve == "loop":
            loop = plain_loop(options.kind, options.graphs)
        else:
            made(folder, options.kind, options.graphs)
        print("[]", flush=True)
        for number, line in enumerate(sys.stdin):
            start = time.process_time()
            if options.serve == "loop":
                loop()
            else:
                predicted(folder, line.strip(), number)
            print(f"[{time.process_time() - start}]", flush=True)


def predicted(folder: Path, work: str, number: int) -> None:
    """Predict the molecules into a file."""
    from hydragnn.ensemble.prediction import predict_to_file

    source, _, suffix = work.partition("-")
    out = folder / f"out-{number}.{suffix or 'h5'}"
    result = predict_to_file(folder / "ensemble", folder / f"molecules.{'h5' if source == 'store' else 'xyz'}", out)
    stages = {name: round(value, 2) for name, value in result.seconds_of.items()} if result else {}
    print(work, stages, file=sys.stderr, flush=True)
    out.unlink()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", default="schnet")
    parser.add_argument("--works", default="store,xyz,xyz-xyz")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--serve", choices=("ours", "loop"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    sides = [("ours", HERE), ("loop", HERE), *([("other", options.against.resolve())] if options.against else [])]
    words = ["--graphs", options.graphs, "--kind", options.kind]
    servers = {}
    for name, place in sides:
        command = [sys.executable, Path(__file__).resolve(), "--serve", "loop" if name == "loop" else "ours", *words]
        servers[name] = Server(command, {"PYTHONPATH": str(place), "GLIBC_TUNABLES": KEPT}, place)
        servers[name].answer()
    for work in options.works.split(","):
        rounds = [{name: server.ask(work)[0] for name, server in servers.items()} for _ in range(options.rounds)]
        for name in servers:
            speed, ratio = (median(one) for one in zip(*[(r[name], r[name] / r["ours"]) for r in rounds]))
            print(
                f"{work:8} {name:6} {options.graphs / speed:9.0f} graphs/s, {ratio:5.2f} times the time of ours",
                flush=True,
            )
    for server in servers.values():
        server.end()


if __name__ == "__main__":
    main()
