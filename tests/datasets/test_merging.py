"""Stores that become one: merged, grown, or read side by side."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.datasets import MemoryStore, StoreWriter, check_store, make_split, merging, open_store
from hydragnn.datasets.settings import SplitSettings
from hydragnn.graphs import Field
from tests.forked import SERVER
from tests.refusals import refuses

Write = Callable[..., Path]


@pytest.fixture
def write(store: MemoryStore, tmp_path: Path) -> Write:
    def write(name: str, graphs: range, cutoff: float = 50.0, files: str = "a.xyz") -> Path:
        fields = store.fields()[::-1] if name.startswith("b") else store.fields()
        attributes = {"cutoff": cutoff, "files": [files]}
        with StoreWriter(tmp_path / name, fields, dim=3, attributes=attributes) as writer:
            writer.write(store.read(graphs).with_texts({"name": [f"{name}#{number}" for number in graphs]}))
        return tmp_path / name

    return write


@pytest.mark.parametrize("suffix", [".h5", ".bp"])
def test_joined_stores_have_the_graphs_of_both(suffix: str, write: Write, store: MemoryStore, tmp_path: Path) -> None:
    parts = [write("a.h5", range(20)), write(f"b{suffix}", range(20, 60), files="b.xyz")]
    info = hydragnn.merge_stores(parts, tmp_path / "c.h5")
    joined, merged = open_store(parts), open_store(tmp_path / "c.h5")
    assert info.graphs == 60 and check_store(tmp_path / "c.h5") == []
    assert not any("copies" in note for note in info.notes)
    assert joined.fingerprint == merged.fingerprint == store.fingerprint
    assert joined.attributes == merged.attributes == {"cutoff": 50.0, "files": ["a.xyz", "b.xyz"]}
    picked = [59, 3, 20, 3]
    assert list(joined.read(picked).names) == [f"b{suffix}#59", "a.h5#3", f"b{suffix}#20", "a.h5#3"]
    np.testing.assert_array_equal(joined.read(picked)["forces"], store.read(picked)["forces"])
    np.testing.assert_array_equal(joined.column("energy", 15, 25).values, store.column("energy", 15, 25).values)
    splits = [make_split(one, SplitSettings(kind="group", field="label")) for one in (joined, merged, store)]
    assert all(np.array_equal(one.test, splits[0].test) for one in splits)


def test_a_store_grows_by_another_one_and_keeps_its_graphs(write: Write, store: MemoryStore, tmp_path: Path) -> None:
    grown = write("a.h5", range(20))
    (grown / "part-00001.h5").write_text("left by a process that was killed")
    (grown / "notes.txt").write_text("of the user")
    hydragnn.append_store(grown, write("b.h5", range(20, 50)))
    info = hydragnn.append_store(grown, write("c.bp", range(40, 60)))
    assert info.graphs == 70 and info.parts == 3 and check_store(grown) == []
    assert info.notes[-1].startswith(
        "10 of the 20 added graphs are exact copies of earlier ones, such as graph 'c.bp#40' (number 50) of number 40; a random"
    )
    actual = open_store(grown).read(range(70))
    assert actual.names[0] == "a.h5#0" and actual.names[69] == "c.bp#59"
    np.testing.assert_array_equal(actual["energy"], store.read([*range(50), *range(40, 60)])["energy"])
    assert not [*tmp_path.glob(".*")] and (grown / "notes.txt").exists()


def test_stores_of_other_kinds_are_not_joined(write: Write, store: MemoryStore, tmp_path: Path) -> None:
    first = write("a.h5", range(20))
    before = {file.name: file.read_bytes() for file in first.iterdir()}
    graph = store.read([0])
    unit = {**graph.fields, "energy": replace(graph.fields["energy"], unit="Ry")}
    more = graph.with_fields({"spin": torch.ones(1)}, fields=[Field(name="spin", on="graph")])
    for name, one in (("ry.h5", replace(graph, fields=unit)), ("spin.h5", more)):
        with StoreWriter(tmp_path / name, [*one.fields.values()], dim=3, attributes={"cutoff": 50.0}) as writer:
            writer.write(one)
    for other, words in {
        write("far.h5", range(20, 40), cutoff=60.0): "cutoff is 50.0 and 60.0",
        tmp_path / "ry.h5": "the field energy is in one of them alone, or has another shape, unit, role or dtype",
        tmp_path / "spin.h5": "the field spin is in one",
        first: "would be appended to itself",
    }.items():
        refuses(words, hydragnn.append_store, first, other)
        assert {file.name: file.read_bytes() for file in first.iterdir()} == before
        if other != first:
            refuses(words, hydragnn.merge_stores, [first, other], tmp_path / "no.h5")
            refuses(words, open_store, [first, other])
    refuses("takes two stores or more", hydragnn.merge_stores, [first], tmp_path / "no.h5")


def test_a_training_on_two_stores_is_that_on_the_merged_one(write: Write, tmp_path: Path) -> None:
    parts = [write("a.h5", range(20)), write("b.h5", range(20, 60))]
    hydragnn.merge_stores(parts, tmp_path / "c.h5")
    table = {
        "batch": {"max_graphs": 8},
        "model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1},
        "heads": [{"kind": "scalar", "field": "energy"}],
        "train": {"epochs": 1},
    }
    records = [
        hydragnn.train({**table, "data": {"store": stores}}, tmp_path / name)
        for name, stores in {"one": str(tmp_path / "c.h5"), "two": [*map(str, parts)]}.items()
    ]
    assert records[0].data_hash == records[1].data_hash and records[0].curves == records[1].curves
    one, two = ((tmp_path / name / "model/weights.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    counts = [len(hydragnn.predict(tmp_path / "two", stores)) for stores in (parts, tmp_path / "c.h5")]
    assert counts == [60, 60]
    for stores, words in {(parts[0], parts[0]): "names each of them once", (): "give at least one"}.items():
        refuses(words, hydragnn.train, {**table, "data": {"store": [*map(str, stores)]}}, tmp_path / "no")


def killed_append(*stores: Path) -> None:
    merging.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    merging.append_store(*stores)


@pytest.mark.parametrize("suffix", [".h5", ".bp"])
def test_a_killed_append_leaves_the_store_as_it_was(suffix: str, write: Write) -> None:
    first, second = write(f"a{suffix}", range(20)), write("b.h5", range(20, 50))
    fingerprint = open_store(first).fingerprint
    process = SERVER.Process(target=killed_append, args=(first, second))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL and (first / f"part-00001{suffix}").exists()
    assert open_store(first).fingerprint == fingerprint and check_store(first) == []
    assert hydragnn.append_store(first, second).graphs == 50 and check_store(first) == []
    assert not [*first.parent.glob(".*")]
