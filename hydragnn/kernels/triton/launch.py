"""Launching of Triton kernels, and the constants that all have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.topology import LONG as LONG_ROW
from hydragnn.kernels.counting import launch_amounts, open_counters
from hydragnn.kernels.triton.tiles import TILES, architecture_of, tile_shape

LONG = LONG_ROW
"""A row of more edges is summed by several programs."""


class KernelLauncher:
    """Runs kernels on the device of their tensors."""

    def architecture(self, device: torch.device) -> str:
        """Return the architecture of a device, e.g. ``gfx90a`` or ``sm_90``."""
        return architecture_of(device)

    def __call__(self, kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Launch a kernel with its arguments and constants."""
        device = inputs[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                kernel[grid](*inputs, **options)
        else:
            kernel[grid](*inputs, **options)


_launcher: list[KernelLauncher] = [KernelLauncher()]


@contextmanager
def launched_by(launcher: KernelLauncher) -> Iterator[None]:
    """Give all kernels to ``launcher`` within the block."""
    _launcher.append(launcher)
    try:
        yield
    finally:
        _launcher.pop()


def launch(kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Launch a kernel by the current launcher."""
    _launcher[-1](kernel, grid, inputs, options)
    if open_counters:
        name = getattr(kernel, "fn", kernel).__name__
        open_counters[-1].add(name, lambda: launch_amounts(name, inputs, options))


def sum_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return the dtype of sums: fp64 for fp64, else fp32."""
    double = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if double else torch.float32


def constants_of(
    group: str, tensors: Sequence[Tensor | None], channels: int, axes: int, strides: Sequence[int] = ()
) -> tuple[dict[str, Any], int]:
    """Return the constants of all kernels, and the number of tiles.

    ``strides``, in numbers, tell with the channels how many numbers a load may take at once.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    large = any(tensor.numel() >= 2**31 for tensor in present)
    double = sum_dtype(*present) == torch.float64
    architecture = _launcher[-1].architecture(present[0].device)
    options, tiles = _constants(group, architecture, math.gcd(channels, 16, *strides), channels, axes, double, large)
    return dict(options), tiles


@lru_cache(maxsize=4096)
def _constants(
    group: str, architecture: str, vector: int, channels: int, axes: int, double: bool, large: bool
) -> tuple[dict[str, Any], int]:
    import triton.language as tl

    tile = next(tile for prefix, tile in TILES[group].items() if architecture.startswith(prefix))
    edges, wide = tile_shape(tile, channels, 2 * axes if double else axes)
    options = {
        "VEC": vector,
        "ACC": tl.float64 if double else tl.float32,
        "OFF": tl.int64 if large else tl.int32,
        "BE": edges,
        "BF": wide,
        "num_warps": tile.warps,
        "enable_fp_fusion": True,
    }
    return options, -(-channels // wide)


def by_axes(tensor: Tensor, axes: int, channels: int) -> tuple[Tensor, int, int]:
    """Return a tensor with the strides of its rows and axes.

    A copy of rows x axes x channels where channels lie apart.
    """
    if not tensor.is_contiguous():
        parts = tensor.reshape(tensor.shape[0], axes, channels)
        if parts.stride(2) == 1 and tensor.shape[0]:
            return parts, parts.stride(0), parts.stride(1) if axes > 1 else channels
        tensor = tensor.contiguous()
    return tensor, axes * channels, channels
