"""Tiles of kernels as they are fastest on a device: measured on request, by one process; every later run reads what was found."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from hydragnn.base.errors import InputError
from hydragnn.kernels.bench import BenchSettings, derivatives, milliseconds
from hydragnn.kernels.ops import OPS, random_graph
from hydragnn.kernels.triton.tiles import CANDIDATES, TILES, Tile, table_tile, tried

Work = Callable[[], object]
Time = Callable[[Work, BenchSettings], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The fastest tile of a group of kernels."""

    group: str
    tile: Tile
    before: Tile
    """That of the table."""
    ratio: float
    """Time with it over that with the table's, geometric mean over ops and variants; at most 1."""


def measured_tiles(architecture: str, settings: BenchSettings, time_of: Time = milliseconds) -> Iterator[Measured]:
    """The fastest candidate for every group of kernels, by values and gradients of all ops and variants on a random graph.

    A tile that the device has no room for is none. The table's stays where no other is faster.
    """
    works = works_of(settings)
    for group in TILES:
        mine = [work for work in works if group in groups_of(work)]
        before = table_tile(group, architecture)
        with tried({}):
            usual = [time_of(work, settings) for work in mine]
        ratios = {before: 1.0}
        for tile in CANDIDATES:
            if tile != before:
                times = times_with({group: tile}, mine, settings, time_of)
                ratios[tile] = math.exp(sum(math.log(one / other) for one, other in zip(times, usual)) / len(mine))
        best = min(ratios, key=lambda tile: ratios[tile])
        yield Measured(group=group, tile=best, before=before, ratio=ratios[best])


def works_of(settings: BenchSettings) -> list[Work]:
    """Every op and variant with its gradient."""
    edges = {"random": random_graph(settings.nodes, settings.degree)}
    cases = [(op.call, case) for op in OPS.values() for _, case in op.cases(edges, settings.channels)]
    return [partial(derivatives, call, case.to(settings.device, settings.dtype), 1) for call, case in cases]


def groups_of(work: Work) -> set[str]:
    """The groups of kernels that it launches."""
    with tried({}) as launched:
        work()
    return launched


def times_with(tiles: Mapping[str, Tile], works: Sequence[Work], settings: BenchSettings, time_of: Time) -> list[float]:
    """Milliseconds of each with these tiles; infinite where the device has no room for them."""
    from triton.runtime.errors import OutOfResources

    with tried(tiles):
        try:
            return [time_of(work, settings) for work in works]
        except OutOfResources:
            return [math.inf] * len(works)


def check_device() -> torch.device:
    """The accelerator of this machine; InputError where there is none that kernels run on."""
    if not torch.cuda.is_available():
        raise InputError(
            "tiles are measured on the accelerator that they are for, and this machine has none; run it on a node with a GPU"
        )
    return torch.device("cuda")
