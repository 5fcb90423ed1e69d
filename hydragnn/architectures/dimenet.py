"""Messages that see angles: DimeNet++ (arXiv:2011.14115, after arXiv:2003.03123)."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures import base
from hydragnn.kernels import gather_add, segment_sum, silu, spread
from hydragnn.layers import MessageGraph, RadialFeatures, SphericalBesselBasis, States, TripletSums, envelope_at

OUTPUT_LAYERS = 3
"""Hidden layers of the network that reads messages at a node, as in the paper."""
EDGES = -1
"""Key of states that holds messages of edges, handed from layer to layer."""


class DimeNetSettings(base.GeometricSettings):
    """Messages of edges that see distances and angles (DimeNet++; Gasteiger et al. 2020, arXiv:2011.14115)."""

    kind: str = "dimenet"

    searched: ClassVar[base.Searched] = {
        "hidden_dim": base.steps(16, 64, 16),
        "num_layers": base.steps(1, 3),
        "num_radial": base.steps(4, 8, 2),
        "num_spherical": base.steps(3, 7, 2),
        "int_emb_size": base.one_of(16, 32),
        "out_emb_size": base.one_of(64, 128),
    }

    num_layers: int = Setting(default=4, ge=1, le=64)
    """Interaction blocks."""
    num_radial: int = Setting(default=6, ge=1, le=64)
    """Radial basis functions per edge, and radial functions per degree of the basis of distance and angle."""
    num_spherical: int = Setting(default=7, ge=1, le=7)
    """Degrees of the basis of distance and angle: Legendre polynomials of 0 to num_spherical - 1."""
    int_emb_size: int = Setting(default=32, ge=1, le=4096)
    """Channels of what is summed over triplets; the paper has half of hidden_dim."""
    basis_emb_size: int = Setting(default=8, ge=1, le=512)
    """Width between the two linear maps of every basis."""
    out_emb_size: int = Setting(default=128, ge=1, le=4096)
    """Channels of the network that reads messages at a node; the paper has twice hidden_dim."""
    num_before_skip: int = Setting(default=1, ge=0, le=16)
    """Residual networks of an interaction before the skip connection."""
    num_after_skip: int = Setting(default=2, ge=0, le=16)
    """Residual networks of an interaction after the skip connection."""

    removed: ClassVar = {"output_layers": 3, "messages": "kept", "angle": "turn"}


def orthogonal(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """Return an orthogonal linear map of Glorot's variance, without bias."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.orthogonal_(linear.weight, gain=math.sqrt(2 * max(inputs, outputs) / (inputs + outputs)))
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


class SiluResidual(nn.Module):
    """x + s(W_2 s(W_1 x)) with s = silu."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = orthogonal(channels, channels)
        self.second = orthogonal(channels, channels)

    def forward(self, values: Float[Tensor, "edges channels"]) -> Float[Tensor, "edges channels"]:
        """The sum."""
        return values + silu(self.second(silu(self.first(values))))


class Embedding(nn.Module):
    """First messages from the inputs of both ends.

    m_ji = s(W [h_i, h_j, s(W_e e(r_ji))]) from the inputs h of both nodes (arXiv:2003.03123, eq. 11).
    """

    def __init__(self, channels: int, edge_width: int) -> None:
        super().__init__()
        self.radial = nn.Linear(edge_width, channels)
        self.from_edge = nn.Linear(channels, channels)
        self.from_receiver = nn.Linear(channels, channels, bias=False)
        self.from_sender = nn.Linear(channels, channels, bias=False)
        for linear in (self.from_edge, self.from_receiver, self.from_sender):
            nn.init.uniform_(linear.weight, -1 / math.sqrt(3 * channels), 1 / math.sqrt(3 * channels))

    def forward(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Float[Tensor, "edges channels"]:
        """The first messages."""
        edges = self.from_edge(silu(self.radial(graph.ended_inputs)))  # [items, channels]
        return silu(gather_add(self.from_receiver(inputs), self.from_sender(inputs), edges, graph.sharing))


class Output(nn.Module):
    """States of nodes from messages.

    t_i = N(W sum_j m_ji * W_e e(r_ji)) with a network N at every node (arXiv:2011.14115, figure 1).
    """

    def __init__(self, settings: DimeNetSettings, edge_width: int) -> None:
        super().__init__()
        channels, wide = settings.hidden_dim, settings.out_emb_size
        self.radial = orthogonal(edge_width, channels, bias=False)
        self.up = orthogonal(channels, wide, bias=False)
        self.hidden = nn.ModuleList(orthogonal(wide, wide) for _ in range(OUTPUT_LAYERS))
        self.last = orthogonal(wide, channels, bias=False)

    def forward(
        self, messages: Float[Tensor, "edges channels"], graph: MessageGraph
    ) -> Float[Tensor, "nodes channels"]:
        """Return the states of nodes from messages."""
        gated = messages * graph.to_edges(self.radial(graph.ended_inputs))
        values = self.up(segment_sum(gated, graph.topology.receivers, graph.num_nodes))  # [nodes, wide]
        for linear in self.hidden:
            values = silu(linear(values))
        return self.last(values)


class AngularFilters(nn.Module):
    """Filters of length by degree of the angle.

    F_l(r) = W_2 W_1l b_l(r) u(r) / x for every degree l, with b_l the spherical Bessel functions of x = r / c and u the envelope.

    Together with Y_l of the angle this is W_2 W_1 a, with a the basis of distance and angle (arXiv:2003.03123, eq. 6). The paper has no
    division by x there; its authors' program has, which others followed. An edge of length zero, which has no angles, has none of these.
    """

    def __init__(self, settings: DimeNetSettings, basis: RadialFeatures) -> None:
        super().__init__()
        self.cutoff, self.envelope, self.exponent = basis.cutoff, basis.envelope, basis.exponent
        degrees, radial = settings.num_spherical, settings.num_radial
        self.basis = SphericalBesselBasis(basis.cutoff, degrees, radial)
        whole = orthogonal(degrees * radial, settings.basis_emb_size, bias=False).weight.detach()
        self.first = nn.ModuleList(nn.Linear(radial, settings.basis_emb_size, bias=False) for _ in range(degrees))
        for linear, weight in zip(self.first, whole.split(radial, dim=1)):
            linear.weight = nn.Parameter(weight.clone())
        self.second = orthogonal(settings.basis_emb_size, settings.int_emb_size, bias=False)

    def forward(self, graph: MessageGraph) -> list[Float[Tensor, "edges channels"]]:
        """The filters by degree."""
        functions = graph.once("spherical functions", lambda: self.functions(graph))
        return [graph.to_edges(self.second(linear(values))) for linear, values in zip(self.first, functions)]

    def functions(self, graph: MessageGraph) -> list[Float[Tensor, "items radial"]]:
        """Return b_l(r) u(r) / x by degree, for one edge per pair."""
        lengths, directions, pairs = graph.lengths, graph.directions, graph.pairs
        if pairs is not None:
            lengths, directions = spread(lengths, pairs.first), spread(directions, pairs.first)
        envelope = envelope_at(lengths, self.cutoff, self.envelope, self.exponent)
        factor = self.cutoff / lengths if envelope is None else envelope * self.cutoff / lengths  # [items]
        factor = torch.where((directions != 0).any(-1), factor, 0.0)
        return [(values * factor.unsqueeze(-1)).contiguous() for values in self.basis(lengths).unbind(1)]


class Interaction(nn.Module):
    """New messages from those into the sender.

    m'_ji = R(s(W_s B(s(W_ji m_ji) + s(W_up sum_k F(r_kj, angle) * d_kj))) + m_ji), d_kj = s(W_down (s(W_kj m_kj) * W_2 W_1 e(r_kj))).

    The sum is over edges k -> j without the one that is walked back; R and B are residual networks (arXiv:2011.14115, figure 1).
    """

    def __init__(self, settings: DimeNetSettings, basis: RadialFeatures) -> None:
        super().__init__()
        channels, inner = settings.hidden_dim, settings.int_emb_size
        self.radial_first = orthogonal(basis.width, settings.basis_emb_size, bias=False)
        self.radial_second = orthogonal(settings.basis_emb_size, channels, bias=False)
        self.angular = AngularFilters(settings, basis)
        self.triplets = TripletSums(settings.num_spherical)
        self.own = orthogonal(channels, channels)
        self.sent = orthogonal(channels, channels)
        self.down = orthogonal(channels, inner, bias=False)
        self.up = orthogonal(inner, channels, bias=False)
        self.before = nn.ModuleList(SiluResidual(channels) for _ in range(settings.num_before_skip))
        self.skip = orthogonal(channels, channels)
        self.after = nn.ModuleList(SiluResidual(channels) for _ in range(settings.num_after_skip))

    def forward(
        self, messages: Float[Tensor, "edges channels"], graph: MessageGraph
    ) -> Float[Tensor, "edges channels"]:
        """New messages."""
        radial = graph.to_edges(self.radial_second(self.radial_first(graph.ended_inputs)))  # [edges, channels]
        sent = silu(self.down(silu(self.sent(messages)) * radial))  # d; [edges, inner]
        summed = self.triplets([sent * filters for filters in self.angular(graph)], graph)
        values = silu(self.own(messages)) + silu(self.up(summed))  # [edges, channels]
        for network in self.before:
            values = network(values)
        values = silu(self.skip(values)) + messages
        for network in self.after:
            values = network(values)
        return values


class DimeNetLayer(nn.Module):
    """Layer of DimeNet++: m <- interaction(m), h_i <- h_i + dropout(t_i)."""

    def __init__(self, settings: DimeNetSettings, basis: RadialFeatures) -> None:
        super().__init__()
        self.interaction = Interaction(settings, basis)
        self.output = Output(settings, basis.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New messages, and the states of nodes that read them."""
        messages = self.interaction(states[EDGES], graph)
        return {0: states[0] + self.dropout(self.output(messages, graph)), EDGES: messages}


class DimeNet(base.Architecture):
    """DimeNet++.

    Messages from node inputs and distances, then interactions; a node's state is the sum of what it reads of all of them (figure 1).

    The angle is that between the directions of both edges, as in the program of the paper's authors: pi minus the paper's, which changes the sign of odd
    degrees and nothing else. Deviates from the paper: the sum begins with the node's inputs, without which all nodes that have no neighbours would be
    alike; frequencies are not learned; the basis of distances has a constant and edge features beside it; and what is read is a state of
    ``hidden_dim`` channels, for any head.
    """

    kind = "dimenet"
    embeds = frozenset({"first", "output"})
    Settings = DimeNetSettings
    sees = frozenset({"lengths", "directions", "triplets", "edge_features"})
    requires = frozenset({"lengths", "directions", "triplets"})

    def __init__(self, settings: DimeNetSettings, spec: base.GraphSpec) -> None:
        super().__init__(settings, spec)
        self.basis = basis = base.radial_basis(settings, spec)
        self.first = Embedding(settings.hidden_dim, basis.width)
        self.output = Output(settings, basis.width)
        self.layers = nn.ModuleList(DimeNetLayer(settings, basis) for _ in range(settings.num_layers))

    def embed(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """First messages of edges, and what nodes are and read of them."""
        messages = self.first(inputs, graph)
        return {0: inputs + self.output(messages, graph), EDGES: messages}

    @classmethod
    def limit(cls, settings: DimeNetSettings, use: base.Use) -> str:
        """Triplets reach two edges far."""
        pairs = "reads pairs of consecutive edges, of which the first may be another rank's"
        return pairs if use == "graph" else super().limit(settings, use)

    def finish(self, states: States, graph: MessageGraph) -> States:
        """The states of nodes."""
        return {0: states[0]}
