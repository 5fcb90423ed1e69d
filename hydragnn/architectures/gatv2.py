"""Attention over neighbours: GATv2 (Brody et al. 2022, arXiv:2105.14491, equation 7)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures.base import (
    Architecture,
    GeometricSettings,
    GraphSpec,
    Searched,
    one_of,
    radial_basis,
)
from hydragnn.errors import InputError
from hydragnn.kernels import gather_add, gather_multiply_sum, segment_max, segment_sum
from hydragnn.layers import MessageGraph, States


class GATv2Settings(GeometricSettings):
    """Attention over the neighbours of each node, and over itself (Brody et al. 2022, arXiv:2105.14491)."""

    kind: str = "gatv2"

    searched: ClassVar[Searched] = {**GeometricSettings.searched, "heads": one_of(2, 4, 8)}

    heads: int = Setting(default=4, ge=1, le=64)
    """Attention heads, whose outputs lie side by side; they divide hidden_dim."""

    negative_slope: float = Setting(default=0.2, ge=0, le=1)
    """Slope of LeakyReLU below zero: 0.2 as in the authors' code, 0.05 in the public HydraGNN."""

    @property
    def kinks(self) -> str:
        """Those of LeakyReLU."""
        return "forces jump wherever the argument of a LeakyReLU of the attention changes its sign"


class GATv2Layer(nn.Module):
    """sum_j a_ij W_s h_j over neighbours and the node itself, a_ij = softmax_j of v . LeakyReLU(W_s h_j + W_r h_i + W_e e_ij) (eq. 7).

    Deviates from the paper: edge features; and the envelope c_ij weighs every neighbour, a_ij ~ c_ij exp(.), while the node
    itself keeps the weight 1, so that attention neither jumps nor divides by zero as a neighbour leaves.
    """

    def __init__(self, channels: int, heads: int, negative_slope: float, edge_width: int) -> None:
        super().__init__()
        self.heads, self.negative_slope = heads, negative_slope
        self.from_sender = nn.Linear(channels, channels)
        self.from_receiver = nn.Linear(channels, channels)
        self.from_edge = nn.Linear(edge_width, channels, bias=False) if edge_width else None
        self.attention = nn.Parameter(torch.empty(heads, channels // heads))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.xavier_uniform_(self.attention)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Increments of degree 0."""
        topology = graph.topology
        features, envelope = graph.paired_inputs[0], graph.envelope  # [items, width], [edges, 1]
        sent, received = self.from_sender(states[0]), self.from_receiver(states[0])  # [nodes, channels]
        from_edges = None if self.from_edge is None or features is None else self.from_edge(features)
        joined = gather_add(received, sent, from_edges, graph.sharing)  # [edges, channels]
        scores, own = self.scores(joined), self.scores(sent + received)  # [edges, heads], [nodes, heads]
        # [nodes, heads]; taken off before exp, so that nothing overflows
        highest = torch.maximum(segment_max(scores.detach(), topology.receivers, topology.num_rows), own.detach())
        shares = (scores - highest.index_select(0, topology.receivers)).exp()  # [edges, heads]
        shares = shares if envelope is None else shares * envelope
        own_share = (own - highest).exp()
        total = own_share + segment_sum(shares, topology.receivers, topology.num_rows)  # [nodes, heads]
        by_head = sent.unflatten(-1, (self.heads, -1))  # [nodes, heads, width]
        messages = gather_multiply_sum(by_head, shares.unsqueeze(-1), topology).flatten(-2)
        mixed = messages + self.weigh(sent, own_share)  # eq. 7 before the division by the total; [nodes, channels]
        return {0: self.weigh(mixed, total.reciprocal()) + self.bias}

    def scores(self, joined: Float[Tensor, "items channels"]) -> Float[Tensor, "items heads"]:
        """What each head thinks of an edge before the softmax."""
        hidden = nn.functional.leaky_relu(joined, self.negative_slope).unflatten(
            -1, (self.heads, -1)
        )  # [items, heads, width]
        return (hidden * self.attention).sum(-1)

    def weigh(
        self, values: Float[Tensor, "items channels"], shares: Float[Tensor, "items heads"]
    ) -> Float[Tensor, "items channels"]:
        """Every head's channels times its share."""
        return (values.unflatten(-1, (self.heads, -1)) * shares.unsqueeze(-1)).flatten(-2)


class GATv2(Architecture):
    """h <- h + dropout(GATv2(norm(h))), layer by layer.

    Deviates from the paper: a layer norm before and a residual around each layer, and no activation between layers.
    """

    kind = "gatv2"
    Settings = GATv2Settings
    sees = frozenset({"lengths", "edge_features"})
    residual = True

    def __init__(self, settings: GATv2Settings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.basis = radial_basis(settings, spec) if spec.dim else None
        width = self.basis.width if self.basis else spec.edge_width
        self.layers = nn.ModuleList(
            GATv2Layer(settings.hidden_dim, settings.heads, settings.negative_slope, width)
            for _ in range(settings.num_layers)
        )

    @classmethod
    def check(cls, settings: GATv2Settings, spec: GraphSpec) -> None:
        """The heads divide the channels."""
        if settings.hidden_dim % settings.heads:
            raise InputError(
                f"model.hidden_dim = {settings.hidden_dim} does not divide into model.heads = {settings.heads}; choose a multiple"
            )
