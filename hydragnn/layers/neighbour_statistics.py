"""Mean, minimum, maximum and deviation of messages, scaled by degree (arXiv:2004.05718)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from hydragnn.kernels import POWER, Topology, joined, outer_sum, power_sums, segment_statistics, segment_sum, spread
from hydragnn.kernels.family import is_accelerated

StatisticsForm = Literal["paper", "smooth"]


class Aggregated(NamedTuple):
    """Four statistics of every node's messages, and their number."""

    statistics: tuple[Float[Tensor, "nodes channels"], ...]
    """Mean, least, largest and deviation."""
    presence: Float[Tensor, "nodes 1"]
    """Slope of mean, least and largest in a number added to every message: 1, or 0 without neighbours."""
    degrees: Num[Tensor, "nodes 1"]
    """The number of neighbours that scalers are made of."""


def paper_statistics(messages: Float[Tensor, "edges channels"], topology: Topology) -> Aggregated:
    """Return statistics that count every message as one.

    Corso et al. 2020, arXiv:2004.05718, eqs. 2 to 4; zeros without any, but for the floor 1e-5 of the variance.
    """
    degrees = topology.degrees.unsqueeze(-1)  # and where rows begin, which the statistics need
    statistics = segment_statistics(messages, topology.receivers, topology.num_rows)
    return Aggregated(statistics, degrees > 0, degrees)


def smooth_statistics(
    messages: Float[Tensor, "edges channels"], envelope: Float[Tensor, "edges 1"] | None, topology: Topology
) -> Aggregated:
    """Return statistics that weigh messages by their envelope.

    Every message m_e counts as much as the envelope c_e says (None: as one); statistics of a node without neighbours are zero.

    With D = sum c_e and n = sqrt(1 + D^2), which is 1 without neighbours and D where there are many,

        mean      = sum c_e m_e / n
        variance  = sum c_e x_e^2 / n, with x_e = m_e - mean;   deviation = sqrt(variance + 1) - 1
        largest   = mean + g(y), y = (n - D + sum c_e t(x_e)^4) / n, with t(x) = x + sqrt(1 + x^2) and g(t^4) = x its inverse
        least     = mean - g(y), y = (n - D + sum c_e t(-x_e)^4) / n

    n - D stands for a neighbour at the mean, whose weight vanishes as others come. All of it is as smooth as the envelope: a neighbour at the
    cutoff adds nothing, and what is left goes to zero with the last one.
    """
    receivers, rows = topology.receivers, topology.num_rows
    weights = messages.new_ones(messages.shape[0], 1) if envelope is None else envelope
    total = segment_sum(weights, receivers, rows)  # D; [nodes, 1]
    size = (1 + total.square()).sqrt()  # n
    empty = 1 / (size + total)  # n - D, without a difference of two that are nearly equal
    mean = outer_sum(messages, weights, topology).squeeze(1) / size  # [nodes, channels]
    deviations = messages - spread(mean, receivers)  # x; [edges, channels]
    squares, above, below = power_sums(deviations, weights, topology).unbind(0)  # [nodes, channels] each
    variance = squares / size
    grown = torch.stack([above, below]) + empty
    root = (grown / size) ** (1 / POWER)  # t of g(y)
    rise, fall = ((root - 1 / root) / 2).unbind(0)  # x = (t - 1 / t) / 2
    deviation = variance / ((variance + 1).sqrt() + 1)
    return Aggregated((mean, mean - fall, mean + rise, deviation), total / size, size)


def aggregated(
    form: StatisticsForm,
    messages: Float[Tensor, "edges channels"],
    envelope: Float[Tensor, "edges 1"] | None,
    topology: Topology,
) -> Aggregated:
    """Return statistics of messages; the envelope weighs them in the smooth form."""
    if form == "smooth":
        return smooth_statistics(messages, envelope, topology)
    return paper_statistics(messages, topology)


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
        scaled: list[Tensor] = []
        sizes: dict[str, Tensor] = {}
        if {"amplification", "attenuation"} & {*self.names}:
            sizes["log"] = torch.log1p(degrees) / (self.mean_log_degree if self.mean_log_degree > 0 else 1.0)  # eq. 5
        if {"linear", "inverse_linear"} & {*self.names}:
            sizes["linear"] = degrees / (self.mean_degree if self.mean_degree > 0 else 1.0)
        for name, part in zip(self.names, parts):
            if name == "identity":
                scaled.append(part)
                continue
            size = sizes["linear" if name in ("linear", "inverse_linear") else "log"]
            grows = name in ("amplification", "linear")
            scaled.append(size * part if grows else part / torch.where(degrees > 0, size, 1.0))
        return scaled

    def factors(self, degrees: Float[Tensor, "nodes 1"]) -> Float[Tensor, "nodes 1 scalers"]:
        """Return the numbers of the scalers side by side."""
        return torch.stack(self.scaled([torch.ones_like(degrees)] * len(self.names), degrees), dim=-1)


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
    side_by_side = statistics if isinstance(statistics, Tensor) else joined(statistics, -1)
    parts = weights(side_by_side)  # [nodes, scalers channels]
    if is_accelerated(parts.device.type):
        factors = scalers.factors(degrees.to(parts.dtype))  # one product has one launch, in its derivatives, too
        return torch.bmm(factors, parts.unflatten(1, (len(scalers.names), -1))).squeeze(1)
    parts = parts.chunk(len(scalers.names), dim=-1)
    return reduce(add, scalers.scaled(parts, degrees.to(weights.weight.dtype)))
