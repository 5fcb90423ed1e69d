"""Inputs of whole commands that were once wrong in silence or ended in a traceback."""

import csv
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest
from ase.build import bulk, fcc111
from ase.io import write

import hydragnn
from hydragnn.base.errors import InputError
from tests.cases import inputs

ENERGY = {"name": "energy", "key": "E", "on": "graph", "unit": "eV", "role": "target"}


@pytest.fixture(scope="module")
def crystals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Crystals and slabs, of which slabs have no stress, their store, and a run."""
    folder = tmp_path_factory.mktemp("crystals")
    inputs.write_crystals(folder, 36)
    slabs = [fcc111("Cu", (1, 1, 3), vacuum=6.0) for _ in range(8)]
    for seed, slab in enumerate(slabs):
        slab.rattle(0.08, seed=seed)
        slab.pbc, slab.info = (True, True, False), {}
        inputs.labelled(slab, stress=False)
    write(folder / "crystals.xyz", slabs, format="extxyz", append=True)
    hydragnn.build_store(folder / "crystals.toml", folder / "crystals.h5", quiet=True)
    hydragnn.train(folder / "run.toml", folder / "run", overrides=["train.epochs=1"])
    return folder


def test_a_name_that_begins_as_a_formula_is_a_text_for_spreadsheets(crystals: Path, tmp_path: Path) -> None:
    atoms = bulk("Cu", cubic=True)
    atoms.info["id"] = "=cmd|calc!A1"
    write(tmp_path / "x.xyz", atoms, format="extxyz")
    hydragnn.predict(crystals / "run", tmp_path / "x.xyz", tmp_path / "predicted.csv")
    with (tmp_path / "predicted.csv").open(newline="", encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["'=cmd|calc!A1"]


def test_slabs_have_errors_beside_a_calculator_with_a_stress_of_crystals(crystals: Path, tmp_path: Path) -> None:
    baselines = ["ase.calculators.emt:EMT"]
    evaluation = hydragnn.build_ensemble(
        [crystals / "run"], tmp_path / "ensemble", baselines=baselines, allow_code=["ase.calculators.emt"]
    )
    test = evaluation.parts["test"]
    assert {name for name, scores in test.items() if "EMT" in scores.baselines} == {"energy", "forces", "stress"}


def write_edges(sender: int) -> Callable[[Path], dict[str, Any]]:
    """Return a function for settings of tables with this sender of an edge between two nodes."""

    def settings(folder: Path) -> dict[str, Any]:
        tables = {"nodes": "graph,load\n0,1\n0,2\n", "graphs": "graph,y\n0,1\n"}
        for name, text in {**tables, "edges": f"graph,sender,receiver\n0,0,{sender}\n"}.items():
            (folder / f"{name}.csv").write_text(text)
        fields = [{"name": "load", "on": "node"}, {"name": "y", "on": "graph", "role": "target"}]
        table = {"kind": "tables", "files": ["nodes.csv"], "edges": "edges.csv", "graphs": "graphs.csv"}
        return {**table, "undirected": True, "fields": fields}

    return settings


@pytest.mark.parametrize(
    ("write_source", "words"),
    [
        (write_edges(10**18), "node index 1000000000000000000 is out of range"),
        (write_edges(10**30), "float64 values are no node indices"),
    ],
    ids=["huge sender", "huger sender"],
)
def test_a_source_that_is_not_read_whole_is_refused(
    write_source: Callable[[Path], dict[str, Any]], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        hydragnn.build_store(write_source(tmp_path), tmp_path / "x.h5", quiet=True)
    assert not (tmp_path / "x.h5").exists()


class Bus(str):
    """A name of a node that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Bus.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_each_node_of_a_network_is_looked_up_a_few_times(tmp_path: Path) -> None:
    fields = [{"name": "demand", "on": "node"}, {"name": "cap", "on": "edge"}]
    fields += [{"name": "cost", "on": "graph", "role": "target"}]
    names = [Bus(f"bus-{one}") for one in range(2000)]
    graph = networkx.Graph(cost=1.0)
    graph.add_nodes_from(names, demand=0.0)
    graph.add_edges_from(((Bus(a), Bus(b)) for a, b in pairwise(names)), cap=1.0)
    Bus.comparisons = 0
    hydragnn.build_store({"kind": "networkx", "fields": fields}, tmp_path / "grid.h5", data=[graph], quiet=True)
    assert 0 < Bus.comparisons < 20 * len(names)
