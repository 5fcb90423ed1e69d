"""Training steps and inference beside named peers: this project at an older commit, schnetpack, and the published HydraGNN.

    bash tests/benchmarks/peers.sh DIRECTORY
    git worktree add --detach PAST 57a3d48
    python -m tests.benchmarks.bench_peers --environment DIRECTORY --past PAST [--levers] [--atoms N] [painn schnet egnn pna]

Every peer is a process of its own that takes a step when asked; steps are asked for in turn, so that whatever else the machine
does hits all alike. One batch of 32 rattled fcc alloys of 8 to 64 atoms within 5 A, hidden 64, 3 layers, 20 radial functions, one
thread, fp32. Figures are CPU ms, medians over the rounds; ratios are theirs over ours, the median over rounds. Where a peer has the same
form it has the same weights, and ``same`` is the largest difference of its energies and forces as a share of the largest.
``--atoms``: instead one crystal of so many rattled copper atoms, beside this project at the older commit only. With
HYDRAGNN_PEERS_LOUD in the environment the peers' own errors are printed.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.benchmarks.harness import KEPT, Server
from tests.benchmarks.peer_worker import CUTOFF
from tests.benchmarks.structures import structures

HERE = Path(__file__).parent


class Peer(Server):
    """A process that takes steps."""

    def __init__(self, name: str, command: Sequence[object], environment: Mapping[str, str]) -> None:
        super().__init__(command, environment)
        self.name = name
        try:
            self.parameters = self.answer()["parameters"]
        except RuntimeError:
            self.end()
            raise
        self.milliseconds: dict[str, list[float]] = {"train": [], "infer": []}
        self.peak = 0.0

    def move(self, folder: Path) -> None:
        """Go on with the batch in another folder, with nothing counted."""
        self.parameters = self.ask(f"batch {folder}")["parameters"]
        self.milliseconds = {"train": [], "infer": []}

    def step(self, what: str) -> None:
        """One step, counted."""
        answer = self.ask(what)
        self.milliseconds[what].append(1e3 * answer["seconds"])
        self.peak = answer["peak"]

    def values(self) -> np.ndarray:
        """Energies and forces in one row."""
        return np.concatenate([np.array(part) for part in self.ask("values")["values"]])


def crystal(atoms: int) -> list[Any]:
    """One rattled cube of copper with about so many atoms."""
    from ase.build import bulk

    cell = bulk("Cu", "fcc", a=3.6, cubic=True).repeat(round((atoms / 4) ** (1 / 3)))
    cell.rattle(0.05, seed=0)
    return [cell]


def molecules() -> list[Any]:
    """Eight rattled molecules of 12 to 16 atoms."""
    from ase.build import molecule

    named = ["C6H6", "isobutane", "trans-butane", "C5H8", "CH3CH2OCH3", "C3H9N", "bicyclobutane", "Si2H6"]
    cells = [molecule(name) for name in named]
    for number, cell in enumerate(cells):
        cell.rattle(0.05, seed=number)
    return cells


def write_graphs(folder: Path, cells: Sequence[Any]) -> tuple[int, int]:
    """Structures and edges as arrays, for peers that have neighbour lists of their own and for those that have not."""
    import torch

    from hydragnn.graphs.atomic import from_ase
    from hydragnn.graphs.joining import concatenate

    batch = concatenate([from_ase(atoms, cutoff=CUTOFF) for atoms in cells])
    np.savez(
        folder / "graphs.npz",
        numbers=batch.nodes["atomic_numbers"].numpy(),
        exact_positions=np.concatenate([atoms.positions for atoms in cells]),
        positions=batch.positions.to(torch.float32).numpy(),
        senders=batch.senders.numpy(),
        receivers=batch.receivers.numpy(),
        shifts=batch.edge_shifts.to(torch.float32).numpy(),
        graph=batch.owner("node").numpy(),
        offsets=np.cumsum([0, *[len(atoms) for atoms in cells]]),
        cells=np.stack([atoms.cell.array for atoms in cells]),
        periodic=np.stack([atoms.pbc for atoms in cells]),
    )
    return batch.num_nodes, batch.num_edges


def peers_of(kind: str, folder: Path, options: argparse.Namespace) -> list[Peer]:
    """Ours first, then those that have this architecture."""
    theirs = options.environment / "bin" / "python"
    energies = ["energies"] if kind == "pna" else []
    ours = [sys.executable, HERE / "peer_ours.py", kind, folder, *energies]
    past = {"PYTHONPATH": str(options.past)}
    here = {"PYTHONPATH": str(HERE.parent.parent)}
    peers = []

    def add(name: str, command: Sequence[Any], environment: Mapping[str, str] | None = None) -> None:
        peers.append(Peer(name, command, environment or {}))

    add("57a3d48", [theirs, *ours[1:], "past", "write"], past)
    add("57a3d48, memory kept", [theirs, *ours[1:], "past"], {**past, "GLIBC_TUNABLES": KEPT})
    add("ours", [*ours, "keep"], here)
    if options.levers:
        add("ours, no compiled kernels", [*ours, "keep", "plain"], here)
        add("ours, fresh memory", ours, here)
        add("ours, no tables in inference", [*ours, "keep", "computed"], here)
    if kind in {"painn", "schnet"} and not options.atoms:
        command = [theirs, HERE / "peer_schnetpack.py", kind, folder]
        add("schnetpack", command)
        add("schnetpack, memory kept", command, {"GLIBC_TUNABLES": KEPT})
    if kind != "painn" and not options.atoms:
        command = [theirs, HERE / "peer_hydragnn.py", kind, folder, *energies]
        add("HydraGNN 3.0", command)
        add("HydraGNN 3.0, memory kept", command, {"GLIBC_TUNABLES": KEPT})
        add("HydraGNN 3.0, 64-wide inputs, memory kept", [*command, "wide"], {"GLIBC_TUNABLES": KEPT})
    return peers


def difference(ours: np.ndarray, theirs: np.ndarray) -> str:
    """The largest, as a share of the largest value."""
    if ours.shape != theirs.shape:
        return "other form"
    share = float(np.abs(ours - theirs).max() / np.abs(ours).max())
    return f"{share:.0e}" if share < 1e-3 else "other form"


def compare(kind: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the rows of one architecture."""
    peers = peers_of(kind, folder, options)
    reference = next(peer for peer in peers if peer.name == "ours")
    values = {peer.name: peer.values() for peer in peers}
    for number in range(options.rounds + 2):
        for peer in peers:
            for what in ("train", "infer"):
                peer.step(what)
                if number < 2:
                    peer.milliseconds[what].clear()  # the first two warm up
    for peer in peers:
        row = [f"{kind:7}", f"{peer.name:42}", f"{peer.parameters:8}"]
        for what in ("train", "infer"):
            ratio = median(a / b for a, b in zip(peer.milliseconds[what], reference.milliseconds[what]))
            row += [f"{median(peer.milliseconds[what]):8.1f}", f"{ratio:6.2f}"]
        print(*row, f"{peer.peak:7.0f}", difference(values["ours"], values[peer.name]), flush=True)
        peer.end()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["painn", "schnet", "egnn", "pna"])
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--past", type=Path, required=True)
    parser.add_argument("--levers", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--atoms", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        cells = crystal(options.atoms) if options.atoms else structures(32)
        nodes, edges = write_graphs(Path(name), cells)
        print(f"{nodes} atoms, {edges} edges; CPU ms of a training step and of inference, ratios to ours, peak MB")
        for kind in options.kinds:
            compare(kind, Path(name), options)


if __name__ == "__main__":
    main()
