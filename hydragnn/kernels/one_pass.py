"""Reductions per receiver in one pass over the messages, in Triton on ROCm and CUDA; each is differentiable twice.

mean, variance, smallest and largest     dm: one pass too; its own derivative is made of sums and gathers
softmax                                  ds = y (u - sum of u y over the receiver's edges)
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels import triton_reductions
from hydragnn.kernels.per_receiver import SUMS, WINNERS, counts_in_order
from hydragnn.kernels.segment_order import segment_order


def extreme(messages: Tensor, receivers: Tensor, num_nodes: int, which: str, recorded: bool) -> tuple[Tensor, Tensor]:
    """Each node's extreme (``amin`` or ``amax``) and the first edge that holds it, one past the last without edges.

    The edges are empty unless a gradient is recorded.
    """
    given, least = segment_order(receivers, num_nodes), which == "amin"
    _, low, high = triton_reductions.reductions(
        messages, *given, moments=False, low=least, high=not least, winners=recorded
    )
    found = low or high
    assert found is not None
    return found


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int, extremes: bool) -> tuple[Tensor, ...]:
    """Mean and variance of each node's messages; the smallest and largest too where asked for."""
    recorded = torch.is_grad_enabled() and messages.requires_grad
    values: tuple[Tensor, ...] = _Statistics.apply(messages, receivers, num_nodes, extremes, recorded)
    return values


class _Statistics(Function):
    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, extremes: bool, recorded: bool
    ) -> tuple[Tensor, ...]:
        given, winners = segment_order(receivers, num_nodes), extremes and recorded
        moments, *found = triton_reductions.reductions(
            messages, *given, moments=True, low=extremes, high=extremes, winners=winners
        )
        assert moments is not None
        ctx.save_for_backward(messages, moments[0], *(pair[1] for pair in found if pair is not None))
        ctx.segments = (receivers, num_nodes)
        return *moments, *(pair[0] for pair in found if pair is not None)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, *edges = ctx.saved_tensors
        gradient = _StatisticsGradient.apply(messages, mean, ctx.segments, *incoming, *edges)
        return gradient, None, None, None, None


class _StatisticsGradient(Function):
    """G_e = (a_i + 2 (m_e - mean_i) b_i) / n_i + [e is i's smallest] c_i + [e is i's largest] d_i, for what two or four results received."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, mean: Tensor, segments: tuple[Tensor, int], *rest: Tensor) -> Tensor:
        to_mean, to_variance, *of_extremes = rest
        ctx.save_for_backward(messages, mean, to_variance, *of_extremes[2:])
        ctx.segments = segments
        extremes = (of_extremes[0], of_extremes[1], of_extremes[2], of_extremes[3]) if of_extremes else None
        given = segment_order(*segments)
        return triton_reductions.reductions_gradient(messages, *given, mean, (to_mean, to_variance), extremes)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, to_variance, *edges = ctx.saved_tensors
        segments, count = ctx.segments, messages.shape[0]
        share = 1 / counts_in_order(segments[0], segments[1], mean)
        slope = 2 * share * to_variance
        sums = SUMS("sum", (v,), segments)
        away = messages - SUMS("spread", (mean,), segments)
        return (
            v * SUMS("spread", (slope,), segments),
            -sums * slope,
            None,
            sums * share,
            SUMS("sum", (v * away,), segments) * 2 * share,
            *(WINNERS("from winner", (v,), (winner, count)) for winner in edges),
            *(None for _ in edges),
        )


def softmax(scores: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """exp(s_e) / sum of exp(s_f) over the edges f with the receiver of e."""
    return _Softmax.apply(scores, receivers, num_nodes)


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
        shares = triton_reductions.softmax(scores, *segment_order(receivers, num_nodes))
        ctx.save_for_backward(shares)
        ctx.segments = (receivers, num_nodes)
        return shares

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        (shares,) = ctx.saved_tensors
        weighted = shares * u
        sums = SUMS("sum", (weighted,), ctx.segments)
        return weighted - shares * SUMS("spread", (sums,), ctx.segments), None, None
