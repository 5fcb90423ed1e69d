"""Batches in parts of nearly equal cost, to save memory."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hydragnn.datasets.packing import NODE_COST
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
