"""A bit of a store that changed on a disk or on its way is told before a model learns from it, or changes nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, StoreWriter, WithoutEdges, check_graphs, finish_store, open_store
from hydragnn.datasets.store import read_checked
from hydragnn.datasets.tools import check_store, convert_store
from tests.refusals import refuses


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
