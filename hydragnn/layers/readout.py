"""Readout: pooling over nodes, networks, and gated vectors."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hydragnn.kernels import segment_max, segment_mean, segment_softmax, segment_sum, silu
from hydragnn.layers.inputs import mlp
from hydragnn.layers.message_graph import MessageGraph

Pool = Literal["sum", "mean", "max"]
POOLS = {"sum": segment_sum, "mean": segment_mean, "max": segment_max}


def pool_nodes(
    values: Float[Tensor, "nodes *features"], graph_of_node: Int[Tensor, " nodes"], num_graphs: int, pool: Pool
) -> Float[Tensor, "{num_graphs} *features"]:
    """Return sum, mean or maximum over the nodes of every graph.

    A graph without nodes has zeros.

    >>> pool_nodes(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), num_graphs=1, pool="mean")
    tensor([[2.]])
    """
    return POOLS[pool](values, graph_of_node, num_graphs)


def pooled_nodes(
    values: Float[Tensor, "nodes *features"], graph: MessageGraph, pool: Pool
) -> Float[Tensor, "graphs *features"]:
    """Return ``pool_nodes`` of graphs that may be shared by ranks."""
    if graph.halo is None:
        return pool_nodes(values, graph.owner, graph.num_graphs, pool)
    if pool == "max":
        return graph.halo.largest_of_nodes(values, graph.owner, graph.num_graphs)
    total = graph.sum_over_nodes(values)
    if pool == "sum":
        return total
    counts = graph.halo.halo.nodes_per_graph.clamp_min(1).to(total.dtype)
    return total / counts.view(-1, *[1] * (total.dim() - 1))


def shares_of_nodes(scores: Float[Tensor, "nodes 1"], graph: MessageGraph) -> Float[Tensor, "nodes 1"]:
    """Return the softmax over the nodes of every graph."""
    if graph.halo is None:
        return segment_softmax(scores, graph.owner, graph.num_graphs)
    largest = pooled_nodes(scores.detach(), graph, "max")
    values = (scores - graph.to_nodes(largest)).exp()
    return values / graph.to_nodes(graph.sum_over_nodes(values))


class GatedVectors(nn.Module):
    """Two gated layers on scalars and vectors.

    (s, v) -> (silu(s'), v') -> v'': vectors that turn with the graph (Schuett et al. 2021, arXiv:2102.03150, figure 3).
    Deviates from the paper: the width between the layers is that of the head.
    """

    def __init__(self, channels: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = GatedLayer(channels, channels, hidden)
        self.second = GatedLayer(hidden, hidden, outputs)

    def forward(
        self, scalars: Float[Tensor, "nodes channels"], vectors: Float[Tensor, "nodes dim channels"]
    ) -> Float[Tensor, "nodes outputs dim"]:
        """Vectors with the parity of the positions."""
        scalars, vectors = self.first(scalars, vectors)  # [nodes, hidden], [nodes, dim, hidden]
        _, vectors = self.second(silu(scalars), vectors)
        return vectors.transpose(-1, -2)  # [nodes, dim, outputs] -> [nodes, outputs, dim]


class GatedProducts(nn.Module):
    """Symmetric tensors as gated products of vectors.

    T = sum_k m_k g_k (l_k r_k^T + r_k l_k^T) / 2 with gates g of scalars and l, r linear in gated vectors.

    After the polarisability in Schuett et al. 2021 (arXiv:2102.03150). Deviates from the paper: products of two vectors of the
    states, gated and mixed, where the paper multiplies one of them with the position of its node.
    """

    def __init__(self, channels: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = GatedLayer(channels, channels, hidden)
        self.gates = nn.Linear(hidden, hidden)
        self.left = nn.Linear(hidden, hidden, bias=False)
        self.right = nn.Linear(hidden, hidden, bias=False)
        self.mix = nn.Linear(hidden, outputs, bias=False)

    def forward(
        self, scalars: Float[Tensor, "nodes channels"], vectors: Float[Tensor, "nodes dim channels"]
    ) -> Float[Tensor, "nodes outputs dim dim"]:
        """Symmetric tensors that do not change when all positions change their sign."""
        scalars, vectors = self.first(scalars, vectors)
        gates = self.gates(silu(scalars)).unsqueeze(-2)  # [nodes, 1, hidden]
        lhs = (gates * self.left(vectors)).unsqueeze(1) * self.mix.weight.unsqueeze(1)  # [nodes, outputs, dim, hidden]
        # [nodes, outputs, dim, dim]
        tensors = lhs @ self.right(vectors).transpose(-1, -2).unsqueeze(1)
        return 0.5 * (tensors + tensors.transpose(-1, -2))


class GatedLayer(nn.Module):
    """Gated equivariant layer.

    (s', g) = network(s, |W_1 v|), v' = g * W_2 v (gated equivariant block, arXiv:2102.03150, figure 3).

    Deviates from the paper: lengths are sqrt(|W_1 v|^2 + 1e-8), differentiable at zero.
    """

    def __init__(self, scalars: int, vectors: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.measure = nn.Linear(vectors, scalars, bias=False)
        self.mix = nn.Linear(vectors, outputs, bias=False)
        self.network = mlp([2 * scalars, scalars, 2 * outputs])

    def forward(
        self, scalars: Float[Tensor, "nodes scalars"], vectors: Float[Tensor, "nodes dim vectors"]
    ) -> tuple[Float[Tensor, "nodes outputs"], Float[Tensor, "nodes dim outputs"]]:
        """New scalars and gated vectors."""
        lengths = (self.measure(vectors).square().sum(-2) + 1e-8).sqrt()  # [nodes, scalars]
        new, gates = self.network(torch.cat([scalars, lengths], dim=-1)).split(self.outputs, dim=-1)
        return new, gates.unsqueeze(-2) * self.mix(vectors)  # [nodes, 1, outputs] * [nodes, dim, outputs]
