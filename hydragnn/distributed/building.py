"""Graphs made by ranks or local workers, block by block.

Every process goes through the source and makes the graphs of the blocks that it claims, each a part of a store. So no graph
travels between processes. Rank 0 alone decides that there is a store of a build.
"""

import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError, SaidByFirst
from hydragnn.base.files import alone_in_folder
from hydragnn.base.machine import Workers
from hydragnn.datasets.build import fields_of, groups_of, makers_of, no_graphs, one_thread, store_writer
from hydragnn.datasets.sources.base import BuildSettings, Make, made
from hydragnn.datasets.sources.labels import parted_settings
from hydragnn.datasets.tools import refuse_useless
from hydragnn.datasets.writer import clear_unfinished, finish_store
from hydragnn.distributed.finishing import Late, finish_together, once
from hydragnn.distributed.group import Group, join_group, worker_group
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import field_from_json

SMALLEST, LARGEST = 64, 65_536
"""Graphs of a block."""
ROUNDS = 4
"""Blocks per process. Where graphs are not counted, a block holds so small a part of the graphs before it, for each process, that none has much more to do than another."""
PARTS = 512
"""Blocks of counted graphs shrink to this part of all, or to one per process, so that all processes end together."""
LOOK = 1024
"""Graphs of others that a process passes between two looks at whether it shall go on."""
SECONDS = 0.5
"""Time between two looks at the notes of others, for a process that works."""
NOWHERE = -1
"""Block of a failure that concerns all blocks."""

Progress = Callable[[int], None]
Read = Callable[[], BuildSettings]


class Building(ABC):
    """Blocks of graphs that ranks claim, each a part of a store."""

    blocks: int = sys.maxsize

    seconds: float = inf
    """More than a block takes; idle ranks make late ones again, and those of the dead."""

    @property
    @abstractmethod
    def joined(self) -> bool:
        """Return True where a store is made, or refused."""

    @abstractmethod
    def build(self, number: int) -> bool:
        """Make the graphs of a block; return False where none follows."""

    @abstractmethod
    def missing(self) -> Sequence[int]:
        """Return the blocks that are not made."""

    @abstractmethod
    def join(self) -> None:
        """Make one store of all parts."""

    def together(self, group: Group, check: Callable[[], None]) -> None:
        """Make and join all blocks; ``check`` is called all the while."""
        while (number := group.take("blocks", self.blocks)) is not None:
            check()
            if not self.build(number):
                break

        def late() -> list[Late]:
            return [Late(number=one, claim=f"blocks-{one}", seconds=self.seconds) for one in self.missing()]

        group.note("built", group.rank)
        finish_together(group, "block", late, self.build, check)
        once(group, "join", lambda: self.joined, self.join, check)


def blocks_for(processes: int, graphs: int | None = None) -> Iterator[range]:
    """Yield blocks of graphs: shrinking, or growing where nobody has counted.

    >>> [len(block) for block in blocks_for(2, 1000)]
    [250, 188, 141, 106, 79, 64, 64, 64, 44]
    >>> [block.start for block in islice(blocks_for(2), 3)]
    [0, 64, 128]
    """
    first = 0
    while True:
        if graphs is None:
            length = min(LARGEST, max(SMALLEST, first // (ROUNDS * processes)))
        else:
            remaining = graphs - first
            shrinking = max(SMALLEST, -(-graphs // max(PARTS, processes)), -(-remaining // (2 * processes)))
            length = min(LARGEST, remaining, shrinking)
        if length == 0:
            return
        yield range(first, first + length)
        first += length


class StoreBuilding(Building):
    """Store of a build, seen from one of several processes."""

    def __init__(self, group: Group, read: Read, out: Path, progress: Progress | None, remedy: str) -> None:
        """Let rank 0 make the first graph and count the others."""
        self.group, self.out, self.remedy, self._read = group, out, remedy, read
        self._progress = progress or (lambda graphs: None)
        self._makers: Iterator[Make] | None = None
        self._made, self._parts, self._block, self._position = 0, 0, NOWHERE, 0
        self._looked, self._goes_on = 0.0, True
        table = group.begin(self._opening, out)
        self.dim, self.counted = table["dim"], table["graphs"]
        self.fields = [field_from_json(field) for field in table["fields"]]

    @cached_property
    def settings(self) -> BuildSettings:
        """Return the settings, read once."""
        return self._read()

    def _opening(self) -> dict[str, Any]:
        graph, graphs = first_and_count(self.settings, makers_of(self.settings))
        fields = [field.to_json() for field in fields_of(self.settings, graph)]
        return {"dim": graph.dim, "fields": fields, "graphs": graphs}

    @property
    def joined(self) -> bool:
        """Return True where rank 0 has decided."""
        return bool(self.group.notes("end"))

    def build(self, number: int) -> bool:
        """Write a block; note why it cannot be written."""
        self._block = number
        block = next(islice(blocks_for(self.group.size, self.counted), number, None), None)
        if block is None:
            return False
        written = 0
        try:
            written = self._write(number, block)
        except InputError as error:
            self._fail(number, str(error))
        except Exception as error:  # a defect, of which the others hear, who would wait for this process
            traceback.print_exc()
            self._fail(number, f"rank {self.group.rank} met a defect ({error!r}); its traceback is on standard error")
        self._parts = number + 1 if written else self._parts
        self.group.note("made", self._made)
        self.group.note("parts", self._parts)
        return written == len(block) and not self.group.notes("failed")

    def _write(self, number: int, block: range) -> int:
        """Write a block, later than all before; return its number of graphs."""
        self._makers = self._makers or makers_of(self.settings)
        for passed, _ in enumerate(islice(self._makers, block.start - self._position)):
            if passed % LOOK == 0 and not self._add(0):
                return 0
        self._position = block.stop
        groups = groups_of(made(islice(self._makers, len(block))))
        some = next(groups, None)
        if some is None:
            return 0
        part = {"part": number, "first": block.start}
        with store_writer(self.settings, self.out, self.fields, self.dim, **part) as writer:
            while some is not None:
                writer.write_graphs(some)
                if not self._add(sum(map(len, some))):
                    break
                some = next(groups, None)
        return writer.graphs

    def _add(self, graphs: int) -> bool:
        """Count graphs of this process; return False where the build has failed."""
        self._made += graphs
        if time.monotonic() - self._looked > SECONDS:
            self.group.note("made", self._made)
            self.check()
            self._goes_on = not any(failure["block"] < self._block for failure in self.group.notes("failed"))
            self._looked = time.monotonic()
        return self._goes_on

    def _fail(self, block: int, sentence: str) -> None:
        """Note that a block failed, so that there is no store."""
        self.group.note("failed", {"block": block, "sentence": sentence})

    def check(self) -> None:
        """Show progress and note lost processes; InputError where rank 0 ended."""
        if self.group.rank:
            if self.group.gone(0):
                raise InputError(self._ended(0))
            return
        self._progress(sum(self.group.notes("made")))
        lost = next((rank for rank in self._at_work() if self.group.gone(rank)), None)
        if lost is not None:
            self._fail(NOWHERE, self._ended(lost))

    def _ended(self, rank: int) -> str:
        where = f"{self.out}: process {rank} of {self.group.size}"
        return f"{where} was ended, perhaps for want of memory; {self.remedy or 'run it again'}"

    def _at_work(self) -> set[int]:
        return {*range(self.group.size)} - {*self.group.notes("built")}

    def missing(self) -> Sequence[int]:
        """Return a number while processes work on their own blocks."""
        return () if all(map(self.group.gone, self._at_work())) else (NOWHERE,)

    def join(self) -> None:
        """Make a store of all parts, or note why there is none."""
        problem = ""
        try:
            self.check()
            written = sum(self.group.notes("made"))
            if failed := self.group.notes("failed"):
                problem = min(failed, key=lambda failure: int(failure["block"]))["sentence"]
            elif self.counted not in (None, written):
                problem = f"{self.out}: {self.counted} graphs were counted in the files and {written} written; who writes to them? Run it again"
            else:
                finish_store(self.out, max(self.group.notes("parts")))
                refuse_useless(self.out, self.settings)
        except InputError as error:
            problem = str(error)
        self.group.note("end", problem)


def build_together(group: Group, read: Read, out: Path, progress: Progress | None = None, remedy: str = "") -> None:
    """Make a store with a group that has ``reserved`` the place.

    ``read`` gives the settings. InputError as of ``build_store``, and where a process was ended, with a ``remedy``, and then there is no store. Rank 0
    raises it, the others raise SaidByFirst.
    """
    with one_thread():
        building = StoreBuilding(group, read, out, progress, remedy)
        building.together(group, building.check)
    if problem := group.notes("end")[0]:
        raise (SaidByFirst if group.rank else InputError)(problem)
    group.wrote = not group.rank


@contextmanager
def reserved(out: Path) -> Iterator[None]:
    """Reserve the place of a store; leave nothing where the block fails."""
    with alone_in_folder(out, "makes"):
        clear_unfinished(out)
        try:
            yield
        except BaseException:
            with suppress(InputError):
                clear_unfinished(out, folder=True)
            raise


def first_and_count(settings: BuildSettings, makers: Iterator[Make]) -> tuple[GraphBatch, int | None]:
    """Return the first graph and the count of graphs, if known."""
    first = next(makers, None)
    if first is None:
        raise no_graphs(settings)
    count = parted_settings(settings)[0].count()
    return first(), None if count is None else count * settings.parts


def build_with_ranks(read: Read, out: Path, workers: Workers = 1, progress: Progress | None = None) -> None:
    """Make a store on all ranks that a launcher started, see ``build_together``."""
    with ExitStack() as place, join_group() as group:

        def settings() -> BuildSettings:
            if workers != 1:
                problem = "--workers starts processes, and a launcher has started ranks already"
                raise InputError(f"{problem}; leave --workers out and start as many ranks as there are cores")
            own = read()
            if group.rank == 0:
                place.enter_context(reserved(out))
            return own

        build_together(group, settings, out, progress)


def build_with_workers(settings: BuildSettings, out: Path, workers: int, progress: Progress | None = None) -> None:
    """Make a store as ``build_store`` does, in several processes.

    Python's rule for scripts that start processes holds: call it under ``if __name__ == "__main__":``.
    """
    remedy = 'take fewer workers, and call this in a program under if __name__ == "__main__":'
    with reserved(out), one_thread(), worker_group(workers, _build_as_child, settings, out) as group:
        build_together(group, lambda: settings, out, progress, remedy)


def _build_as_child(group: Group, settings: BuildSettings, out: Path) -> None:
    with group:
        build_together(group, lambda: settings, out)
