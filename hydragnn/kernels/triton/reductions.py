"""Reductions per receiver in Triton, for ROCm and CUDA: they choose tiles and launch the kernels of ``segments``, and those of
``windows`` where a row could be long. Edges come as ``order``, ``owners`` and ``offsets``: by receiver."""

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
    """Mean and variance, smallest values and their edges, largest and theirs, per row: those asked for, in one pass.

    Edges are told where ``winners``; they are empty elsewhere.
    """
    from hydragnn.kernels.triton import segments, windows

    shape = (offsets.shape[0] - 1, *x.shape[1:])

    def results(asked: bool, second: torch.dtype) -> Pair:
        if not asked:
            return None
        return x.new_empty(shape), x.new_empty(shape if winners or second == x.dtype else (0,), dtype=second)

    pairs = results(moments, x.dtype), results(low, torch.int64), results(high, torch.int64)
    (mean, variance), (least, least_at), (most, most_at) = ((x, x) if pair is None else pair for pair in pairs)
    outs, x = (mean, variance, least, most, least_at, most_at), x.contiguous()
    asked = {"MOMENTS": moments, "LOW": low, "HIGH": high, "WINNERS": winners}
    rows = _Rows(offsets, owners, x, "statistics" if moments else "segments", asked)
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
    """What messages receive from what mean and variance, and smallest and largest, received; the last two with their edges."""
    from hydragnn.kernels.triton import segments, windows

    out, x = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
    mean, *moments = (tensor.contiguous() for tensor in (mean, *incoming))
    to_low, to_high, low_edge, high_edge = (tensor.contiguous() for tensor in extremes or 4 * (mean,))
    given = (order, x, mean, low_edge, high_edge, *moments, to_low, to_high, out)
    rows = _Rows(offsets, owners, x, "statistics", {"EXTREMES": extremes is not None})
    rows.launch(segments.reduce_rows_gradient, offsets, *given)
    if rows.windows:
        rows.launch_slots(windows.reduce_windows_gradient, offsets, owners, *given)
    return out


def softmax(x: Tensor, order: Tensor, owners: Tensor, offsets: Tensor) -> Tensor:
    """Shares of the exponentials of a row."""
    from hydragnn.kernels.triton import segments, windows

    out, x = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
    rows = _Rows(offsets, owners, x, "segments", {})
    rows.launch(segments.softmax_rows, offsets, order, x, out)
    if rows.windows:
        partial = x.new_empty(rows.windows, 2, 2, rows.channels, dtype=sum_dtype(x))
        rows.launch_slots(windows.softmax_windows, offsets, owners, order, x, partial)
        rows.launch(windows.join_softmax, offsets, partial)
        rows.launch_slots(windows.softmax_parts, offsets, owners, order, x, partial, out)
    return out


class _Rows:
    """Messages by row, and the constants of the kernels that reduce them."""

    def __init__(self, offsets: Tensor, owners: Tensor, x: Tensor, group: str, asked: dict[str, Any]) -> None:
        self.rows, self.edges, self.channels = offsets.shape[0] - 1, owners.shape[0], x.shape[1:].numel()
        long, some = triton_launch.LONG, bool(self.rows and self.channels)
        self.windows = -(-self.edges // long) if some and self.edges > long else 0
        """How many windows hold parts of long rows; 0 where no row can be long."""
        if some:
            options, self.tiles = constants_of(group, (x,), self.channels, 1)
            self.units = self.channels // options["VEC"]
            self.constants = {**options, "SPLIT": long, **asked}

    def launch(self, kernel: Any, *given: Tensor, sizes: tuple[int, ...] = ()) -> None:
        """A kernel with one program per row."""
        if self.rows and self.channels:
            launch(kernel, (self.rows, self.tiles), (*given, self.units, *sizes), self.constants)

    def launch_slots(self, kernel: Any, *given: Tensor) -> None:
        """A kernel with one program per half of a window."""
        launch(kernel, (2 * self.windows, self.tiles), (*given, self.units, self.edges), self.constants)
