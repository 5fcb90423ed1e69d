"""Kinds with vectors of nodes: PAINN and PNAEq.

Until August 2026 linear maps of vectors had biases there, so that outputs turn with the graph.
"""

from dataclasses import replace
from math import pi
from typing import ClassVar

import torch
from torch import Tensor, nn

from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.model import FrozenModel, Statistics, mlp, summed
from hydragnn.frozen.settings import FrozenSettings

States = tuple[Tensor, Tensor]
"""Scalars ``[nodes, channels]`` and vectors ``[nodes, 3, channels]``."""


class _PaiNNMessage(nn.Module):
    """Message from the receiver of an edge to its sender (arXiv:2102.03150)."""

    def __init__(self, settings: FrozenSettings, width: int, edge_dim: int) -> None:
        super().__init__()
        self.scalar_message_mlp = mlp([width, width, 3 * width], nn.SiLU())
        self.filter_layer = nn.Linear(settings.required("num_radial"), 3 * width)
        self.edge_filter = mlp([edge_dim, width, 3 * width], nn.SiLU()) if edge_dim else None

    def forward(self, scalars: Tensor, vectors: Tensor, graph: FrozenGraph) -> States:
        (row, column), extra = graph.edge_index, graph.extra
        filters = self.filter_layer(extra["radial"]) * extra["ends"]
        if self.edge_filter is not None:
            filters = filters * self.edge_filter(graph.edge_attr)
        of_vectors, of_edges, messages = (filters * self.scalar_message_mlp(scalars)[column]).chunk(3, dim=1)
        along = vectors[column] * of_vectors.unsqueeze(1) + outer(extra["directions"] / extra["lengths"], of_edges)
        return scalars + summed(messages, row, len(scalars)), vectors + summed(along, row, len(scalars))


class _PNAEqMessage(Statistics):
    """Message of PNAEq: scalars by their statistics, vectors by their sum."""

    def __init__(self, settings: FrozenSettings, width: int, edge_dim: int) -> None:
        super().__init__(settings, width, width, 4 if edge_dim else 3, "inverse_linear")
        num_radial = settings.required("num_radial")
        self.rbf_emb = nn.Sequential(nn.Linear(num_radial, width), nn.Tanh())
        self.rbf_lin = nn.Linear(num_radial, 3 * width, bias=False)
        self.edge_encoder = nn.Linear(edge_dim, width) if edge_dim else None
        self.scalar_message_mlp = nn.Sequential(
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width)
        )

    def forward(self, scalars: Tensor, vectors: Tensor, graph: FrozenGraph) -> States:
        (row, column), extra = graph.edge_index, graph.extra
        radial = extra["radial"] * extra["ends"]
        parts = [scalars[row], scalars[column], self.rbf_emb(radial)]
        if self.edge_encoder is not None:
            parts.append(self.edge_encoder(graph.edge_attr))
        gates = self.scalar_message_mlp(self.pre_nns[0](torch.cat(parts, dim=1))) * self.rbf_lin(radial)
        of_vectors, of_edges, messages = gates.chunk(3, dim=1)
        along = vectors[column] * of_vectors.unsqueeze(1) + outer(extra["directions"], of_edges)
        return scalars + self.read(scalars, messages, row), vectors + summed(along, row, len(scalars))


class _Update(nn.Module):
    """Update of a node: scalars by vectors, and vectors by scalars."""

    def __init__(self, width: int, *, last: bool, bias: bool) -> None:
        super().__init__()
        self.last = last
        self.update_U, self.update_V = (nn.Linear(width, width, bias=bias) for _ in range(2))
        self.update_mlp = mlp([2 * width, width, (2 if last else 3) * width], nn.SiLU())

    def forward(self, scalars: Tensor, vectors: Tensor) -> States:
        one, other = self.update_U(vectors), self.update_V(vectors)
        lengths = torch.linalg.vector_norm(other, dim=1)
        gates = self.update_mlp(torch.cat([lengths, scalars], dim=1)).split(scalars.shape[1], dim=1)
        scalars = scalars + (gates[-2] * (one * other).sum(1) + gates[-1])
        return scalars, vectors if self.last else vectors + gates[0].unsqueeze(1) * one


def outer(directions: Tensor, channels: Tensor) -> Tensor:
    """Products ``[edges, 3, channels]``."""
    return directions.unsqueeze(2) * channels.unsqueeze(1)


class _VectorLayer(nn.Module):
    """Message, update, and maps of scalars and of vectors."""

    def __init__(self, message: nn.Module, in_dim: int, out_dim: int, *, last: bool, bias: bool) -> None:
        super().__init__()
        self.module_0, self.module_1 = message, _Update(in_dim, last=last, bias=bias)
        self.module_2 = nn.Sequential(nn.Linear(in_dim, out_dim), nn.Tanh(), nn.Linear(out_dim, out_dim))
        self.module_3 = nn.Identity() if last else nn.Linear(in_dim, out_dim, bias=bias)

    def forward(self, inv: Tensor, equiv: Tensor, graph: FrozenGraph) -> States:
        inv, equiv = self.module_1(*self.module_0(inv, equiv, graph))
        return self.module_2(inv), self.module_3(equiv)


class PAINN(FrozenModel):
    """PAINN."""

    message: ClassVar[type[nn.Module]] = _PaiNNMessage

    def _add_common(self) -> None:
        super()._add_common()
        self.cutoff = self.settings.required("radius")

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        message = self.message(self.settings, in_dim, edge_dim)
        return _VectorLayer(message, in_dim, out_dim, last=last, bias=self.settings.vector_biases)

    def _start(self, graph: FrozenGraph) -> tuple[Tensor, Tensor | None, FrozenGraph]:
        inv, _, graph = super()._start(graph)
        lengths, cutoff = graph.lengths(), self.cutoff
        orders = torch.arange(1, self.settings.required("num_radial") + 1, device=lengths.device)
        extra = {
            "lengths": lengths,
            "directions": graph.vectors() / (lengths + 1e-9),
            "radial": torch.sin(lengths * orders * pi / cutoff) / lengths,
            "ends": torch.where(lengths < cutoff, 0.5 * (torch.cos(pi * lengths / cutoff) + 1), 0),
        }
        return inv, inv.new_zeros(len(inv), 3, inv.shape[1]), replace(graph, extra=graph.extra | extra)


class PNAEq(PAINN):
    """PNAEq: PAINN with statistics in the place of sums."""

    message = _PNAEqMessage
