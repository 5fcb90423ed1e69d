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

from hydragnn.kernels import one_pass
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, form_on, is_accelerated, on_accelerators
from hydragnn.kernels.nonlinear import CallRecord, Nonlinear, Tensors
from hydragnn.kernels.per_receiver import SUMS, WINNERS, counts_in_order, to_winner

Segments = tuple[Tensor, int]
"""The receiver of every edge, and how many nodes there are."""
Named = Mapping[str, Tensor | None]
MOMENTS, LOW, HIGH = ("mean", "variance"), ("low",), ("high",)


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Return the named statistics, zeros without edges.

    Names are mean, variance, low and high; shapes [nodes, *features].
    """
    form: Any = form_on(STATISTICS, messages.device.type)
    values: tuple[Tensor, ...] = form(messages, receivers, num_nodes, names)
    return values


def composed(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Plain torch: some passes over the edges for each."""
    values: list[Tensor] = []
    if MOMENTS[0] in names:
        counts = counts_of(receivers, num_nodes, messages)
        mean = SUMS("sum", (messages,), (receivers, num_nodes)) / counts
        centred = messages - SUMS(
            "spread", (mean,), (receivers, num_nodes)
        )  # [edges, *features]; what keeps the digits
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
    return _tuple(STATISTICS_OPS[names][0]((messages,), (receivers, num_nodes)))


def _tuple(values: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


def in_triton(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """All of them in one pass, or extremes alone."""
    if MOMENTS[0] not in names:
        return composed(messages, receivers, num_nodes, names)
    extremes = LOW[0] in names or HIGH[0] in names
    values = dict(zip((*MOMENTS, *LOW, *HIGH), one_pass.statistics(messages, receivers, num_nodes, extremes)))
    return tuple(values[name] for name in names)


STATISTICS: Mapping[str, Any] = {ANYWHERE: composed, "cpu": in_one_pass, **on_accelerators(in_triton)}  # type: ignore[arg-type]


def added_counts(receivers: Tensor, num_nodes: int) -> Tensor:
    """Return incoming edges per node by a sum of ones."""
    return receivers.new_zeros(num_nodes).index_add_(0, receivers, torch.ones_like(receivers))


def binned_counts(receivers: Tensor, num_nodes: int) -> Tensor:
    """Return incoming edges per node by bins, whose number a tracer does not know."""
    return torch.bincount(receivers, minlength=num_nodes)


COUNTING: Mapping[str, Callable[[Tensor, int], Tensor]] = {ANYWHERE: added_counts, "cpu": binned_counts}


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


def compiled_values(messages: Tensor, segments: Segments, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The same in one compiled pass where it serves."""
    serves = cpu.serves_segments(messages, *segments)
    return cpu.statistics(messages, *segments, names) if serves else plain_values(messages, segments, names)


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


def compiled_gradient(messages: Tensor, segments: Segments, operands: Mapping[str, Tensor], incoming: Named) -> Tensor:
    """The same in one compiled pass where it serves."""
    if not cpu.serves_segments(messages, *segments):
        return plain_gradient(messages, segments, operands, incoming)
    return cpu.statistics_gradient(messages, segments[0], operands, incoming)


def compiled_holders(messages: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """Return the first edge of each node whose message is ``value``."""
    if not cpu.serves_segments(messages, *segments):
        return first_holders(messages, value, segments)
    return cpu.holders(messages, segments[0], value)


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
            value, winner = one_pass.extreme(messages, receivers, num_nodes, which, recorded)
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


def _statistics_op(names: tuple[str, ...]) -> tuple[Nonlinear, Nonlinear]:
    """Return the named statistics and their gradient, as ops."""

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
        forms={
            ANYWHERE: gradient_by(plain_gradient),
            "cpu": gradient_by(compiled_gradient),
            **on_accelerators(gradient_by(one_pass.gradient)),
        },
        gradients=lambda record, segments: _second_derivatives(record, segments, names),
        tensors=1 + 2 * len(names),
        optional=len(names),
    )

    def first_derivatives(record: CallRecord, segments: Segments) -> Tensors:
        values = (None if value is None else value.detach() for value in record.results)
        return (gradient((*record.tensors, *values, *record.incoming), segments),)

    value = Nonlinear(
        name="statistics_" + "_".join(names),
        forms={
            ANYWHERE: values_by(plain_values),
            "cpu": values_by(compiled_values),
            **on_accelerators(values_by(one_pass.values)),  # type: ignore[arg-type]
        },
        gradients=first_derivatives,
        results=len(names),
    )
    return value, gradient


HOLDERS = Nonlinear(
    name="holders",
    forms={ANYWHERE: first_holders, "cpu": compiled_holders},
    gradients=lambda known, _: (None, None),
    tensors=2,
)
STATISTICS_OPS: Mapping[tuple[str, ...], tuple[Nonlinear, Nonlinear]] = {
    names: _statistics_op(names) for names in (MOMENTS, LOW, HIGH, (*MOMENTS, *LOW, *HIGH))
}
"""The statistics that are asked for together, and their gradient."""
