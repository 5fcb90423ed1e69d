"""Reductions per receiver in Triton, for ROCm and CUDA: they choose tiles and launch the kernels of ``triton_segments``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hydragnn.kernels.triton_launch import constants_of, launch

Pair = tuple[Tensor, Tensor] | None


def reductions(
    x: Tensor, order: Tensor, owners: Tensor, offsets: Tensor, *, moments: bool, low: bool, high: bool
) -> tuple[Pair, Pair, Pair]:
    """Mean and variance, smallest values and their edges, largest and theirs, per row: those asked for, in one pass."""
    from hydragnn.kernels import triton_segments as kernels

    def results(asked: bool, second: torch.dtype) -> Pair:
        shape = (offsets.shape[0] - 1, *x.shape[1:])
        return (x.new_empty(shape), x.new_empty(shape, dtype=second)) if asked else None

    pairs = results(moments, x.dtype), results(low, torch.int64), results(high, torch.int64)
    (mean, variance), (least, least_at), (most, most_at) = ((x, x) if pair is None else pair for pair in pairs)
    given = (offsets, order, x.contiguous(), mean, variance, least, most, least_at, most_at)
    asked = {"MOMENTS": moments, "LOW": low, "HIGH": high}
    group = "statistics" if moments else "segments"
    _launch_rows(kernels.reduce_rows, given, asked, group, x.shape[0])
    return pairs


def reductions_gradient(x: Tensor, order: Tensor, owners: Tensor, offsets: Tensor, *rest: Tensor) -> Tensor:
    """What messages receive from mean, variance, smallest and largest; ``rest``: the mean, what these received, the edges."""
    from hydragnn.kernels import triton_segments as kernels

    mean, to_mean, to_variance, to_low, to_high, low_edge, high_edge = (tensor.contiguous() for tensor in rest)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    edges, incoming = (mean, low_edge, high_edge), (to_mean, to_variance, to_low, to_high)
    _launch_rows(
        kernels.reduce_rows_gradient, (offsets, order, x.contiguous(), *edges, *incoming, out), {}, "statistics"
    )
    return out


def softmax(x: Tensor, order: Tensor, owners: Tensor, offsets: Tensor) -> Tensor:
    """Shares of the exponentials of a row."""
    from hydragnn.kernels import triton_segments as kernels

    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch_rows(kernels.softmax_rows, (offsets, order, x.contiguous(), out), {}, "segments")
    return out


def _launch_rows(kernel: Any, given: tuple[Tensor, ...], constants: dict[str, Any], group: str, *sizes: int) -> None:
    """A kernel with one program per row of messages, the third of ``given``."""
    offsets, _, x = given[:3]
    rows, channels = offsets.shape[0] - 1, x.shape[1:].numel()
    if rows and channels:
        options, tiles = constants_of(group, (x,), channels, 1)
        units = channels // options["VEC"]
        launch(kernel, (rows, tiles), (*given, units, *sizes), {**options, **constants})
