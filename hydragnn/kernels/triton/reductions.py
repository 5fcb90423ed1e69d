"""Launches of Triton kernels for reductions per receiver, of which no row may be long (``may_be_long``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hydragnn.kernels.segment_order import SegmentOrder
from hydragnn.kernels.triton.launch import by_axes, constants_of, launch, sum_dtype


def reductions(x: Tensor, order: SegmentOrder, *, whole: bool, winners: bool) -> tuple[Tensor, ...]:
    """Return mean, variance, smallest, its edge, largest and its edge per row, in one pass.

    Only the last two mean something unless ``whole``. Moments are of the dtype of sums. Edges are empty unless ``winners``.
    """
    shape, exact = (order.offsets.shape[0] - 1, *x.shape[1:]), sum_dtype(x)

    def extreme() -> tuple[Tensor, Tensor]:
        return x.new_empty(shape), x.new_empty(shape if winners else (0,), dtype=torch.int64)

    mean, variance = (x.new_empty(shape, dtype=exact), x.new_empty(shape, dtype=exact)) if whole else (x, x)
    (low, low_edge), (high, high_edge) = extreme() if whole else (x, x), extreme()
    inputs = (x.contiguous(), mean, variance, low, high, low_edge, high_edge)
    constants = {"WHOLE": whole, "WINNERS": winners}
    _launch("reduce_rows", order, "statistics" if whole else "segments", inputs, constants, x.shape[0])
    return mean, variance, low, low_edge, high, high_edge


def reductions_gradient(
    x: Tensor, order: SegmentOrder, mean: Tensor, incoming: Sequence[Tensor], edges: Sequence[Tensor]
) -> Tensor:
    """Return the gradient of messages from those of moments and extremes."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    channels = x.shape[1:].numel()
    held, strides, _ = zip(*[by_axes(tensor, 1, channels) for tensor in incoming])
    # one stride between rows, of copies where they differ
    arrived, stride = (held, strides[0]) if len({*strides}) == 1 else ([one.contiguous() for one in incoming], channels)
    inputs = (x.contiguous(), mean.contiguous(), *(edge.contiguous() for edge in edges), *arrived, out)
    _launch("reduce_rows_gradient", order, "statistics", inputs, {}, stride=stride)
    return out


def reductions_second(
    v: Tensor, x: Tensor, order: SegmentOrder, mean: Tensor, to_variance: Tensor, edges: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of ``reductions_gradient``: of messages, mean, variance and extremes."""
    x, mean = x.contiguous(), mean.contiguous()
    out, results = torch.empty_like(x), [torch.empty_like(mean) for _ in range(2)]
    results += [torch.empty_like(mean, dtype=x.dtype) for _ in edges]
    held = (edge.contiguous() for edge in edges)
    inputs = (v.contiguous(), x, mean, to_variance.contiguous(), *held, out, *results)
    _launch("reduce_rows_second", order, "statistics", inputs, {})
    return out, *results


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
