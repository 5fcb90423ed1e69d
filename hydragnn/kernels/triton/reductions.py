"""Launches of Triton kernels for reductions per receiver."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hydragnn.kernels.triton import launch as triton_launch
from hydragnn.kernels.triton.launch import constants_of, launch, sum_dtype

Pair = tuple[Tensor, Tensor] | None


def reductions(
    x: Tensor,
    order: Tensor,
    owners: Tensor,
    offsets: Tensor,
    *,
    moments: bool,
    low: bool,
    high: bool,
    winners: bool,
) -> tuple[Pair, Pair, Pair]:
    """Return moments and extremes per row, in one pass.

    Only the requested ones are computed.

    Edges are told where ``winners``; they are empty elsewhere.
    """
    from hydragnn.kernels.triton import segments, windows

    shape = (offsets.shape[0] - 1, *x.shape[1:])

    def results(requested: bool, second: torch.dtype) -> Pair:
        if not requested:
            return None
        return x.new_empty(shape), x.new_empty(shape if winners or second == x.dtype else (0,), dtype=second)

    pairs = results(moments, x.dtype), results(low, torch.int64), results(high, torch.int64)
    (mean, variance), (least, least_at), (most, most_at) = ((x, x) if pair is None else pair for pair in pairs)
    outs, x = (mean, variance, least, most, least_at, most_at), x.contiguous()
    constants = {"MOMENTS": moments, "LOW": low, "HIGH": high, "WINNERS": winners}
    rows = _Rows(offsets, owners, x, "statistics" if moments else "segments", constants)
    rows.launch(segments.reduce_rows, offsets, order, x, *outs, sizes=(x.shape[0],))
    if rows.windows:
        partial = x.new_empty(rows.windows, 2, 4, rows.channels, dtype=sum_dtype(x))
        edges = x.new_empty(rows.windows, 2, 2, rows.channels if winners else 0, dtype=torch.int32)
        rows.launch_slots(windows.reduce_windows, offsets, owners, order, x, partial, edges)
        rows.launch(windows.join_reductions, offsets, partial, edges, *outs, sizes=(x.shape[0],))
    return pairs


def reductions_gradient(
    x: Tensor,
    order: Tensor,
    owners: Tensor,
    offsets: Tensor,
    mean: Tensor,
    incoming: tuple[Tensor, Tensor],
    extremes: tuple[Tensor, Tensor, Tensor, Tensor] | None,
) -> Tensor:
    """Return the gradient of messages from those of moments and extremes."""
    from hydragnn.kernels.triton import segments, windows

    out, x = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
    mean, *moments = (tensor.contiguous() for tensor in (mean, *incoming))
    to_low, to_high, low_edge, high_edge = (tensor.contiguous() for tensor in extremes or 4 * (mean,))
    inputs = (order, x, mean, low_edge, high_edge, *moments, to_low, to_high, out)
    rows = _Rows(offsets, owners, x, "statistics", {"EXTREMES": extremes is not None})
    rows.launch(segments.reduce_rows_gradient, offsets, *inputs)
    if rows.windows:
        rows.launch_slots(windows.reduce_windows_gradient, offsets, owners, *inputs)
    return out


def softmax(x: Tensor, order: Tensor, owners: Tensor, offsets: Tensor) -> Tensor:
    """Return the shares of exponentials of each row."""
    from hydragnn.kernels.triton import segments, windows

    out, x = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
    rows = _Rows(offsets, owners, x, "softmax", {})
    rows.launch(segments.softmax_rows, offsets, order, x, out)
    if rows.windows:
        partial = x.new_empty(rows.windows, 2, 2, rows.channels, dtype=sum_dtype(x))
        rows.launch_slots(windows.softmax_windows, offsets, owners, order, x, partial)
        rows.launch(windows.join_softmax, offsets, partial)
        rows.launch_slots(windows.softmax_parts, offsets, owners, order, x, partial, out)
    return out


class _Rows:
    """Messages by row, and the constants of the kernels that reduce them."""

    def __init__(self, offsets: Tensor, owners: Tensor, x: Tensor, group: str, requested: dict[str, Any]) -> None:
        self.rows, self.edges, self.channels = offsets.shape[0] - 1, owners.shape[0], x.shape[1:].numel()
        long, some = triton_launch.LONG, bool(self.rows and self.channels)
        self.windows = -(-self.edges // long) if some and self.edges > long else 0
        """Number of windows of long rows; 0 if no row can be long."""
        if some:
            options, self.tiles = constants_of(group, (x,), self.channels, 1)
            self.units = self.channels // options["VEC"]
            self.constants = {**options, "SPLIT": long, **requested}

    def launch(self, kernel: Any, *inputs: Tensor, sizes: tuple[int, ...] = ()) -> None:
        """A kernel with one program per row."""
        if self.rows and self.channels:
            launch(kernel, (self.rows, self.tiles), (*inputs, self.units, *sizes), self.constants)

    def launch_slots(self, kernel: Any, *inputs: Tensor) -> None:
        """A kernel with one program per half of a window."""
        launch(kernel, (2 * self.windows, self.tiles), (*inputs, self.units, self.edges), self.constants)
