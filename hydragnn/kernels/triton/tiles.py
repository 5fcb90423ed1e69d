"""Tile sizes of Triton kernels by architecture."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Numbers and warps of the block of one program."""

    numbers: int
    """Numbers of four bytes: edges x channels x axes."""
    warps: int


TILES: Mapping[str, Mapping[str, Tile]] = {
    "sums": {"gfx": Tile(numbers=1024, warps=1), "sm_": Tile(numbers=512, warps=1)},
    "edges": {"gfx": Tile(numbers=2048, warps=4), "sm_": Tile(numbers=2048, warps=4)},
    "segments": {"gfx": Tile(numbers=512, warps=1), "sm_": Tile(numbers=256, warps=1)},
    "statistics": {"gfx": Tile(numbers=256, warps=1), "sm_": Tile(numbers=256, warps=1)},
}
"""By group of kernels, then by the beginning of an architecture's name."""

WIDEST = 128
"""Largest number of channels of a tile; more are divided among programs."""


def tile_shape(tile: Tile, channels: int, axes: int) -> tuple[int, int]:
    """Return the edges and channels of a tile.

    Both are powers of two; there are at least two edges.

    >>> tile_shape(Tile(numbers=1024, warps=1), channels=130, axes=3), tile_shape(Tile(numbers=512, warps=1), 1, 1)
    ((2, 128), (64, 1))
    """
    wide = min(WIDEST, 1 << (channels - 1).bit_length())
    return max(2, min(64, 1 << max(1, tile.numbers // (wide * axes)).bit_length() - 1)), wide


def cache_folder() -> Path:
    """Return Triton's folder of compiled kernels: TRITON_CACHE_DIR, or one at home."""
    from triton import knobs

    return Path(knobs.cache.dir)


@lru_cache
def architecture_of(device: torch.device) -> str:
    """Return the name of a device's architecture, e.g. ``gfx90a`` or ``sm_90``."""
    properties = torch.cuda.get_device_properties(device)
    name = getattr(properties, "gcnArchName", "")  # e.g. gfx90a:sramecc+:xnack- on ROCm
    return name.split(":")[0] if torch.version.hip else f"sm_{properties.major}{properties.minor}"
