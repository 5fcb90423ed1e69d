"""Statistics per receiver in one pass, in Triton."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels.per_receiver import SUMS, WINNERS, counts_in_order, to_winner
from hydragnn.kernels.segment_order import segment_order
from hydragnn.kernels.triton import reductions as triton_reductions
from hydragnn.kernels.triton.forms import may_be_long


def extreme(messages: Tensor, receivers: Tensor, num_nodes: int, which: str, recorded: bool) -> tuple[Tensor, Tensor]:
    """Return each node's extreme and the first edge that holds it.

    The edge is one past the last for nodes without edges. The edges are empty unless a gradient is recorded.
    """
    name = "low" if which == "amin" else "high"
    _, low, high = _reduced(messages, (receivers, num_nodes), (name,), winners=recorded)
    result = low or high
    assert result is not None
    return result


def statistics(messages: Tensor, receivers: Tensor, num_nodes: int, extremes: bool) -> tuple[Tensor, ...]:
    """Return mean and variance of each node's messages, and extremes on request.

    Moments are of the dtype of sums: what is computed from them is rounded once.
    """
    recorded = torch.is_grad_enabled() and messages.requires_grad
    values: tuple[Tensor, ...] = _Statistics.apply(messages, receivers, num_nodes, extremes, recorded)
    return values


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
    def forward(ctx: Any, messages: Tensor, mean: Tensor, segments: tuple[Tensor, int], *rest: Tensor) -> Tensor:
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


def values(messages: Tensor, segments: tuple[Tensor, int], names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The named ones of mean and variance, low and high, without derivatives."""
    moments, low, high = _reduced(messages, segments, names, winners=False)
    result = {**_named(("mean", "variance"), moments), **_named(("low",), low), **_named(("high",), high)}
    return tuple(result[name].to(messages.dtype) for name in names)


def gradient(
    messages: Tensor,
    segments: tuple[Tensor, int],
    operands: Mapping[str, Tensor | None],
    incoming: Mapping[str, Tensor | None],
) -> Tensor:
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
    messages: Tensor, segments: tuple[Tensor, int], names: tuple[str, ...], *, winners: bool
) -> tuple[triton_reductions.Pair, ...]:
    moments, low, high = ("mean" in names, "low" in names, "high" in names)
    order = segment_order(*segments)
    return triton_reductions.reductions(messages, order, moments=moments, low=low, high=high, winners=winners)


def _named(names: tuple[str, ...], pair: triton_reductions.Pair) -> dict[str, Tensor]:
    return {} if pair is None else dict(zip(names, pair))
