"""Batches padded to a few sizes by graphs that change no number."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.graphs.field import Location
from hydragnn.graphs.topology import LONG, Topology
from hydragnn.graphs.wider import pairs_key, pairs_of_nodes

UNIT = 8  # sizes are multiples of it
STEP = 0.16  # the next size is larger by at most this share, or by one unit
GROWTH = 0.05
"""Share by which shapes of a run may let nodes and edges of its batches grow; batches that were not looked at grow by a bit more."""

MOST_SHAPES = 48  # most shapes of a run: each is recorded, which takes as long as three steps
Shape = tuple[int, int, int]  # nodes, edges and graphs of padded batches
Sizes = NDArray[np.int64]
Shares = NDArray[np.float64]


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


def best_shapes(batches: Sequence[Shape]) -> tuple[Shape, ...]:
    """Return few shapes for batches of these sizes, the smallest first.

    One shape for all batches is parted in two where that saves most, then one of the two, until nodes and edges grow by no more than ``GROWTH``.
    Nodes and edges count as shares of those of all batches.

    >>> best_shapes([(64, 2000, 1), (64, 2010, 1), (320, 10000, 5)])
    ((72, 2000, 8), (72, 2016, 8), (328, 10000, 8))
    """
    if not batches:
        return ()
    rows = np.array(batches, dtype=np.int64)
    weights = 1 / np.maximum(rows[:, :2].sum(0), 1)
    groups = [rows]
    parts = [_best_parts(rows, weights)]
    while len(groups) < MOST_SHAPES:
        remaining = sum(len(group) * _covers(group)[-1] for group in groups)
        saved, number = max((saved, number) for number, (saved, _) in enumerate(parts))
        if max(remaining * weights) <= 1 + GROWTH or saved <= 0:
            break
        pair = parts[number][1]
        groups[number : number + 1] = pair
        parts[number : number + 1] = [_best_parts(part, weights) for part in pair]
    shapes = {(*_covers(group)[-1].tolist(), padded_size(int(group[:, 2].max()) + 1)) for group in groups}
    return tuple(sorted(shapes, key=lambda shape: (float(shape[:2] @ weights), shape)))


def _best_parts(group: Sizes, weights: Shares) -> tuple[float, list[Sizes]]:
    """Return what two shapes save over one, and the batches of both."""
    best: tuple[float, list[Sizes]] = (0.0, [])
    for column in range(2):
        ordered = group[np.argsort(group[:, column], kind="stable")]
        counts = np.arange(1, len(group) + 1)
        lower, upper = (counts * (_covers(rows) @ weights) for rows in (ordered, ordered[::-1]))
        saved = lower[-1] - lower[:-1] - upper[-2::-1]
        cut = int(saved.argmax()) if len(saved) else 0
        if len(saved) and saved[cut] > best[0]:
            best = float(saved[cut]), [ordered[: cut + 1], ordered[cut + 1 :]]
    return best


def _covers(group: Sizes) -> Sizes:
    """Return sizes that hold the first batches ``[batches, 2]``."""
    nodes, edges = group[:, 0], group[:, 1]
    all_edges = _rounded(np.maximum.accumulate(edges))
    most = 2 * np.maximum(1, edges // np.maximum(nodes, 1))  # as _most_edges
    needed = nodes + 1 + (all_edges[:, None] - edges) // most  # [first batches, batches]
    return np.stack([_rounded(np.tril(needed).max(1)), all_edges], axis=1)


def _rounded(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-np.maximum(counts, 1) // UNIT) * UNIT


PADDED: tuple[str, Location] = ("padded", "graph")  # key in a batch that has padding
OF_SIZES = ("counts", "owner", "bounds")  # names of what a batch derives from offsets alone


def is_padded(batch: GraphBatch) -> bool:
    """Return True for what ``padded`` returned."""
    return PADDED in batch._derived


def padded(
    batch: GraphBatch,
    extent: float,
    *,
    shapes: Sequence[Shape] = (),
    volume: bool = False,
    reverse: bool = False,
    pairs: Sequence[float | None] = (),
) -> GraphBatch:
    """Return the batch with graphs, nodes and edges that have no labels.

    The first graph behind the others has all further nodes, each like the first node of the batch, and all further edges, which join nodes to
    themselves through shifts of nearly the ``extent``, forth and back in turn; further graphs are empty. No node has many more edges than
    those of the batch: its states must not overflow, since zero times infinity is no zero, and no row becomes long.

    What has sizes that the data decide comes with the batch, padded likewise: ``volume`` and ``reverse`` edges, and all ``pairs`` of nodes within these
    cutoffs. The batch takes the first of the ``shapes`` that holds it.
    """
    tables = {cutoff: pairs_of_nodes(batch, cutoff) for cutoff in pairs}
    least, edges, graphs = _shape_for(batch, shapes)
    more_edges, more_graphs = edges - batch.num_edges, graphs - len(batch)
    rows = [batch.num_nodes + 1 + more_edges // _most_loops(batch)]  # with few edges and padded pairs per node
    rows += [_rows_for(batch.num_nodes, one.shape[1], padded_size(one.shape[1])) for one in tables.values()]
    nodes = least if least >= max(rows) else padded_size(max(rows))
    more: dict[Location, int] = {"node": nodes - batch.num_nodes, "edge": more_edges, "graph": more_graphs}
    tensors = batch.by_location(lambda at, value: _longer(value, more[at]))
    loops = spread_over(more_edges, batch.num_nodes, nodes, batch.device)
    present = torch.arange(graphs, device=batch.device) < len(batch)
    result = replace(
        batch,
        **tensors
        | {
            "topology": Topology.square(torch.cat([batch.senders, loops]), torch.cat([batch.receivers, loops]), nodes),
            "edge_shifts": _with_vectors(batch.edge_shifts, more_edges, extent),
            "node_offsets": torch.cat([batch.node_offsets, batch.node_offsets.new_full((more_graphs,), nodes)]),
            "edge_offsets": torch.cat([batch.edge_offsets, batch.edge_offsets.new_full((more_graphs,), edges)]),
            "masks": {
                name: torch.cat([batch.masks[name], present[len(batch) :]]) if name in batch.masks else present
                for name in batch.fields
            },
            "texts": {},
        },
    )
    if batch.topology.longest is not None:
        most = _most_loops(batch)
        object.__setattr__(result.topology, "_longest", tuple(max(most, one) for one in batch.topology.longest))
    if batch.positions.is_cpu:
        result.prepare()
    result._derived[PADDED] = True
    if volume:
        result._derived["volume", "graph"] = _longer(volumes(batch), more_graphs)
    if reverse:
        themselves = torch.arange(batch.num_edges, edges, device=batch.device)
        result._derived["reverse", "edge"] = torch.cat([batch.reverse_edges, themselves])
    for cutoff, table in tables.items():
        result._derived[pairs_key(cutoff)] = _padded_pairs(table, batch.num_nodes, nodes)
    return result


def _most_loops(batch: GraphBatch) -> int:
    """Return how many edges a node of the padding has at most."""
    most = _most_edges(batch.num_nodes, batch.num_edges)
    longest = batch.topology.longest
    return most if longest is None else min(most, max(LONG, *longest))


def _padded_pairs(table: Tensor, first: int, nodes: int) -> Tensor:
    """Return pairs with further ones of nodes from ``first`` with themselves."""
    more = padded_size(table.shape[1]) - table.shape[1]
    ends = spread_over(more, first, nodes, table.device)
    others = torch.stack([ends, ends, *ends.new_zeros(3, more)])
    others[2] = 1 - 2 * (torch.arange(more, device=table.device) % 2)  # through one image, forth and back in turn
    return torch.cat([table, others], dim=1)


def as_padded(batch: GraphBatch) -> GraphBatch:
    """Return a copy that knows only what ``padded`` gave it."""
    topology, arrays = replace(batch.topology), batch.topology.index_arrays
    topology.index_arrays.update({name: arrays[name] for name in sorted(arrays)})
    object.__setattr__(topology, "_longest", batch.topology.longest)
    result = replace(batch, topology=topology)
    keys = [key for key in batch._derived if key[0] not in OF_SIZES]
    result._derived.update({key: batch._derived[key] for key in sorted(keys)})
    return result


def _shape_for(batch: GraphBatch, shapes: Sequence[Shape]) -> Shape:
    """Return the first shape that holds a batch, else one without nodes."""
    for shape in shapes:
        enough = _rows_for(batch.num_nodes, batch.num_edges, shape[1])
        if shape[0] >= enough and shape[1] >= batch.num_edges and shape[2] > len(batch):
            return shape
    return 0, padded_size(batch.num_edges), padded_size(len(batch) + 1)


def _rows_for(nodes: int, edges: int, all_edges: int) -> int:
    """Return the nodes among which all edges have few per node."""
    return nodes + 1 + (all_edges - edges) // _most_edges(nodes, edges)


def _most_edges(nodes: int, edges: int) -> int:
    return 2 * max(1, edges // max(nodes, 1))


def spread_over(count: int, first: int, end: int, device: torch.device) -> Tensor:
    """Return ascending numbers from ``first`` to before ``end``, evenly spread."""
    return first + torch.arange(count, device=device) * (end - first) // max(count, 1)


def _with_vectors(vectors: Tensor, more: int, extent: float) -> Tensor:
    """Return vectors, and others along one axis, forth and back."""
    others = vectors.new_zeros(more, vectors.shape[1])
    others[::2, :1], others[1::2, :1] = 0.9 * extent, -0.9 * extent
    return torch.cat([vectors, others])


def _longer(values: Tensor, more: int) -> Tensor:
    """Return the rows and ``more`` like the first; zeros without any."""
    like = values[:1] if len(values) else values.new_zeros(1, *values.shape[1:])
    return torch.cat([values, like.expand(more, *values.shape[1:])])
