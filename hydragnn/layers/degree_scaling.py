"""Statistics of messages, scaled by degree (arXiv:2004.05718, eqs. 5 and 7)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from hydragnn.kernels import joined
from hydragnn.kernels.family import is_accelerated

Scaler = Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DegreeScalers:
    """Factors of statistics by degree.

    Numbers that statistics of a node with d edges are multiplied with: 1, s, 1 / s, t or 1 / t; without edges 1, 0, 1, 0 and 1.

    s = log(d + 1) / mean log(d + 1) (eq. 5) and t = d / mean d, with means over the training part; names as in PyTorch Geometric.
    """

    names: tuple[Scaler, ...]
    mean_log_degree: float
    mean_degree: float

    def scaled(
        self, parts: Sequence[Float[Tensor, "nodes channels"]], degrees: Float[Tensor, "nodes 1"]
    ) -> list[Float[Tensor, "nodes channels"]]:
        """Each of ``parts`` by the scaler in its place."""
        sizes = self.sizes(degrees)
        scaled = []
        for name, part in zip(self.names, parts):
            if name in ("amplification", "linear"):
                part = sizes[name] * part
            elif name in ("attenuation", "inverse_linear"):
                part = part / torch.where(degrees > 0, sizes[name], 1.0)
            scaled.append(part)
        return scaled

    def factors(self, degrees: Float[Tensor, "nodes 1"]) -> Float[Tensor, "nodes 1 scalers"]:
        """Return the numbers of the scalers side by side."""
        return torch.stack(self.scaled([torch.ones_like(degrees)] * len(self.names), degrees), dim=-1)

    def sizes(self, degrees: Float[Tensor, "nodes 1"]) -> dict[Scaler, Float[Tensor, "nodes 1"]]:
        """s and t, by the names of those scalers that are there."""
        sizes: dict[Scaler, Tensor] = {}
        if {"amplification", "attenuation"} & {*self.names}:
            logarithmic = torch.log1p(degrees) / (self.mean_log_degree if self.mean_log_degree > 0 else 1.0)  # eq. 5
            sizes |= {"amplification": logarithmic, "attenuation": logarithmic}
        if {"linear", "inverse_linear"} & {*self.names}:
            linear = degrees / (self.mean_degree if self.mean_degree > 0 else 1.0)
            sizes |= {"linear": linear, "inverse_linear": linear}
        return sizes


def scaled_statistics(
    statistics: Sequence[Float[Tensor, "nodes channels"]] | Float[Tensor, "nodes four"],
    weights: nn.Linear,
    degrees: Num[Tensor, "nodes 1"],
    scalers: DegreeScalers,
) -> Float[Tensor, "nodes channels"]:
    """Return W (S (x) A) of statistics and scalers (eq. 7).

    ``weights`` has the matrices of the scalers under each other: a scaler is one number per node, so it acts after the linear map of the
    statistics, which is exact.
    """
    beside = statistics if isinstance(statistics, Tensor) else joined(statistics, -1)
    parts = weights(beside)  # [nodes, scalers channels]
    if is_accelerated(parts.device.type):
        factors = scalers.factors(degrees.to(parts.dtype))  # one product has one launch, in its derivatives, too
        return torch.bmm(factors, parts.unflatten(1, (len(scalers.names), -1))).squeeze(1)
    parts = parts.chunk(len(scalers.names), dim=-1)
    return reduce(add, scalers.scaled(parts, degrees.to(weights.weight.dtype)))
