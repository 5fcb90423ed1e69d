"""Graphs of an ADIOS2 store are the same bits whether ADIOS2 reads them or they are copied out of its file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.datasets.disk import DiskStore
from hydragnn.datasets.formats.adios import ABSENT, UNKNOWN, AdiosPartReader
from hydragnn.datasets.formats.mapped import ZERO
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays

CHARGE = Field(name="charge", on="node")
WEIGHT = Field(name="weight", on="graph", dtype="float64")


def graph(number: int, *, labelled: bool) -> GraphBatch:
    """A ring of 2 to 6 nodes; a periodic one has shifts."""
    rng, nodes, periodic = np.random.default_rng(number), 2 + number % 5, number >= 40
    ends = np.arange(nodes)
    return graph_from_arrays(
        rng.normal(size=(nodes, 3)),
        ends,
        (ends + 1) % nodes,
        fields=[CHARGE, WEIGHT] if labelled else [CHARGE],
        nodes={"charge": rng.normal(size=nodes).astype(np.float32)},
        graphs={"weight": rng.normal()} if labelled else {},
        edge_shifts=9.0 * rng.integers(-1, 2, (nodes, 3)) if periodic else None,
        cell=9.0 * np.eye(3) if periodic else None,
        periodic=periodic,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Sixty graphs in three blocks, the first two without cells and shifts, of which some lack a field."""
    with StoreWriter(tmp_path / "store.bp", [CHARGE, WEIGHT], dim=3) as writer:
        for first in (0, 20, 40):
            writer.write(concatenate([graph(first + k, labelled=bool(k % 3)) for k in range(20)]))
            writer._flush()
    return tmp_path / "store.bp"


def reader_of(store: DiskStore) -> AdiosPartReader:
    reader = store.parts[0].reader
    assert isinstance(reader, AdiosPartReader)
    return reader


@pytest.mark.parametrize("dear", [False, True], ids=["calls cost nothing", "a call costs as much as a block"])
def test_random_graphs_are_those_that_were_written(place: Path, dear: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.datasets.formats.adios.CALL_BYTES", 10**9 if dear else 0)
    written = concatenate([graph(k, labelled=bool(k % 20 % 3)) for k in range(60)])
    store, rng = DiskStore(place), np.random.default_rng(1)
    for size in (1, 7, 60, 25, 60):
        numbers = rng.permutation(60)[:size]
        read, expected = store.read(numbers), written.select(numbers.tolist())
        assert torch.equal(read.positions, expected.positions) and torch.equal(read.senders, expected.senders)
        assert torch.equal(read.receivers, expected.receivers) and torch.equal(read.cell, expected.cell)
        assert torch.equal(read.edge_shifts, expected.edge_shifts) and torch.equal(read.periodic, expected.periodic)
        assert torch.equal(read["charge"], expected["charge"]) and torch.equal(read["weight"], expected["weight"])
        assert torch.equal(read.present("weight"), expected.present("weight"))
    offsets = {name: places.offsets for name, places in reader_of(store)._places.items()}
    assert not any((one == ABSENT).any() for one in offsets.values())
    assert (offsets["positions"] == UNKNOWN).all() != dear and (offsets["present/weight"] == UNKNOWN).all() != dear
    assert [(reader_of(store)._places["cell"].offsets[block] == ZERO) for block in range(3)] == [True, True, False]
    store.close()


def test_rows_that_are_not_in_the_file_as_they_are_come_from_adios2(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydragnn.datasets.formats.adios.CALL_BYTES", 10**9)
    monkeypatch.setattr("hydragnn.datasets.formats.adios.STEP_BYTES", -(10**6))  # nothing is looked up where it lies
    store = DiskStore(place)
    for _ in range(2):
        assert torch.equal(store.read([50, 3]).positions[:2], graph(50, labelled=True).positions[:2])
    assert (reader_of(store)._places["positions"].offsets[[0, 2]] == ABSENT).all()
    store.close()


def test_a_directory_that_was_cut_while_it_is_read_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.datasets.formats.adios.CALL_BYTES", 10**9)
    store = open_store(place)
    store.read(range(60))
    with (place / "part-00000.bp" / "data.0").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(InputError, match="cannot be read; copy the store"):
        store.read([5, 30])
