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
from hydragnn.kernels.family import (
    ANYWHERE,
    CallRecord,
    Nonlinear,
    Tensors,
    form_on,
    forms_of,
    is_accelerated,
    on_accelerators,
)
from hydragnn.kernels.per_receiver import SUMS, WINNERS, counts_in_order, to_winner
from hydragnn.kernels.segment_order import segment_order
from hydragnn.kernels.triton import reductions as triton_reductions
from hydragnn.kernels.triton.forms import may_be_long

Segments = tuple[Tensor, int]
"""The receiver of every edge, and how many nodes there are."""
Named = Mapping[str, Tensor | None]
MOMENTS, LOW, HIGH = ("mean", "variance"), ("low",), ("high",)


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Return the named statistics, zeros without edges.

    Names are mean, variance, low and high; shapes [nodes, *features].
    """
    return form_on(STATISTICS, messages.device.type)(messages, receivers, num_nodes, names)


def composed(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Plain torch: some passes over the edges for each."""
    values: list[Tensor] = []
    if MOMENTS[0] in names:
        counts = counts_of(receivers, num_nodes, messages)
        mean = SUMS("sum", (messages,), (receivers, num_nodes)) / counts
        # [edges, *features]; what keeps the digits
        centred = messages - SUMS("spread", (mean,), (receivers, num_nodes))
        values += [mean, SUMS("sum", (centred.square(),), (receivers, num_nodes)) / counts]
    recorded = torch.is_grad_enabled() and messages.requires_grad
    values += [
        _Extreme.apply(messages, receivers, num_nodes, which, recorded)
        for name, which in (("low", "amin"), ("high", "amax"))
        if name in names
    ]
    return tuple(values)


def in_one_pass(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The compiled pass where it serves, else plain torch."""
    if not cpu.serves_segments(messages, receivers, num_nodes):
        return composed(messages, receivers, num_nodes, names)
    values = STATISTICS_OPS[names]((messages,), (receivers, num_nodes))
    return values if isinstance(values, tuple) else (values,)


def in_triton(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """All of them in one pass, or extremes alone."""
    if MOMENTS[0] not in names:
        return composed(messages, receivers, num_nodes, names)
    extremes = LOW[0] in names or HIGH[0] in names
    values = dict(zip((*MOMENTS, *LOW, *HIGH), statistics_in_triton(messages, receivers, num_nodes, extremes)))
    return tuple(values[name] for name in names)


STATISTICS: Mapping[str, Any] = {ANYWHERE: composed, "cpu": in_one_pass, **on_accelerators(in_triton)}


COUNTING: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    ANYWHERE: lambda receivers, count: receivers.new_zeros(count).index_add_(0, receivers, torch.ones_like(receivers)),
    "cpu": lambda receivers, count: torch.bincount(receivers, minlength=count),
}
"""Incoming edges per node: a sum of ones, or bins, whose number a tracer does not know."""


def counts_of(receivers: Tensor, num_nodes: int, like: Tensor) -> Tensor:
    """Incoming edges per node, at least 1, shaped to divide ``like``."""
    if is_accelerated(receivers.device.type):
        return counts_in_order(receivers, num_nodes, like)
    # counted in integers: float32 stops counting at 2^24
    counts = form_on(COUNTING, receivers.device.type)(receivers, num_nodes)
    return counts.clamp_min(1).to(like.dtype).view(-1, *[1] * (like.dim() - 1))


def plain_values(messages: Tensor, segments: Segments, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The named statistics in plain torch, without derivatives."""
    with torch.no_grad():
        return composed(messages, *segments, names)


def plain_gradient(messages: Tensor, segments: Segments, operands: Named, incoming: Named) -> Tensor:
    """Return the gradient of messages in plain torch."""
    receivers, total = segments[0], torch.zeros_like(messages)
    counts = counts_of(*segments, messages)
    to_mean, to_variance, mean = incoming.get("mean"), incoming.get("variance"), operands.get("mean")
    if to_mean is not None:
        total = total + (to_mean / counts).index_select(0, receivers)
    if to_variance is not None and mean is not None:
        slope = (2 * to_variance / counts).index_select(0, receivers)
        total = total + slope * (messages - mean.index_select(0, receivers))
    for name in (*LOW, *HIGH):
        arrived, value = incoming.get(name), operands.get(name)
        if arrived is not None and value is not None:
            total = total + to_winner(arrived, (first_holders(messages, value, segments), messages.shape[0]))
    return total


def _second_derivatives(record: CallRecord, segments: Segments, names: tuple[str, ...]) -> Tensors:
    """Return the gradients of the gradient, which is linear in its input."""
    messages, *others = record.tensors
    values, inputs = (dict(zip(names, part)) for part in (others[: len(names)], others[len(names) :]))
    u = record.incoming[0]
    assert messages is not None and u is not None
    counts = counts_of(*segments, u)

    def mean(values: Tensor) -> Tensor:
        return SUMS("sum", (values,), segments) / counts

    def centred(values: Tensor) -> Tensor:
        return values - SUMS("spread", (mean(values),), segments)

    gradients: dict[str, Tensor | None] = {}
    for name, arrived in inputs.items():
        if arrived is None:
            gradients[name] = None
        elif name == "mean":
            gradients[name] = mean(u)
        elif name == "variance":
            gradients[name] = 2 * mean(u * centred(messages))
        else:
            winners = HOLDERS((messages, values[name]), segments), messages.shape[0]
            gradients[name] = WINNERS("from winner", (u,), winners)
    spread = inputs.get("variance")
    of_messages = None if spread is None else 2 * SUMS("spread", (spread / counts,), segments) * centred(u)
    return of_messages, *[None] * len(names), *gradients.values()


class _Extreme(Function):
    """Maximum or minimum of messages per receiver.

    Its gradient goes to the first edge that holds it.
    """

    @staticmethod
    def forward(ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, which: str, recorded: bool) -> Tensor:
        if is_accelerated(messages.device.type):
            value, winner = extreme_in_triton(messages, receivers, num_nodes, which, recorded)
            ctx.save_for_backward(winner)
        else:
            value = scattered_extreme(messages, receivers, num_nodes, which)
            if recorded:
                ctx.save_for_backward(first_holders(messages, value, (receivers, num_nodes)))
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


def extreme_in_triton(
    messages: Tensor, receivers: Tensor, num_nodes: int, which: str, recorded: bool
) -> tuple[Tensor, Tensor]:
    """Return each node's extreme and the first edge that holds it.

    The edge is one past the last for nodes without edges. The edges are empty unless a gradient is recorded.
    """
    name = "low" if which == "amin" else "high"
    _, low, high = _reduced(messages, (receivers, num_nodes), (name,), winners=recorded)
    result = low or high
    assert result is not None
    return result


def statistics_in_triton(messages: Tensor, receivers: Tensor, num_nodes: int, extremes: bool) -> tuple[Tensor, ...]:
    """Return mean and variance of each node's messages, and extremes on request.

    Moments are of the dtype of sums: what is computed from them is rounded once.
    """
    recorded = torch.is_grad_enabled() and messages.requires_grad
    return _Statistics.apply(messages, receivers, num_nodes, extremes, recorded)


class _Statistics(Function):
    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, extremes: bool, recorded: bool
    ) -> tuple[Tensor, ...]:
        order, winners = segment_order(receivers, num_nodes), extremes and recorded
        moments, *result = triton_reductions.reductions(
            messages, order, moments=True, low=extremes, high=extremes, winners=winners
        )
        assert moments is not None
        ctx.save_for_backward(messages, moments[0], *(pair[1] for pair in result if pair is not None))
        ctx.segments = (receivers, num_nodes)
        return *moments, *(pair[0] for pair in result if pair is not None)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, *edges = ctx.saved_tensors
        gradient = _StatisticsGradient.apply(messages, mean, ctx.segments, *incoming, *edges)
        return gradient, None, None, None, None


class _StatisticsGradient(Function):
    """Gradient of messages from those of two or four results.

    G_e = (a_i + 2 (m_e - mean_i) b_i) / n_i + [e is i's smallest] c_i + [e is i's largest] d_i.
    """

    @staticmethod
    def forward(ctx: Any, messages: Tensor, mean: Tensor, segments: Segments, *rest: Tensor) -> Tensor:
        to_mean, to_variance, *of_extremes = rest
        ctx.save_for_backward(messages, mean, to_variance, *of_extremes[2:])
        ctx.segments = segments
        extremes = (of_extremes[0], of_extremes[1], of_extremes[2], of_extremes[3]) if of_extremes else None
        order = segment_order(*segments)
        return triton_reductions.reductions_gradient(messages, order, mean, (to_mean, to_variance), extremes)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        messages, mean, to_variance, *edges = ctx.saved_tensors
        segments, count = ctx.segments, messages.shape[0]
        order = segment_order(*segments)
        if not (torch.is_grad_enabled() or may_be_long(order)):
            of_messages, *others = triton_reductions.reductions_second(
                v, messages, order, mean, to_variance, tuple(edges)
            )
            return of_messages, None, None, *others, *(None for _ in edges)  # with that of the mean
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


def values_in_triton(messages: Tensor, segments: Segments, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The named ones of mean and variance, low and high, without derivatives."""
    moments, low, high = _reduced(messages, segments, names, winners=False)
    result = {**_named(("mean", "variance"), moments), **_named(("low",), low), **_named(("high",), high)}
    return tuple(result[name].to(messages.dtype) for name in names)


def gradient_in_triton(messages: Tensor, segments: Segments, operands: Named, incoming: Named) -> Tensor:
    """Return the gradient of messages from those of named statistics."""
    like = next(value for value in operands.values() if value is not None)
    arrived = {name: torch.zeros_like(like) if value is None else value for name, value in incoming.items()}
    extremes = tuple(name for name in ("low", "high") if name in operands)
    _, *result = _reduced(messages, segments, extremes, winners=True) if extremes else (None,)
    edges = [pair[1] for pair in result if pair is not None]
    mean = operands.get("mean")
    if mean is None:
        return to_winner(arrived[extremes[0]], (edges[0], messages.shape[0]))
    rest = (arrived["low"], arrived["high"], edges[0], edges[1]) if extremes else None
    moments = arrived["mean"], arrived["variance"]
    return triton_reductions.reductions_gradient(messages, segment_order(*segments), mean, moments, rest)


def _reduced(
    messages: Tensor, segments: Segments, names: tuple[str, ...], *, winners: bool
) -> tuple[triton_reductions.Pair, ...]:
    moments, low, high = ("mean" in names, "low" in names, "high" in names)
    order = segment_order(*segments)
    return triton_reductions.reductions(messages, order, moments=moments, low=low, high=high, winners=winners)


def _named(names: tuple[str, ...], pair: triton_reductions.Pair) -> dict[str, Tensor]:
    return {} if pair is None else dict(zip(names, pair))


VALUE_FORMS = forms_of(plain_values, cpu.statistics, values_in_triton)
GRADIENT_FORMS = forms_of(plain_gradient, cpu.statistics_gradient, gradient_in_triton)


def _statistics_op(names: tuple[str, ...]) -> Nonlinear:
    """Return the named statistics as an op, whose gradient is one."""

    def values_by(form: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        return lambda messages, segments: form(messages, segments, names)

    def gradient_by(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(messages: Tensor, *rest: Any) -> Tensor:
            *inputs, segments = rest
            operands, incoming = inputs[: len(names)], inputs[len(names) :]
            return form(messages, segments, dict(zip(names, operands)), dict(zip(names, incoming)))

        return call

    gradient = Nonlinear(
        name="statistics_gradient_of_" + "_".join(names),
        forms={kind: gradient_by(form) for kind, form in GRADIENT_FORMS.items()},
        gradients=lambda record, segments: _second_derivatives(record, segments, names),
        tensors=1 + 2 * len(names),
        optional=len(names),
    )

    def first_derivatives(record: CallRecord, segments: Segments) -> Tensors:
        values = (None if value is None else value.detach() for value in record.results)
        return (gradient((*record.tensors, *values, *record.incoming), segments),)

    return Nonlinear(
        name="statistics_" + "_".join(names),
        forms={kind: values_by(form) for kind, form in VALUE_FORMS.items()},
        gradients=first_derivatives,
        results=len(names),
    )


HOLDERS = Nonlinear(
    name="holders",
    forms=forms_of(first_holders, cpu.holders),
    gradients=lambda known, _: (None, None),
    tensors=2,
)
STATISTICS_OPS: Mapping[tuple[str, ...], Nonlinear] = {
    names: _statistics_op(names) for names in (MOMENTS, LOW, HIGH, (*MOMENTS, *LOW, *HIGH))
}
"""The statistics that are asked for together."""
