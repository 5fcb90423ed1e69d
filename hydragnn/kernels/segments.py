"""Reductions of edge messages to their receivers, each in one documented, twice differentiable form.

Receivers may come in any order. On CUDA and ROCm the edges of a node are found by one sort per array of receivers
(``ordered``): no atomics, and the same bits again. Without Triton there sums are ``index_add``, which adds atomically, so
that last bits differ from run to run unless ``torch.use_deterministic_algorithms(True)``.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels import one_pass
from hydragnn.kernels.family import is_accelerated
from hydragnn.kernels.per_receiver import SUMS, WINNERS, counts_in_order


def segment_sum(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Sum each node's incoming messages; a node without edges receives zeros.

    Atomics: none, and the same bits again.

    >>> segment_sum(torch.ones(3, 1), torch.tensor([0, 0, 2]), num_nodes=3).squeeze(1)
    tensor([2., 0., 1.])
    """
    return SUMS("sum", (messages,), (receivers, num_nodes))


def segment_mean(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Mean of each node's incoming messages; a node without edges receives zeros.

    Atomics: none, and the same bits again.

    >>> segment_mean(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), num_nodes=2).squeeze(1)
    tensor([0., 2.])
    """
    total = segment_sum(messages, receivers, num_nodes)
    return total / _counts(receivers, num_nodes, total)


def segment_max(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Largest incoming message per feature; zeros without edges. The gradient goes to one edge: the first among equals.

    Atomics: none, and the same bits again.

    >>> segment_max(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), num_nodes=2).squeeze(1)
    tensor([0., 3.])
    """
    return _Extreme.apply(messages, receivers, num_nodes, "amax")


def segment_min(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Smallest incoming message per feature; zeros without edges. The gradient goes to one edge: the first among equals.

    Atomics: none, and the same bits again.
    """
    return _Extreme.apply(messages, receivers, num_nodes, "amin")


def segment_variance(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Population variance of each node's incoming messages, from centred values; zeros without edges.

    Atomics: none, and the same bits again.

    Mean 1e3 with deviation 1e-2 keeps its digits in float32, which E[x^2] - E[x]^2 does not.
    """
    return _centre(messages, receivers, num_nodes)[1]


def segment_std(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int, floor: float = 1e-5
) -> Float[Tensor, "{num_nodes} *features"]:
    """sqrt(variance + floor) of the incoming messages; the floor keeps both derivatives finite where all are equal.

    Atomics: none, and the same bits again.
    """
    return (segment_variance(messages, receivers, num_nodes) + floor).sqrt()


def segment_statistics(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int, floor: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, min, max and std of each node's incoming messages, sharing what they have in common.

    Atomics: none, and the same bits again.
    """
    if is_accelerated(messages.device.type):
        mean, variance, low, high = one_pass.statistics(messages, receivers, num_nodes)
        return mean, low, high, (variance + floor).sqrt()
    mean, variance = _centre(messages, receivers, num_nodes)
    low = segment_min(messages, receivers, num_nodes)
    high = segment_max(messages, receivers, num_nodes)
    return mean, low, high, (variance + floor).sqrt()


def segment_softmax(
    scores: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "edges *features"]:
    """exp(s_e) / sum of exp(s_f) over the edges f with the receiver of e: positive, summing to one per node; safe for scores of any size.

    Atomics: none, and the same bits again.

    >>> segment_softmax(torch.tensor([1e4, 1e4, -5.0]), torch.tensor([0, 0, 1]), num_nodes=2)
    tensor([0.5000, 0.5000, 1.0000])
    """
    if is_accelerated(scores.device.type):
        return one_pass.softmax(scores, receivers, num_nodes)
    highest = segment_max(scores.detach(), receivers, num_nodes)  # [nodes, *features]
    shares = (scores - highest.index_select(0, receivers)).exp()
    return shares / segment_sum(shares, receivers, num_nodes).index_select(0, receivers)


def _counts(receivers: Tensor, num_nodes: int, like: Tensor) -> Tensor:
    """Incoming edges per node, at least 1, shaped to divide ``like``."""
    if is_accelerated(receivers.device.type):
        return counts_in_order(receivers, num_nodes, like)
    ones = receivers.new_ones(1).expand(receivers.shape[0])
    # integers: float32 stops counting at 2^24
    counts = receivers.new_zeros(num_nodes).index_add_(0, receivers, ones).clamp_min(1).to(like.dtype)
    return counts.view(-1, *[1] * (like.dim() - 1))


def _centre(messages: Tensor, receivers: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Mean and variance; the second pass over centred values is what keeps the digits."""
    if is_accelerated(messages.device.type):
        return one_pass.statistics(messages, receivers, num_nodes)[:2]
    total = segment_sum(messages, receivers, num_nodes)
    counts = _counts(receivers, num_nodes, total)
    mean = total / counts
    centred = messages - mean.index_select(0, receivers)  # [edges, *features]
    return mean, segment_sum(centred.square(), receivers, num_nodes) / counts


class _Extreme(Function):
    """y_i = max (or min) of m_e over the edges that i receives; dy_i / dm_e = 1 for the first edge that holds it, else 0."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, which: str) -> Tensor:
        form = one_pass.extreme if is_accelerated(messages.device.type) else scattered_extreme
        value, winner = form(messages, receivers, num_nodes, which)
        ctx.save_for_backward(winner)
        ctx.edges = messages.shape[0]
        return value

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        return WINNERS("to winner", (u,), (winner, ctx.edges)), None, None, None


def scattered_extreme(messages: Tensor, receivers: Tensor, num_nodes: int, which: str) -> tuple[Tensor, Tensor]:
    """Each node's extreme and the first edge that holds it, one past the last for a node without edges; in plain torch."""
    edges = messages.shape[0]
    rows = receivers.view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)  # [edges, *features]
    value = messages.new_zeros(num_nodes, *messages.shape[1:])
    value.scatter_reduce_(0, rows, messages, which, include_self=False)
    numbers = torch.arange(edges, device=messages.device).view(-1, *[1] * (messages.dim() - 1))
    # [edges, *features]: an edge's number where it holds its receiver's extreme, else one past the last
    hit = torch.where(messages == value.index_select(0, receivers), numbers, edges)
    # [nodes, *features]: the first such edge
    return value, torch.full_like(value, edges, dtype=torch.int64).scatter_reduce_(0, rows, hit, "amin")
