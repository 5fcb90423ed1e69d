"""Graphs of an ADIOS2 store are read in any order with the bits that were written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.datasets import StoreWriter, open_store
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from tests.refusals import refuses

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
