"""Cells of random points, and the comparison of two batches, bit for bit."""

import numpy as np
import torch

from hydragnn.graphs import GraphBatch, from_voronoi

GEOMETRY = "positions senders receivers edge_shifts cell periodic node_offsets edge_offsets"


def assert_same_geometry(one: GraphBatch, other: GraphBatch) -> None:
    """Positions, edges, cells and offsets are equal, dtypes included."""
    for name in GEOMETRY.split():
        assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert getattr(one, name).dtype == getattr(other, name).dtype, name


def assert_same(one: GraphBatch, other: GraphBatch) -> None:
    assert_same_geometry(one, other)
    assert one.fields == other.fields and list(one.fields) == list(other.fields)
    for name in one.fields:
        assert torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype, name
        assert torch.equal(one.present(name), other.present(name)), name


def cells(count: int, periodic: bool = False, *, seed: int | None = None) -> GraphBatch:
    """Return a Voronoi tessellation of a unit square."""
    points = np.random.default_rng(count if seed is None else seed).random((count, 2))
    return from_voronoi(points, [1.0, 1.0], periodic)
