"""Attention among all nodes of a graph, beside a layer."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import SiLU
from hydragnn.kernels.family import ANYWHERE, form_on
from hydragnn.layers.message_graph import MessageGraph, States
from hydragnn.layers.size_buckets import SizeBuckets, size_buckets
from hydragnn.layers.split_plan import LayerSplit, Plan


class NodeAttention(nn.Module):
    """Base of attention among nodes: weights as in ``torch.nn.MultiheadAttention``."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.channels = heads, channels
        self.project = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def split_plan(self) -> Plan:
        """Return the heads."""
        return {
            "": LayerSplit(counts=("heads", "channels")),
            "project": LayerSplit(weights="columns", blocks=3, takes=(("copy",),), in_head=("gather", "copy")),
            "out": LayerSplit(weights="rows"),
        }

    def parts_of(self, rows: Float[Tensor, "*items channels"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values.

        Ranks that share a head have all of its queries and keys."""
        width = (rows.shape[-1] - self.channels) // 2
        queries, keys, values = rows.split([width, width, self.channels], dim=-1)
        return queries, keys, values


class GraphAttention(NodeAttention):
    """Multihead attention over the nodes of each graph.

    softmax(Q K^T / sqrt(d)) V over the nodes of each graph (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

    Graphs of similar sizes are computed together (``size_buckets``), never all of a batch. Time is quadratic in the nodes of a graph, not of the batch;
    so is memory where weights learn from forces (``graph.is_differentiated_twice``). Elsewhere no large array of nodes by nodes is kept: by torch's fused
    form on a CPU, and in parts on a GPU, where the gradient of the fused form adds atomically.
    """

    def forward(self, states: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Float[Tensor, "nodes channels"]:
        """Return the attention of every node."""
        projected = self.project(states)  # [nodes, 3 channels]
        if graph.halo is not None:
            return self.out(attention_over_ranks(*self.parts_of(projected), self.heads, graph))
        dtype, buckets = projected.dtype, buckets_of(graph)
        absent = graph.once(("absent", dtype), lambda: [bucket.absent(dtype) for bucket in buckets.buckets])
        # fused forms have one derivative, and weights learn from forces by a second one
        form = attention_in_full if graph.is_differentiated_twice else form_on(ATTENTION_FORMS, projected.device.type)
        read = []  # [graphs, size, channels] of every bucket
        for rows, mask in zip(buckets.spread(projected), absent):
            queries, keys, values = (by_head(part, self.heads) for part in self.parts_of(rows))
            read.append(form(queries, keys, values, mask).transpose(1, 2).flatten(2))
        return self.out(buckets.collect(read))


def attention_over_ranks(
    queries: Float[Tensor, "nodes channels"],
    keys: Float[Tensor, "nodes channels"],
    values: Float[Tensor, "nodes features"],
    heads: int,
    graph: MessageGraph,
) -> Float[Tensor, "nodes features"]:
    """Return the attention of a rank's nodes to all others.

    Every rank holds the keys and values of all.
    """
    assert graph.halo is not None
    exchange, sizes = graph.halo, graph.halo.halo.nodes_per_graph.tolist()
    others, widths = torch.cat([keys, values], dim=1), [keys.shape[1], values.shape[1]]
    rows = exchange.halo.numbers
    whole = others.new_zeros(sum(sizes), others.shape[1]).index_add(0, rows, exchange.owned(others))
    read = []
    for own, of_graph in zip(queries.split(graph.nodes_per_graph.tolist()), exchange.total(whole).split(sizes)):
        read_keys, read_values = (by_head(part.unsqueeze(0), heads) for part in of_graph.split(widths, dim=1))
        one = attention_in_full(
            by_head(own.unsqueeze(0), heads), read_keys, read_values, None
        )  # [1, heads, nodes, width]
        read.append(one[0].transpose(0, 1).flatten(1))
    return torch.cat([values[:0], *read])


def buckets_of(graph: MessageGraph) -> SizeBuckets:
    """The buckets of a graph's nodes, the same for all layers."""
    return graph.once("buckets", lambda: size_buckets(graph.nodes_per_graph, graph.owner))


def by_head(
    rows: Float[Tensor, "graphs size channels"], heads: int
) -> Float[Tensor, "graphs {heads} size channels_per_head"]:
    """Channels of every head apart."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def attention_in_full(
    queries: Float[Tensor, "graphs heads readers width"],
    keys: Float[Tensor, "graphs heads size width"],
    values: Float[Tensor, "graphs heads size width"],
    mask: Float[Tensor, "graphs 1 1 size"] | None,
) -> Float[Tensor, "graphs heads readers width"]:
    """Return softmax(Q K^T / sqrt(d) + mask) V, with all derivatives."""
    scores = (queries / math.sqrt(queries.shape[-1])) @ keys.mT  # [graphs, heads, size, size]: who reads, who is read
    return (scores if mask is None else scores + mask).softmax(dim=-1) @ values


ROOM = 2**24
"""Scores that are held at once, 64 MiB in single precision; attention over more is computed in parts."""


def attention_in_parts(
    queries: Float[Tensor, "graphs heads readers width"],
    keys: Float[Tensor, "graphs heads size width"],
    values: Float[Tensor, "graphs heads size width"],
    mask: Float[Tensor, "graphs 1 1 size"] | None,
) -> Float[Tensor, "graphs heads readers width"]:
    """Return ``attention_in_full`` in parts of some queries."""
    from torch.utils.checkpoint import checkpoint

    of_a_query = keys.shape[:3].numel()
    parts = queries.split(max(1, ROOM // max(1, of_a_query)), dim=2)
    if len(parts) == 1:
        return attention_in_full(queries, keys, values, mask)
    return torch.cat(
        [
            checkpoint(attention_in_full, part, keys, values, mask, use_reentrant=False, preserve_rng_state=False)
            for part in parts
        ],
        2,
    )


ATTENTION_FORMS: Mapping[str, Callable[..., Tensor]] = {
    ANYWHERE: attention_in_parts,
    "cpu": nn.functional.scaled_dot_product_attention,
}
"""Attention with one derivative, by kind of device."""


class LinearGraphAttention(NodeAttention):
    """Linear attention over the nodes of each graph.

    f(Q) (f(K)^T V) / (f(Q) sum f(K)) with f = elu + 1 over the nodes of each graph (Katharopoulos et al. 2020, arXiv:2006.16236, eq. 5).

    Time and memory are linear in the number of nodes. Graphs of similar sizes are computed together (``size_buckets``).
    """

    def forward(self, states: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Float[Tensor, "nodes channels"]:
        """Return the attention of every node."""
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)) for part in self.parts_of(self.project(states)))
        queries, keys = nn.functional.elu(queries) + 1, nn.functional.elu(keys) + 1  # [nodes, heads, width]
        values = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)  # [nodes, heads, width + 1]
        sums = form_on(SUMS_FORMS, queries.device.type)
        # the last is the sum of shares; f > 0, so that it is
        read, total = sums(queries, keys, values, graph).split([values.shape[-1] - 1, 1], dim=-1)
        return self.out((read / total).flatten(1))


def sums_by_bucket(
    queries: Float[Tensor, "nodes heads width"],
    keys: Float[Tensor, "nodes heads width"],
    values: Float[Tensor, "nodes heads features"],
    graph: MessageGraph,
) -> Float[Tensor, "nodes heads features"]:
    """Return Q (K^T V) of each graph by buckets; padding adds nothing."""
    heads, buckets = queries.shape[1], buckets_of(graph)
    if graph.halo is not None:
        return sums_by_node(queries, keys, values, graph)
    spread = [[by_head(rows, heads) for rows in buckets.spread(part.flatten(1))] for part in (queries, keys, values)]
    read = [q @ (k.mT @ v) for q, k, v in zip(*spread)]  # [graphs, heads, size, features] of every bucket
    return buckets.collect([part.transpose(1, 2).flatten(2) for part in read]).unflatten(-1, (heads, -1))


def sums_by_node(
    queries: Float[Tensor, "nodes heads width"],
    keys: Float[Tensor, "nodes heads width"],
    values: Float[Tensor, "nodes heads features"],
    graph: MessageGraph,
) -> Float[Tensor, "nodes heads features"]:
    """Return Q (K^T V) of each graph, without its size."""
    outer = keys.unsqueeze(-1) * values.unsqueeze(-2)  # [nodes, heads, width, features]
    context = graph.to_nodes(graph.sum_over_nodes(outer))
    return (queries.unsqueeze(-2) @ context).squeeze(-2)


SUMS_FORMS: Mapping[str, Callable[..., Tensor]] = {ANYWHERE: sums_by_node, "cpu": sums_by_bucket}
"""Linear attention by kind of device: elsewhere the host would wait for sizes of graphs."""

ATTENTION: dict[str, type[NodeAttention]] = {"multihead": GraphAttention, "linear": LinearGraphAttention}


class GPSLayer(nn.Module):
    """Layer with attention beside it.

    norm(local(h)) + norm(h + attention(h)), then a network with residual and norm (arXiv:2205.12454, equations 2 to 4).

    Deviates from the paper: layer norms instead of batch norms, so that a prediction does not depend on its batch, and SiLU.
    States of higher degree are those of the local layer; attention reads and writes degree 0, which does not turn.
    """

    def __init__(
        self, local: nn.Module, channels: int, kind: Literal["multihead", "linear"], heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.local = local
        self.attention = ATTENTION[kind](channels, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        wide, narrow = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.network = nn.Sequential(wide, SiLU(), nn.Dropout(dropout), narrow, nn.Dropout(dropout))
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states: what neighbours and the whole graph told."""
        local = self.local(states, graph)
        attended = states[0] + self.dropout(self.attention(states[0], graph))
        both = self.norms[0](local[0]) + self.norms[1](attended)
        return {**local, 0: self.norms[2](both + self.network(both))}
