"""Graphs of similar sizes in one padded array."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydragnn.kernels import segment_sum, spread

MORE = 0.125
"""A bucket has at most so many more pairs of nodes than its graphs, as a share,"""
MORE_PER_NODE = 4
"""and beside them so many for every node, which matters in small graphs alone;"""
MOST = 4096
"""but never more than this many: about what a call takes in time, and few bytes where arrays of pairs are kept."""


SHARED = 64
"""Nodes at most of those that pad a batch, in one row."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bucket:
    """Some graphs of a batch, each with ``size`` rows."""

    graphs: int
    size: int
    is_node: Bool[Tensor, "graphs size"] | None
    """False for rows of zeros behind the nodes of a graph; None where all graphs are of this size."""

    def absent(self, dtype: torch.dtype) -> Float[Tensor, "graphs 1 1 size"] | None:
        """Return the mask of padding for scores: minus infinity or None."""
        if self.is_node is None:
            return None
        mask = torch.zeros(self.is_node.shape, dtype=dtype, device=self.is_node.device)
        return mask.masked_fill(~self.is_node, -math.inf)[:, None, None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SizeBuckets:
    """All nodes of a batch, in rows of buckets."""

    buckets: Sequence[Bucket]
    row: Int[Tensor, " nodes"] | None
    """The row of every node, through all buckets; None where nodes lie in this order, without rows of zeros."""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "SizeBuckets":
        """Return the buckets with ``change``, which keeps values, done to every tensor."""

        def of(values: Tensor | None) -> Tensor | None:
            return None if values is None else change(values)

        return SizeBuckets(
            buckets=[replace(bucket, is_node=of(bucket.is_node)) for bucket in self.buckets], row=of(self.row)
        )

    def spread(self, values: Float[Tensor, "nodes channels"]) -> list[Tensor]:
        """Return padded arrays ``[graphs, size, channels]`` of every bucket."""
        lengths = [bucket.graphs * bucket.size for bucket in self.buckets]
        if self.row is not None:
            values = segment_sum(values, self.row, sum(lengths))  # rows have one node or none
        parts = values.split(lengths)
        return [part.view(each.graphs, each.size, part.shape[1]) for part, each in zip(parts, self.buckets)]

    def collect(self, parts: Sequence[Tensor]) -> Float[Tensor, "nodes channels"]:
        """Return the row of every node from padded arrays."""
        rows = [part.flatten(0, 1) for part in parts]
        values = rows[0] if len(rows) == 1 else torch.cat(rows)
        return values if self.row is None else spread(values, self.row)


def size_buckets(counts: Int[Tensor, " graphs"], owner: Int[Tensor, " nodes"]) -> SizeBuckets:
    """Return the buckets of a batch; empty graphs are in none.

    The host waits for the device.

    >>> of_three = size_buckets(torch.tensor([2, 9, 3]), torch.arange(3).repeat_interleave(torch.tensor([2, 9, 3])))
    >>> [(bucket.graphs, bucket.size) for bucket in of_three.buckets]
    [(2, 3), (1, 9)]
    """
    sizes, repeats = (values.tolist() for values in counts.unique(return_counts=True))
    ends = bucket_sizes(sizes, repeats)  # ascending; of graphs without nodes 0
    bounds = torch.tensor(ends, dtype=counts.dtype, device=counts.device)
    bucket = torch.bucketize(counts, bounds)  # [graphs], of every graph
    order = bucket.argsort(stable=True)
    lengths = bounds[bucket[order]]  # rows of every graph, in the order of buckets
    first = torch.empty_like(counts).scatter(0, order, lengths.cumsum(0) - lengths)
    in_batch = counts.cumsum(0) - counts
    row = (first - in_batch).index_select(0, owner) + torch.arange(owner.shape[0], device=owner.device)
    buckets, begin = [], 0
    for low, end in zip([-1, *ends], ends):
        graphs = sum(many for size, many in zip(sizes, repeats) if low < size <= end)
        mine = counts[order[begin : begin + graphs]]
        begin += graphs
        equal = sum(low < size <= end for size in sizes) == 1  # no row is padding: attention needs no mask
        is_node = None if equal else torch.arange(end, device=counts.device) < mine.unsqueeze(1)
        if end:
            buckets.append(Bucket(graphs=graphs, size=end, is_node=is_node))
    if not buckets:  # a batch without nodes
        buckets.append(Bucket(graphs=0, size=1, is_node=None))
    return SizeBuckets(buckets=buckets, row=None if len(sizes) == 1 else row)


def padded_buckets(counts: Int[Tensor, " graphs"], nodes: int, size_of: Callable[[int], int]) -> SizeBuckets:
    """Return buckets of few sizes for a batch padded to ``nodes``.

    Sizes are powers of two and the middles between them, numbers of graphs those of ``size_of``. Nodes that pad the batch are in a bucket of their own.

    >>> of_three = padded_buckets(torch.tensor([2, 9, 3]), 20, lambda count: -(-count // 2) * 2)
    >>> [(bucket.graphs, bucket.size) for bucket in of_three.buckets]
    [(2, 4), (2, 12), (1, 1)]
    """
    own = counts.tolist()
    ends = [ladder_size(count) for count in own]
    sizes = sorted({end for count, end in zip(own, ends) if count})
    buckets, begin, first = [], 0, [0] * len(own)
    for size in sizes:
        mine = [number for number, (count, end) in enumerate(zip(own, ends)) if count and end == size]
        graphs = size_of(len(mine))
        for place, number in enumerate(mine):
            first[number] = begin + place * size
        filled = torch.tensor([own[number] for number in mine] + [1] * (graphs - len(mine)))
        buckets.append(Bucket(graphs=graphs, size=size, is_node=torch.arange(size) < filled.unsqueeze(1)))
        begin += graphs * size
    others = max(1, nodes // SHARED)
    buckets.append(Bucket(graphs=others, size=1, is_node=None))
    starts = torch.tensor(first, dtype=torch.int64).repeat_interleave(torch.tensor(own, dtype=torch.int64))
    offsets = torch.tensor([0, *own[:-1]], dtype=torch.int64).cumsum(0).repeat_interleave(torch.tensor(own))
    row = starts + torch.arange(len(starts)) - offsets
    row = torch.cat([row, begin + torch.arange(nodes - len(row)) % others])
    return SizeBuckets(buckets=buckets, row=row).mapped(lambda values: values.to(counts.device))


def ladder_size(count: int) -> int:
    """Return the next power of two or middle between two.

    >>> [ladder_size(count) for count in (1, 5, 7, 9, 13, 64, 65)]
    [4, 6, 8, 12, 16, 64, 96]
    """
    power = max(4, 1 << (count - 1).bit_length())
    return power * 3 // 4 if count <= power * 3 // 4 and power > 4 else power


def bucket_sizes(sizes: Sequence[int], repeats: Sequence[int]) -> list[int]:
    """Return ascending sizes of buckets for graphs of these sizes.

    The size is 0 for graphs without nodes.

    From the largest down, as many in a bucket as ``MORE``, ``MORE_PER_NODE`` and ``MOST`` allow.
    """
    ends: list[int] = []
    rows = pairs = nodes = 0  # pairs of rows of the last bucket, and pairs and nodes of its graphs
    for size, many in zip(reversed(sizes), reversed(repeats)):
        if ends:
            rows, pairs, nodes = rows + many * ends[-1] ** 2, pairs + many * size**2, nodes + many * size
        if not ends or not size or rows - pairs > min(MORE * pairs + MORE_PER_NODE * nodes, MOST):
            ends.append(size)
            rows, pairs, nodes = many * size**2, many * size**2, many * size
    return ends[::-1]
