"""Graphs from structures: ``from_ase`` beside the transform of the public HydraGNN 3.0 and beside vesin alone, in turns in one process.

    python -m tests.benchmarks.bench_graphs [--cells 150] [--rounds 7]

Periodic fcc alloys of 8 to 64 atoms within 5 A. ``RadiusGraphPBC`` are the steps of that class (ase.neighborlist, two tensors,
``coalesce``, lengths) without its last assertion, which refuses cells that are smaller than twice the cutoff. CPU microseconds per graph,
medians over the rounds; ours include every check of the graph, theirs have none.

Then extended XYZ with energies and forces to a store (``data build``), beside ASE's reader, vesin and a list of graphs of PyTorch
Geometric that ``torch.save`` writes, for molecules within 5 A and crystals of 64 atoms within 3.2 and 5 A.
"""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ase
import ase.io
import ase.neighborlist
import numpy as np
import torch
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from torch_geometric.data import Data
from vesin import NeighborList

from hydragnn.datasets import open_store
from hydragnn.datasets.build import build_store
from hydragnn.datasets.sources.ase import AseBuild
from hydragnn.graphs.atomic import from_ase
from tests.benchmarks.harness import Figures, in_turns, parser
from tests.benchmarks.structures import structures

CUTOFF = 5.0


def radius_graph_pbc(atoms: ase.Atoms) -> Data:
    """What ``RadiusGraphPBC`` of HydraGNN 3.0 does."""
    data = Data(pos=torch.tensor(atoms.positions), x=torch.tensor(atoms.numbers), supercell_size=atoms.cell.array)
    found = ase.Atoms(positions=data.pos, cell=data.supercell_size, pbc=True)
    first, second, lengths = ase.neighborlist.neighbor_list("ijd", a=found, cutoff=CUTOFF, self_interaction=False)
    data.edge_index = torch.stack([torch.LongTensor(first), torch.LongTensor(second)], dim=0)
    data.coalesce()
    data.edge_attr = torch.tensor(lengths, dtype=torch.float).unsqueeze(1)
    return data


def neighbours_alone(atoms: ase.Atoms) -> object:
    """Pairs and shifts by vesin, and nothing else."""
    return NeighborList(cutoff=CUTOFF, full_list=True).compute(atoms.positions, atoms.cell.array, True, "ijS")


def random_molecule(rng: np.random.Generator, least: int, most: int) -> ase.Atoms:
    """Atoms 1.2 A from another one, no two nearer than .9."""
    places = [np.zeros(3)]
    count = rng.integers(least, most + 1)
    while len(places) < count:
        step = rng.normal(size=3)
        place = places[rng.integers(len(places))] + 1.2 * step / np.linalg.norm(step)
        if min(np.linalg.norm(place - other) for other in places) > 0.9:
            places.append(place)
    return ase.Atoms(rng.choice([1, 6, 7, 8], count), positions=places)


def random_crystal(rng: np.random.Generator) -> ase.Atoms:
    """Rattled alloy of 64 atoms."""
    atoms = bulk("Cu", "fcc", a=3.8, cubic=True) * (2, 2, 4)
    atoms.numbers = rng.choice([29, 79], len(atoms))
    atoms.positions += 0.05 * rng.normal(size=(len(atoms), 3))
    return atoms


def write_frames(path: Path, frames: list[ase.Atoms], rng: np.random.Generator) -> None:
    """Structures with an energy and forces as extended XYZ."""
    for atoms in frames:
        atoms.calc = SinglePointCalculator(atoms, energy=rng.normal(), forces=rng.normal(size=(len(atoms), 3)))
    ase.io.write(path, frames, format="extxyz")


def listed(path: Path, cutoff: float, out: Path) -> None:
    """Graphs of PyTorch Geometric by ASE's reader and vesin."""
    graphs = []
    for atoms in ase.io.iread(path, index=":"):
        search = NeighborList(cutoff=cutoff, full_list=True)
        first, second, shifts = search.compute(atoms.positions, atoms.cell.array, atoms.pbc, "ijS")
        graphs.append(
            Data(
                pos=torch.from_numpy(atoms.positions),
                z=torch.from_numpy(atoms.numbers),
                edge_index=torch.from_numpy(np.stack([second, first]).astype(np.int64)),
                shifts=torch.from_numpy(shifts @ atoms.cell.array),
                cell=torch.from_numpy(atoms.cell.array),
                energy=torch.tensor(atoms.get_potential_energy()),
                forces=torch.from_numpy(atoms.get_forces()),
            )
        )
    torch.save(graphs, out)


def built(path: Path, cutoff: float, out: Path) -> None:
    """A store of the same, made anew."""
    shutil.rmtree(out, ignore_errors=True)
    fields: list[dict[str, object]] = [{"name": "energy", "on": "graph", "role": "target"}]
    fields += [{"name": "forces", "on": "node", "shape": [3], "parity": "vector", "role": "target"}]
    build_store(AseBuild.parse({"files": [str(path)], "cutoff": cutoff, "fields": fields}, "benchmark"), out)


def measure_files(rounds: int) -> None:
    """Print a row per kind of structure: microseconds per graph on both sides, and their ratio."""
    rng = np.random.default_rng(0)
    kinds: list[tuple[str, float, int, Callable[[], ase.Atoms]]] = [
        ("4 to 8 atoms", 5.0, 4000, lambda: random_molecule(rng, 4, 8)),
        ("12 to 24 atoms", 5.0, 4000, lambda: random_molecule(rng, 12, 24)),
        ("64 atoms, 3.2 A", 3.2, 500, lambda: random_crystal(rng)),
        ("64 atoms, 5 A", 5.0, 500, lambda: random_crystal(rng)),
    ]
    figures = Figures(
        {"structures": "16", "edges": ".0f", "data build, us": ".0f", "list, us": ".0f", "list over build": ".2f"}
    )
    for name, cutoff, count, make in kinds:
        with tempfile.TemporaryDirectory() as folder:
            path, store, file = (Path(folder) / name for name in ("a.xyz", "store.h5", "list.pt"))
            write_frames(path, [make() for _ in range(count)], rng)
            turns = in_turns(
                {"build": partial(built, path, cutoff, store), "list": partial(listed, path, cutoff, file)}, rounds
            )
            each = [1e3 * turns.milliseconds(way) / count for way in ("build", "list")]
            figures.add(name, open_store(store).sizes().edges.mean(), *each, turns.ratio("list", "build"))


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__, rounds=7)
    arguments.add_argument("--cells", type=int, default=150)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    cells = [atoms for atoms in structures(2 * options.cells, 0) if atoms.pbc.all()][: options.cells]
    works = {
        "from_ase": lambda: [from_ase(atoms, CUTOFF) for atoms in cells],
        "RadiusGraphPBC": lambda: [radius_graph_pbc(atoms) for atoms in cells],
        "vesin alone": lambda: [neighbours_alone(atoms) for atoms in cells],
    }
    turns = in_turns(works, options.rounds)
    figures = Figures({"way": "20", "us per graph": ".0f", "over from_ase": ".2f"}, options.json)
    for name in works:
        figures.add(name, 1e3 * turns.milliseconds(name) / len(cells), turns.ratio(name, "from_ase"))
    print()
    measure_files(max(2, options.rounds // 2))


if __name__ == "__main__":
    main()
