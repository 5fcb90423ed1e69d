"""Rings of nodes with random charges, whose moment is the sum of the products of neighbouring charges."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.datasets import StoreWriter
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays

FIELDS = (Field(name="charge", on="node"), Field(name="moment", on="graph", unit="D", role="target"))
RUN = """
[data]
store = "rings.h5"
[model]
kind = "schnet"
hidden_dim = 4
num_layers = 1
num_radial = 4
envelope = "none"
[[heads]]
kind = "scalar"
field = "moment"
[train]
epochs = 2
checkpoint_seconds = 0
"""
SEARCH = """
[search]
trials = 2
[search.space."model.hidden_dim"]
type = "int"
low = 4
high = 8
"""
"""Configurations of a run and a search on ``rings.h5``."""


def ring(size: int, random: np.random.Generator, fields: Sequence[Field] = FIELDS, **values: Any) -> GraphBatch:
    """Return a ring on the unit circle; ``values`` are those of further fields of the graph."""
    here, charge = np.arange(size), random.random(size)
    angle, there = here * 2 * np.pi / size, (here + 1) % size
    places, ends = np.stack([np.cos(angle), np.sin(angle)], 1), (np.r_[here, there], np.r_[there, here])
    graphs = {"moment": charge @ charge[there], **values}
    return graph_from_arrays(places, *ends, fields=fields, nodes={"charge": charge}, graphs=graphs)


def write_rings(path: Path, count: int) -> Path:
    """Write a store of rings of four to six nodes."""
    random = np.random.default_rng(0)
    with StoreWriter(path, FIELDS, dim=2) as writer:
        for number in range(count):
            writer.write(ring(4 + number % 3, random))
    return path
