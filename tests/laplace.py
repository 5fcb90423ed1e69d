"""Laplace distributions and a head that predicts them, in one file."""

from dataclasses import dataclass
from dataclasses import field as entry

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs import Field, GraphBatch
from hydragnn.layers import MessageGraph, States, mlp
from hydragnn.models import HeadSettings, Number, Target
from hydragnn.models.heads.base import HeadContext


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Laplace(Number):
    """Distribution with the density exp(-|y - mean| / scale) / (2 scale)."""

    kind = "tests.laplace:Laplace"

    scale: Float[Tensor, "items *shape"] = entry()

    @property
    def variance(self) -> Float[Tensor, "items *shape"]:
        return 2 * self.scale.square()

    def nll(self, target: Tensor, divisor: Tensor | None = None) -> Float[Tensor, "items *shape"]:
        """Return log scale + |mean - label| / scale."""
        scale = self.scale if divisor is None else self.scale / divisor
        return scale.log() + self.error(target).abs() / self.scale

    def scale_by(self, factor: Tensor) -> "Laplace":
        return Laplace(mean=self.mean * factor, scale=self.scale * factor.abs())

    def shift_by(self, by: Tensor) -> "Laplace":
        return Laplace(mean=self.mean + by, scale=self.scale)


class LaplaceNetwork(nn.Module):
    """Mean and scale of every node."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.network = mlp([channels, 8, 2])

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Laplace:
        """Return one distribution per node."""
        mean, scale = self.network(states[0]).unbind(-1)
        return Laplace(mean=mean, scale=torch.nn.functional.softplus(scale) + 1e-3)


class LaplaceHead(HeadSettings):
    """Numbers of nodes with scales of their own."""

    def targets(self, fields: dict[str, Field]) -> tuple[Target, ...]:
        return (Target(field=fields[self.field], loss="nll", distribution=Laplace, weight=self.weight),)

    def build(self, field: Field, context: HeadContext) -> nn.Module:
        return LaplaceNetwork(context.channels)
