"""Mean, variance, smallest and largest message per receiver: composed in plain torch, or in one compiled pass (CPU, Triton).

The compiled pass for CPUs needs receivers that ascend, as those of a ``Topology`` do. It keeps no array of edges beside the messages:
which edge holds an extreme is found again where its gradient is wanted. With n messages m_e, mean c and variance v,

    dm_e = c' / n + 2 v' (m_e - c) / n + low' where e is the first to hold the smallest + high' likewise.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels import cpu, one_pass
from hydragnn.kernels.family import ANYWHERE, as_operators, form_on, is_accelerated, on_accelerators
from hydragnn.kernels.per_receiver import SUMS, WINNERS, counts_in_order

MOMENTS, LOW, HIGH = ("mean", "variance"), ("low",), ("high",)


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The named ones of mean and variance, low and high: [nodes, *features] each, zeros without edges."""
    form: Any = composed if as_operators() else form_on(STATISTICS, messages.device.type)
    values: tuple[Tensor, ...] = form(messages, receivers, num_nodes, names)
    return values


def composed(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Plain torch: some passes over the edges for each."""
    values: list[Tensor] = []
    if MOMENTS[0] in names:
        counts = counts_of(receivers, num_nodes, messages)
        mean = SUMS("sum", (messages,), (receivers, num_nodes)) / counts
        centred = messages - mean.index_select(0, receivers)  # [edges, *features]; what keeps the digits
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
    values: tuple[Tensor, ...] = _OnePass.apply(messages, receivers, num_nodes, names)
    return values


def in_triton(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """All of them in one pass, or extremes alone."""
    if MOMENTS[0] not in names:
        return composed(messages, receivers, num_nodes, names)
    extremes = LOW[0] in names or HIGH[0] in names
    values = dict(zip((*MOMENTS, *LOW, *HIGH), one_pass.statistics(messages, receivers, num_nodes, extremes)))
    return tuple(values[name] for name in names)


STATISTICS: Mapping[str, Any] = {ANYWHERE: composed, "cpu": in_one_pass, **on_accelerators(in_triton)}  # type: ignore[arg-type]


def counts_of(receivers: Tensor, num_nodes: int, like: Tensor) -> Tensor:
    """Incoming edges per node, at least 1, shaped to divide ``like``."""
    if is_accelerated(receivers.device.type) and not as_operators():
        return counts_in_order(receivers, num_nodes, like)
    ones = receivers.new_ones(1).expand(receivers.shape[0])
    # integers: float32 stops counting at 2^24
    counts = receivers.new_zeros(num_nodes).index_add_(0, receivers, ones).clamp_min(1).to(like.dtype)
    return counts.view(-1, *[1] * (like.dim() - 1))


class _OnePass(Function):
    """The statistics, from one pass over the messages."""

    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]
    ) -> tuple[Tensor, ...]:
        values = cpu.statistics(messages, receivers, num_nodes, names)
        ctx.save_for_backward(messages, receivers, *values)
        ctx.names = names
        ctx.set_materialize_grads(False)
        return values

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        messages, receivers, *values = ctx.saved_tensors
        known = {name: value.detach() for name, value in zip(ctx.names, values)}
        return _OnePassGradient.apply(messages, receivers, known, *incoming), None, None, None


class _OnePassGradient(Function):
    """dm of the module's equation, linear in what came in; its own derivatives are composed, so that every order exists."""

    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, receivers: Tensor, known: Mapping[str, Tensor], *incoming: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(messages, receivers, *incoming)
        ctx.known = known
        return cpu.statistics_gradient(messages, receivers, known, dict(zip(known, incoming)))

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        messages, receivers, *incoming = ctx.saved_tensors
        known: Mapping[str, Tensor] = ctx.known
        given = dict(zip(known, incoming))
        segments = (receivers, next(iter(known.values())).shape[0])
        counts = counts_of(*segments, u)

        def mean(values: Tensor) -> Tensor:
            return SUMS("sum", (values,), segments) / counts

        def centred(values: Tensor) -> Tensor:
            return values - SUMS("spread", (mean(values),), segments)

        gradients: dict[str, Tensor | None] = {}
        for name, value in given.items():
            if value is None:
                gradients[name] = None
            elif name == "mean":
                gradients[name] = mean(u)
            elif name == "variance":
                gradients[name] = 2 * mean(u * centred(messages))
            else:
                winners = (cpu.holders(messages, receivers, known[name]), messages.shape[0])
                gradients[name] = WINNERS("from winner", (u,), winners)
        spread = given.get("variance")
        again = None if spread is None else 2 * SUMS("spread", (spread / counts,), segments) * centred(u)
        return again, None, None, *gradients.values()


class _Extreme(Function):
    """y_i = max (or min) of m_e over the edges that i receives; dy_i / dm_e = 1 for the first edge that holds it, else 0."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, receivers: Tensor, num_nodes: int, which: str, recorded: bool) -> Tensor:
        if is_accelerated(messages.device.type) and not as_operators():
            value, winner = one_pass.extreme(messages, receivers, num_nodes, which, recorded)
            ctx.save_for_backward(winner)
        else:
            value = scattered_extreme(messages, receivers, num_nodes, which)
            if recorded:
                ctx.save_for_backward(first_holders(messages, receivers, value))
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


def first_holders(messages: Tensor, receivers: Tensor, value: Tensor) -> Tensor:
    """The first edge of each node whose message is ``value``, one past the last without edges; in plain torch."""
    edges = messages.shape[0]
    rows = receivers.long().view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)  # [edges, *features]
    numbers = torch.arange(edges, device=messages.device).view(-1, *[1] * (messages.dim() - 1))
    # [edges, *features]: an edge's number where it holds its receiver's extreme, else one past the last
    hit = torch.where(messages == value.index_select(0, receivers), numbers, edges)
    # [nodes, *features]: the first such edge
    return torch.full_like(value, edges, dtype=torch.int64).scatter_reduce_(0, rows, hit, "amin")
