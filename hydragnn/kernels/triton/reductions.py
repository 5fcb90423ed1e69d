"""Launches of Triton kernels for reductions per receiver, of which no row may be long (``may_be_long``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hydragnn.kernels.segment_order import SegmentOrder
from hydragnn.kernels.triton.launch import by_axes, constants_of, launch, sum_dtype

Pair = tuple[Tensor, Tensor] | None


def reductions(
    x: Tensor, order: SegmentOrder, *, moments: bool, low: bool, high: bool, winners: bool
) -> tuple[Pair, Pair, Pair]:
    """Return moments and extremes per row, in one pass.

    Only the requested ones are computed. Moments are of the dtype of sums. Edges are told where ``winners``; they are empty
    elsewhere.
    """
    shape, exact = (order.offsets.shape[0] - 1, *x.shape[1:]), sum_dtype(x)

    def results(requested: bool) -> Pair:
        if not requested:
            return None
        return x.new_empty(shape), x.new_empty(shape if winners else (0,), dtype=torch.int64)

    of_moments = (x.new_empty(shape, dtype=exact), x.new_empty(shape, dtype=exact)) if moments else None
    pairs = of_moments, results(low), results(high)
    (mean, variance), (least, least_at), (most, most_at) = ((x, x) if pair is None else pair for pair in pairs)
    constants = {"MOMENTS": moments, "LOW": low, "HIGH": high, "WINNERS": winners}
    inputs = (x.contiguous(), mean, variance, least, most, least_at, most_at)
    _launch("reduce_rows", order, "statistics" if moments else "segments", inputs, constants, x.shape[0])
    return pairs


def reductions_gradient(
    x: Tensor,
    order: SegmentOrder,
    mean: Tensor,
    incoming: tuple[Tensor, Tensor],
    extremes: tuple[Tensor, Tensor, Tensor, Tensor] | None,
) -> Tensor:
    """Return the gradient of messages from those of moments and extremes."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    mean = mean.contiguous()
    to_low, to_high, low_edge, high_edge = extremes or 4 * (mean,)
    arrived, stride = _equally_strided((*incoming, *((to_low, to_high) if extremes else ())), x.shape[1:].numel())
    moments, of_extremes = arrived[:2], arrived[2:] or (mean, mean)
    inputs = (x.contiguous(), mean, low_edge.contiguous(), high_edge.contiguous(), *moments, *of_extremes, out)
    constants = {"EXTREMES": extremes is not None}
    _launch("reduce_rows_gradient", order, "statistics", inputs, constants, stride=stride)
    return out


def _equally_strided(tensors: tuple[Tensor, ...], channels: int) -> tuple[tuple[Tensor, ...], int]:
    """Return tensors with one stride between rows, as copies where they differ."""
    held = [by_axes(tensor, 1, channels) for tensor in tensors]
    strides = {row for _, row, _ in held}
    if len(strides) == 1:
        return tuple(tensor for tensor, _, _ in held), strides.pop()
    return tuple(tensor.contiguous() for tensor in tensors), channels


def reductions_second(
    v: Tensor, x: Tensor, order: SegmentOrder, mean: Tensor, to_variance: Tensor, edges: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return the gradients of ``reductions_gradient``.

    Those of messages, and of the gradients of mean, variance and, where there are ``edges`` of them, extremes.
    """
    x, mean = x.contiguous(), mean.contiguous()
    out, results = torch.empty_like(x), [torch.empty_like(mean) for _ in range(2)]
    results += [torch.empty_like(mean, dtype=x.dtype) for _ in edges]
    held = tuple(edge.contiguous() for edge in edges) or (mean, mean)
    inputs = (v.contiguous(), x, mean, to_variance.contiguous(), *held, out, *results, *(() if edges else (mean, mean)))
    _launch("reduce_rows_second", order, "statistics", inputs, {"EXTREMES": bool(edges)})
    return out, *results


def softmax(x: Tensor, order: SegmentOrder) -> Tensor:
    """Return the shares of exponentials of each row."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch("softmax_rows", order, "softmax", (x.contiguous(), out), {})
    return out


def softmax_gradient(y: Tensor, u: Tensor, *rest: Any) -> Tensor:
    """Return the gradient of scores, or with one more tensor v that of shares; the order comes last."""
    *v, order = rest
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    inputs = tuple(one.contiguous() for one in (y, u, *(v or (y,))))
    _launch("softmax_rows_gradient", order, "softmax", (*inputs, out), {"CURVED": bool(v)})
    return out


def _launch(
    name: str,
    order: SegmentOrder,
    group: str,
    inputs: tuple[Tensor, ...],
    constants: dict[str, Any],
    edges: int | None = None,
    stride: int | None = None,
) -> None:
    """Launch a kernel with one program per row, of messages ``inputs[0]``."""
    from hydragnn.kernels.triton import segments as kernels

    offsets, x = order.offsets, inputs[0]
    rows, channels = offsets.shape[0] - 1, x.shape[1:].numel()
    if not rows or not channels:
        return
    options, tiles = constants_of(group, (x,), channels, 1, () if stride is None else (stride,))
    sizes = [channels // options["VEC"]]
    sizes += [] if edges is None else [edges]
    sizes += [] if stride is None else [stride // options["VEC"]]
    arrays = (offsets, offsets if order.order is None else order.order, *inputs)
    constants = {**options, "ORDER": order.order is not None, **constants}
    launch(getattr(kernels, name), (rows, tiles), (*arrays, *sizes), constants)
