"""Equivariant attention among pairs of nodes, beside a layer."""

import math
from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import edge_product, gather_multiply_sum, segment_sum
from hydragnn.layers.harmonics import SphericalHarmonics
from hydragnn.layers.inputs import mlp
from hydragnn.layers.message_graph import MessageGraph, States, radial_inputs
from hydragnn.layers.split_plan import LayerSplit, Plan

HIGHEST = 30.0
"""Largest score: weights differ by a factor of exp of twice of it at most, and no sum of them overflows in single precision."""
NUM_RADIAL = 16
"""Radial functions of a pair, unless settings say otherwise."""
FAR = 3
"""Cutoffs of the architecture over which the lengths of all pairs of a graph are told apart, where attention has no cutoff of its own."""


class EquivariantAttention(nn.Module):
    """Attention over the pairs of ``graph.wider``.

    Increments of states of several degrees from all pairs that ``graph.wider`` has, and from the node itself.

    With x_j^0 a layer norm of the scalars and x_j^l = h_j^l / sqrt(mean over channels |h_j^l|^2 + 1), a head of i attends to j by the score

        a_ij = sum over degrees l <Q_l x_i^l, K_l x_j^l> / sqrt(d) + b(r_ij),    w_ij = u(r_ij) exp(a_ij) / (exp(a_ii) + sum_k u(r_ik) exp(a_ik))

    where <,> sums components and the d products of channels and components of a head, b is linear in the radial functions of the pair, one number in place of b
    belongs to a_ii, and u is an envelope that ends at the cutoff of attention (1 for all pairs of a graph). i reads

        y_i^0 = w_ii V x_i^0 + sum_j w_ij f(r_ij) V x_j^0
        y_i^l = w_ii W_l x_i^l + sum_j w_ij (g_l(r_ij) Y_l(r_ij) V_l x_j^0 + f_l(r_ij) W_l x_j^l)

    with f, g one number per head, linear in the radial functions, and Y_l the spherical harmonics of the direction. The increments are a network of y^0 and linear maps of y^l. Weights are those of a
    softmax (Vaswani et al. 2017, arXiv:1706.03762, eq. 1) with scores and values of all degrees as in the SE(3)-transformer (Fuchs et al. 2020, arXiv:2006.10503, eqs. 10 and 11),
    in which u multiplies exponentials before they are normalised: a pair comes and goes with weight zero, so that energies have as many continuous derivatives as u.
    The term of the node itself keeps the divisor above zero. Deviates from Fuchs et al.: no products of states of different degrees (Clebsch-Gordan coefficients) and no radial networks per path, so that all
    that exists for a pair is a few numbers per head and component, no channels. Deviates from the public HydraGNN's EquivariantTransformer likewise, and in that it has no periodic images. Scores a are 30 tanh(a / 30), as large
    language models cap theirs (Gemma 2, arXiv:2408.00118, section 2), so that no weights of the network overflow.
    """

    def __init__(
        self, channels: int, heads: int, edge_width: int, *, inputs: Collection[int], outputs: Collection[int]
    ) -> None:
        super().__init__()
        self.heads, self.width = heads, channels // heads
        self.inputs, self.outputs = sorted(inputs), sorted(set(outputs) - {0})
        self.common = [degree for degree in self.outputs if degree in self.inputs]
        self.norm = nn.LayerNorm(channels)
        self.queries, self.keys, self.moved = (
            nn.ModuleDict({str(degree): nn.Linear(channels, channels, bias=False) for degree in degrees})
            for degrees in (self.inputs, self.inputs, self.common)
        )
        self.values = nn.Linear(channels, (1 + len(self.outputs)) * channels)
        self.radial = nn.Linear(edge_width, (2 + len(self.outputs) + len(self.common)) * heads, bias=False)
        self.itself = nn.Parameter(torch.zeros(heads))
        self.network = mlp([channels, channels, channels])
        self.outs = nn.ModuleDict({str(degree): nn.Linear(channels, channels, bias=False) for degree in self.outputs})
        self.harmonics = SphericalHarmonics(max(self.outputs, default=0))

    def forward(self, states: States, graph: MessageGraph) -> States:
        """The increments of all degrees that are asked for."""
        pairs = graph.wider
        assert pairs is not None
        states = {0: self.norm(states[0]), **{degree: bounded(states[degree]) for degree in self.inputs if degree}}
        features, envelope = radial_inputs(pairs)
        # b, f, then g_l and f_l of all degrees; [pairs, heads] each
        bias, *filters = pairs.to_edges(self.radial(features)).unflatten(-1, (-1, self.heads)).unbind(1)
        near, own = self.exponentials(states, bias, pairs)
        if envelope is not None:
            near = near * pairs.to_edges(envelope)
        total = own + segment_sum(near, pairs.topology.receivers, pairs.num_nodes)  # [nodes, heads]
        weights = [near * one for one in filters]
        own, total = own.unsqueeze(-1), total.unsqueeze(-1)
        scalars, *along = self.values(states[0]).unflatten(-1, (-1, self.heads, self.width)).unbind(1)
        read = gather_multiply_sum(scalars, weights[0].unsqueeze(-1), pairs.topology) + own * scalars
        increments = {0: self.network((read / total).flatten(1))}
        for number, degree in enumerate(self.outputs):
            axes = self.axes(pairs)[degree]  # [pairs, 2 degree + 1]
            # senders times axes of their pairs; [nodes, 2 degree + 1, heads, width]
            each = (axes.unsqueeze(2) * weights[1 + number].unsqueeze(1)).flatten(1).unsqueeze(-1)
            spread = along[number].unsqueeze(1).expand(-1, axes.shape[1], -1, -1).flatten(1, 2)
            read = gather_multiply_sum(spread, each, pairs.topology).unflatten(1, (axes.shape[1], -1))
            if degree in self.common:
                moved = self.moved[str(degree)](states[degree]).unflatten(-1, (self.heads, -1))
                weight = weights[1 + len(self.outputs) + self.common.index(degree)].unsqueeze(-1)
                read = read + gather_multiply_sum(moved, weight, pairs.topology) + own.unsqueeze(1) * moved
            increments[degree] = self.outs[str(degree)]((read / total.unsqueeze(1)).flatten(2))
        return increments

    def exponentials(
        self, states: States, bias: Float[Tensor, "pairs heads"], pairs: MessageGraph
    ) -> tuple[Float[Tensor, "pairs heads"], Float[Tensor, "nodes heads"]]:
        """exp(a_ij) and exp(a_ii)."""
        queries, keys = self.by_head(self.queries, states), self.by_head(self.keys, states)
        queries = queries / math.sqrt(queries.shape[-1])
        products = edge_product(keys, queries, pairs.topology, per="head").squeeze(-1)
        return capped(products + bias).exp(), capped((queries * keys).sum(-1) + self.itself).exp()

    def by_head(self, linears: nn.ModuleDict, states: States) -> Float[Tensor, "nodes heads width"]:
        """Return linear maps of all states, side by side in every head."""
        parts = [linears[str(degree)](states[degree]).unflatten(-1, (self.heads, -1)) for degree in self.inputs]
        return torch.cat([part if part.dim() == 3 else part.transpose(1, 2).flatten(2) for part in parts], dim=-1)

    def axes(self, pairs: MessageGraph) -> list[Float[Tensor, "pairs components"]]:
        """Return spherical harmonics of the directions by degree, or what stands for them in a plane."""

        def make() -> list[Tensor]:
            directions, dim = pairs.directions, pairs.directions.shape[1]
            if dim == 3:
                return self.harmonics(directions)
            return [torch.ones_like(directions[:, :1]), math.sqrt(dim) * directions]

        return pairs.once(("harmonics", self.harmonics.max_ell), make)

    def split_plan(self) -> Plan:
        """Return the heads; increments are added up over their channels."""
        own = LayerSplit(weights="columns")
        values, filters = 1 + len(self.outputs), 2 + len(self.outputs) + len(self.common)
        return {
            "": LayerSplit(takes=(("copy",), ("copy",)), counts=("heads",)),
            "norm": LayerSplit(weights="shared"),
            **dict.fromkeys(("queries.*", "keys.*", "moved.*", "itself"), own),
            "values": LayerSplit(weights="columns", blocks=values),
            "radial": LayerSplit(weights="columns", blocks=filters),
            "network": LayerSplit(takes=(("gather",),)),
            "outs.*": LayerSplit(weights="rows"),
        }


def bounded(states: Float[Tensor, "nodes components channels"]) -> Float[Tensor, "nodes components channels"]:
    """Return h / sqrt(mean over channels of |h|^2 + 1)."""
    return states / (states.square().sum(1, keepdim=True).mean(-1, keepdim=True) + 1).sqrt()


def capped(scores: Tensor) -> Tensor:
    """The scores between -30 and 30: 30 tanh(a / 30)."""
    return HIGHEST * torch.tanh(scores / HIGHEST)


class EquivariantAttentionLayer(nn.Module):
    """Layer with equivariant attention beside it.

    h^l <- local(h)^l + attention(h)^l for all degrees l: attention stands beside the layer, as in GPS (arXiv:2205.12454, equations 2 and 3).

    Deviates from GPS: no norm of the sum, for states that turn have their own scale in every architecture, and no network behind it. What the layer gives beyond these degrees stays as it is. Increments of
    degree 0 have dropout.
    """

    def __init__(self, local: nn.Module, attention: EquivariantAttention, dropout: float) -> None:
        super().__init__()
        self.local = local
        self.attention = attention
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states."""
        new: States = dict(self.local(states, graph))
        for degree, increment in self.attention(states, graph).items():
            new[degree] = new[degree] + (increment if degree else self.dropout(increment))
        return new
