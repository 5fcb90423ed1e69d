"""Batches in parts of nearly equal cost, to save memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hydragnn.datasets.footprint import MemoryLimit
from hydragnn.datasets.packing import NODE_COST, Budget, pack
from hydragnn.datasets.store import Sizes
from hydragnn.graphs.batch import GraphBatch


def micro_batches(batch: GraphBatch, number: int) -> Iterator[GraphBatch]:
    """Return at most ``number`` non-empty parts of consecutive graphs.

    Where there are fewer graphs than parts, every graph is one; an empty batch has no parts.
    """
    if number == 1 or batch.num_graphs <= 1:
        yield from [batch] if batch.num_graphs else []
        return
    cuts = even_cuts((batch.counts("edge") + NODE_COST * batch.counts("node")).tolist(), number)
    for first, last in pairwise(cuts):
        yield batch.select(slice(first, last))


def parts_within(pieces: Iterable[GraphBatch], batch: GraphBatch, memory: MemoryLimit) -> Iterator[GraphBatch]:
    """Return the pieces, cut further where memory requires it.

    The tensors of all parts are there while one is computed. A graph that fits only without those of its peers is a part of its own.
    """
    whole = _sizes(batch)
    every = np.arange(len(whole))
    if memory.footprint.bytes(whole, every) <= memory.size:
        yield from pieces
        return
    remaining = memory.size - memory.footprint.held(whole, every)
    for piece in pieces:
        sizes = _sizes(piece)
        needed = memory.footprint.alone(sizes, np.arange(len(sizes))).max(initial=0.0)
        within = replace(memory, size=int(max(remaining, needed + 1)))
        for graphs in pack(sizes, np.arange(len(sizes)), Budget(memory=within)):
            yield piece.select(slice(int(graphs[0]), int(graphs[-1]) + 1))


def _sizes(batch: GraphBatch) -> Sizes:
    """Return nodes and edges of the graphs of a batch."""
    nodes, edges = (batch.counts(location).cpu().numpy() for location in ("node", "edge"))
    return Sizes(nodes=nodes, edges=edges)


def even_cuts(costs: Sequence[int], number: int) -> list[int]:
    """Return cuts of costs that minimise the largest piece.

    >>> even_cuts([1, 1, 1, 9, 1, 1], 3)
    [0, 3, 4, 6]
    >>> even_cuts([2, 2], 4), even_cuts([], 2)
    ([0, 1, 2], [0])
    """
    low, high = max([0, *costs]), sum(costs)
    while low < high:  # the smallest limit under which the pieces are few enough
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cuts_within(costs, middle)) - 1 <= number else (middle + 1, high)
    return _cuts_within(costs, low)


def _cuts_within(costs: Sequence[int], limit: int) -> list[int]:
    """Return cuts that fill every piece up to the limit."""
    cuts, filled = [0], 0
    for position, cost in enumerate(costs):
        if position > cuts[-1] and filled + cost > limit:
            cuts.append(position)
            filled = 0
        filled += cost
    return [*cuts, len(costs)] if costs else cuts
