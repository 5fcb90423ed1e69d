"""How large a tile each Triton kernel takes on each architecture: from a table, or as it was measured on request; nothing is tuned
while thousands of ranks start."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed, write_sealed

FILE = "hydragnn-tiles.json"
"""In Triton's cache: tiles that ``hydragnn kernels tune`` has measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Numbers of four bytes that one program handles at once (edges x channels x axes), in how many warps or waves."""

    numbers: int
    warps: int

    def __str__(self) -> str:
        """The tile in words, as files have it."""
        return f"{self.numbers} numbers, {self.warps} warps"


Tiles = Mapping[str, Tile]
"""By group of kernels."""

TILES: Mapping[str, Mapping[str, Tile]] = {
    "sums": {"gfx": Tile(numbers=1024, warps=1), "sm_": Tile(numbers=512, warps=1)},
    "edges": {"gfx": Tile(numbers=2048, warps=4), "sm_": Tile(numbers=2048, warps=4)},
    "segments": {"gfx": Tile(numbers=512, warps=1), "sm_": Tile(numbers=256, warps=1)},
    "statistics": {"gfx": Tile(numbers=256, warps=1), "sm_": Tile(numbers=256, warps=1)},
}
"""By group of kernels, then by how the name of the architecture begins; the longest that fits counts."""

CANDIDATES = tuple(Tile(numbers=numbers, warps=warps) for numbers in (256, 512, 1024, 2048) for warps in (1, 2, 4))
"""What is measured, and may stand in a file."""

BY_WORDS = {str(tile): tile for tile in CANDIDATES}

WIDEST = 128
"""Channels of a tile at most; more are shared by several programs."""


def tile_shape(tile: Tile, channels: int, axes: int) -> tuple[int, int]:
    """Edges and channels of a tile, both powers of two; two edges at least.

    >>> tile_shape(Tile(numbers=1024, warps=1), channels=130, axes=3), tile_shape(Tile(numbers=512, warps=1), 1, 1)
    ((2, 128), (64, 1))
    """
    wide = min(WIDEST, 1 << (channels - 1).bit_length())
    return max(2, min(64, 1 << max(1, tile.numbers // (wide * axes)).bit_length() - 1)), wide


_tried: list[tuple[Tiles, set[str]]] = []


@contextmanager
def tried(tiles: Tiles) -> Iterator[set[str]]:
    """Within it kernels take these tiles, and those of the table where there are none; gives the groups that were launched so far."""
    _tried.append((tiles, set()))
    try:
        yield _tried[-1][1]
    finally:
        _tried.pop()


def tile_of(group: str, architecture: str) -> Tile:
    """The tile of a group of kernels on an architecture, e.g. ``gfx90a`` or ``sm_90``; InputError where the file of tiles is damaged."""
    if _tried:
        tiles, launched = _tried[-1]
        launched.add(group)
        return tiles.get(group) or table_tile(group, architecture)
    return tiles_here(architecture).get(group) or table_tile(group, architecture)


def table_tile(group: str, architecture: str) -> Tile:
    """What the table says."""
    fitting = [name for name in TILES[group] if architecture.startswith(name)]
    return TILES[group][max(fitting, key=len)]


@cache
def tiles_here(architecture: str) -> Tiles:
    """What was measured for an architecture, by the file as it was when this process first asked."""
    return read_tiles(tiles_file()).get(architecture, {})


def tiles_file() -> Path:
    """Where tiles are kept that were measured: beside what Triton has compiled."""
    return cache_folder() / FILE


def cache_folder() -> Path:
    """Where Triton keeps what it has compiled: TRITON_CACHE_DIR, or a folder at home."""
    from triton import knobs

    return Path(knobs.cache.dir)


def read_tiles(path: Path) -> dict[str, Tiles]:
    """The tiles in a file by architecture, none where there is no file; InputError where it is damaged or has tiles that are no candidates."""
    if not path.exists():
        return {}
    value = read_sealed(path)
    try:
        return {name: {group: BY_WORDS[one] for group, one in of.items()} for name, of in value["tiles"].items()}
    except (KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path} holds no tiles that this program knows; delete it, or measure again: hydragnn kernels tune"
        ) from None


def write_tiles(path: Path, architecture: str, tiles: Tiles) -> None:
    """Put the tiles of an architecture into a file, beside those of others."""
    known = {**read_tiles(path), architecture: tiles}
    table = {name: {group: str(tile) for group, tile in of.items()} for name, of in known.items()}
    write_sealed(path, {"tiles": table})


def architecture_of(device: torch.device) -> str:
    """The name of a device's architecture, e.g. ``gfx90a`` or ``sm_90``."""
    properties = torch.cuda.get_device_properties(device)
    name = getattr(properties, "gcnArchName", "")  # e.g. gfx90a:sramecc+:xnack- on ROCm
    return name.split(":")[0] if torch.version.hip else f"sm_{properties.major}{properties.minor}"
