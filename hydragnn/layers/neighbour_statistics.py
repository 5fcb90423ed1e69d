"""Mean, minimum, maximum and deviation of messages: exact or smooth."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor

from hydragnn.kernels import POWER, Topology, outer_sum, power_sums, segment_statistics, segment_sum, spread

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
