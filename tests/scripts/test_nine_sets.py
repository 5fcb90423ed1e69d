"""Nine data sets as people have them, each built by one file and trained."""

import gzip
import json
from collections.abc import Callable, Iterator
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
from scipy.ndimage import gaussian_filter
from scipy.spatial import KDTree
from skfem import MeshTri

import hydragnn
from hydragnn.graphs.pyg import torch_geometric

Array = np.ndarray[Any, Any]
Table = dict[str, Any]


def crystals(count: int) -> Iterator[tuple[Atoms, float, Array]]:
    """Shaken alloys of copper, nickel and gold, with labels."""
    for number in range(count):
        random = np.random.default_rng(number)
        atoms = bulk("Cu", cubic=True)
        atoms.symbols[:] = random.choice(["Cu", "Ni", "Au"], len(atoms))
        atoms.rattle(0.05, rng=random)
        yield atoms, random.normal(), random.normal(size=(len(atoms), 3))


def alloys_with_gaps(folder: Path, count: int) -> Table:
    """Every third energy and half of the forces are missing."""
    frames = []
    for number, (atoms, energy, forces) in enumerate(crystals(count)):
        atoms.info["dft_energy"] = np.nan if number % 3 == 0 else energy
        forces[np.random.default_rng(number).random(len(atoms)) < 0.5] = np.nan
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
    """One graph of papers with few words, most of whose labels are hidden."""
    random, count = np.random.default_rng(0), 5 * count
    pairs = np.unique(random.integers(0, count, (2, 4 * count)), axis=1)
    part = random.integers(0, 3, count)
    masks = {
        name: torch.from_numpy(part == number) for number, name in enumerate(["train_mask", "val_mask", "test_mask"])
    }
    data = torch_geometric("data").Data(
        x=torch.from_numpy((random.random((count, 24)) < 0.1).astype(np.float32)),
        edge_index=torch.from_numpy(pairs[:, pairs[0] != pairs[1]]),
        y=torch.from_numpy(random.integers(0, 4, count)),
        **masks,
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
    """Joints and bars in CSV files."""
    joints, bars, graphs = ["graph,joint,x,y,fx,fy,held"], ["graph,from,to,area"], ["graph,compliance"]
    for number in range(count):
        random = np.random.default_rng(number)
        places, load = random.normal(size=(2, int(random.integers(8, 16)), 2))
        rows = zip(places, load)
        joints += [f"{number},J{k},{x},{y},{fx},{fy},{int(k < 2)}" for k, ((x, y), (fx, fy)) in enumerate(rows)]
        bars += [f"{number},J{k},J{k + 1},{random.uniform(0.5, 2.0)}" for k in range(len(places) - 1)]
        graphs.append(f"{number},{(load**2).sum()}")
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
    """Temperatures on meshes in time, one XDMF file a run."""
    (folder / "runs").mkdir()
    for number in range(12):
        random = np.random.default_rng(number)
        mesh = MeshTri.init_tensor(*np.sort(random.uniform(0.05, 0.95, (2, 7)), axis=1)).refined(1)
        x, y = mesh.p
        with meshio.xdmf.TimeSeriesWriter(folder / "runs" / f"{number:03}.xdmf", data_format="XML") as writer:
            writer.write_points_cells(np.pad(mesh.p.T, ((0, 0), (0, 1))), [("triangle", mesh.t.T)])
            for frame in range(10):
                values = 0.9**frame * np.sin(random.uniform(2, 8) * x) * np.cos(y)
                writer.write_data(0.004 * frame, point_data={"u": values})
    later = {"name": "u_next", "on": "node", "role": "target", "key": "u", "step": 1}
    return {"kind": "mesh", "files": ["runs/*.xdmf"], "fields": [{"name": "u", "on": "node"}, later]}


def scans(folder: Path, count: int) -> Table:
    """Periodic images of grains, with tables of grains and of images."""
    (folder / "scans").mkdir()
    grid = np.stack(np.meshgrid(*[np.arange(16)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    grains, labels = ["file,grain,conductivity"], ["file,conductance"]
    for number in range(count):
        random = np.random.default_rng(number)
        seeds = random.uniform(0, 16, (random.integers(8, 20), 3))
        np.save(folder / "scans" / f"{number:03}.npy", KDTree(seeds, boxsize=16).query(grid)[1].reshape(16, 16, 16) + 1)
        conductivity = random.lognormal(size=len(seeds))
        grains += [f"{number:03}.npy,{grain + 1},{value}" for grain, value in enumerate(conductivity)]
        labels.append(f"{number:03}.npy,{conductivity.mean()}")
    (folder / "grains.csv").write_text("\n".join(grains) + "\n")
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    fields = [{"name": "conductivity", "on": "node"}, {"name": "conductance", "on": "graph", "role": "target"}]
    tables = {"grains": "grains.csv", "labels": "labels.csv"}
    return {"kind": "voxels", "files": ["scans"], "periodic": True, **tables, "fields": fields}


def matbench(folder: Path, count: int) -> Table:
    """A table as matbench publishes them: structures of pymatgen and a label, sometimes null."""
    rows = []
    for number, (atoms, energy, _) in enumerate(crystals(count)):
        sites = [
            {
                "species": [{"element": one.symbol, "occu": 1}],
                "abc": list(one.scaled_position),
                "xyz": list(one.position),
            }
            for one in atoms
        ]
        structure = {
            "@module": "pymatgen.core.structure",
            "@class": "Structure",
            "lattice": {"matrix": atoms.cell.tolist(), "pbc": [True, True, True]},
            "sites": sites,
        }
        rows.append([structure, None if number % 9 == 0 else energy / len(atoms)])
    table = {"index": list(range(count)), "columns": ["structure", "e_form"], "data": rows}
    with gzip.open(folder / "matbench.json.gz", "wt") as file:
        json.dump(table, file)
    target = {"name": "formation", "on": "graph", "unit": "eV", "role": "target", "key": "e_form", "optional": True}
    return {"kind": "ase", "files": ["matbench.json.gz"], "cutoff": 5.0, "fields": [target]}


def flows(folder: Path, count: int) -> Table:
    """Permeability and pressure on a regular grid."""
    size = 14
    permeability = np.random.default_rng(0).choice([3.0, 12.0], (count, size, size))
    np.savez(folder / "flow.npz", permeability=permeability, pressure=gaussian_filter(permeability, (0, 2, 2)))
    fields = [{"name": "permeability", "on": "node"}, {"name": "pressure", "on": "node", "role": "target"}]
    return {"kind": "npz", "files": ["flow.npz"], "grid": 8, "spacing": 1 / size, "fields": fields}


def power_grids(folder: Path, count: int) -> Table:
    """Networks in GraphML."""
    (folder / "grids").mkdir()
    for number in range(count):
        random = np.random.default_rng(number)
        network = networkx.connected_watts_strogatz_graph(int(random.integers(8, 16)), 4, 0.3, seed=number)
        for ends in network.edges:
            network.edges[ends]["conductance"] = float(random.uniform(0.2, 2.0))
        for node in network:
            current = float(random.normal())
            network.nodes[node].update(current=current, potential=current * network.degree[node])
        networkx.write_graphml(network, folder / "grids" / f"{number:03}.graphml")
    fields = [
        {"name": "current", "on": "node", "unit": "A"},
        {"name": "conductance", "on": "edge", "unit": "S"},
        {"name": "potential", "on": "node", "unit": "V", "role": "target"},
    ]
    return {"kind": "networkx", "files": ["grids/*.graphml"], "fields": fields}


SETS: dict[str, tuple[Callable[[Path, int], Table], Table, str, Table]] = {
    "alloys, partly labelled": (
        alloys_with_gaps,
        {"kind": "energy", "field": "energy", "references": True, "forces": "forces"},
        "painn",
        {},
    ),
    "CIF files and a table": (crystals_with_a_table, {"kind": "scalar", "field": "formation"}, "schnet", {}),
    "citations, one graph": (
        citations,
        {"kind": "classes", "field": "y"},
        "sage",
        {"split": {"kind": "given", "field": "part"}},
    ),
    "trusses from CSV files": (trusses, {"kind": "scalar", "field": "compliance", "pool": "sum"}, "pna", {}),
    "heat in time": (heat, {"kind": "scalar", "field": "u_next"}, "pna", {"split": {"group": "run"}}),
    "images of grains": (scans, {"kind": "scalar", "field": "conductance"}, "pna", {}),
    "matbench": (matbench, {"kind": "scalar", "field": "formation"}, "schnet", {}),
    "regular grids": (flows, {"kind": "scalar", "field": "pressure"}, "pna", {}),
    "networks": (power_grids, {"kind": "scalar", "field": "potential"}, "pna", {}),
}
"""Functions that write files and give the ``BUILD.toml``, head, architecture, and other sections of a run."""


@pytest.mark.parametrize("name", SETS)
def test_a_data_set_as_people_have_them_trains_beside_a_simple_predictor(name: str, tmp_path: Path) -> None:
    files, head, kind, more = SETS[name]
    (tmp_path / "BUILD.toml").write_text(tomli_w.dumps(files(tmp_path, 40)))
    hydragnn.build_store(tmp_path / "BUILD.toml", tmp_path / "set.h5")
    model = {"kind": kind, "hidden_dim": 16, "num_layers": 2}
    run = {"data": {"store": str(tmp_path / "set.h5")}, "model": model, "heads": [head], "train": {"epochs": 2}}
    record = hydragnn.train(run | more, out=tmp_path / "run")
    assert record.status == "finished"
    assert head["field"] in {key.split("/")[1] for key in record.trivial}
