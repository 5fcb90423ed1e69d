"""The forms of ops in Triton, for ROCm and CUDA: they choose tiles and launch the kernels of ``triton_sums``, ``triton_edges``
and ``triton_segments``. Triton itself, which torch brings along on these devices, is imported when the first is called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.tiles import architecture_of, tile_of, tile_shape

LONG = 512
"""A row of more edges is summed by several programs."""


class Launcher:
    """Runs kernels on the device of their tensors."""

    def architecture(self, device: torch.device) -> str:
        """The name of a device's architecture, e.g. ``gfx90a`` or ``sm_90``."""
        return architecture_of(device)

    def __call__(self, kernel: Any, grid: tuple[int, ...], given: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Launch a kernel with its arguments and constants."""
        device = given[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                kernel[grid](*given, **options)
        else:
            kernel[grid](*given, **options)


_launcher: list[Launcher] = [Launcher()]


@contextmanager
def launched_by(launcher: Launcher) -> Iterator[None]:
    """Within it ``launcher`` gets all kernels, e.g. one that compiles them for a device that is not here."""
    _launcher.append(launcher)
    try:
        yield
    finally:
        _launcher.pop()


def sum_to_rows(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """A: each row's sum of what its senders hold, times the weight."""
    return _sum(x, weight, topology.row_offsets, topology.receivers, topology.senders, None)


def sum_to_columns(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """B: the same along the transposed order."""
    owners, index = topology.sorted_senders, topology.receivers_by_sender
    return _sum(g, weight, topology.column_offsets, owners, index, topology.by_sender)


def sum_of_outer_products(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """S: each row's sum of messages times directions; a sum per axis, of one read of the messages."""
    axes, channels = directions.shape[1], messages.shape[1]
    out = messages.new_empty(topology.num_rows, axes, channels)
    given = (topology.row_offsets, topology.receivers, None, None, directions, messages)
    _launch_sums(given, out, channels, axes, weight_kind=3, x_axes=False)
    return out


def product_of_ends(x: Tensor, g: Tensor, topology: Topology, per_channel: bool) -> Tensor:
    """C: what sender and receiver hold, multiplied; summed over axes, and over channels unless ``per_channel``."""
    kind = torch.promote_types(x.dtype, g.dtype)
    if per_channel:
        channels = x.shape[-1]
        out = x.new_empty(topology.num_edges, channels, dtype=kind)
        axes = x.shape[1:-1].numel()
        _launch_edges("multiply_ends", topology, x, g, out, channels, axes, gather=True)
        return out
    out = x.new_empty(topology.num_edges, dtype=kind)
    _launch_edges("dot_ends", topology, x, g, out, x.shape[1:].numel(), 1, gather=True)
    return out


def sum_over_axes(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """T: what each edge's receiver holds, along the direction of the edge."""
    channels = vectors.shape[-1]
    out = vectors.new_empty(topology.num_edges, channels)
    _launch_edges("multiply_ends", topology, directions, vectors, out, channels, vectors.shape[1], gather=False)
    return out


def sum_over_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """R: what each edge's receiver holds, times the edge's message and summed over channels."""
    kind = torch.promote_types(messages.dtype, vectors.dtype)
    out = vectors.new_empty(topology.num_edges, vectors.shape[1], dtype=kind)
    _launch_edges("dot_ends", topology, messages, vectors, out, vectors.shape[-1], vectors.shape[1], gather=False)
    return out


def sum_to_receivers(messages: Tensor, topology: Topology) -> Tensor:
    """Each row's sum of the messages it receives."""
    return _sum(messages, None, topology.row_offsets, topology.receivers, None, None)


def sum_to_senders(messages: Tensor, topology: Topology) -> Tensor:
    """Each column's sum of the messages it sends."""
    return _sum(messages, None, topology.column_offsets, topology.sorted_senders, topology.by_sender, None)


def sum_in_order(messages: Tensor, order: Tensor, owners: Tensor, offsets: Tensor) -> Tensor:
    """Each row's sum of messages, where ``order`` sorts them by row."""
    return _sum(messages, None, offsets, owners, order, None)


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
        options, tiles = _options(group, (x,), channels, 1)
        units = channels // options["VEC"]
        _launcher[-1](kernel, (rows, tiles), (*given, units, *sizes), {**options, **constants})


def _sum(
    x: Tensor, weight: Tensor | None, offsets: Tensor, owners: Tensor, index: Tensor | None, order: Tensor | None
) -> Tensor:
    """Sums of rows of x along an index; a weight is in the order of edges, ``order`` that of the index."""
    rows, per_channel = offsets.shape[0] - 1, weight is not None and weight.dim() > 1
    kind = torch.promote_types(x.dtype, weight.dtype) if weight is not None and per_channel else x.dtype
    out = x.new_empty(rows, *x.shape[1:], dtype=kind)
    axes = x.shape[1:-1].numel() if per_channel else 1  # otherwise axes are channels like others
    kind_of_weight = 0 if weight is None else 2 if per_channel else 1
    given = (offsets, owners, index, order, weight, x)
    _launch_sums(given, out, x.shape[1:].numel() // max(axes, 1), axes, weight_kind=kind_of_weight, x_axes=axes > 1)
    return out


def _launch_sums(
    given: tuple[Tensor | None, ...], out: Tensor, channels: int, axes: int, weight_kind: int, x_axes: bool
) -> None:
    """All rows, and where one could be long also its windows, which are then joined."""
    from hydragnn.kernels import triton_sums as kernels

    if not out.numel():
        return
    offsets, owners, index, order, weight, x = (_ready(tensor) for tensor in given)
    assert offsets is not None and owners is not None and x is not None
    edges, rows = owners.shape[0], out.shape[0]
    group = next(some for some in (3, 2, 1) if axes % some == 0)  # sums that a program holds at once
    options, tiles = _options("sums", (x, weight, out), channels, group)
    constants = {
        **options,
        "SPLIT": LONG,
        "GATHER": index is not None,
        "ORDER": order is not None and weight is not None,
        "WEIGHT": weight_kind,
        "AXES": axes,
        "GROUP": group,
        "X_AXES": x_axes,
    }
    units, groups = channels // options["VEC"], axes // group
    read = tuple(offsets if tensor is None else tensor for tensor in (index, order, weight, x))
    _launcher[-1](kernels.sum_rows, (rows, tiles, groups), (offsets, *read, out, units), constants)
    if edges <= LONG:
        return
    windows = -(-edges // LONG)
    partial = out.new_empty(windows, 2, channels * axes, dtype=_sum_dtype(x, weight))
    _launcher[-1](
        kernels.sum_windows, (windows, tiles, groups), (offsets, owners, *read, partial, units, edges), constants
    )
    join, tiles = _options("sums", (partial, out), channels * axes, 1)
    units = channels * axes // join["VEC"]
    _launcher[-1](kernels.join_windows, (rows, tiles), (offsets, partial, out, units), {**join, "SPLIT": LONG})


def _launch_edges(
    name: str, topology: Topology, left: Tensor, right: Tensor, out: Tensor, channels: int, axes: int, gather: bool
) -> None:
    """A kernel with a result per edge."""
    from hydragnn.kernels import triton_edges as kernels

    if not out.numel():
        return
    if not channels:
        out.zero_()
        return
    left, right = left.contiguous(), right.contiguous()
    options, tiles = _options("edges", (left, right, out), channels, 1)
    units, edges = channels // options["VEC"], topology.num_edges
    blocks = -(-edges // options["BE"])
    given = (topology.senders, topology.receivers, left, right, out, units, edges)
    grid = (blocks,) if name == "dot_ends" else (blocks, tiles)
    _launcher[-1](getattr(kernels, name), grid, given, {**options, "GATHER": gather, "AXES": axes})


def _ready(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _sum_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Sums are in fp32, of fp64 in fp64."""
    double = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if double else torch.float32


def _options(group: str, tensors: Sequence[Tensor | None], channels: int, axes: int) -> tuple[dict[str, Any], int]:
    """The constants that all kernels have, and how many tiles the channels are."""
    import triton.language as tl

    known = [tensor for tensor in tensors if tensor is not None]
    tile = tile_of(group, _launcher[-1].architecture(known[0].device))
    double = _sum_dtype(*known) == torch.float64
    edges, wide = tile_shape(tile, channels, 2 * axes if double else axes)
    options = {
        "VEC": math.gcd(channels, 16),
        "ACC": tl.float64 if double else tl.float32,
        "OFF": tl.int64 if any(tensor.numel() >= 2**31 for tensor in known) else tl.int32,
        "BE": edges,
        "BF": wide,
        "num_warps": tile.warps,
        "enable_fp_fusion": True,
    }
    return options, -(-channels // wide)
