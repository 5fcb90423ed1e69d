"""Inputs of the cases: structures labelled by EMT, meshes, contacts and result tables, made anew each time."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import meshio
import networkx as nx
import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ase.neighborlist import neighbor_list

from hydragnn.graphs.pyg import torch_geometric

TARGETS = """
[[fields]]
name = "energy"
on = "graph"
unit = "eV"
role = "target"
[[fields]]
name = "forces"
on = "node"
shape = [3]
parity = "vector"
unit = "eV/Angstrom"
role = "target"
"""
STRESS = """
[[fields]]
name = "stress"
on = "graph"
shape = [3, 3]
parity = "tensor"
unit = "eV/Angstrom^3"
role = "target"
optional = true
"""
RUN = """
[data]
store = "{store}"
[model]
kind = "schnet"
hidden_dim = 16
num_layers = 2
[[heads]]
kind = "energy"
field = "energy"
references = true
{more}
[train]
epochs = {epochs}
[batch]
max_graphs = 8
"""
RANGE = """
[search]
trials = 2
[search.space."train.learning_rate"]
type = "float"
low = 1e-3
high = 1e-2
"""


def labelled(atoms: Atoms) -> Atoms:
    """Return the structure with EMT's energy, forces and stress."""
    copy = atoms.copy()
    copy.calc = EMT()
    results = {
        "energy": copy.get_potential_energy(),
        "forces": copy.get_forces(),
        "stress": copy.get_stress(voigt=True),
    }
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def crystals(count: int) -> list[Atoms]:
    """Return strained and rattled copper and silver cells of four and eight atoms."""
    rng = np.random.default_rng(0)
    frames = []
    for number in range(count):
        atoms = bulk(("Cu", "Ag")[number % 2], "fcc", cubic=True).repeat((1 + number % 2, 1, 1))
        if number % 3 == 0:
            atoms.numbers[0] = (47, 29)[number % 2]
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.03, (3, 3))), scale_atoms=True)
        atoms.positions += rng.normal(0, 0.08, atoms.positions.shape)
        frames.append(labelled(atoms))
    return frames


def write_crystals(folder: Path, count: int = 40) -> None:
    """Write ``crystals.xyz``, its build file and a training configuration."""
    write(folder / "crystals.xyz", crystals(count), format="extxyz")
    (folder / "crystals.toml").write_text(
        f'kind = "ase"\nfiles = ["crystals.xyz"]\ncutoff = 5.0\n{TARGETS}{STRESS}', encoding="utf-8"
    )
    more = 'forces = "forces"\nstress = "stress"'
    (folder / "run.toml").write_text(RUN.format(store="crystals.h5", more=more, epochs=2), encoding="utf-8")
    (folder / "search.toml").write_text(RUN.format(store="crystals.h5", more="", epochs=2) + RANGE, encoding="utf-8")


def hydragnn_list() -> tuple[list[Any], np.ndarray]:
    """Return graphs in the public HydraGNN's names, and the sorted lengths of all their edges in Angstrom.

    There an edge vector is r_receiver - r_sender + shift.
    """
    graphs, lengths = [], []
    for seed in range(4):
        atoms = bulk("Cu", "fcc", cubic=True)
        atoms.rattle(0.08, seed=seed)
        labelled(atoms)
        receivers, senders, cells, distances = neighbor_list("ijSd", atoms, 3.6)
        # ASE's vectors are r_j - r_i + S @ cell, so that j sends to i with the opposite shift
        graphs.append(
            torch_geometric("data").Data(
                pos=torch.tensor(atoms.positions),
                edge_index=torch.tensor(np.stack([senders, receivers])),
                cell=torch.tensor(atoms.cell.array),
                pbc=torch.ones(3, dtype=torch.int32),
                edge_shifts=torch.tensor(-cells @ atoms.cell.array),
                x=torch.tensor(atoms.numbers)[:, None].float(),
                energy=torch.tensor([atoms.get_potential_energy()]),
                forces=torch.tensor(atoms.get_forces()),
            )
        )
        lengths.append(distances)
    return graphs, np.sort(np.concatenate(lengths))


def charged_waters(count: int = 60) -> list[Atoms]:
    """Return water molecules whose energy depends on their total charge, by 2 eV per electron."""
    rng = np.random.default_rng(0)
    frames = []
    for number in range(count):
        charge, length = number % 3 - 1, 0.9 + 0.4 * rng.random()
        atoms = Atoms("H2O", positions=[[length, 0, 0], [-0.3 * length, 0.9 * length, 0], [0, 0, 0]])
        stretches = np.array([atoms.get_distance(0, 2), atoms.get_distance(1, 2)]) - 1
        atoms.info["charge"] = charge
        atoms.calc = SinglePointCalculator(atoms, energy=-10 + 5 * float((stretches**2).sum()) + 2.0 * charge)
        frames.append(atoms)
    return frames


def all_electron(frames: Sequence[Atoms]) -> list[Atoms]:
    """Return the structures with total energies as large as those of all electrons."""
    for atoms in frames:
        results = dict(atoms.calc.results)
        results["energy"] += -45000.123 * (atoms.numbers == 29).sum() - 144000.456 * (atoms.numbers == 47).sum()
        atoms.calc = SinglePointCalculator(atoms, **results)
    return list(frames)


def slabs_without_volume(count: int = 20) -> list[Atoms]:
    """Return slabs whose cell has two vectors, with a stress that has no meaning."""
    frames = []
    for number in range(count):
        atoms = fcc111("Cu", (1, 1, 3), vacuum=6.0)
        atoms.rattle(0.08, seed=number)
        results = dict(labelled(atoms).calc.results)
        cell = atoms.cell.array.copy()
        cell[2] = 0
        atoms.set_cell(cell)
        atoms.pbc = (True, True, False)
        atoms.calc = SinglePointCalculator(atoms, **results)
        frames.append(atoms)
    return frames


def write_torn_mesh(path: Path) -> None:
    """Write a plate of 32 triangles of which each has three points of its own: 96 points in 25 places."""
    side = np.arange(5.0)
    points = np.stack([*(axis.ravel() for axis in np.meshgrid(side, side)), np.zeros(25)], 1)
    squares = [5 * row + column for row in range(4) for column in range(4)]
    cells = np.array([c for a in squares for c in ([a, a + 1, a + 5], [a + 1, a + 6, a + 5])])
    torn = points[cells.ravel()]
    own = np.arange(cells.size).reshape(-1, 3)
    meshio.write(path, meshio.Mesh(torn, [("triangle", own)], point_data={"load": torn[:, 0], "u": torn[:, 1]}))


def write_grains(folder: Path) -> None:
    """Write two polycrystals of three and two grains, every contact from both sides: six directed edges."""
    tables = {
        "grains.csv": "graph,x,y,size\n0,0,0,1.5\n0,1,0,2\n0,0,1,3\n1,0,0,1\n1,1,0,2\n",
        "contacts.csv": "graph,sender,receiver,area\n0,0,1,1\n0,1,0,1\n0,1,2,.5\n0,2,1,.5\n1,0,1,2\n1,1,0,2\n",
        "graphs.csv": "graph,strain\n0,0.1\n1,0.2\n",
        "grains.toml": 'kind = "grains"\nfiles = ["grains.csv"]\nedges = "contacts.csv"\ngraphs = "graphs.csv"\npositions = ["x", "y"]\n'
        '[[fields]]\nname = "size"\non = "node"\n[[fields]]\nname = "area"\non = "edge"\n'
        '[[fields]]\nname = "strain"\non = "graph"\nrole = "target"\n',
    }
    for name, text in tables.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_results(path: Path) -> None:
    """Write three results as DeepHyper and pandas do: a column of whole numbers with a gap becomes 8.0."""
    rows = [
        ["p:kind", "p:hidden_dim", "p:max_degree", "p:learning_rate", "objective"],
        ["mfc", 32, 8.0, 1e-3, -0.3],
        ["schnet", 64, "", 2e-3, -0.1],
        ["mfc", 16, 4.0, 3e-3, -0.2],
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def networks(count: int) -> list[nx.Graph]:
    """Return random networks without positions: degrees of nodes, and their mean clustering."""
    graphs = []
    for seed in range(count):
        graph = nx.watts_strogatz_graph(8 + seed % 8, 4, 0.3, seed=seed)
        nx.set_node_attributes(graph, {node: float(degree) for node, degree in graph.degree}, "degree")
        graph.graph["clustering"] = nx.average_clustering(graph)
        graphs.append(graph)
    return graphs


NETWORKS = {
    "kind": "networkx",
    "fields": [{"name": "degree", "on": "node"}, {"name": "clustering", "on": "graph", "role": "target"}],
}
"""Build file of the networks."""
