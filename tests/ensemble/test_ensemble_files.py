"""New files become graphs as those of training did, without labels; stores with other edges or units are refused."""

import json
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from ase import Atoms
from ase.io import write

import hydragnn
from hydragnn.architectures import ArchitectureSettings, architecture_of
from hydragnn.datasets import Make, MemoryStore, OwnBuild, find_files
from hydragnn.datasets.build import makers_of
from hydragnn.datasets.sources.registry import read_build_settings
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.reading.structures import check_edges, check_lengths, made_graphs
from hydragnn.graphs import Field, graph_from_arrays
from hydragnn.graphs.atomic import from_ase
from tests.ensemble.conftest import CUTOFF, refused, written
from tests.ensemble.finished import arrays_of, edit_json
from tests.once import shared

RINGS: dict[str, Any] = {
    "kind": "npz",
    "nodes": "n",
    "edges": "pairs",
    "edge_counts": "n_pairs",
    "undirected": True,
    "fields": [
        {"name": "charge", "on": "node", "key": "q", "scale": 2.0},
        {"name": "weight", "on": "graph", "role": "auxiliary"},
        {"name": "moment", "on": "graph", "unit": "D", "role": "target"},
    ],
}
TRAINING: dict[str, Any] = {
    "data": {"store": "rings.h5"},
    "model": {"kind": "gin", "hidden_dim": 4, "num_layers": 1},
    "heads": [{"field": "moment", "kind": "scalar"}],
    "train": {"epochs": 1, "checkpoint_seconds": 0},
}


def rings_of(charges: Sequence[np.ndarray]) -> dict[str, Any]:
    sizes = np.array([len(one) for one in charges])
    pairs = [np.stack([np.arange(size), (np.arange(size) + 1) % size], axis=1) for size in sizes]
    return {"n": sizes, "n_pairs": sizes, "q": np.concatenate(charges), "pairs": np.concatenate(pairs)}


def rings(count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    charges = [random.normal(size=4 + number % 3) for number in range(count)]
    moments = np.array([(one * np.roll(one, -1)).sum() for one in charges])
    return {**rings_of(charges), "weight": np.ones(count), "moment": moments}


def without_labels(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if name not in ("moment", "weight")}


@shared
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An npz file, the store built from it, and an ensemble of two runs."""
    folder = tmp_path_factory.mktemp("trained")
    np.savez(folder / "rings.npz", **rings(40, seed=0))
    hydragnn.build_store({**RINGS, "files": [str(folder / "rings.npz")]}, folder / "rings.h5")
    table = {**TRAINING, "data": {"store": str(folder / "rings.h5")}}
    runs = [folder / str(seed) for seed in (0, 1)]
    for seed, run in enumerate(runs):
        hydragnn.train(table, run, overrides=[f"train.seed={seed}"])
    hydragnn.build_ensemble(runs, folder / "ensemble")
    return folder


def predicted(model: Path, source: Path, out: Path) -> dict[str, np.ndarray]:
    hydragnn.predict(model, source, out)
    return arrays_of(out)


def test_a_new_file_without_labels_is_predicted_as_its_store_would_be(trained: Path, tmp_path: Path) -> None:
    arrays = rings(70, seed=1)
    np.savez(tmp_path / "all.npz", **arrays)
    np.savez(tmp_path / "new.npz", **without_labels(arrays))
    hydragnn.build_store({**RINGS, "files": [str(tmp_path / "all.npz")]}, tmp_path / "all.h5")
    for model in (trained / "ensemble", trained / "0"):
        expected = predicted(model, tmp_path / "all.h5", tmp_path / f"{model.name}-stored.h5")
        actual = predicted(model, tmp_path / "new.npz", tmp_path / f"{model.name}-new.h5")
        assert actual.keys() == expected.keys() and len(np.unique(expected["fields/moment/mean"])) > 50
        assert actual.pop("name").tolist() == [f"new.npz#{number}" for number in range(70)]
        assert expected.pop("name").tolist() == [f"all.npz#{number}" for number in range(70)]
        for name in expected:
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def test_one_graph_that_cannot_be_made_does_not_end_the_others(trained: Path, tmp_path: Path) -> None:
    arrays = without_labels(rings(40, seed=3))
    sound = predicted_of(trained, arrays, tmp_path / "sound.npz")
    arrays["q"][4] = np.nan  # the first node of graph 1
    arrays["pairs"][-1] = [0, 99]
    actual = predicted_of(trained, arrays, tmp_path / "wrong.npz")
    status = actual["status"].astype(str)
    assert [number for number, one in enumerate(status) if one != "ok"] == [1, 39]
    assert "nan" in status[1] and "99 is out of range" in status[39]
    kept = np.setdiff1d(np.arange(40), [1, 39])
    np.testing.assert_allclose(actual["fields/moment/mean"][kept], sound["fields/moment/mean"][kept], rtol=1e-5)


def predicted_of(trained: Path, arrays: dict[str, Any], path: Path) -> dict[str, np.ndarray]:
    np.savez(path, **arrays)
    return predicted(trained / "ensemble", path, path.with_name(f"said-{path.stem}.h5"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda arrays: {name: array for name, array in arrays.items() if name != "q"}, "has no q; it has n"),
        (lambda arrays: {**arrays, "q": arrays["q"][:-1]}, "q has .* rows where .* nodes were counted"),
        (lambda arrays: {**arrays, "n": arrays["n"][:-1]}, "n_pairs counts 9 graphs, not 8|rows where"),
        (lambda arrays: {**arrays, "q": arrays["q"] * np.nan}, "nothing in .* can be turned into a graph: .*nan"),
        (lambda arrays: {**arrays, "q": np.array([{}] * len(arrays["q"]))}, "cannot read .* as npz"),
    ],
)
def test_files_that_are_no_such_source_are_refused(change: Any, sentence: str, trained: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", **change(without_labels(rings(9, seed=4))))
    refused(sentence, hydragnn.predict, trained / "ensemble", tmp_path / "new.npz", tmp_path / "said.h5")
    assert not list(tmp_path.glob("said*"))


def test_an_ensemble_names_no_code_outside_the_package(trained: Path, tmp_path: Path) -> None:
    """Its folder may come from a stranger; a build file is the user's own."""
    np.savez(tmp_path / "new.npz", **without_labels(rings(9, seed=5)))
    shutil.copytree(trained / "ensemble", tmp_path / "ensemble")
    manifest = tmp_path / "ensemble" / "ensemble.json"

    def predict_by(rule: Any) -> None:
        edit_json(manifest, lambda value: value["data"]["attributes"].update(build=rule))
        hydragnn.predict(tmp_path / "ensemble", tmp_path / "new.npz", tmp_path / "said.h5")

    kinds = ("antigravity:Geohash", "numpy.testing:Tester", "hydragnn.scripts.__main__:OwnBuild")
    for kind in (*kinds, "hydragnn.base.errors:InputError", "grains", "x", None, 3, ["npz"]):
        refused(r"give a BUILD\.toml|holds no sources|has no source", predict_by, {"kind": kind})
    for rule in (None, [], "npz", {"kind": "npz", "nodes": 3}, {"kind": "npz", "files": ["/dev/zero"], "nodes": "n"}):
        refused(".", predict_by, rule)


GRAINS = {"kind": "grains", "files": ["grains.csv"], "edges": "contacts.csv", "graphs": "microstructures.csv"}
GRAINS |= {"undirected": True, "fields": [{"name": "charge", "on": "node"}, RINGS["fields"][2]]}


def test_tables_of_grains_are_predicted_by_their_build_file_and_need_no_labels(trained: Path, tmp_path: Path) -> None:
    rows = "".join(f"{graph},{0.1 * (graph + node)}\n" for graph in range(3) for node in range(4))
    (tmp_path / "grains.csv").write_text("graph,charge\n" + rows)
    contacts = "".join(f"{graph},{node},{(node + 1) % 4}\n" for graph in range(3) for node in range(4))
    (tmp_path / "contacts.csv").write_text("graph,sender,receiver\n" + contacts)
    (tmp_path / "new.toml").write_text(tomli_w.dumps(GRAINS))
    grains = predicted(trained / "ensemble", tmp_path / "new.toml", tmp_path / "grains.h5")
    same = rings_of([0.05 * (graph + np.arange(4)) for graph in range(3)])
    expected = predicted_of(trained, same, tmp_path / "same.npz")
    np.testing.assert_allclose(grains["fields/moment/mean"], expected["fields/moment/mean"], rtol=1e-5)


class Lines(OwnBuild):
    """Text files: every line holds the charges of a ring."""

    factor: float = 1.0

    def graphs(self) -> Iterator[Make]:
        for line in (line for path in find_files(self.files) for line in path.read_text().splitlines()):
            charge = self.factor * np.array([float(word) for word in line.split()])
            here, fields = np.arange(len(charge)), [Field(name="charge", on="node")]
            there = (here + 1) % len(charge)
            ends = np.concatenate([here, there]), np.concatenate([there, here])
            yield partial(graph_from_arrays, None, *ends, fields=fields, nodes={"charge": charge}, name="line")


def test_an_own_class_is_a_source(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("0.1 0.2 0.3 0.4\n-1 2 -1 2 0\n")
    rule = {"kind": f"{__name__}:Lines", "files": ["new.txt"], "factor": 2.0}
    (tmp_path / "new.toml").write_text(tomli_w.dumps(rule))
    info = hydragnn.build_store(tmp_path / "new.toml", tmp_path / "new.h5")
    assert info.graphs == 2 and info.attributes["build"] == {"kind": rule["kind"], "factor": 2.0}
    actual = predicted(trained / "ensemble", tmp_path / "new.toml", tmp_path / "lines.h5")
    same = rings_of([np.array([0.1, 0.2, 0.3, 0.4]), np.array([-1.0, 2, -1, 2, 0])])
    expected = predicted_of(trained, same, tmp_path / "same.npz")
    np.testing.assert_allclose(actual["fields/moment/mean"], expected["fields/moment/mean"], rtol=1e-5)
    (tmp_path / "new.toml").write_text(tomli_w.dumps({**rule, "kind": f"{__name__}:Strings"}))
    words = r"has no source Strings; derive it from hydragnn\.datasets\.OwnBuild"
    refused(words, hydragnn.predict, trained / "ensemble", tmp_path / "new.toml", tmp_path / "said.h5")


def settings(kind: str, **changes: Any) -> ArchitectureSettings:
    table = {"kind": kind, "cutoff": 4.0, "envelope": "polynomial", **changes}
    return architecture_of(kind).Settings.parse(table)


SMOOTH, COUNTING, OPEN = settings("painn"), settings("pna"), settings("schnet", envelope="none")
SEEN = [
    ([SMOOTH, COUNTING], {"cutoff": 5.0}),
    ([SMOOTH], {"cutoff": 4.0}),  # as far as it looks
    ([SMOOTH], {"cutoff": 9.0}),  # messages end smoothly before
    ([COUNTING], {}),  # nothing is known
]
UNSEEN = [
    ([SMOOTH], {"cutoff": 3.9}),
    ([SMOOTH, COUNTING], {"cutoff": 9.0}),  # counts what is beyond, too
    ([OPEN], {"cutoff": 9.0}),
    ([OPEN], {"cutoff": 4.5}),
    ([SMOOTH], {"cutoff": 5.0, "max_neighbours": 12}),
]


def test_stores_in_which_members_see_other_neighbours_are_refused() -> None:
    words = r"built with (cutoff|max_neighbours) = .*; build it in the same way"
    for members, given in SEEN:
        check_edges(members, {"cutoff": 5.0}, given)
    for members, given in UNSEEN:
        refused(words, check_edges, members, {"cutoff": 5.0}, given)
        check_edges(members, {}, {"cutoff": 5.0, **given})


def test_predictions_on_shorter_edges_are_refused(ensemble: Path, frames: list[Atoms], tmp_path: Path) -> None:
    graphs = [from_ase(atoms, 3.0) for atoms in frames[:3]]
    short, loaded = MemoryStore(graphs, {"cutoff": 3.0}), Ensemble.load(ensemble)
    refused(r"cutoff = 3, the graphs of training with cutoff = 4\.5", loaded.predict, short)
    source = written(tmp_path / "short.h5", short[:], **short.attributes)
    refused("build it in the same way", predict_to_file, ensemble, source, tmp_path / "out.h5")
    (tmp_path / "in.xyz").touch()
    (tmp_path / "b.toml").write_text('kind = "ase"\nfiles = ["in.xyz"]\ncutoff = 3.0\n')
    refused("build it in the same way", predict_to_file, ensemble, tmp_path / "b.toml", tmp_path / "out.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.toml", "in.xyz", "short.h5"]
    few = [MemoryStore([from_ase(one, cutoff) for one in frames[:3]], {"cutoff": cutoff}) for cutoff in (6.0, CUTOFF)]
    said = [loaded.predict(one)["energy"].mean for one in few]
    np.testing.assert_allclose(*said, rtol=1e-5)


BOHR, BOX, ASE = {"length_unit": "bohr"}, {"length_unit": "box"}, {"source": "ase"}
SAME = [(BOHR, {"length_unit": "Bohr"}), (BOHR, {}), ({}, BOHR), (BOX, BOHR), (ASE, {"source": "pyg"})]
OTHER = [(BOHR, ASE), (BOHR, {"source": "npz"}), (BOHR, {"length_unit": "nm"}), (ASE, BOHR)]


def test_positions_in_another_unit_are_refused() -> None:
    for training, given in SAME:
        check_lengths(training, given)
    for training, given in OTHER:
        refused(r"the positions of the store are in .*, those of training in", check_lengths, training, given)


def _named_failures(kind: str, folder: Path) -> dict[str, Any]:
    """A BUILD.toml's table of two graphs, of which the second, w, cannot be made."""
    field = {"name": "x", "on": "node"}
    if kind == "smiles":
        (folder / "data").write_text("id,smiles\nv,CO\nw,C1\n")
        return {}
    if kind == "tables":
        (folder / "data").write_text("graph,x\n0,1\n1,2\n")
        (folder / "edges").write_text("graph,sender,receiver\n0,0,0\n1,0,7\n")
        (folder / "graphs").write_text("graph,id\n0,v\n1,w\n")
        return {"undirected": True, "edges": str(folder / "edges"), "graphs": str(folder / "graphs"), "fields": [field]}
    if kind == "ase":
        write(folder / "data", [Atoms("Cu", info={"id": one}) for one in "vw"], format="extxyz")
        (folder / "labels.csv").write_text("id,x\nv,1\n")
        own = {"cutoff": 3.0, "format": "extxyz", "labels": str(folder / "labels.csv")}
        return {**own, "fields": [field | {"on": "graph"}]}
    nodes = [{"id": 0, "x": 1.0}], [{"id": 0}]
    tables = [{"nodes": some, "edges": [], "graph": {"id": name}} for some, name in zip(nodes, "vw")]
    (folder / "data.json").write_text(json.dumps(tables))
    return {"fields": [field]}


@pytest.mark.parametrize("kind", ["smiles", "tables", "ase", "networkx"])
def test_a_graph_that_cannot_be_made_keeps_its_name(kind: str, tmp_path: Path) -> None:
    """The row of the output says which one it was."""
    table = _named_failures(kind, tmp_path)
    settings = read_build_settings({"kind": kind, "files": [str(tmp_path / "data*")], **table}, tmp_path / "BUILD.toml")
    _, numbers, failures = made_graphs(makers_of(settings))
    assert numbers == [0] and [one.texts["name"] for one in failures.values()] == ["w"]
