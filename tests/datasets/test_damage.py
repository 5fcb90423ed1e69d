"""Stores whose counts, shapes, dtypes or bits are not those that were written are told before a model learns from them."""

import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, StoreWriter, WithoutEdges, check_graphs, finish_store, open_store
from hydragnn.datasets.manifest import checksum
from hydragnn.datasets.store import read_checked
from hydragnn.datasets.tools import check_store, convert_store
from tests.datasets.conftest import edit_manifest
from tests.refusals import refuses

HUGE = 10**13


def test_a_block_of_negative_length_is_damage(path: Path) -> None:
    def negative(table: dict[str, Any]) -> None:
        first, second = table["parts"][0]["blocks"]
        first[2] += second[2] + 5
        second[2] = -5

    edit_manifest(path, negative)
    for look in (open_store, check_store):
        refuses(r"manifest.json is damaged", look, path)


@pytest.mark.parametrize("column", [0, 1, 2], ids=["graphs", "nodes", "edges"])
def test_a_count_beyond_the_files_is_refused_before_memory_is_taken(column: int, path: Path) -> None:
    def grow(table: dict[str, Any]) -> None:
        part = table["parts"][0]
        part["blocks"][1][column] += HUGE
        part[("graphs", "nodes", "edges")[column]] += HUGE
        table["graphs"] = part["graphs"]

    edit_manifest(path, grow)
    tracemalloc.start()
    refuses(r"as the manifest counts, take at least [0-9]{14,}; copy the store again", open_store, path)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
    assert "take at least" in check_store(path)[0]


@pytest.mark.parametrize("path", [".bp"], indirect=True)  # HDF5 has no blocks
def test_blocks_of_other_lengths_are_refused(path: Path) -> None:
    def move_an_edge(table: dict[str, Any]) -> None:
        first, second = table["parts"][0]["blocks"]
        first[2], second[2] = first[2] - 1, second[2] + 1

    edit_manifest(path, move_an_edge)
    refuses(r"[0-9]+ rows of shape \(\) and dtype .*, expected are [0-9]+", open_store(path).sizes)


@pytest.mark.parametrize("path", [".h5"], indirect=True)
def test_the_check_names_graphs_by_their_numbers_and_counts_the_rest(path: Path, tmp_path: Path) -> None:
    part = path / "part-00000.h5"
    with h5py.File(part, "r+") as file:
        for graph in range(10, 35):
            file["positions"][int(file["node_stops"][graph - 1])] = np.inf
    whole = checksum(part)
    own = {part.name: {"bytes": whole.bytes, "blake2b": whole.blake2b}}
    edit_manifest(path, lambda table: table["parts"][0]["files"].update(own))
    problems = check_store(path)
    named = [problem for problem in problems if "positions: inf in row 0" in problem]
    assert [f"graph {number}, positions" in problem for number, problem in zip(range(10, 20), named)] == [True] * 10
    assert "15 more are not valid" in problems[-1] or any("15 more are not valid" in problem for problem in problems)
    refuses("graph 10, positions: inf", convert_store, path, tmp_path / "copy.bp")
    with pytest.raises(InputError, match=r"^graph 12, positions: inf .* \(and 22 more graphs; hydragnn data check"):
        check_graphs(open_store(path), np.arange(59, 11, -1), [])
    check_graphs(open_store(path), np.arange(40, 60), [])


def flip_one_label(path: Path, field: str) -> int:
    """Turn a bit in the values of graph 7, wherever the engine put them; gives the number of the graph."""
    values = np.ascontiguousarray(open_store(path).read([7])[field].numpy()).tobytes()
    files = [file for part in path.glob("part-*") for file in (part.iterdir() if part.is_dir() else [part])]
    (file,) = [file for file in files if values in file.read_bytes()]
    content = bytearray(file.read_bytes())
    assert content.count(values) == 1
    content[content.index(values)] ^= 1
    file.write_bytes(content)
    return 7


def test_a_changed_label_names_its_graph_and_no_other(path: Path, store: MemoryStore, tmp_path: Path) -> None:
    graph = flip_one_label(path, "forces")
    for opened in (open_store(path), WithoutEdges(open_store(path))):
        assert np.flatnonzero(read_checked(opened, np.arange(60), [])[1]).tolist() == [graph]
        batch, changed = read_checked(opened, np.array([9, 7, 3, 7]), ["forces"])
        assert changed.tolist() == [False, True, False, True]
        expected = opened.read([9, 7, 3, 7], ["forces"])
        assert batch.fields.keys() == expected.fields.keys() == {"forces"}
        assert torch.equal(batch["forces"], expected["forces"])
        assert torch.equal(batch.positions, expected.positions) and torch.equal(batch.senders, expected.senders)
        with pytest.raises(InputError, match=r"^graph 7 is not as it was written: its digest is another; copy"):
            check_graphs(opened, np.arange(60), [])
        check_graphs(opened, np.array([1, 2, 40]), [])
    refuses("graph 7 is not as it was written", convert_store, path, tmp_path / "copy.h5")
    assert not (tmp_path / "copy.h5").exists()
    assert not read_checked(store, np.arange(10))[1].any()  # in memory


def test_numbers_count_over_all_parts(store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "parts.h5"
    for part, graphs in enumerate([range(5), range(5, 60)]):
        with StoreWriter(path, store.fields(), dim=3, attributes=store.attributes, part=part) as writer:
            writer.write(store.read(graphs))
    finish_store(path, 2)
    graph = flip_one_label(path, "forces")
    assert np.flatnonzero(read_checked(open_store(path), np.arange(60))[1]).tolist() == [graph]


def test_a_changed_text_is_told_by_the_check_and_to_its_reader(store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "store.h5"
    with StoreWriter(path, store.fields(), dim=3) as writer:
        writer.write(store.read(range(60)).with_texts({"name": [f"mp-{number}" for number in range(60)]}))
    (file,) = path.glob("*.texts.gz")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert [f"{file} was changed" in problem for problem in check_store(path)] == [True]
    batch = open_store(path).read([3])  # which needs no texts
    refuses(r"texts.gz cannot be read .*; copy the store again", list, batch.texts["name"])
    file.unlink()
    refuses(r"texts.gz is missing; copy the whole store again", open_store, path)


def test_what_a_killed_writer_left_is_replaced(path: Path, store: MemoryStore) -> None:
    (path / "manifest.json").rename(path / ".manifest.json.123.tmp")
    shutil.copy(path / ".manifest.json.123.tmp", path / f"part-00000{path.suffix}.json")
    with StoreWriter(path, store.fields(), dim=3) as writer:
        writer.write(store.read(range(5)))
    assert len(open_store(path)) == 5
