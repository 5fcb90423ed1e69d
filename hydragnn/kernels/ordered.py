"""Reductions per receiver where edges have been sorted by it, in Triton on ROCm and CUDA; every result is differentiable twice.

y_i = sum of m_e over the edges that i receives     dy: m' = u_receiver
mean, variance, smallest and largest in one pass    dm: one pass too; its own derivative is made of sums and gathers
softmax                                             ds = y (u - sum of u y over the receiver's edges)
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.weak import WeakTensorKeyDictionary

from hydragnn.kernels import triton_forms
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, Member, on_accelerators
from hydragnn.kernels.winners import WINNERS


class SegmentOrder(NamedTuple):
    """Edges by receiver: their numbers, their receivers and where each node's begin."""

    order: Tensor
    owners: Tensor
    offsets: Tensor


_orders: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Orders by array of receivers, for as long as it lives: all layers of a model share one sort."""


def segment_order(receivers: Tensor, num_nodes: int) -> SegmentOrder:
    """The stable order of edges by receiver; made once for an array of receivers."""
    made: tuple[int, int, SegmentOrder] | None = _orders.get(receivers)
    if made is not None and made[:2] == (num_nodes, receivers._version):
        return made[2]
    owners, order = torch.sort(receivers, stable=True)
    offsets = torch.searchsorted(owners, torch.arange(num_nodes + 1, device=receivers.device))
    _orders[receivers] = (num_nodes, receivers._version, SegmentOrder(order, owners, offsets))
    return _orders[receivers][2]


Segments = tuple[Tensor, int]
"""Receivers and the number of nodes."""


def add_to_nodes(messages: Tensor, segments: Segments) -> Tensor:
    """Each node's sum of messages in plain torch."""
    receivers, nodes = segments
    return messages.new_zeros(nodes, *messages.shape[1:]).index_add(0, receivers, messages)


def add_in_order(messages: Tensor, segments: Segments) -> Tensor:
    """Each node's sum of messages, edge after edge."""
    return triton_forms.sum_in_order(messages, *segment_order(*segments))


def give_to_edges(held: Tensor, segments: Segments) -> Tensor:
    """What each edge's receiver holds."""
    return held.index_select(0, segments[0])


SUMS = Family(
    {
        "total": Member(
            forms={ANYWHERE: add_to_nodes, **on_accelerators(add_in_order)}, derivatives=(("share", (INCOMING,)),)
        ),
        "share": Member(forms={ANYWHERE: give_to_edges}, derivatives=(("total", (INCOMING,)),)),
    }
)


def total(messages: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """Each node's sum of messages."""
    return SUMS("total", (messages,), (receivers, num_nodes))


def counts(receivers: Tensor, num_nodes: int, like: Tensor) -> Tensor:
    """Incoming edges per node, at least 1, shaped to divide ``like``."""
    degrees = segment_order(receivers, num_nodes).offsets.diff().clamp_min(1)
    return degrees.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


def extreme(messages: Tensor, receivers: Tensor, num_nodes: int, which: str) -> tuple[Tensor, Tensor]:
    """Each node's extreme (``amin`` or ``amax``) and the first edge that holds it, one past the last without edges."""
    given = segment_order(receivers, num_nodes)
    _, low, high = triton_forms.reductions(messages, *given, moments=False, low=which == "amin", high=which == "amax")
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
        moments, low, high = triton_forms.reductions(messages, *given, moments=True, low=True, high=True)
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
        return triton_forms.reductions_gradient(messages, *given, mean, *incoming, low_edge, high_edge)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, to_variance, low_edge, high_edge = ctx.saved_tensors
        segments, edges = ctx.segments, messages.shape[0]
        share = 1 / counts(*segments, mean)
        slope = 2 * share * to_variance
        sums = SUMS("total", (v,), segments)
        away = messages - SUMS("share", (mean,), segments)
        return (
            v * SUMS("share", (slope,), segments),
            -sums * slope,
            sums * share,
            SUMS("total", (v * away,), segments) * 2 * share,
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
        shares = triton_forms.softmax(scores, *segment_order(receivers, num_nodes))
        ctx.save_for_backward(shares)
        ctx.segments = (receivers, num_nodes)
        return shares

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        (shares,) = ctx.saved_tensors
        weighted = shares * u
        sums = SUMS("total", (weighted,), ctx.segments)
        return weighted - shares * SUMS("share", (sums,), ctx.segments), None, None
