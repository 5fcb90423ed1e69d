"""Reductions per receiver in one pass over the messages, in Triton on ROCm and CUDA; each is differentiable twice.

mean, variance, smallest and largest     dm: one pass too; its own derivative is made of sums and gathers
softmax                                  ds = y (u - sum of u y over the receiver's edges)
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels import triton_reductions
from hydragnn.kernels.per_receiver import SUMS, WINNERS, counts_in_order
from hydragnn.kernels.segment_order import segment_order


def extreme(messages: Tensor, receivers: Tensor, num_nodes: int, which: str) -> tuple[Tensor, Tensor]:
    """Each node's extreme (``amin`` or ``amax``) and the first edge that holds it, one past the last without edges."""
    given = segment_order(receivers, num_nodes)
    _, low, high = triton_reductions.reductions(
        messages, *given, moments=False, low=which == "amin", high=which == "amax"
    )
    found = low or high
    assert found is not None
    return found


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance, smallest and largest message of each node."""
    return _Statistics.apply(messages, receivers, num_nodes)


class _Statistics(Function):
    @staticmethod
    def forward(ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
        given = segment_order(receivers, num_nodes)
        moments, low, high = triton_reductions.reductions(messages, *given, moments=True, low=True, high=True)
        assert moments is not None and low is not None and high is not None
        ctx.save_for_backward(messages, moments[0], low[1], high[1])
        ctx.segments = (receivers, num_nodes)
        return *moments, low[0], high[0]

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, low_edge, high_edge = ctx.saved_tensors
        return _StatisticsGradient.apply(messages, mean, *incoming, low_edge, high_edge, ctx.segments), None, None


class _StatisticsGradient(Function):
    """G_e = (a_i + 2 (m_e - mean_i) b_i) / n_i + [e is i's smallest] c_i + [e is i's largest] d_i, for what four results received."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, mean: Tensor, *rest: Any) -> Tensor:
        *incoming, low_edge, high_edge, segments = rest
        ctx.save_for_backward(messages, mean, incoming[1], low_edge, high_edge)
        ctx.segments = segments
        given = segment_order(*segments)
        return triton_reductions.reductions_gradient(messages, *given, mean, *incoming, low_edge, high_edge)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, to_variance, low_edge, high_edge = ctx.saved_tensors
        segments, edges = ctx.segments, messages.shape[0]
        share = 1 / counts_in_order(segments[0], segments[1], mean)
        slope = 2 * share * to_variance
        sums = SUMS("sum", (v,), segments)
        away = messages - SUMS("spread", (mean,), segments)
        return (
            v * SUMS("spread", (slope,), segments),
            -sums * slope,
            sums * share,
            SUMS("sum", (v * away,), segments) * 2 * share,
            WINNERS("from winner", (v,), (low_edge, edges)),
            WINNERS("from winner", (v,), (high_edge, edges)),
            None,
            None,
            None,
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
