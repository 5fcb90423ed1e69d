"""Stores made by several processes, with the order of one.

Every process goes through the source and makes the graphs of the blocks that are its own, of which each is a part of the store.
So no graph travels between processes. Here are processes of one machine, which one begins; ranks share the same blocks in
``hydragnn.scripts.shared_build``.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, runtime_checkable

import torch

from hydragnn.base.allocator import keep_memory
from hydragnn.base.errors import InputError
from hydragnn.base.forked import workers_context
from hydragnn.datasets.build import fields_of, graphs_of, groups_of, makers_of, no_graphs, store_writer
from hydragnn.datasets.sources.base import BuildSettings, Make, made
from hydragnn.datasets.sources.labels import parted_settings
from hydragnn.datasets.tools import refuse_useless
from hydragnn.datasets.writer import clear_unfinished, finish_store, only_maker
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field

SMALLEST, LARGEST = 64, 65_536
"""Graphs of a block."""
ROUNDS = 4
"""Blocks per process. Where graphs are not counted, a block holds so small a part of the graphs before it, for each process, that none has much more to do than another."""
PARTS = 512
"""Where they are counted, blocks shrink to such a part of all graphs, or to one for each process, so that all processes end together."""
SECONDS = 0.2
"""Between two looks at how far the processes are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Graphs that follow each other, a part of the store."""

    number: int
    first: int
    length: int


def blocks_for(processes: int, graphs: int | None = None) -> Iterator[Block]:
    """Yield blocks of graphs: shrinking, or growing where nobody has counted.

    >>> [block.length for block in blocks_for(2, 1000)]
    [250, 188, 141, 106, 79, 64, 64, 64, 44]
    >>> [block.first for block in islice(blocks_for(2), 3)]
    [0, 64, 128]
    """
    first = 0
    for number in count():
        if graphs is None:
            length = max(SMALLEST, first // (ROUNDS * processes))
        else:
            remaining = graphs - first
            length = min(
                remaining, max(SMALLEST, -(-graphs // max(PARTS, processes)), -(-remaining // (2 * processes)))
            )
        if length == 0:
            return
        block = Block(number=number, first=first, length=min(LARGEST, length))
        yield block
        first += block.length


@runtime_checkable
class Tally(Protocol):
    """Progress that the processes of a build share."""

    def add(self, graphs: int) -> bool:
        """Count graphs; return False once the block will not be used."""


@dataclass(kw_only=True, slots=True)
class LocalTally:
    """Progress in shared memory, for processes of one machine."""

    stop: Any
    """An event: the store will not be made."""
    made: Any
    """A number: graphs so far."""

    def add(self, graphs: int) -> bool:
        """Count graphs of this process."""
        with self.made.get_lock():
            self.made.value += graphs
        return not self.stop.is_set()


LOOK = 1024
"""Graphs of others that a process passes between two looks at whether it shall go on."""


@dataclass(kw_only=True, slots=True)
class Source:
    """Position of one process in the source, and settings of the store."""

    settings: BuildSettings
    out: Path
    fields: list[Field]
    dim: int
    tally: Tally
    position: int = 0
    makers: Iterator[Make] | None = None
    """Set with the first block, in the process that writes it."""

    def write(self, block: Block) -> int:
        """Write a block, later than all before; return its number of graphs."""
        self.makers = self.makers or makers_of(self.settings)
        for number, _ in enumerate(islice(self.makers, block.first - self.position)):
            if number % LOOK == 0 and not self.tally.add(0):
                return 0
        self.position = block.first + block.length
        groups = groups_of(made(islice(self.makers, block.length)))
        some = next(groups, None)
        if some is None:
            return 0
        part = {"part": block.number, "first": block.first}
        with store_writer(self.settings, self.out, self.fields, self.dim, **part) as writer:
            while some is not None:
                writer.write_graphs(some)
                if not self.tally.add(sum(map(len, some))):
                    break
                some = next(groups, None)
        return writer.graphs


source_here: list[Source] = []
"""Source of this process, where it is one of several."""


def begin(source: Source) -> None:
    """Take part in a build; this process ends with its parent."""
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_memory()
    source_here.append(source)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # whoever waits for this process is gone; half a part is cleared by the next build


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Start child processes with SIGINT blocked; the parent receives it afterwards."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def write_block(block: Block) -> int:
    """Write a block in this process."""
    return source_here[0].write(block)


def build_with_workers(
    settings: BuildSettings, out: Path, workers: int, progress: Callable[[int], None] | None = None
) -> None:
    """Make a store as ``build_store`` does, in several processes.

    Errors are the same, and then no store is left behind. Python's rule for scripts that start processes holds: call it
    under ``if __name__ == "__main__":``.
    """
    with only_maker(out):
        try:
            finish_store(out, _write_parts(settings, out, workers, progress or (lambda graphs: None)))
            refuse_useless(out, settings)
        except BaseException as error:
            clear_unfinished(out, folder=True)
            if isinstance(error, BrokenProcessPool):
                raise InputError(
                    f"{out}: a process that made graphs was ended, perhaps for want of memory; take fewer workers, and call "
                    'this in a program under if __name__ == "__main__":'
                ) from error
            raise


def first_and_count(settings: BuildSettings, out: Path) -> tuple[GraphBatch, int | None]:
    """Prepare ``out``; return the first graph and the count, if known."""
    clear_unfinished(out)
    first = next(graphs_of(settings), None)
    if first is None:
        raise no_graphs(settings)
    count = parted_settings(settings)[0].count()
    return first, None if count is None else count * settings.parts


def check_whole(out: Path, counted: int | None, written: int) -> None:
    """Raise InputError where the source changed its number of graphs."""
    if counted not in (None, written):
        raise InputError(
            f"{out}: {counted} graphs were counted in the files and {written} written; who writes to them? Run it again"
        )


def _write_parts(settings: BuildSettings, out: Path, workers: int, tell: Callable[[int], None]) -> int:
    """Write all parts and return their number; no process outlives the call."""
    first, graphs = first_and_count(settings, out)
    context = workers_context()
    tally = LocalTally(stop=context.Event(), made=context.Value("q", 0))
    source = Source(settings=settings, out=out, fields=fields_of(settings, first), dim=first.dim, tally=tally)
    blocks = blocks_for(workers, graphs)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=begin, initargs=(source,)) as pool:
        try:
            # beyond the end there are no graphs, but all of the source to go through
            ahead = PARTS if graphs else 2 * workers
            parts = write_blocks(pool, blocks, ahead, lambda: tell(tally.made.value))
        except BaseException:
            tally.stop.set()
            raise
    check_whole(out, graphs, tally.made.value)
    return parts


def write_blocks(pool: ProcessPoolExecutor, blocks: Iterator[Block], ahead: int, tell: Callable[[], None]) -> int:
    """Write blocks until one is not full; return the number of parts."""
    waiting, parts, ended = deque[tuple[Block, Future[int]]](), 0, False
    while True:
        for block in islice(blocks, 0 if ended else ahead - len(waiting)):
            with sigint_blocked():
                waiting.append((block, pool.submit(write_block, block)))
        if not waiting:
            return parts
        block, future = waiting.popleft()
        while not wait([future], timeout=SECONDS).done:
            tell()
        graphs = future.result()
        tell()
        parts += graphs > 0
        ended |= graphs < block.length
