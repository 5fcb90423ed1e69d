"""How large a tile each Triton kernel takes on each architecture, from a table: nothing is tuned while thousands of ranks start."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Numbers of four bytes that one program handles at once (edges x channels x axes), in how many warps or waves."""

    numbers: int
    warps: int


TILES: Mapping[str, Mapping[str, Tile]] = {
    "sums": {"gfx": Tile(numbers=1024, warps=1), "sm_": Tile(numbers=512, warps=1)},
    "edges": {"gfx": Tile(numbers=2048, warps=4), "sm_": Tile(numbers=2048, warps=4)},
    "segments": {"gfx": Tile(numbers=512, warps=1), "sm_": Tile(numbers=256, warps=1)},
    "statistics": {"gfx": Tile(numbers=256, warps=1), "sm_": Tile(numbers=256, warps=1)},
}
"""By group of kernels, then by how the name of the architecture begins; the longest that fits counts."""

WIDEST = 128
"""Channels of a tile at most; more are shared by several programs."""


def tile_shape(tile: Tile, channels: int, axes: int) -> tuple[int, int]:
    """Edges and channels of a tile, both powers of two.

    >>> tile_shape(Tile(numbers=1024, warps=1), channels=130, axes=3), tile_shape(Tile(numbers=512, warps=1), 1, 1)
    ((2, 128), (64, 1))
    """
    wide = min(WIDEST, 1 << (channels - 1).bit_length())
    return max(2, min(64, 1 << (tile.numbers // (wide * axes)).bit_length() - 1)), wide


def tile_of(group: str, architecture: str) -> Tile:
    """The tile of a group of kernels on an architecture, e.g. ``gfx90a`` or ``sm_90``."""
    fitting = [name for name in TILES[group] if architecture.startswith(name)]
    return TILES[group][max(fitting, key=len)]


def architecture_of(device: torch.device) -> str:
    """The name of a device's architecture, e.g. ``gfx90a`` or ``sm_90``."""
    properties = torch.cuda.get_device_properties(device)
    name = getattr(properties, "gcnArchName", "")  # e.g. gfx90a:sramecc+:xnack- on ROCm
    return name.split(":")[0] if torch.version.hip else f"sm_{properties.major}{properties.minor}"
