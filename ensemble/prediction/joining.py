"""How a process joins those that predict with it: as a rank of MPI, as one that meets others in a folder, or as one of several local workers.

Ranks of MPI count at a one-sided counter: a queue is a number in a window that every rank counts up by itself, without the help
of its owner. Local workers are started by rank 0 and meet in a folder, as job steps without MPI and torchrun's ranks do.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.forked import workers_context
from hydragnn.distributed.launch import Launch, host_name, this_launch
from hydragnn.distributed.leaving import abandon
from hydragnn.distributed.ranks import own_gpu
from hydragnn.distributed.rendezvous import note_of_waiting, world_of
from hydragnn.ensemble.prediction.group import (
    WORDS,
    Alone,
    Claims,
    FolderGroup,
    Group,
    Table,
    Watch,
    at_work,
    check_opening,
    make_opening,
)
from hydragnn.ensemble.prediction.queues import RELAY, Costs, Queue, queue_for


@contextmanager
def join_group(launch: Launch | None = None) -> Iterator[Group]:
    """Join the ranks that the launcher started; InputError where its count and MPI's disagree."""
    launch = launch or this_launch()
    if torch.cuda.is_available():
        torch.cuda.set_device(own_gpu(launch.local_rank))
    if launch.size == 1:
        yield Alone()
    elif launch.by == "mpi":
        with join_mpi(launch) as group:
            yield group
    else:
        with at_work(FolderGroup(launch.rank, launch.size)) as group:
            yield group


def worker_group(workers: int, work: Callable[..., None], *arguments: Any) -> AbstractContextManager[Group]:
    """Join the ranks that a launcher started, or else start so many local workers."""
    if workers > 1 and this_launch().size == 1:
        return at_work(ParentGroup(workers, work, *arguments))
    return join_group()


MAX_QUEUES = 4096
"""Queues that one prediction can have."""

POKE = 1e-3
"""Seconds between two looks at requests of others; networks that count in software need the owner to look."""

FAREWELL = 10.0
"""Seconds that the last ranks are given, once everything is done, before the one that wrote the file ends the job."""

PATIENCE = 60
"""So many times as long the others wait: the one that wrote the file may still be tidying up."""


class WindowCounter:
    """One number in a window of a rank."""

    def __init__(self, window: Any, rank: int, index: int) -> None:
        """Number ``index`` of the window at ``rank``."""
        from mpi4py import MPI

        self._window, self._rank, self._index = window, rank, index
        self._type, self._sum, self._replace = MPI.INT64_T, MPI.SUM, MPI.REPLACE

    def add(self, amount: int) -> int:
        """Count up; gives the number from before."""
        return self._fetch(amount, self._sum)

    def put(self, value: int) -> None:
        """Replace the number."""
        self._fetch(value, self._replace)

    def _fetch(self, value: int, operation: Any) -> int:
        given, before = np.array([value], dtype=np.int64), np.zeros(1, dtype=np.int64)
        self._window.Fetch_and_op([given, self._type], [before, self._type], self._rank, self._index, operation)
        self._window.Flush(self._rank)
        return int(before[0])


class MpiGroup(FolderGroup):
    """Ranks of MPI; if one dies, all do, so that only one that was stopped, on this machine, is known to be gone."""

    hears = True

    def __init__(self, world: Any) -> None:
        """A window at rank 0 for all, and one at the first rank of each relay."""
        super().__init__(world.rank, world.size)
        from mpi4py import MPI

        self._world, self._watch = world, Watch()
        self._processes: list[tuple[str, int]] = world.allgather((host_name(), os.getpid()))
        owner = self.rank % RELAY == 0
        self._window = MPI.Win.Allocate((2 * MAX_QUEUES + 2 * len(WORDS)) * 8 if owner else 0, 8, comm=world)
        if owner:
            memory: Any = self._window.tomemory()
            np.frombuffer(memory, dtype=np.int64)[:] = 0
        world.Barrier()
        self._window.Lock_all()
        self._over = threading.Event()
        if owner and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while not self._over.wait(POKE):
            self._world.Iprobe()

    def meet(self, folder: Path) -> None:
        """From now on the ranks meet in ``folder``; MPI notices the dead."""
        folder.mkdir(parents=True, exist_ok=True)
        self._claims = Claims(folder, self.rank)

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Give all ranks the opening of rank 0, by a broadcast."""
        opening: Table = self._world.bcast(make_opening(make) if self.rank == 0 else None)
        self.meet(folder / check_opening(opening)["meeting"])
        return opening

    def queue(self, number: int, costs: Costs) -> Queue:
        """Return the queue that counts at the numbers ``number`` of the windows."""
        if number >= MAX_QUEUES:
            raise InputError(f"a prediction has at most {MAX_QUEUES} queues; give every rank more memory")
        root = WindowCounter(self._window, 0, number)
        relay = WindowCounter(self._window, self.rank // RELAY * RELAY, MAX_QUEUES + number)
        return queue_for(costs, self.size, root, relay)

    def tell(self, word: str) -> None:
        """By a number in the window of every relay."""
        for relay in range(0, self.size, RELAY):
            self._said(word, relay).add(1)

    def told(self, word: str) -> bool:
        """Return True where the number of this rank's relay was counted up."""
        return self._said(word, self.rank // RELAY * RELAY).add(0) > 0

    def _said(self, word: str, relay: int) -> WindowCounter:
        return WindowCounter(self._window, relay, 2 * MAX_QUEUES + WORDS.index(word))

    def last_at(self, word: str) -> bool:
        """Counted in the window of rank 0."""
        number = 2 * MAX_QUEUES + len(WORDS) + WORDS.index(word)
        return WindowCounter(self._window, 0, number).add(1) == self.size - 1

    def owner(self, name: str) -> int | None:
        """Nobody knows who counted."""
        return None

    def gone(self, rank: int) -> bool:
        """Return True where the rank is stopped, on this machine."""
        host, process = self._processes[rank]
        return host == host_name() and rank != self.rank and self._watch.is_stopped(process)

    def close(self) -> None:
        """Wait for the others, but not for ever: everything is done, and one that hangs must not hold up the job."""
        if sys.exc_info()[0] is not None:
            return
        patience = FAREWELL if self.speaks else PATIENCE * FAREWELL
        request, deadline = self._world.Ibarrier(), time.monotonic() + patience
        while not request.Test():
            if time.monotonic() > deadline:
                print(
                    "some ranks hang; the predictions are complete, so the job ends without them",
                    file=sys.stderr,
                    flush=True,
                )
                abandon()
                return
            time.sleep(POKE)
        self._over.set()
        self._window.Unlock_all()
        self._window.Free()


@contextmanager
def join_mpi(launch: Launch) -> Iterator[MpiGroup]:
    """The ranks of MPI; InputError where the launcher started another number, because each would predict everything."""
    with note_of_waiting(launch, lambda: "all other ranks, which have not come to MPI yet"):
        group = MpiGroup(world_of(launch))
    try:
        yield group
    finally:
        group.close()


LAST_WORDS = 5.0  # seconds that a worker has to leave once everything is done


class ParentGroup(FolderGroup):
    """The group seen from rank 0 of local workers, which it starts; ``work`` is what a worker does with the opening."""

    def __init__(self, workers: int, work: Callable[..., None], *arguments: Any) -> None:
        """So many processes, this one included."""
        super().__init__(0, workers)
        self._work, self._arguments = work, arguments
        self._processes: list[Any] = []

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Start the workers, make the opening while they load their libraries, and send it to them."""
        context = workers_context()
        threads = max(1, torch.get_num_threads() // self.size)
        torch.set_num_threads(threads)
        senders = []
        for rank in range(1, self.size):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (rank, self.size, threads, receiver, folder, *self._arguments)
            self._processes.append(context.Process(target=self._work, args=arguments, daemon=True))
            self._processes[-1].start()
            receiver.close()
            senders.append(sender)
        opening = make_opening(make)
        self.meet(folder / check_opening(opening)["meeting"])
        for sender in senders:
            with sender, suppress(BrokenPipeError):  # of a worker that died
                sender.send_bytes(json.dumps(opening).encode())
        return opening

    def close(self) -> None:
        """End workers that still run: what they do has been done by others."""
        super().close()
        for process in self._processes:
            process.terminate()
            process.join(LAST_WORDS)
            process.kill()  # one that was stopped, or hangs
            process.join()


class ChildGroup(FolderGroup):
    """The group seen from a local worker that rank 0 started."""

    def __init__(self, rank: int, size: int, receiver: Connection) -> None:
        """The opening of rank 0 comes from ``receiver``."""
        super().__init__(rank, size)
        self._receiver = receiver

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Return the opening of rank 0; from now on this process ends with the one that started it."""
        Thread(target=_end_with_parent, daemon=True).start()
        opening: Table = json.loads(self._receiver.recv_bytes())
        self.meet(folder / opening["meeting"])
        return opening


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
