"""Mean, variance and extremes of messages per receiver.

The compiled pass for CPUs needs ascending receivers, as those of a ``Topology`` are. It keeps no array of edges beside the
messages: which edge holds an extreme is found again for its gradient. With n messages m_e, mean c and variance v,

    dm_e = c' / n + 2 v' (m_e - c) / n + low' where e is the first to hold the smallest + high' likewise.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, form_on, forms_of, is_accelerated, on_accelerators
from hydragnn.kernels.per_receiver import SUMS, WINNERS
from hydragnn.kernels.segment_order import segment_order
from hydragnn.kernels.triton import reductions as triton_reductions
from hydragnn.kernels.triton.forms import may_be_long

Segments = tuple[Tensor, int]
"""The receiver of every edge, and how many nodes there are."""


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """Return mean, variance, least and largest ``[nodes, *features]``, zeros without edges."""
    return form_on(STATISTICS, messages.device.type)(messages, receivers, num_nodes)


def composed(messages: Tensor, receivers: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """Plain torch: some passes over the edges for each."""
    counts = counts_of(receivers, num_nodes, messages)
    mean = SUMS("sum", (messages,), (receivers, num_nodes)) / counts
    # [edges, *features]; what keeps the digits
    centred = messages - SUMS("spread", (mean,), (receivers, num_nodes))
    variance = SUMS("sum", (centred.square(),), (receivers, num_nodes)) / counts
    low, high = (extreme(messages, receivers, num_nodes, which) for which in ("amin", "amax"))
    return mean, variance, low, high


def extreme(messages: Tensor, receivers: Tensor, num_nodes: int, which: str) -> Tensor:
    """Return each node's extreme, ``amin`` or ``amax``, zeros without edges."""
    recorded = torch.is_grad_enabled() and messages.requires_grad
    value: Tensor = _Extreme.apply(messages, receivers, num_nodes, which, recorded)
    return value


def in_one_pass(messages: Tensor, receivers: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """The compiled pass where it serves, else plain torch."""
    if not cpu.serves_segments(messages, receivers, num_nodes):
        return composed(messages, receivers, num_nodes)
    return tuple(_Loops.apply(messages, (receivers, num_nodes)))


def in_triton(messages: Tensor, receivers: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """All in one pass; long rows in plain torch."""
    if may_be_long(segment_order(receivers, num_nodes)):
        return composed(messages, receivers, num_nodes)
    recorded = torch.is_grad_enabled() and messages.requires_grad
    return tuple(_Statistics.apply(messages, receivers, num_nodes, recorded))


STATISTICS: Mapping[str, Any] = {ANYWHERE: composed, "cpu": in_one_pass, **on_accelerators(in_triton)}


COUNTING: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    ANYWHERE: lambda receivers, count: receivers.new_zeros(count).index_add_(0, receivers, torch.ones_like(receivers)),
    "cpu": lambda receivers, count: torch.bincount(receivers, minlength=count),
}
"""Incoming edges per node: a sum of ones, or bins, whose number a tracer does not know."""


def counts_of(receivers: Tensor, num_nodes: int, like: Tensor) -> Tensor:
    """Incoming edges per node, at least 1, shaped to divide ``like``."""
    if is_accelerated(receivers.device.type):
        counts = segment_order(receivers, num_nodes).offsets.diff()
    else:  # counted in integers: float32 stops counting at 2^24
        counts = form_on(COUNTING, receivers.device.type)(receivers, num_nodes)
    return counts.clamp_min(1).to(like.dtype).view(-1, *[1] * (like.dim() - 1))


class _Loops(Function):
    """Statistics by compiled loops."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, segments: Segments) -> tuple[Tensor, ...]:
        values = cpu.statistics(messages, segments)
        ctx.save_for_backward(messages, *values)
        ctx.segments = segments
        ctx.set_materialize_grads(False)
        return values

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(one is None for one in incoming):
            return None, None
        messages, *values = ctx.saved_tensors
        mean, _, low, high = (value.detach() for value in values)
        return _LoopsGradient.apply(ctx.segments, messages, mean, low, high, *incoming), None


class _LoopsGradient(Function):
    """Gradient of messages, which is linear in those of the results."""

    @staticmethod
    def forward(ctx: Any, segments: Segments, messages: Tensor, *values: Tensor | None) -> Tensor:
        ctx.save_for_backward(messages, *values)
        ctx.segments = segments
        return cpu.statistics_gradient(segments, messages, *values)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        messages, _, low, high, to_mean, to_variance, to_low, to_high = ctx.saved_tensors
        segments: Segments = ctx.segments
        counts = counts_of(*segments, u)

        def mean(values: Tensor) -> Tensor:
            return SUMS("sum", (values,), segments) / counts

        def centred(values: Tensor) -> Tensor:
            return values - SUMS("spread", (mean(values),), segments)

        def at_holders(value: Tensor) -> Tensor:
            winner = form_on(HOLDERS, u.device.type)(messages.detach(), value, segments)
            return WINNERS("from winner", (u,), (winner, messages.shape[0]))

        slope = None if to_variance is None else 2 * SUMS("spread", (to_variance / counts,), segments)
        of_messages = None if slope is None else slope * centred(u)
        return (
            None,
            of_messages,
            *(None, None, None),
            None if to_mean is None else mean(u),
            None if to_variance is None else 2 * mean(u * centred(messages)),
            None if to_low is None else at_holders(low),
            None if to_high is None else at_holders(high),
        )


class _Extreme(Function):
    """Maximum or minimum of messages per receiver.

    Its gradient goes to the first edge that holds it.
    """

    @staticmethod
    def forward(ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, which: str, recorded: bool) -> Tensor:
        order = segment_order(receivers, num_nodes) if is_accelerated(messages.device.type) else None
        if order is not None and which == "amax" and not may_be_long(order):
            value, winner = triton_reductions.reductions(messages, order, whole=False, winners=recorded)[-2:]
            ctx.save_for_backward(winner)
        else:
            value = scattered_extreme(messages, receivers, num_nodes, which)
            if recorded:
                holders = form_on(HOLDERS, messages.device.type)
                ctx.save_for_backward(holders(messages, value, (receivers, num_nodes)))
        ctx.edges = messages.shape[0]
        return value

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        return WINNERS("to winner", (u,), (winner, ctx.edges)), None, None, None, None


def scattered_extreme(messages: Tensor, receivers: Tensor, num_nodes: int, which: str) -> Tensor:
    """Each node's extreme in plain torch, ``amin`` or ``amax``; zeros without edges."""
    rows = receivers.long().view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)  # [edges, *features]
    value = messages.new_zeros(num_nodes, *messages.shape[1:])
    return value.scatter_reduce_(0, rows, messages, which, include_self=False)


def first_holders(messages: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """Return each node's first edge with ``value``, or one past the last."""
    edges, receivers = messages.shape[0], segments[0]
    rows = receivers.long().view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)  # [edges, *features]
    numbers = torch.arange(edges, device=messages.device).view(-1, *[1] * (messages.dim() - 1))
    # [edges, *features]: an edge's number where it holds its receiver's extreme, else one past the last
    hit = torch.where(messages == value.index_select(0, receivers), numbers, edges)
    # [nodes, *features]: the first such edge
    return torch.full_like(value, edges, dtype=torch.int64).scatter_reduce_(0, rows, hit, "amin")


class _Statistics(Function):
    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, recorded: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        order = segment_order(receivers, num_nodes)
        results = triton_reductions.reductions(messages, order, whole=True, winners=recorded)
        mean, variance, low, low_edge, high, high_edge = results
        ctx.save_for_backward(messages, mean, low_edge, high_edge)
        ctx.segments = (receivers, num_nodes)
        return mean, variance, low, high

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        messages, mean, *edges = ctx.saved_tensors
        return _StatisticsGradient.apply(messages, mean, ctx.segments, *incoming, *edges), None, None, None


class _StatisticsGradient(Function):
    """Gradient of messages from those of the results.

    G_e = (a_i + 2 (m_e - mean_i) b_i) / n_i + [e is i's smallest] c_i + [e is i's largest] d_i.
    """

    @staticmethod
    def forward(ctx: Any, messages: Tensor, mean: Tensor, segments: Segments, *rest: Tensor) -> Tensor:
        ctx.save_for_backward(messages, mean, rest[1], *rest[4:])
        ctx.segments = segments
        return triton_reductions.reductions_gradient(messages, segment_order(*segments), mean, rest[:4], rest[4:])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, to_variance, *edges = ctx.saved_tensors
        segments, count = ctx.segments, messages.shape[0]
        if not torch.is_grad_enabled():
            of_messages, *others = triton_reductions.reductions_second(
                v, messages, segment_order(*segments), mean, to_variance, edges
            )
            return of_messages, None, None, *others, None, None  # with that of the mean
        share = 1 / counts_of(segments[0], segments[1], mean)
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
            None,
            None,
        )


HOLDERS = forms_of(first_holders, cpu.holders)
