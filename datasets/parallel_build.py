"""A store made by several processes of one machine: the graphs, in the order, that one process writes.

Every process goes through the source and makes the graphs of the blocks that it is given, of which each is a part of the store.
So nobody has to know before how many graphs there are, and no graph travels between processes.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from hydragnn.datasets.build import attributes_of, fields_of, graphs_of, groups_of, makers_of, no_graphs
from hydragnn.datasets.build_settings import BuildSettings, Make
from hydragnn.datasets.writer import StoreWriter, clear_unfinished, finish_store
from hydragnn.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field

SMALLEST, LARGEST = 64, 65_536
"""Graphs of a block."""
ROUNDS = 4
"""A block holds so small a part of the graphs before it, for each process, that none has much more to do than another."""
SECONDS = 0.2
"""Between two looks at how far the processes are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Graphs that follow each other, a part of the store."""

    number: int
    first: int
    length: int


def blocks_for(workers: int) -> Iterator[Block]:
    """Blocks without end, which grow with what lies before them, so that large stores have few parts.

    >>> [block.first for block in islice(blocks_for(2), 3)]
    [0, 64, 128]
    """
    first = 0
    for number in count():
        length = min(LARGEST, max(SMALLEST, first // (ROUNDS * workers)))
        yield Block(number=number, first=first, length=length)
        first += length


@dataclass(kw_only=True, slots=True)
class Source:
    """Where one process stands in the source, and what a store needs to be told."""

    settings: BuildSettings
    out: Path
    fields: list[Field]
    dim: int
    stop: Any
    """An event: the store will not be made."""
    made: Any
    """A number that all processes share: graphs so far."""
    makers: Iterator[Make] = field(default_factory=lambda: iter(()))
    position: int = 0

    def write(self, block: Block) -> int:
        """Write a block, later than all before; gives how many graphs there were, fewer than its length at the end of the source."""
        for _ in islice(self.makers, block.first - self.position):
            if self.stop.is_set():
                return 0
        self.position = block.first + block.length
        groups = groups_of(make() for make in islice(self.makers, block.length))
        some = next(groups, None)
        if some is None:
            return 0
        attributes = attributes_of(self.settings)
        with StoreWriter(
            self.out, self.fields, dim=self.dim, attributes=attributes, part=block.number, first=block.first
        ) as writer:
            while some is not None and not self.stop.is_set():
                writer.write_graphs(some)
                with self.made.get_lock():
                    self.made.value += len(some)
                some = next(groups, None)
        return writer.graphs


source_here: list[Source] = []
"""That of this process, where it is one of several."""


def begin(source: Source) -> None:
    """Take part in a build; this process ends with the one that began it."""
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    source.makers = makers_of(source.settings)
    source_here.append(source)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # whoever waits for this process is gone; half a part is cleared by the next build


@contextmanager
def deaf_processes() -> Iterator[None]:
    """Processes that start in this block do not hear Ctrl-C, from their first instruction on; who starts them hears it after the block."""
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
    """Make a store as ``build_store`` does, in so many processes; InputError as there, and then no store is left behind.

    Python's rule for scripts that start processes holds: call it under ``if __name__ == "__main__":``.
    """
    clear_unfinished(out)
    try:
        first = next(graphs_of(settings), None)
        if first is None:
            raise no_graphs(settings)
        finish_store(out, _write_parts(settings, out, first, workers, progress or (lambda graphs: None)))
    except BaseException as error:
        clear_unfinished(out, folder=True)
        if isinstance(error, BrokenProcessPool):
            raise InputError(
                f"{out}: a process that made graphs was ended, perhaps for want of memory; take fewer workers"
            ) from error
        raise


def _write_parts(
    settings: BuildSettings, out: Path, first: GraphBatch, workers: int, tell: Callable[[int], None]
) -> int:
    """Have all parts written; gives their number. Whatever is raised, no process writes any more."""
    context = get_context("spawn")
    stop, made = context.Event(), context.Value("q", 0)
    fields = fields_of(settings, first)
    source = Source(settings=settings, out=out, fields=fields, dim=first.dim, stop=stop, made=made)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=begin, initargs=(source,)) as pool:
        try:
            return write_blocks(pool, workers, lambda: tell(made.value))
        except BaseException:
            stop.set()
            raise


def write_blocks(pool: ProcessPoolExecutor, workers: int, tell: Callable[[], None]) -> int:
    """Have blocks written until one is not full; gives the number of parts. Of several errors the first one in the source is raised."""
    blocks, waiting, parts, ended = blocks_for(workers), deque[tuple[Block, Future[int]]](), 0, False
    while waiting or not ended:
        while not ended and len(waiting) < 2 * workers:
            block = next(blocks)
            with deaf_processes():
                waiting.append((block, pool.submit(write_block, block)))
        block, future = waiting.popleft()
        while not wait([future], timeout=SECONDS).done:
            tell()
        graphs = future.result()
        parts += graphs > 0
        ended |= graphs < block.length
    tell()
    return parts
