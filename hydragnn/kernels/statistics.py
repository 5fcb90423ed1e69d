"""Mean, variance, smallest and largest message per receiver: composed in plain torch, or in one compiled pass.

The compiled pass needs receivers that ascend, as those of a ``Topology`` do. It keeps no array of edges beside the messages:
which edge holds an extreme is found again where its gradient is wanted. With n messages m_e, mean c and variance v,

    dm_e = c' / n + 2 v' (m_e - c) / n + low' where e is the first to hold the smallest + high' likewise.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels import cpu
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, Form, Member, form_on
from hydragnn.kernels.sums import SUMS, counts_of

MOMENTS, LOW, HIGH = ("mean", "variance"), ("low",), ("high",)


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The named ones of mean and variance, low and high: [nodes, *features] each, zeros without edges."""
    form: Any = form_on(STATISTICS, messages.device.type)
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


STATISTICS: Mapping[str, Form] = {ANYWHERE: composed, "cpu": in_one_pass}  # type: ignore[dict-item]


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
        edges = messages.shape[0]
        rows = receivers.view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)  # [edges, *features]
        value = messages.new_zeros(num_nodes, *messages.shape[1:])
        value.scatter_reduce_(0, rows, messages, which, include_self=False)
        if not recorded:
            return value
        numbers = torch.arange(edges, device=messages.device).view(-1, *[1] * (messages.dim() - 1))
        # [edges, *features]: an edge's number where it holds its receiver's extreme, else one past the last
        hit = torch.where(messages == value.index_select(0, receivers), numbers, edges)
        # [nodes, *features]: the first such edge; one past the last for a node without edges
        winner = torch.full_like(value, edges, dtype=torch.int64).scatter_reduce_(0, rows, hit, "amin")
        ctx.save_for_backward(winner)
        ctx.edges = edges
        ctx.mark_non_differentiable(winner)
        return value

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        return WINNERS("to winner", (u,), (winner, ctx.edges)), None, None, None, None


def to_winner(u: Tensor, winners: tuple[Tensor, int]) -> Tensor:
    """Each node's number put on its winning edge; numbers of nodes without edges go nowhere."""
    winner, edges = winners
    return u.new_zeros(edges + 1, *u.shape[1:]).scatter_(0, winner, u)[:edges]


def from_winner(v: Tensor, winners: tuple[Tensor, int]) -> Tensor:
    """What each node's winning edge holds; zero for a node without edges."""
    padded = torch.cat([v, v.new_zeros(1, *v.shape[1:])])
    return padded.gather(0, winners[0])


WINNERS = Family(
    {
        "to winner": Member(forms={ANYWHERE: to_winner}, derivatives=(("from winner", (INCOMING,)),)),
        "from winner": Member(forms={ANYWHERE: from_winner}, derivatives=(("to winner", (INCOMING,)),)),
    }
)
