"""Attention among all nodes of a graph, never across graphs; beside a layer in the manner of GPS."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import SiLU, segment_sum
from hydragnn.layers.message_graph import MessageGraph, States


class GraphAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V over the nodes of each graph (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

    Graphs with equally many nodes are computed together, so nothing is padded or masked. Time is quadratic in the nodes of a graph, not of the batch;
    so is memory where forces are asked (``graph.is_differentiated``), and elsewhere torch's fused forms keep no array of nodes by nodes.
    Weights lie as in ``torch.nn.MultiheadAttention``.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, states: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Float[Tensor, "nodes channels"]:
        """What every node reads from its graph."""
        projected = self.project(states)  # [nodes, 3 channels]
        attended = states.new_zeros(states.shape, dtype=projected.dtype)
        for nodes in graph.once("nodes by size", lambda: nodes_by_size(graph)):
            queries, keys, values = (  # [graphs of that size, heads, size, channels / heads] each
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected[nodes].chunk(3, dim=-1)
            )
            # fused forms have one derivative, and weights learn from forces by a second one
            form = attention_in_full if graph.is_differentiated else nn.functional.scaled_dot_product_attention
            read = form(queries, keys, values).transpose(1, 2).flatten(2)  # [graphs of that size, size, channels]
            attended = attended.index_add(0, nodes.flatten(), read.flatten(0, 1).to(attended.dtype))
        return self.out(attended)


def attention_in_full(
    queries: Float[Tensor, "graphs heads size width"],
    keys: Float[Tensor, "graphs heads size width"],
    values: Float[Tensor, "graphs heads size width"],
) -> Float[Tensor, "graphs heads size width"]:
    """softmax(Q K^T / sqrt(d)) V as it is written, with derivatives of every order."""
    # [graphs, heads, size, size]: who reads, who is read
    shares = (queries @ keys.mT / math.sqrt(queries.shape[-1])).softmax(dim=-1)
    return shares @ values


def nodes_by_size(graph: MessageGraph) -> list[Tensor]:
    """Node numbers ``[graphs, size]`` of the graphs of each size; graphs without nodes are left out."""
    counts = graph.nodes_per_graph
    starts = counts.cumsum(0) - counts
    return [
        starts[counts == size].unsqueeze(1) + torch.arange(size, device=counts.device)
        for size in counts.unique().tolist()
        if size
    ]


class LinearGraphAttention(nn.Module):
    """f(Q) (f(K)^T V) / (f(Q) sum f(K)) with f = elu + 1 over the nodes of each graph (Katharopoulos et al. 2020, arXiv:2006.16236, eq. 5).

    Time and memory are linear in the number of nodes.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, states: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Float[Tensor, "nodes channels"]:
        """What every node reads from its graph."""
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)) for part in self.project(states).chunk(3, dim=-1))
        queries, keys = nn.functional.elu(queries) + 1, nn.functional.elu(keys) + 1  # [nodes, heads, width]
        outer = keys.unsqueeze(-1) * values.unsqueeze(-2)  # [nodes, heads, width, width]
        # sums over the graph of every node: [nodes, heads, width, width] and [nodes, heads, width]
        context = segment_sum(outer, graph.owner, graph.num_graphs).index_select(0, graph.owner)
        weight = segment_sum(keys, graph.owner, graph.num_graphs).index_select(0, graph.owner)
        # [nodes, heads, width]; f > 0, so that the divisor is
        read = (queries.unsqueeze(-2) @ context).squeeze(-2) / (queries * weight).sum(-1, keepdim=True)
        return self.out(read.flatten(1))


ATTENTION: dict[str, type[GraphAttention] | type[LinearGraphAttention]] = {
    "multihead": GraphAttention,
    "linear": LinearGraphAttention,
}


class GPSLayer(nn.Module):
    """norm(local(h)) + norm(h + attention(h)), then a network with residual and norm (arXiv:2205.12454, equations 2 to 4).

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
        self.network = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            SiLU(),
            nn.Dropout(dropout),
            nn.Linear(2 * channels, channels),
            nn.Dropout(dropout),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states: what neighbours and the whole graph told."""
        local = self.local(states, graph)
        attended = states[0] + self.dropout(self.attention(states[0], graph))
        both = self.norms[0](local[0]) + self.norms[1](attended)
        return {**local, 0: self.norms[2](both + self.network(both))}
