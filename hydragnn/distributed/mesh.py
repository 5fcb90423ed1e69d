"""Mesh of ranks: which of them share batches, weights, layers and graphs."""

from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
import torch.distributed as dist
from torch import Tensor

from hydragnn.base.clock import phase
from hydragnn.base.errors import InputError
from hydragnn.distributed.ranks import Ranks
from hydragnn.parallel import AXES, Axis, ParallelSettings

ITEMS: tuple[Axis, ...] = ("replicate", "shard", "graph")
"""Axes along which ranks have different graphs or nodes."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mesh:
    """Ranks of a run in five axes; the last varies fastest."""

    ranks: Ranks = field(default_factory=Ranks)
    sizes: tuple[int, ...] = (1,) * len(AXES)
    """Number of ranks along every one of ``AXES``."""
    states: Literal["auto", "whole", "shared"] = "auto"
    """Copies of weights with shared or whole optimizer states."""
    _groups: dict[tuple[Axis, ...], dist.ProcessGroup] = field(default_factory=dict)

    def size(self, *axes: Axis) -> int:
        """Return the number of ranks along the axes together."""
        return prod(self.sizes[AXES.index(axis)] for axis in axes)

    def coordinate(self, axis: Axis) -> int:
        """Return the position of this rank along an axis."""
        return int(np.unravel_index(self.ranks.rank, self.sizes)[AXES.index(axis)])

    @property
    def shares_model(self) -> bool:
        """Return True where ranks compute a model together."""
        return self.size("shard", "pipeline", "tensor") > 1

    @property
    def data_size(self) -> int:
        """Return the number of shares of a batch."""
        return self.size("replicate", "shard")

    @property
    def data_rank(self) -> int:
        """Return the share of a batch that this rank reads."""
        return self.coordinate("replicate") * self.size("shard") + self.coordinate("shard")

    @property
    def item(self) -> int:
        """Return this rank's position among those with other graphs or nodes."""
        return self.data_rank * self.size("graph") + self.coordinate("graph")

    def sets(self, *axes: Axis) -> list[list[int]]:
        """Return every set of ranks that differ along the axes only."""
        places = [place for place, axis in enumerate(AXES) if axis in axes]
        ranks = np.arange(self.ranks.size).reshape(self.sizes)
        sets = np.moveaxis(ranks, places, range(-len(places), 0)).reshape(-1, self.size(*axes))
        rows: list[list[int]] = sets.tolist()
        return rows

    def members(self, *axes: Axis) -> list[int]:
        """Return the ranks that differ from this one along the axes only."""
        return next(ranks for ranks in self.sets(*axes) if self.ranks.rank in ranks)

    def group(self, *axes: Axis) -> dist.ProcessGroup | None:
        """Return the ranks along the axes, None for one; collective."""
        if self.size(*axes) == 1:
            return None
        if axes not in self._groups:
            world = dist.group.WORLD if self.size(*axes) == self.ranks.size else None
            self._groups[axes] = self.new_group(*axes) if world is None else world
        return self._groups[axes]

    def new_group(self, *axes: Axis, neighbours: int | None = None, **options: Any) -> dist.ProcessGroup:
        """Return a new group of neighbours along the axes, or all; collective."""
        own, each = None, neighbours or self.size(*axes)
        for ranks in (row[at : at + each] for row in self.sets(*axes) for at in range(0, len(row), each)):
            group = dist.new_group(ranks, **options)  # every rank makes every group, as torch asks
            own = group if self.ranks.rank in ranks else own
        assert isinstance(own, dist.ProcessGroup)
        return own

    def sum_in_place(self, values: Tensor, *axes: Axis) -> Tensor:
        """Sum values over ranks with different items, or along other axes."""
        group = self.group(*(axes or ITEMS))
        if group is not None:
            with phase("collectives"):
                dist.all_reduce(values, group=group)
        return values


def make_mesh(settings: ParallelSettings, ranks: Ranks) -> Mesh:
    """Return the mesh of a layout; InputError where ranks misfit; collective."""
    check_layout(settings, ranks.size, ranks.size // ranks.nodes)
    sizes = ranks.size // settings.ranks_per_replica, *(getattr(settings, axis) for axis in AXES[1:])
    return Mesh(ranks=ranks, sizes=sizes, states=settings.states)


def check_layout(settings: ParallelSettings, ranks: int, ranks_per_node: int) -> None:
    """Raise InputError for a layout that does not fit so many ranks."""
    each = settings.ranks_per_replica
    if ranks % each:
        problem = f"parallel: {words(settings)} takes {each} ranks, which do not divide the {ranks} of this run"
        raise InputError(f"{problem}; start a multiple of {each} ranks, or change the layout")
    if settings.replicate not in ("auto", ranks // each):
        raise InputError(
            f"parallel: replicate = {settings.replicate} with {words(settings) or 'no other axis'} takes {settings.replicate * each} ranks, and this run "
            f'has {ranks}; leave replicate at "auto", or set {ranks // each}'
        )
    if settings.tensor > 1 and ranks_per_node % settings.tensor:
        raise InputError(
            f"parallel.tensor = {settings.tensor} would share channels between nodes, which have {ranks_per_node} ranks each; set a divisor "
            f"of {ranks_per_node}"
        )


def words(settings: ParallelSettings) -> str:
    """Return the axes with several ranks in words.

    >>> words(ParallelSettings(shard=2, tensor=4))
    'shard = 2 x tensor = 4'
    """
    sizes = {axis: getattr(settings, axis) for axis in AXES[1:]}
    return " x ".join(f"{axis} = {size}" for axis, size in sizes.items() if size > 1)
