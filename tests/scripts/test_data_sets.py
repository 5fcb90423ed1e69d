"""Data sets as people have them, each built by one file and trained."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ase.io
import networkx
import numpy as np
import pytest
import tomli_w
from ase import Atoms
from ase.build import bulk

import hydragnn

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


SETS: dict[str, tuple[Callable[[Path, int], Table], Table, str]] = {
    "CIF files and a table": (crystals_with_a_table, {"kind": "scalar", "field": "formation"}, "schnet"),
    "trusses from CSV files": (trusses, {"kind": "scalar", "field": "compliance", "pool": "sum"}, "pna"),
    "matbench": (matbench, {"kind": "scalar", "field": "formation"}, "schnet"),
    "networks": (power_grids, {"kind": "scalar", "field": "potential"}, "pna"),
}
"""Functions that write files and give the ``BUILD.toml``, head and architecture of a run; tutorials and recipes have others."""


@pytest.mark.parametrize("name", SETS)
def test_a_data_set_as_people_have_them_trains_beside_a_simple_predictor(name: str, tmp_path: Path) -> None:
    files, head, kind = SETS[name]
    (tmp_path / "BUILD.toml").write_text(tomli_w.dumps(files(tmp_path, 40)))
    hydragnn.build_store(tmp_path / "BUILD.toml", tmp_path / "set.h5")
    model = {"kind": kind, "hidden_dim": 16, "num_layers": 2}
    run = {"data": {"store": str(tmp_path / "set.h5")}, "model": model, "heads": [head], "train": {"epochs": 2}}
    record = hydragnn.train(run, out=tmp_path / "run")
    assert record.status == "finished"
    assert head["field"] in {key.split("/")[1] for key in record.trivial}
