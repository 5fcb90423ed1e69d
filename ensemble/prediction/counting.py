"""Ranks of MPI: a queue is a number in a window that every rank counts up by itself, without the help of its owner."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.distributed.launch import Launch
from hydragnn.distributed.leaving import abandon
from hydragnn.ensemble.prediction.claims import Claims
from hydragnn.ensemble.prediction.group import WORDS, FolderGroup, Table, check_opening, make_opening
from hydragnn.ensemble.prediction.queues import RELAY, Costs, Queue, queue_for
from hydragnn.errors import InputError, MissingPackageError

MAX_QUEUES = 4096
"""Queues that one prediction can have."""

POKE = 1e-3
"""Seconds between two looks at requests of others; networks that count in software need the owner to look."""

FAREWELL = 60.0
"""Seconds that the last ranks are given, once everything is done, before the one that wrote the file ends the job."""

PATIENCE = 10
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
    """Ranks of MPI; if one dies, all do, so nobody is ever known to be gone."""

    hears = True

    def __init__(self, world: Any) -> None:
        """A window at rank 0 for all, and one at the first rank of each relay."""
        super().__init__(world.rank, world.size)
        from mpi4py import MPI

        self._world = world
        owner = self.rank % RELAY == 0
        self._window = MPI.Win.Allocate((2 * MAX_QUEUES + len(WORDS)) * 8 if owner else 0, 8, comm=world)
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
        """By a number in the window of rank 0."""
        self._said(word).add(1)

    def told(self, word: str) -> bool:
        """Return True where the number was counted up."""
        return self._said(word).add(0) > 0

    def _said(self, word: str) -> WindowCounter:
        return WindowCounter(self._window, 0, 2 * MAX_QUEUES + WORDS.index(word))

    def owner(self, name: str) -> int | None:
        """Nobody knows who counted."""
        return None

    def gone(self, rank: int) -> bool:
        """Never known."""
        return False

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
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError("mpich", "mpi", f"starting {launch.size} ranks by mpirun ({error})") from error
    world: Any = MPI.COMM_WORLD
    if world.size != launch.size:
        raise InputError(
            f"the launcher started {launch.size} ranks, but MPI sees {world.size}: mpirun and the MPI library of mpi4py "
            "differ; use the mpirun beside this Python, or srun --mpi=pmi2"
        )
    group = MpiGroup(world)
    try:
        yield group
    finally:
        group.close()
