"""Batches padded to a few sizes by graphs that change no number."""

from bisect import bisect_left
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.graphs.topology import LONG, Topology

UNIT = 8
"""Sizes are multiples of it."""

STEP = 0.16
"""The next size is larger by at most this share, or by one unit."""


@cache
def sizes() -> list[int]:
    """Return all sizes, ascending."""
    result = [UNIT]
    while result[-1] < 2**40:
        result.append(result[-1] + max(UNIT, int(result[-1] * STEP) // UNIT * UNIT))
    return result


def padded_size(count: int) -> int:
    """Return the smallest size that holds ``count`` items.

    >>> padded_size(3), padded_size(2049), padded_size(75898)
    (8, 2304, 80464)
    """
    return sizes()[bisect_left(sizes(), count)]


def padded(batch: GraphBatch, extent: float, *, volume: bool = False, reverse: bool = False) -> GraphBatch:
    """Return the batch with graphs, nodes and edges that have no labels.

    The first graph behind the others has all further nodes, each like the first node of the batch, and all further edges, which join nodes to
    themselves through shifts of nearly the ``extent``, forth and back in turn; further graphs are empty. No node has many more edges than
    those of the batch: its states must not overflow, since zero times infinity is no zero, and no row becomes long. ``volume`` and
    ``reverse``: with volumes and reverse edges, which are computed here because the host waits for them.
    """
    edges, graphs = padded_size(batch.num_edges), padded_size(len(batch) + 1)
    more_edges, more_graphs = edges - batch.num_edges, graphs - len(batch)
    most = 2 * max(1, batch.num_edges // max(batch.num_nodes, 1))
    longest = batch.topology.longest
    if longest is not None:
        most = min(most, max(LONG, *longest))
    nodes = padded_size(batch.num_nodes + 1 + more_edges // most)
    more_nodes = nodes - batch.num_nodes
    loops = batch.num_nodes + torch.arange(more_edges, device=batch.device) * more_nodes // max(more_edges, 1)
    shifts = batch.edge_shifts.new_zeros(more_edges, batch.dim)
    shifts[::2, :1], shifts[1::2, :1] = 0.9 * extent, -0.9 * extent
    present = torch.arange(graphs, device=batch.device) < len(batch)
    result = replace(
        batch,
        positions=_longer(batch.positions, more_nodes),
        topology=Topology.square(torch.cat([batch.senders, loops]), torch.cat([batch.receivers, loops]), nodes),
        edge_shifts=torch.cat([batch.edge_shifts, shifts]),
        cell=_longer(batch.cell, more_graphs),
        periodic=_longer(batch.periodic, more_graphs),
        node_offsets=torch.cat([batch.node_offsets, batch.node_offsets.new_full((more_graphs,), nodes)]),
        edge_offsets=torch.cat([batch.edge_offsets, batch.edge_offsets.new_full((more_graphs,), edges)]),
        nodes={name: _longer(value, more_nodes) for name, value in batch.nodes.items()},
        edges={name: _longer(value, more_edges) for name, value in batch.edges.items()},
        graphs={name: _longer(value, more_graphs) for name, value in batch.graphs.items()},
        masks={
            name: torch.cat([batch.masks[name], present[len(batch) :]]) if name in batch.masks else present
            for name in batch.fields
        },
        texts={},
    )
    if longest is not None:
        object.__setattr__(result.topology, "_longest", tuple(max(most, one) for one in longest))
    if batch.positions.is_cpu:
        result.prepare()
    if volume:
        result._derived["volume", "graph"] = _longer(volumes(batch), more_graphs)
    if reverse:
        themselves = torch.arange(batch.num_edges, edges, device=batch.device)
        result._derived["reverse", "edge"] = torch.cat([batch.reverse_edges, themselves])
    return result


def _longer(values: Tensor, more: int) -> Tensor:
    """Return the rows and ``more`` like the first; zeros without any."""
    like = values[:1] if len(values) else values.new_zeros(1, *values.shape[1:])
    return torch.cat([values, like.expand(more, *values.shape[1:])])
