"""Attention over neighbours: GATv2 (Brody et al. 2022, arXiv:2105.14491, equation 7)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, Searched, one_of, radial_basis
from hydragnn.kernels import gather_add, gather_multiply_sum, segment_max, segment_sum, spread
from hydragnn.layers import MessageGraph, States
from hydragnn.layers.stacked import by_member


class GATv2Settings(GeometricSettings):
    """Attention over the neighbours of each node, and over itself (Brody et al. 2022, arXiv:2105.14491)."""

    kind: str = "gatv2"

    searched: ClassVar[Searched] = {**GeometricSettings.searched, "heads": one_of(2, 4, 8)}

    heads: int = Setting(default=4, ge=1, le=64)
    """Attention heads, whose outputs lie side by side; they divide hidden_dim."""
    negative_slope: float = Setting(default=0.2, ge=0, le=1)
    """Slope of LeakyReLU below zero: 0.2 as in the authors' code."""

    removed: ClassVar = {"wide_heads": False, "own_edge": "none"}

    @property
    def kinks(self) -> str:
        """Description of the kinks of LeakyReLU."""
        return "forces jump wherever the argument of a LeakyReLU of the attention changes its sign"


class GATv2Layer(nn.Module):
    """Attention over neighbours and the node itself.

    sum_j a_ij W_s h_j over neighbours and the node itself, a_ij = softmax_j of v . LeakyReLU(W_s h_j + W_r h_i + W_e e_ij) (eq. 7).

    Deviates from the paper: edge features; and the envelope c_ij weighs every neighbour, a_ij ~ c_ij exp(.), while the node
    itself keeps the weight 1, so that attention neither jumps nor divides by zero as a neighbour leaves. e_ii is zero.
    """

    def __init__(self, inputs: int, channels: int, settings: GATv2Settings, edge_width: int) -> None:
        super().__init__()
        self.heads, self.negative_slope = settings.heads, settings.negative_slope
        self.from_sender = nn.Linear(inputs, channels)
        self.from_receiver = nn.Linear(inputs, channels)
        self.from_edge = nn.Linear(edge_width, channels, bias=False) if edge_width else None
        self.attention = nn.Parameter(torch.empty(self.heads, channels // self.heads))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.xavier_uniform_(self.attention)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Increments of degree 0."""
        return {0: self.biased(self.mixed(states[0], graph))}

    def biased(self, states: Float[Tensor, "nodes channels"]) -> Float[Tensor, "nodes channels"]:
        """Return h_i + b."""
        return states + self.bias

    def mixed(self, states: Float[Tensor, "nodes inputs"], graph: MessageGraph) -> Float[Tensor, "nodes channels"]:
        """Equation 7 of all heads, side by side."""
        topology = graph.topology
        features, envelope = graph.paired_inputs[0], graph.envelope  # [items, width], [edges, 1]
        sent, received = self.from_sender(states), self.from_receiver(states)  # [nodes, channels]
        from_edges = None if self.from_edge is None or features is None else self.from_edge(features)
        joined = gather_add(received, sent, from_edges, graph.sharing)  # [edges, channels]
        # [edges, heads], [nodes, heads]
        scores, own = self.scores(joined), self.scores(sent + received)
        # [nodes, heads]; taken off before exp, so that nothing overflows
        highest = torch.maximum(segment_max(scores.detach(), topology.receivers, topology.num_rows), own.detach())
        shares = (scores - spread(highest, topology.receivers)).exp()  # [edges, heads]
        shares = shares if envelope is None else shares * envelope
        own_share = (own - highest).exp()
        total = own_share + segment_sum(shares, topology.receivers, topology.num_rows)  # [nodes, heads]
        by_head = sent.unflatten(-1, (self.heads, -1))  # [nodes, heads, width]
        messages = gather_multiply_sum(by_head, shares.unsqueeze(-1), topology).flatten(-2)
        mixed = messages + self.weigh(sent, own_share)  # eq. 7 before the division by the total; [nodes, channels]
        return self.weigh(mixed, total.reciprocal())

    def scores(self, joined: Float[Tensor, "items channels"]) -> Float[Tensor, "items heads"]:
        """Return the score of each edge per head, before the softmax."""
        hidden = nn.functional.leaky_relu(joined, self.negative_slope)
        return self.weighted(hidden.unflatten(-1, (self.heads, -1)))  # of [items, heads, width]

    def weighted(self, hidden: Float[Tensor, "items heads width"]) -> Float[Tensor, "items heads"]:
        """Return the products with the learned vector of each head."""
        return (hidden * self.attention).sum(-1)

    def weigh(
        self, values: Float[Tensor, "items channels"], shares: Float[Tensor, "items heads"]
    ) -> Float[Tensor, "items channels"]:
        """Every head's channels times its share."""
        return (values.unflatten(-1, (self.heads, -1)) * shares.unsqueeze(-1)).flatten(-2)


class StackedGATv2Layer(GATv2Layer):
    """GATv2 with the attention of every member."""

    def biased(self, states: Float[Tensor, "nodes channels"]) -> Float[Tensor, "nodes channels"]:
        """Return h_i + b_m of the nodes of member m."""
        return (by_member(states, len(self.bias)) + self.bias.unsqueeze(1)).flatten(0, 1)

    def weighted(self, hidden: Float[Tensor, "items heads width"]) -> Float[Tensor, "items heads"]:
        """Return the products with a_m of the items of member m."""
        return (by_member(hidden, len(self.bias)) * self.attention.unsqueeze(1)).sum(-1).flatten(0, 1)


class GATv2(Architecture):
    """h <- h + dropout(GATv2(norm(h))), layer by layer.

    Deviates from the paper: a layer norm before and a residual around each layer, and no activation between layers.
    """

    kind = "gatv2"
    Settings = GATv2Settings
    sees = frozenset({"lengths", "edge_features"})
    residual = True
    stacked: ClassVar = {GATv2Layer: StackedGATv2Layer}
    cuttable = True

    def __init__(self, settings: GATv2Settings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.basis = radial_basis(settings, spec) if spec.dim else None
        width = self.basis.width if self.basis else spec.edge_width
        channels = settings.hidden_dim
        self.layers = nn.ModuleList(GATv2Layer(channels, channels, settings, width) for _ in range(settings.num_layers))
