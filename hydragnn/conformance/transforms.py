"""Graphs in another order or place, and jumps of functions along paths."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.topology import Topology

STEEP = 10
"""A path is continuous where the slope between neighbouring points stays below so many times the largest on a coarse grid."""


def permuted(batch: GraphBatch, order: Tensor) -> GraphBatch:
    """Return the graphs with node ``order[i]`` at place i."""
    place = torch.argsort(order)
    receivers, edges = torch.sort(place[batch.receivers], stable=True)
    return replace(
        batch,
        positions=batch.positions[order],
        topology=Topology.square(place[batch.senders][edges], receivers, batch.num_nodes),
        edge_shifts=batch.edge_shifts[edges],
        nodes={name: value[order] for name, value in batch.nodes.items()},
        edges={name: value[edges] for name, value in batch.edges.items()},
    )


def mapped(batch: GraphBatch, map_: Tensor) -> GraphBatch:
    """Return the graphs with every vector times a matrix."""
    whole = torch.block_diag(map_, torch.eye(3 - batch.dim, dtype=map_.dtype))
    return replace(
        batch, positions=batch.positions @ map_, edge_shifts=batch.edge_shifts @ map_, cell=batch.cell @ whole
    )


def jump(
    values: Callable[[tuple[float, ...]], Float[Tensor, "points numbers"]], refinements: int = 4
) -> tuple[float | None, float]:
    """Return position and height of a jump; None and 0 without one.

    Between 33 points, the interval whose change differs most from that of its neighbours is divided by 8, several times. What is
    continuous then changes as slowly as elsewhere; a jump is as high as before, and after four times its slope 4096 times as large.
    """
    shares = np.linspace(0, 1, 33)
    at = values(tuple(shares.tolist()))
    if float((at - at[0]).abs().max()) < 1e-9:
        return None, 0.0
    largest = _slopes(at, shares).max()
    for _ in range(refinements):
        slopes = _slopes(at, shares)
        companion = np.pad(slopes, 1, mode="reflect")
        unlike = slopes - (companion[:-2] + companion[2:]) / 2
        unlike[[0, -1]] = unlike[[0, -1]].clip(
            min=0
        )  # beside a jump an end is as unlike its one neighbour as the jump is
        worst = int(np.abs(unlike).argmax())
        shares = np.linspace(shares[worst], shares[worst + 1], 9)
        at = values(tuple(shares.tolist()))
    slopes = _slopes(at, shares)
    steepest = int(slopes.argmax())
    if slopes[steepest] <= STEEP * largest:
        return None, 0.0
    return float(shares[steepest]), float(slopes[steepest] * (shares[1] - shares[0]))


def _slopes(at: Float[Tensor, "points numbers"], shares: Any) -> Any:
    return (at[1:] - at[:-1]).norm(dim=1).numpy() / np.diff(shares)
