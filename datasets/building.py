"""Stores made by a group of processes, with the order of one.

Every process goes through the source and makes the graphs of the blocks that it claims, each a part of the store. So no graph
travels between processes. Rank 0 alone decides that there is a store. A process by itself makes one block.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hydragnn.base.errors import InputError, SaidByFirst
from hydragnn.datasets.build import fields_of, groups_of, makers_of, no_graphs, one_thread, store_writer
from hydragnn.datasets.sources.base import BuildSettings, Make, made
from hydragnn.datasets.sources.labels import parted_settings
from hydragnn.datasets.tools import refuse_useless
from hydragnn.datasets.writer import clear_unfinished, finish_store, only_maker
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field, field_from_json

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

PAUSE = 0.05
"""The same for one that waits."""

NOWHERE = -1
"""Block of a failure that concerns all blocks."""

Progress = Callable[[int], None]
Table = dict[str, Any]


@runtime_checkable
class BuildGroup(Protocol):
    """Processes that share claims and notes, seen from one of them."""

    rank: int
    size: int
    wrote: bool

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Return the table that rank 0 makes."""

    def first_to(self, name: str) -> bool:
        """Return True for the first process to claim a name."""

    def note(self, name: str, value: Any) -> None:
        """Leave a note of this process."""

    def notes(self, name: str) -> list[Any]:
        """Return the notes of all processes."""

    def gone(self, rank: int) -> bool:
        """Return True where a process is dead."""


class Alone:
    """A group of one process."""

    rank, size, wrote = 0, 1, False

    def __init__(self) -> None:
        self._notes: Table = {}

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Return the table."""
        return make()

    def first_to(self, name: str) -> bool:
        """Return True."""
        return True

    def note(self, name: str, value: Any) -> None:
        """Keep the note."""
        self._notes[name] = value

    def notes(self, name: str) -> list[Any]:
        """Return the note, if there is one."""
        return [self._notes[name]] if name in self._notes else []

    def gone(self, rank: int) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphBlock:
    """Graphs that follow each other, a part of the store."""

    number: int
    first: int
    length: int


def blocks_for(processes: int, graphs: int | None = None) -> Iterator[GraphBlock]:
    """Yield blocks of graphs: shrinking, or growing where nobody has counted.

    >>> [block.length for block in blocks_for(2, 1000)]
    [250, 188, 141, 106, 79, 64, 64, 64, 44]
    >>> [block.first for block in islice(blocks_for(2), 3)]
    [0, 64, 128]
    """
    first = 0
    for number in count():
        if processes == 1:
            length = sys.maxsize - first
        elif graphs is None:
            length = min(LARGEST, max(SMALLEST, first // (ROUNDS * processes)))
        else:
            remaining = graphs - first
            shrinking = max(SMALLEST, -(-graphs // max(PARTS, processes)), -(-remaining // (2 * processes)))
            length = min(LARGEST, remaining, shrinking)
        if length == 0:
            return
        yield GraphBlock(number=number, first=first, length=length)
        first += length


def build_store(settings: BuildSettings, out: Path | str, progress: Progress | None = None) -> None:
    """Make a store at ``out`` (.h5 or .bp) from files.

    ``progress`` is called with the number of graphs written so far. Streams: memory does not grow with the number of
    graphs. InputError for anything wrong in the files, naming the file and the graph; then no store is left behind.
    """
    build_together(Alone(), lambda: settings, Path(out), progress)


@contextmanager
def reserved(out: Path) -> Iterator[None]:
    """Reserve the place of a store; leave nothing where the block fails."""
    with only_maker(out):
        clear_unfinished(out)
        try:
            yield
        except BaseException:
            with suppress(InputError):
                clear_unfinished(out, folder=True)
            raise


def build_together(
    group: BuildGroup, read: Callable[[], BuildSettings], out: Path, progress: Progress | None = None, remedy: str = ""
) -> None:
    """Make a store with all processes of a group.

    Several have ``reserved`` the place. ``read`` gives the settings. InputError as of ``build_store``, and where a process was ended, with a ``remedy``, and then there is no store. Rank 0
    raises it, the others raise SaidByFirst.
    """
    builder = _Builder(group, out, progress or (lambda graphs: None), remedy)
    with one_thread():
        builder.prepare(read)
        builder.work(read)
        builder.end()


def first_and_count(settings: BuildSettings, makers: Iterator[Make]) -> tuple[GraphBatch, int | None]:
    """Return the first graph and the count of graphs, if known."""
    first = next(makers, None)
    if first is None:
        raise no_graphs(settings)
    count = parted_settings(settings)[0].count()
    return first(), None if count is None else count * settings.parts


class _Builder:
    """One process of a build."""

    settings: BuildSettings
    fields: list[Field]
    dim: int
    makers: Iterator[Make]
    counted: int | None

    def __init__(self, group: BuildGroup, out: Path, progress: Progress, remedy: str) -> None:
        """Nothing is made yet."""
        self.group, self.out, self.remedy = group, out, remedy
        self._progress, self._made, self._parts, self._block, self._position = progress, 0, 0, NOWHERE, 0
        self._looked, self._goes_on = 0.0, True

    def prepare(self, read: Callable[[], BuildSettings]) -> None:
        """Let rank 0 make the first graph and count the others."""

        def opening() -> Table:
            self.settings = read()
            if self.group.size == 1:  # of a generator in memory there is one pass
                makers = makers_of(self.settings)
                first = next(makers, None)
                if first is None:
                    raise no_graphs(self.settings)
                self.makers, graph, graphs = chain([first], makers), first(), None
            else:
                graph, graphs = first_and_count(self.settings, makers_of(self.settings))
            fields = fields_of(self.settings, graph)
            return {"dim": graph.dim, "fields": [field.to_json() for field in fields], "graphs": graphs}

        table = self.group.begin(opening, self.out)
        self.dim, self.counted = table["dim"], table["graphs"]
        self.fields = [field_from_json(field) for field in table["fields"]]

    def work(self, read: Callable[[], BuildSettings]) -> None:
        """Write the blocks that this process claims."""
        try:
            self.settings = read() if self.group.rank else self.settings
            if self.group.size > 1:
                self.makers = makers_of(self.settings)
            for block in blocks_for(self.group.size, self.counted):
                if not self.group.first_to(f"block-{block.number}"):
                    continue
                self._block = block.number
                written = self._write(block)
                self._parts = block.number + 1 if written else self._parts
                if written < block.length or self.group.notes("failed"):
                    break
        except InputError as error:
            if self.group.size == 1:
                raise
            self._fail(self._block, str(error))
        except Exception as error:  # a defect, of which the others hear, who would wait for this process
            if self.group.size == 1:
                raise
            traceback.print_exc()
            words = f"rank {self.group.rank} met a defect ({error!r}); its traceback is on standard error"
            self._fail(self._block, words)
        self.group.note("made", self._made)
        self.group.note("done", {"rank": self.group.rank, "parts": self._parts, "graphs": self._made})

    def _write(self, block: GraphBlock) -> int:
        """Write a block, later than all before; return its number of graphs."""
        for number, _ in enumerate(islice(self.makers, block.first - self._position)):
            if number % LOOK == 0 and not self._add(0):
                return 0
        self._position = block.first + block.length
        groups = groups_of(made(islice(self.makers, block.length)))
        some = next(groups, None)
        if some is None:
            return 0
        part = {} if self.group.size == 1 else {"part": block.number, "first": block.first}
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
        if self.group.size == 1 or time.monotonic() - self._looked > SECONDS:
            self.group.note("made", self._made)
            self._look()
            failed = any(failure["block"] < self._block for failure in self.group.notes("failed"))
            self._goes_on = not failed and not (self.group.rank and self.group.gone(0))
            self._looked = time.monotonic()
        return self._goes_on

    def _fail(self, block: int, sentence: str) -> None:
        """Note that a block failed, so that there is no store."""
        self.group.note("failed", {"block": block, "sentence": sentence})

    def _look(self) -> None:
        """Show progress on rank 0 and note processes that ended early."""
        if self.group.rank:
            return
        self._progress(sum(self.group.notes("made")))
        lost = next((rank for rank in self._others_without("done") if self.group.gone(rank)), None)
        if lost is not None:
            self._fail(NOWHERE, self._ended(lost))

    def _ended(self, rank: int) -> str:
        where = f"{self.out}: process {rank} of {self.group.size}"
        return f"{where} was ended, perhaps for want of memory; {self.remedy or 'run it again'}"

    def _others_without(self, name: str) -> list[int]:
        ranks = {note["rank"] for note in self.group.notes(name)}
        return [rank for rank in range(1, self.group.size) if rank not in ranks]

    def end(self) -> None:
        """Return when rank 0 has completed the store; InputError where it has not."""
        group = self.group
        if group.rank:
            while not group.notes("end") and not group.gone(0):
                time.sleep(PAUSE)
            if not group.notes("end"):
                raise InputError(self._ended(0))
            (problem,) = group.notes("end")
            if problem:
                raise SaidByFirst(problem)
            return
        while not all(map(group.gone, self._others_without("done"))):
            self._look()
            time.sleep(PAUSE)
        if group.size > 1:
            self._look()
        problem = "the first process has failed"
        try:
            self._complete()
            problem = ""
        except InputError as error:
            problem = str(error)
            raise
        finally:
            group.note("end", problem)
        group.wrote = True

    def _complete(self) -> None:
        """Make a store of all parts."""
        results, failed = self.group.notes("done"), self.group.notes("failed")
        if failed:
            raise InputError(min(failed, key=lambda failure: int(failure["block"]))["sentence"])
        written = sum(note["graphs"] for note in results)
        if self.counted not in (None, written):
            raise InputError(
                f"{self.out}: {self.counted} graphs were counted in the files and {written} written; who writes to them? Run it again"
            )
        if self.group.size > 1:
            finish_store(self.out, max(note["parts"] for note in results))
        refuse_useless(self.out, self.settings)
