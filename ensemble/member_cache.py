"""Members that are loaded on first use, and released when too many."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch

from hydragnn.base.machine import free_memory
from hydragnn.ensemble.members import Company, Member

SHARE = 0.5
"""Part of a rank's memory that members may take; the rest is for batches."""

GROWTH = 2.0
"""Memory of a loaded member per byte of its file."""


class MemberCache(Sequence[Member]):
    """Members by number, of which at most ``held`` are in memory."""

    def __init__(self, loaders: Sequence[Callable[[], Member]], held: int | None = None) -> None:
        """Take functions that load members; without ``held`` all stay in memory."""
        self._loaders, self._held = tuple(loaders), held or len(loaders)
        self._loaded: OrderedDict[int, Member] = OrderedDict()
        self._kept: dict[int, Member] = {}
        self._company: Company | None = None
        self._change: Callable[[Member], Member] = lambda member: member

    def join(self, company: Company) -> None:
        """Load members in this company from now on."""
        self._company = company
        self._loaded.clear()
        self._kept.clear()

    def change(self, change: Callable[[Member], Member]) -> None:
        """Load changed members from now on."""
        self._change = change
        self._loaded.clear()

    def keep(self, members: Sequence[Member]) -> None:
        """Keep these members whatever else is loaded."""
        for member in members:
            self._kept[member.number] = member
            self._loaded.pop(member.number, None)

    def hold(self, held: int) -> None:
        """Keep at most so many from now on."""
        self._held = held
        while len(self._loaded) > held:
            self._loaded.popitem(last=False)

    def __len__(self) -> int:
        return len(self._loaders)

    @overload
    def __getitem__(self, index: int) -> Member: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Member]: ...

    def __getitem__(self, index: int | slice) -> Member | Sequence[Member]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if number in self._kept:
            return self._kept[number]
        if number not in self._loaded:
            while len(self._loaded) >= self._held:
                self._loaded.popitem(last=False)
            member = replace(self._loaders[number](), number=number, company=self._company)
            self._loaded[number] = self._change(member)
        self._loaded.move_to_end(number)
        return self._loaded[number]


def room_for(weights: Sequence[Path], ranks_here: int) -> int:
    """Return the number of members that fit into memory; at least one."""
    largest = max(path.stat().st_size for path in weights)
    if torch.cuda.is_available():
        free = torch.cuda.mem_get_info()[0] * torch.cuda.device_count()
    else:
        free = free_memory()
    return max(1, min(len(weights), int(SHARE * free / ranks_here / (GROWTH * largest))))
