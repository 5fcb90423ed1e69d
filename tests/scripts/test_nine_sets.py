"""Nine data sets as people have them, each built by one file and trained."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ase.io
import meshio
import networkx
import numpy as np
import pytest
import tomli_w
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from scipy.ndimage import gaussian_filter
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve as sparse_solve
from scipy.spatial import KDTree
from skfem import Basis, ElementTriP1, MeshTri
from skfem.models.poisson import laplace
from skfem.models.poisson import mass as skfem_mass

import hydragnn
from hydragnn.graphs.pyg import torch_geometric

Array = np.ndarray[Any, Any]
Table = dict[str, Any]


@dataclass(frozen=True)
class DataSet:
    """Files of ``count`` graphs, how to build a store of them, and what to train."""

    files: Callable[[Path, int], Table]
    """Writes the files; gives the ``BUILD.toml``."""
    heads: list[Table]
    model: Table
    count: int
    split: Table = field(default_factory=dict)

    def run(self, store: Path) -> Table:
        """The configuration of a run."""
        table: Table = {"data": {"store": str(store)}, "model": self.model, "heads": self.heads, "train": {"epochs": 2}}
        return table | ({"split": self.split} if self.split else {})


def random_of(number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def crystals(count: int) -> Iterator[tuple[Atoms, float, Array]]:
    """Shaken and strained alloys of copper, nickel and gold, with energies and forces of EMT."""
    for number in range(count):
        random = random_of(number)
        atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
        atoms.symbols[:] = random.choice(["Cu", "Ni", "Au"], len(atoms))
        strain = random.normal(scale=0.03, size=(3, 3))
        atoms.set_cell(atoms.cell @ (np.eye(3) * random.uniform(0.97, 1.1) + (strain + strain.T) / 2), scale_atoms=True)
        atoms.rattle(0.05, rng=random)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = None
        yield atoms, energy, forces


def alloys_with_gaps(folder: Path, count: int) -> Table:
    """Every third energy and half of the forces are missing."""
    frames = []
    for number, (atoms, energy, forces) in enumerate(crystals(count)):
        atoms.info["dft_energy"] = np.nan if number % 3 == 0 else energy
        forces[random_of(number).random(len(atoms)) < 0.5] = np.nan
        atoms.arrays["dft_forces"] = forces
        frames.append(atoms)
    ase.io.write(folder / "alloys.xyz", frames, format="extxyz")
    energy = {"name": "energy", "on": "graph", "unit": "eV", "role": "target", "key": "dft_energy", "optional": True}
    forces = {"name": "forces", "on": "node", "shape": [3], "parity": "vector", "unit": "eV/Angstrom", "role": "target"}
    return {
        "kind": "ase",
        "files": ["alloys.xyz"],
        "cutoff": 5.0,
        "fields": [energy, forces | {"key": "dft_forces", "optional": True}],
    }


def crystals_with_a_table(folder: Path, count: int) -> Table:
    """A folder of CIF files beside a table of energies per atom, some of them unknown."""
    (folder / "cifs").mkdir()
    rows = ["file,formation"]
    for number, (atoms, energy, _) in enumerate(crystals(count)):
        ase.io.write(folder / "cifs" / f"{number:04}.cif", atoms)
        rows.append(f"{number:04}.cif,{'' if number % 7 == 0 else energy / len(atoms)}")
    (folder / "formation.csv").write_text("\n".join(rows) + "\n")
    target = {"name": "formation", "on": "graph", "unit": "eV", "role": "target", "optional": True}
    return {"kind": "ase", "files": ["cifs"], "cutoff": 5.0, "labels": "formation.csv", "fields": [target]}


def citations(folder: Path, count: int) -> Table:
    """One graph of papers that cite their own field mostly; few words tell it, and most labels are hidden."""
    random = random_of(0)
    kinds = random.integers(0, 4, count)
    pairs = random.integers(0, count, (2, 30 * count))
    same = kinds[pairs[0]] == kinds[pairs[1]]
    pairs = pairs[:, (pairs[0] != pairs[1]) & (random.random(pairs.shape[1]) < np.where(same, 0.3, 0.02))]
    pairs = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    words = (random.random((count, 24)) < np.where(np.arange(24) % 4 == kinds[:, None], 0.2, 0.1)).astype(np.float32)
    part = random.choice(3, count, p=[0.3, 0.2, 0.5])
    masks = {
        name: torch.from_numpy(part == number) for number, name in enumerate(["train_mask", "val_mask", "test_mask"])
    }
    data = torch_geometric("data").Data(
        x=torch.from_numpy(words), edge_index=torch.from_numpy(pairs), y=torch.from_numpy(kinds), **masks
    )
    torch.save([data], folder / "citations.pt")
    target = {"name": "y", "on": "node", "role": "target", "classes": 4, "dtype": "int64"}
    return {
        "kind": "pyg",
        "files": ["citations.pt"],
        "node_split": list(masks),
        "fields": [{"name": "x", "on": "node", "shape": [24]}, target],
    }


def trusses(folder: Path, count: int) -> Table:
    """Joints and bars in CSV files; compliances by the direct stiffness method."""
    joints, bars, graphs = ["graph,joint,x,y,fx,fy,held"], ["graph,from,to,area"], ["graph,compliance"]
    for number in range(count):
        random = random_of(number)
        bays, height = int(random.integers(3, 7)), random.uniform(0.6, 1.4)
        places = np.array([[i, level * height] for i in range(bays + 1) for level in (0, 1)], dtype=float)
        places[2:-2] += random.normal(scale=0.08, size=(len(places) - 4, 2))
        pairs = [
            (i, j) for i in range(len(places)) for j in range(i + 1, min(i + 4, len(places))) if (i, j - i) != (1, 3)
        ]
        areas = random.uniform(0.5, 2.0, len(pairs))
        load = np.zeros((len(places), 2))
        load[random.integers(2, len(places) - 2)] = random.normal(size=2)
        held = np.isin(np.arange(len(places)), [0, 1, len(places) - 2, len(places) - 1])
        stiffness = np.zeros((2 * len(places), 2 * len(places)))
        for (i, j), area in zip(pairs, areas):
            span = places[j] - places[i]
            length = np.linalg.norm(span)
            block = area / length**3 * np.outer(span, span)
            for one, other, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
                stiffness[2 * one : 2 * one + 2, 2 * other : 2 * other + 2] += sign * block
        free = np.repeat(~held, 2)
        moved = np.linalg.solve(stiffness[np.ix_(free, free)], load.flatten()[free])
        rows = zip(places, load, held)
        joints += [f"{number},J{k},{x},{y},{fx},{fy},{int(still)}" for k, ((x, y), (fx, fy), still) in enumerate(rows)]
        bars += [f"{number},J{i},J{j},{area}" for (i, j), area in zip(pairs, areas)]
        graphs.append(f"{number},{load.flatten()[free] @ moved}")
    for name, lines in (("joints", joints), ("bars", bars), ("trusses", graphs)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return {
        "kind": "tables",
        "files": ["joints.csv"],
        "edges": "bars.csv",
        "graphs": "trusses.csv",
        "node_id": "joint",
        "ends": ["from", "to"],
        "positions": ["x", "y"],
        "undirected": True,
        "fields": [
            {"name": "load", "on": "node", "shape": [2], "key": ["fx", "fy"]},
            {"name": "held", "on": "node"},
            {"name": "area", "on": "edge"},
            {"name": "compliance", "on": "graph", "role": "target"},
        ],
    }


def heat(folder: Path, count: int) -> Table:
    """Temperatures on meshes in time, one XDMF file a run; finite elements and backward Euler."""
    (folder / "runs").mkdir()
    for number in range(max(12, count // 10)):
        random = random_of(number)
        mesh = MeshTri.init_tensor(*np.sort(random.uniform(0.05, 0.95, (2, 7)), axis=1)).refined(1)
        basis = Basis(mesh, ElementTriP1())
        stiffness, mass = laplace.assemble(basis), skfem_mass.assemble(basis)
        x, y = mesh.p
        wave = random.uniform(2, 8, 3)
        u = np.sin(wave[0] * x) * np.cos(wave[1] * y) + np.sin(wave[2] * (x - y))
        with meshio.xdmf.TimeSeriesWriter(folder / "runs" / f"{number:03}.xdmf", data_format="XML") as writer:
            writer.write_points_cells(np.pad(mesh.p.T, ((0, 0), (0, 1))), [("triangle", mesh.t.T)])
            for frame in range(10):
                writer.write_data(0.004 * frame, point_data={"u": u})
                u = sparse_solve((mass + 0.004 * stiffness).tocsc(), mass @ u)
    later = {"name": "u_next", "on": "node", "role": "target", "key": "u", "step": 1}
    return {"kind": "mesh", "files": ["runs/*.xdmf"], "fields": [{"name": "u", "on": "node"}, later]}


def scans(folder: Path, count: int) -> Table:
    """Periodic images of grains; the target is the mean conductance of contacts."""
    (folder / "scans").mkdir()
    grid = np.stack(np.meshgrid(*[np.arange(16)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    grains, labels = ["file,grain,conductivity"], ["file,conductance"]
    for number in range(count):
        random = random_of(number)
        seeds = random.uniform(0, 16, (random.integers(8, 20), 3))
        image = KDTree(seeds, boxsize=16).query(grid)[1].reshape(16, 16, 16) + 1
        conductivity = random.lognormal(size=len(seeds))
        np.save(folder / "scans" / f"{number:03}.npy", image)
        ends = [(image, np.roll(image, 1, axis)) for axis in range(3)]
        one, other = (np.concatenate([pair[side].flatten() for pair in ends]) for side in (0, 1))
        contact = one != other
        first, second = conductivity[one[contact] - 1], conductivity[other[contact] - 1]
        grains += [f"{number:03}.npy,{grain + 1},{value}" for grain, value in enumerate(conductivity)]
        labels.append(f"{number:03}.npy,{np.mean(2 * first * second / (first + second))}")
    (folder / "grains.csv").write_text("\n".join(grains) + "\n")
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    return {
        "kind": "voxels",
        "files": ["scans"],
        "periodic": True,
        "grains": "grains.csv",
        "labels": "labels.csv",
        "fields": [
            {"name": "conductivity", "on": "node"},
            {"name": "conductance", "on": "graph", "role": "target"},
        ],
    }


def matbench(folder: Path, count: int) -> Table:
    """A table as matbench publishes them: structures of pymatgen and a label, sometimes null."""
    rows = []
    for number, (atoms, energy, _) in enumerate(crystals(count)):
        sites = [
            {
                "species": [{"element": one.symbol, "occu": 1}],
                "abc": list(one.scaled_position),
                "xyz": list(one.position),
                "label": one.symbol,
            }
            for one in atoms
        ]
        lattice = {"matrix": atoms.cell.tolist(), "pbc": [True, True, True]}
        structure = {
            "@module": "pymatgen.core.structure",
            "@class": "Structure",
            "charge": 0,
            "lattice": lattice,
            "sites": sites,
        }
        rows.append([structure, None if number % 9 == 0 else energy / len(atoms)])
    table = {"index": list(range(count)), "columns": ["structure", "e_form"], "data": rows}
    with gzip.open(folder / "matbench.json.gz", "wt") as file:
        json.dump(table, file)
    target = {"name": "formation", "on": "graph", "unit": "eV", "role": "target", "key": "e_form", "optional": True}
    return {"kind": "ase", "files": ["matbench.json.gz"], "cutoff": 5.0, "fields": [target]}


def flows(folder: Path, count: int) -> Table:
    """Pressure in a porous square, by finite differences on a regular grid."""
    size = 14
    permeability, pressure = np.empty((2, count, size, size))
    number = np.arange(size * size).reshape(size, size)
    for sample in range(count):
        rough = gaussian_filter(random_of(sample).normal(size=(size, size)), 2)
        permeability[sample] = np.where(rough > 0, 12.0, 3.0)
        matrix = lil_matrix((size * size, size * size))
        for step in (np.s_[1:, :], np.s_[:-1, :]), (np.s_[:, 1:], np.s_[:, :-1]):
            for one, other in zip(number[step[0]].flat, number[step[1]].flat):
                first, second = permeability[sample].flat[one], permeability[sample].flat[other]
                flow = 2 * first * second / (first + second) * size**2
                for row, column, sign in ((one, one, 1), (other, other, 1), (one, other, -1), (other, one, -1)):
                    matrix[row, column] += sign * flow
        for edge in (number[0], number[-1], number[:, 0], number[:, -1]):  # zero pressure half a cell outside
            matrix[edge, edge] = matrix.diagonal()[edge] + 2 * permeability[sample].flat[edge] * size**2
        pressure[sample] = sparse_solve(matrix.tocsc(), np.ones(size * size)).reshape(size, size)
    np.savez(folder / "flow.npz", permeability=permeability, pressure=pressure)
    fields = [{"name": "permeability", "on": "node"}, {"name": "pressure", "on": "node", "role": "target"}]
    return {"kind": "npz", "files": ["flow.npz"], "grid": 8, "spacing": 1 / size, "fields": fields}


def power_grids(folder: Path, count: int) -> Table:
    """Networks in GraphML, with the potentials that Kirchhoff's laws give."""
    (folder / "grids").mkdir()
    for number in range(count):
        random = random_of(number)
        size = int(random.integers(8, 16))
        network = networkx.connected_watts_strogatz_graph(size, 4, 0.3, seed=number)
        for ends in network.edges:
            network.edges[ends]["conductance"] = float(random.uniform(0.2, 2.0))
        current = random.normal(size=size)
        current -= current.mean()
        laplacian = networkx.laplacian_matrix(network, nodelist=range(size), weight="conductance").toarray()
        potential = np.linalg.solve(laplacian + 1 / size, current)
        for node in network:
            network.nodes[node].update(current=float(current[node]), potential=float(potential[node]))
        networkx.write_graphml(network, folder / "grids" / f"{number:03}.graphml")
    return {
        "kind": "networkx",
        "files": ["grids/*.graphml"],
        "fields": [
            {"name": "current", "on": "node", "unit": "A"},
            {"name": "conductance", "on": "edge", "unit": "S"},
            {"name": "potential", "on": "node", "unit": "V", "role": "target"},
        ],
    }


SMALL = {"hidden_dim": 16, "num_layers": 2}

ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces"}

SETS = {
    "alloys, partly labelled": DataSet(alloys_with_gaps, [ENERGY], {"kind": "painn", **SMALL}, 400),
    "CIF files and a table": DataSet(
        crystals_with_a_table, [{"kind": "scalar", "field": "formation"}], {"kind": "schnet", **SMALL}, 400
    ),
    "citations, one graph": DataSet(
        citations,
        [{"kind": "classes", "field": "y"}],
        {"kind": "sage", **SMALL},
        2000,
        split={"kind": "given", "field": "part"},
    ),
    "trusses from CSV files": DataSet(
        trusses, [{"kind": "scalar", "field": "compliance", "pool": "sum"}], {"kind": "pna", **SMALL}, 600
    ),
    "heat in time": DataSet(
        heat, [{"kind": "scalar", "field": "u_next"}], {"kind": "pna", **SMALL}, 400, split={"group": "run"}
    ),
    "images of grains": DataSet(scans, [{"kind": "scalar", "field": "conductance"}], {"kind": "pna", **SMALL}, 400),
    "matbench": DataSet(matbench, [{"kind": "scalar", "field": "formation"}], {"kind": "schnet", **SMALL}, 400),
    "regular grids": DataSet(
        flows, [{"kind": "scalar", "field": "pressure"}], {"kind": "pna", "hidden_dim": 16, "num_layers": 6}, 400
    ),
    "networks": DataSet(
        power_grids, [{"kind": "scalar", "field": "potential"}], {"kind": "pna", "hidden_dim": 16, "num_layers": 4}, 400
    ),
}


def build(name: str, folder: Path, count: int) -> Path:
    """Write the files of a set and build its store."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "BUILD.toml").write_text(tomli_w.dumps(SETS[name].files(folder, count)))
    hydragnn.build_store(folder / "BUILD.toml", folder / "set.h5")
    return folder / "set.h5"


@pytest.mark.parametrize("name", SETS)
def test_a_data_set_as_people_have_them_trains_beside_a_simple_predictor(name: str, tmp_path: Path) -> None:
    one = SETS[name]
    store = build(name, tmp_path, max(24, one.count // 10))
    record = hydragnn.train(one.run(store), out=tmp_path / "run")
    assert record.status == "finished"
    assert {head["field"] for head in one.heads} <= {key.split("/")[1] for key in record.trivial}
