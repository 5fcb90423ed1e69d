"""Comparison of two batches, bit for bit."""

import torch

from hydragnn.graphs import GraphBatch


def assert_same_geometry(one: GraphBatch, other: GraphBatch) -> None:
    """Positions, edges, cells and offsets are equal, dtypes included."""
    for name in (
        "positions",
        "senders",
        "receivers",
        "edge_shifts",
        "cell",
        "periodic",
        "node_offsets",
        "edge_offsets",
    ):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
