"""Rows of an HDF5 file are those that HDF5 itself gives, and graphs of ADIOS2 have the bits that were written."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from hydragnn.datasets import StoreWriter, open_store
from hydragnn.datasets.formats.hdf5 import Hdf5PartReader, chunk_places
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from tests.refusals import refuses

ROWS = 103
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks of rows": {"chunks": (10, 3)},
    "one row a chunk": {"chunks": (1, 3)},
    "compressed": {"chunks": (10, 3), "compression": "gzip"},
    "with checksums": {"chunks": (10, 3), "fletcher32": True},
    "chunks of columns": {"chunks": (10, 1)},
    "in one piece": {},
    "big-endian": {"chunks": (10, 3), "dtype": ">f8"},
}
DIRECT = {"chunks of rows", "one row a chunk"}


def rows(reader: Hdf5PartReader, start: int, stop: int) -> np.ndarray:
    joined = reader.joined("x", np.dtype("f8"), np.array([start]), np.array([stop]))
    if joined is not None:
        return np.frombuffer(joined).reshape(-1, 3)
    out = np.zeros((stop - start, 3))
    reader.fill("x", out, start)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_those_that_hdf5_gives(layout: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(ROWS, 3))
    with h5py.File(tmp_path / "part.h5", "w") as file:
        array = file.create_dataset("x", shape=(ROWS, 3), **{"dtype": "<f8", **LAYOUTS[layout]})
        array[:40], array[60:] = values[:40], values[60:]  # chunks between are never written
    values[40:60] = 0
    with h5py.File(tmp_path / "part.h5") as file:
        assert (chunk_places(file["x"]) is not None) == (layout in DIRECT)
    reader = Hdf5PartReader(tmp_path / "part.h5")
    for start, stop in ((0, ROWS), (0, 1), (9, 11), (35, 65), (57, 58), (99, ROWS), (100, ROWS + 20)):
        out = rows(reader, start, stop)
        stored = min(stop, ROWS) - start
        np.testing.assert_array_equal(out[stored:], 0.0)
        np.testing.assert_array_equal(out[:stored], values[start : min(stop, ROWS)])
    reader.close()


def test_a_file_that_was_cut_while_it_is_read_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("x", data=np.ones((ROWS, 3)), chunks=(10, 3))
    reader = Hdf5PartReader(tmp_path / "part.h5")
    rows(reader, 0, 5)
    with (tmp_path / "part.h5").open("r+b") as file:
        file.truncate(3000)
    refuses(r"x cannot be read .the file was changed while it was read.; copy the store", rows, reader, 0, ROWS)


CHARGE = Field(name="charge", on="node")
WEIGHT = Field(name="weight", on="graph", dtype="float64")


def graph(number: int, *, labelled: bool) -> GraphBatch:
    """A ring of 2 to 6 nodes; a periodic one has shifts."""
    rng, nodes, periodic = np.random.default_rng(number), 2 + number % 5, number >= 40
    ends = np.arange(nodes)
    more: dict[str, Any] = {"fields": [CHARGE], "nodes": {"charge": rng.normal(size=nodes).astype(np.float32)}}
    if labelled:
        more |= {"fields": [CHARGE, WEIGHT], "graphs": {"weight": rng.normal()}}
    if periodic:
        more |= {"edge_shifts": 9.0 * rng.integers(-1, 2, (nodes, 3)), "cell": 9.0 * np.eye(3), "periodic": True}
    return graph_from_arrays(rng.normal(size=(nodes, 3)), ends, (ends + 1) % nodes, **more)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Sixty graphs in three blocks, the first two without cells and shifts, of which some lack a field."""
    with StoreWriter(tmp_path / "store.bp", [CHARGE, WEIGHT], dim=3) as writer:
        for first in (0, 20, 40):
            writer.write(concatenate([graph(first + k, labelled=bool(k % 3)) for k in range(20)]))
            writer._flush()
    return tmp_path / "store.bp"


def test_random_graphs_are_those_that_were_written(place: Path) -> None:
    written = concatenate([graph(k, labelled=bool(k % 20 % 3)) for k in range(60)])
    store, rng = open_store(place), np.random.default_rng(1)
    for size in (1, 7, 60, 25):
        numbers = rng.permutation(60)[:size]
        read, expected = store.read(numbers), written.select(numbers.tolist())
        for name in ("positions", "senders", "receivers", "cell", "edge_shifts", "periodic"):
            assert torch.equal(getattr(read, name), getattr(expected, name)), name
        assert torch.equal(read["charge"], expected["charge"]) and torch.equal(read["weight"], expected["weight"])
        assert torch.equal(read.present("weight"), expected.present("weight"))


def test_a_directory_that_was_cut_while_it_is_read_is_told(place: Path) -> None:
    store = open_store(place)
    store.read(range(60))
    with (place / "part-00000.bp" / "data.0").open("r+b") as file:
        file.truncate(100)
    refuses("cannot be read; copy the store", store.read, [5, 30])
