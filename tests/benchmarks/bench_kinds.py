"""Speed and memory of every architecture beside the public implementations of it that run here.

    bash tests/benchmarks/peers.sh DIRECTORY
    python -m tests.benchmarks.bench_kinds --environment DIRECTORY [--rounds 7] [--out docs/speed.md] [painn schnet ...]

Every implementation is a process of its own that takes a training step when asked, in turns (``bench_peers``), on two batches. Without names all architectures are measured.
"""

import argparse
import datetime
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from hydragnn.architectures import architectures
from hydragnn.runs.provenance import processor_name
from hydragnn.scripts.bench.structures import structures
from tests.benchmarks.bench_peers import HERE, KEPT, Peer, difference, molecules, write_graphs
from tests.benchmarks.peer_worker import BLIND

GEOMETRIC, NETWORK = "PyTorch Geometric", "PyTorch Geometric's network"
WRITTEN = "PyTorch Geometric, written by hand"
"""Of architectures that it does not ship: the layer as its users write it."""
BORROWED = ["peer_geometric.py"]
PUBLIC: dict[str, dict[str, Sequence[str]]] = {
    **{kind: {GEOMETRIC: BORROWED} for kind in ("gin", "sage", "mfc", "gatv2", "cgcnn", "pna", "relational", "gps")},
    "pnaplus": {f"{GEOMETRIC}, with filters": BORROWED},
    "dimenet": {NETWORK: [*BORROWED, "network"]},
    "schnet": {
        "schnetpack 2.1.1": ["peer_schnetpack.py"],
        NETWORK: [*BORROWED, "network"],
        WRITTEN: BORROWED,
        "HydraGNN 3.0": ["peer_hydragnn.py"],
    },
    "painn": {"schnetpack 2.1.1": ["peer_schnetpack.py"], WRITTEN: BORROWED},
    "egnn": {"HydraGNN 3.0": ["peer_hydragnn.py"], WRITTEN: BORROWED},
    "equivariant_transformer": {"torchmd-net 3.1.0": ["peer_torchmd.py"]},
    "tensornet": {"torchmd-net 3.1.0": ["peer_torchmd.py"], "torchmd-net 3.1.0, plain": ["peer_torchmd.py", "plain"]},
    "pnaeq": {WRITTEN: BORROWED},
    "mace": {"mace-torch 0.3.16": ["peer_mace.py"]},
}
SHARP = {"gatv2", "cgcnn", "pna", "pnaplus"}
"""Architectures that PyTorch Geometric has without an end at the cutoff."""
HEAD = [
    "architecture",
    "trained",
    "beside",
    "molecules: ours, ms",
    "theirs / ours",
    "alloys: ours, ms",
    "theirs / ours",
    "ours, MB",
    "ours / theirs",
    "values",
]
PAGE = """# Every architecture beside its public implementations

Made by `{command}`, {date}, {processor}, one thread, torch {torch}, PyTorch Geometric {geometric}, float32.

A training step is forward, backward (through forces, where they are trained) and AdamW. Every implementation is a process of its own and takes {rounds} steps in turns with the others after two that warm up, so that whatever else
the machine does hits all alike; figures are processor time, medians. Freed memory is kept in all of them, as our commands keep it. *Molecules* are {molecules}, where the time is mostly that of calling operations; *alloys* are {alloys}, all within 5 Angstrom. 64 channels, 3
layers (`tensornet` and `mace` 2), 20 radial functions (`dimenet` 6, `mace` 8; `mace` with `max_ell = 2` and `correlation = 3`). *Memory* is what tensors of a step of the alloys take at most beside weights and graphs. *Values* are the largest difference of
energies and forces over the largest where the weights are the same; "own" are weights of their own, of the same form up to constants ([the same numbers](parity.md)). `gps` is `gin` with attention among all nodes. DimeNet++ does not know periodic images: its alloys are not periodic.

"""


@dataclass(frozen=True)
class Measured:
    """An implementation on one batch beside ours."""

    ours: float
    """Milliseconds of our step."""
    time: float
    """Theirs over ours."""
    megabytes: float
    memory: float
    """Ours over theirs."""
    values: str


def commands_of(kind: str, environment: Path, folder: Path) -> dict[str, list[str]]:
    """Ours first, which writes the weights; then all others."""
    more = ["sharp"] if kind in SHARP else []
    commands = {
        "ours": [sys.executable, str(HERE / "peer_ours.py"), kind, str(folder), "write", "keep", "computed", *more]
    }
    for name, (script, *options) in PUBLIC[kind].items():
        python = sys.executable if script == "peer_geometric.py" else str(environment / "bin" / "python")
        commands[name] = [python, str(HERE / script), kind, str(folder), *options, *more]
    return commands


def measured(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, Measured]:
    """All implementations on the batch in this folder, by name."""
    here, peers = str(HERE.parent.parent), []
    for name, command in commands_of(kind, options.environment, folder).items():
        own = {"PYTHONPATH": here} if command[0] == sys.executable else {}
        peers.append(Peer(name, command, own if name == "ours" else {**own, "GLIBC_TUNABLES": KEPT}))
    values = [peer.values() for peer in peers]
    for _ in range(options.rounds + 2):
        for peer in peers:
            peer.step("train")
    memory = [float(peer.ask("memory")["megabytes"]) for peer in peers]
    ours, steps = peers[0], [peer.milliseconds["train"][2:] for peer in peers]  # the first two warm up
    for peer in peers:
        peer.end()
    return {
        peer.name: Measured(
            ours=median(steps[0]),
            time=median(theirs / mine for mine, theirs in zip(steps[0], taken)),
            megabytes=memory[0],
            memory=memory[0] / megabytes,
            values=difference(values[0], given),
        )
        for peer, taken, megabytes, given in zip(peers, steps, memory, values)
        if peer is not ours
    }


def rows_of(kind: str, options: argparse.Namespace) -> list[list[str]]:
    """The lines of one architecture, the fastest of others first."""
    batches = []
    for cells in (molecules(), structures(32)):
        if kind == "dimenet":
            for cell in cells:
                cell.pbc = False
        with tempfile.TemporaryDirectory() as name:
            write_graphs(Path(name), cells)
            batches.append(measured(kind, Path(name), options))
    small, large = batches
    trained = "energies" if kind in BLIND else "energies, forces"
    return [
        [
            f"`{kind}`",
            trained,
            name,
            f"{small[name].ours:.1f}",
            f"{small[name].time:.2f}",
            f"{one.ours:.1f}",
            f"{one.time:.2f}",
            f"{one.megabytes:.1f}",
            f"{one.memory:.2f}",
            one.values.replace("other form", "own"),
        ]
        for name, one in sorted(large.items(), key=lambda item: item[1].time)
    ]


def amounts(cells: Sequence[Any]) -> str:
    """Graphs, atoms and edges, in words."""
    with tempfile.TemporaryDirectory() as name:
        nodes, edges = write_graphs(Path(name), cells)
    return f"{len(cells)} graphs of {nodes:,} atoms and {edges:,} edges together"


def page_of(rows: Sequence[Sequence[str]], options: argparse.Namespace) -> str:
    """The document."""
    words = ["python", "-m", "tests.benchmarks.bench_kinds", *sys.argv[1:]]
    if "--environment" in words:
        words[words.index("--environment") + 1] = "DIRECTORY"
    head = PAGE.format(
        command=shlex.join(words),
        date=datetime.date.today().isoformat(),
        processor=processor_name(),
        torch=metadata.version("torch"),
        geometric=metadata.version("torch-geometric"),
        rounds=options.rounds,
        molecules=amounts(molecules()),
        alloys=amounts(structures(32)),
    )
    return head + "\n".join("| " + " | ".join(row) + " |" for row in [HEAD, ["---"] * len(HEAD), *rows]) + "\n"


def main() -> None:
    """Print the lines and write the document as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*PUBLIC, []], default=[])
    parser.add_argument("--environment", type=Path, required=True, help="what peers.sh made")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a Markdown file, replaced where there is one")
    options = parser.parse_args()
    assert {*PUBLIC} - {"gps"} == {*architectures()}, "an architecture without a public implementation beside it"
    rows = []
    for kind in options.kinds or PUBLIC:
        for row in rows_of(kind, options):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
        if options.out is not None:  # after every architecture, so that an interrupted run leaves what it measured
            options.out.write_text(page_of(rows, options))


if __name__ == "__main__":
    main()
