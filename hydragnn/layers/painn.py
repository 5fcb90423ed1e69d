"""Scalar and vector states that turn with the graph: PaiNN (Schuett et al. 2021, arXiv:2102.03150, figure 2)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import Topology, gather_multiply_sum, outer_sum
from hydragnn.layers.mlp import mlp

EPSILON = 1e-8


class PaiNNMessage(nn.Module):
    """Equations 7 and 8: what neighbours tell, filtered by distance; vectors also arise along the edges."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.channels = channels
        self.states = mlp([channels, channels, filters * channels])

    def forward(
        self,
        scalars: Float[Tensor, "nodes channels"],
        vectors: Float[Tensor, "nodes dim channels"] | None,
        filters: Sequence[Float[Tensor, "edges channels"]],
        directions: Float[Tensor, "edges dim"],
        topology: Topology,
    ) -> tuple[Float[Tensor, "nodes channels"], Float[Tensor, "nodes dim channels"]]:
        """Increments of scalars and vectors from the filters of scalars, of directions and, past the first layer, of vectors.

        ``vectors`` is None in the first layer, where all are zero.
        """
        told = self.states(scalars).split(self.channels, dim=-1)
        d_scalars = gather_multiply_sum(told[0], filters[0], topology)
        along = told[1].index_select(0, topology.senders) * filters[1]
        d_vectors = outer_sum(along, directions, topology)
        if vectors is not None:
            d_vectors = d_vectors + gather_multiply_sum(told[2].unsqueeze(-2) * vectors, filters[2], topology)
        return d_scalars, d_vectors


class PaiNNUpdate(nn.Module):
    """Equations 9 and 10: scalars learn from the lengths and products of vectors, which they scale in turn."""

    def __init__(self, channels: int, *, last: bool) -> None:
        super().__init__()
        self.channels = channels
        self.last = last
        self.mix = nn.Linear(channels, 2 * channels, bias=False)
        self.gates = mlp([2 * channels, channels, (2 if last else 3) * channels])

    def forward(
        self, scalars: Float[Tensor, "nodes channels"], vectors: Float[Tensor, "nodes dim channels"]
    ) -> tuple[Float[Tensor, "nodes channels"], Float[Tensor, "nodes dim channels"] | None]:
        """Increments of scalars and vectors; the vectors' is None in a last layer that no one asks for vectors."""
        left, right = self.mix(vectors).split(self.channels, dim=-1)
        norms = (right.square().sum(-2) + EPSILON).sqrt()
        gates = self.gates(torch.cat([scalars, norms], dim=-1)).split(self.channels, dim=-1)
        d_scalars = gates[0] + gates[1] * (left * right).sum(-2)
        return d_scalars, None if self.last else gates[2].unsqueeze(-2) * left
