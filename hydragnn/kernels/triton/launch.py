"""Launching of Triton kernels, and the constants that all have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hydragnn.kernels.triton.tiles import architecture_of, tile_of, tile_shape

LONG = 512
"""A row of more edges is summed by several programs."""


class Launcher:
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


_launcher: list[Launcher] = [Launcher()]


@contextmanager
def launched_by(launcher: Launcher) -> Iterator[None]:
    """Give all kernels to ``launcher`` within the block."""
    _launcher.append(launcher)
    try:
        yield
    finally:
        _launcher.pop()


def launch(kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Launch a kernel by the current launcher."""
    _launcher[-1](kernel, grid, inputs, options)


def sum_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return the dtype of sums: fp64 for fp64, else fp32."""
    double = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if double else torch.float32


def constants_of(group: str, tensors: Sequence[Tensor | None], channels: int, axes: int) -> tuple[dict[str, Any], int]:
    """Return the constants of all kernels, and the number of tiles."""
    import triton.language as tl

    present = [tensor for tensor in tensors if tensor is not None]
    tile = tile_of(group, _launcher[-1].architecture(present[0].device))
    double = sum_dtype(*present) == torch.float64
    edges, wide = tile_shape(tile, channels, 2 * axes if double else axes)
    options = {
        "VEC": math.gcd(channels, 16),
        "ACC": tl.float64 if double else tl.float32,
        "OFF": tl.int64 if any(tensor.numel() >= 2**31 for tensor in present) else tl.int32,
        "BE": edges,
        "BF": wide,
        "num_warps": tile.warps,
        "enable_fp_fusion": True,
    }
    return options, -(-channels // wide)
