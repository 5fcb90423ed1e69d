"""Launches of Triton kernels for reductions per receiver."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hydragnn.kernels.segment_order import SegmentOrder
from hydragnn.kernels.triton import launch as triton_launch
from hydragnn.kernels.triton.forms import may_be_long
from hydragnn.kernels.triton.launch import by_axes, constants_of, launch, sum_dtype

Pair = tuple[Tensor, Tensor] | None


def reductions(
    x: Tensor, order: SegmentOrder, *, moments: bool, low: bool, high: bool, winners: bool
) -> tuple[Pair, Pair, Pair]:
    """Return moments and extremes per row, in one pass.

    Only the requested ones are computed. Moments are of the dtype of sums. Edges are told where ``winners``; they are empty
    elsewhere.
    """
    from hydragnn.kernels.triton import segments, windows

    shape, exact = (order.offsets.shape[0] - 1, *x.shape[1:]), sum_dtype(x)

    def results(requested: bool) -> Pair:
        if not requested:
            return None
        return x.new_empty(shape), x.new_empty(shape if winners else (0,), dtype=torch.int64)

    of_moments = (x.new_empty(shape, dtype=exact), x.new_empty(shape, dtype=exact)) if moments else None
    pairs = of_moments, results(low), results(high)
    (mean, variance), (least, least_at), (most, most_at) = ((x, x) if pair is None else pair for pair in pairs)
    outs, x = (mean, variance, least, most, least_at, most_at), x.contiguous()
    constants = {"MOMENTS": moments, "LOW": low, "HIGH": high, "WINNERS": winners}
    rows = _Rows(order, x, "statistics" if moments else "segments", constants)
    rows.launch(segments.reduce_rows, rows.order, x, *outs, sizes=(x.shape[0],))
    if rows.windows:
        partial = x.new_empty(rows.windows, 2, 4, rows.channels, dtype=exact)
        edges = x.new_empty(rows.windows, 2, 2, rows.channels if winners else 0, dtype=torch.int32)
        rows.launch_slots(windows.reduce_windows, rows.order, x, partial, edges)
        rows.launch(windows.join_reductions, partial, edges, *outs, sizes=(x.shape[0],))
    return pairs


def reductions_gradient(
    x: Tensor,
    order: SegmentOrder,
    mean: Tensor,
    incoming: tuple[Tensor, Tensor],
    extremes: tuple[Tensor, Tensor, Tensor, Tensor] | None,
) -> Tensor:
    """Return the gradient of messages from those of moments and extremes."""
    from hydragnn.kernels.triton import segments, windows

    out, x = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
    mean = mean.contiguous()
    to_low, to_high, low_edge, high_edge = extremes or 4 * (mean,)
    arrived, stride = _equally_strided((*incoming, *((to_low, to_high) if extremes else ())), x.shape[1:].numel())
    moments, of_extremes = arrived[:2], arrived[2:] or (mean, mean)
    inputs = (x, mean, low_edge.contiguous(), high_edge.contiguous(), *moments, *of_extremes, out)
    rows = _Rows(order, x, "statistics", {"EXTREMES": extremes is not None}, stride)
    sizes = (stride // rows.vector,)
    rows.launch(segments.reduce_rows_gradient, rows.order, *inputs, sizes=sizes)
    if rows.windows:
        rows.launch_slots(windows.reduce_windows_gradient, rows.order, *inputs, sizes=sizes)
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
    """Return the gradients of ``reductions_gradient``, without long rows.

    Those of messages, and of the gradients of mean, variance and, where there are ``edges`` of them, extremes.
    """
    from hydragnn.kernels.triton import segments

    x, mean = x.contiguous(), mean.contiguous()
    out, results = torch.empty_like(x), [torch.empty_like(mean) for _ in range(2)]
    results += [torch.empty_like(mean, dtype=x.dtype) for _ in edges]
    held = tuple(edge.contiguous() for edge in edges) or (mean, mean)
    inputs = (v.contiguous(), x, mean, to_variance.contiguous(), *held, out, *results, *(() if edges else (mean, mean)))
    rows = _Rows(order, x, "statistics", {"EXTREMES": bool(edges)})
    rows.launch(segments.reduce_rows_second, rows.order, *inputs)
    return out, *results


def softmax(x: Tensor, order: SegmentOrder) -> Tensor:
    """Return the shares of exponentials of each row."""
    from hydragnn.kernels.triton import segments, windows

    out, x = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
    rows = _Rows(order, x, "softmax", {})
    rows.launch(segments.softmax_rows, rows.order, x, out)
    if rows.windows:
        partial = x.new_empty(rows.windows, 2, 2, rows.channels, dtype=sum_dtype(x))
        rows.launch_slots(windows.softmax_windows, rows.order, x, partial)
        rows.launch(windows.join_softmax, partial)
        rows.launch_slots(windows.softmax_parts, rows.order, x, partial, out)
    return out


def softmax_gradient(y: Tensor, u: Tensor, v: Tensor | None, order: SegmentOrder) -> Tensor:
    """Return the gradient of scores, or with v that of shares, without long rows."""
    from hydragnn.kernels.triton import segments

    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    inputs = tuple((y if one is None else one).contiguous() for one in (y, u, v))
    rows = _Rows(order, y, "softmax", {"CURVED": v is not None})
    rows.launch(segments.softmax_rows_gradient, rows.order, *inputs, out)
    return out


class _Rows:
    """Messages by row, and the constants of the kernels that reduce them."""

    def __init__(self, order: SegmentOrder, x: Tensor, group: str, requested: dict[str, Any], *strides: int) -> None:
        self.offsets, self.owners = order.offsets, order.owners
        self.order = order.offsets if order.order is None else order.order
        self.rows, self.edges = self.offsets.shape[0] - 1, self.owners.shape[0]
        self.channels, self.vector = x.shape[1:].numel(), 1
        long, some = triton_launch.LONG, bool(self.rows and self.channels)
        self.windows = -(-self.edges // long) if some and may_be_long(order) else 0
        """Number of windows of long rows; 0 if no row can be long."""
        if some:
            options, self.tiles = constants_of(group, (x,), self.channels, 1, strides)
            self.vector = options["VEC"]
            self.constants = {**options, "SPLIT": long, "ORDER": order.order is not None, **requested}

    def launch(self, kernel: Any, *inputs: Tensor, sizes: tuple[int, ...] = ()) -> None:
        """A kernel with one program per row."""
        if self.rows and self.channels:
            units = self.channels // self.vector
            launch(kernel, (self.rows, self.tiles), (self.offsets, *inputs, units, *sizes), self.constants)

    def launch_slots(self, kernel: Any, *inputs: Tensor, sizes: tuple[int, ...] = ()) -> None:
        """A kernel with one program per half of a window."""
        sizes = self.channels // self.vector, *sizes, self.edges
        launch(kernel, (2 * self.windows, self.tiles), (self.offsets, self.owners, *inputs, *sizes), self.constants)
