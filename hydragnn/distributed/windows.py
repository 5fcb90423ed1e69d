"""One-sided reads of other nodes' memory over MPI.

Nobody answers a read: network cards that can do it read by themselves. MPI libraries that read by messages need the owner to look for
them, so that a thread of every rank does, whatever its main thread waits for. No rank therefore waits for another rank's step.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.distributed.launch import this_launch
from hydragnn.distributed.meeting import world_of

SECONDS_TO_ANSWER = 4.0
"""A rank that gives no bytes for so long is not asked again."""

_PAUSE = 0.0002  # seconds between two looks at a read
_LOOKS, _REST = 16, 0.001  # of the thread that keeps MPI going
_open: list["Windows"] = []
_unclosed: list["Windows"] = []
"""Windows that were not closed, which late reads of peers may still use."""
_silent: set[int] = set()
"""Ranks that did not answer, in whatever window."""


class Windows:
    """Memory of the ranks of a group, which others may read."""

    def __init__(self, memory: memoryview, group: int, members: Sequence[int]) -> None:
        """Open this rank's memory to its group; collective, InputError without MPI."""
        launch = this_launch()
        if launch.by != "mpi":
            raise InputError(
                "data.group has ranks of several nodes, whose memory is read over MPI; start the ranks by mpirun, or leave "
                "data.group out, so that each node has a copy"
            )
        world = world_of(launch)
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise InputError(
                "this MPI library lets one thread call it only; leave data.group out, so that each node has a copy"
            )
        self._mpi: Any = MPI
        self._group = world.Split(group)
        self._window = MPI.Win.Create(memory, 1, comm=self._group)
        for handle in (world, self._group, self._window):
            handle.Set_errhandler(MPI.ERRORS_RETURN)
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self._unfinished: list[Any] = []  # a late answer must find its buffer
        self._members = members
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._progress, daemon=True)
        self._thread.start()
        _open.append(self)

    def begin(
        self, rank: int, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Callable[[], NDArray[np.uint8] | None]:
        """Begin to read bytes; return what waits, for None without an answer."""
        if rank in _silent:
            return lambda: None
        out, began = np.empty(int(lengths.sum()), dtype=np.uint8), time.monotonic()
        try:
            runs = self._mpi.BYTE.Create_hindexed(lengths.tolist(), starts.tolist()).Commit()
            request = self._window.Rget([out, len(out), self._mpi.BYTE], self._members.index(rank), (0, 1, runs))
            runs.Free()
        except self._mpi.Exception:
            _give_up(rank)
            return lambda: None

        def wait() -> NDArray[np.uint8] | None:
            try:
                while not request.Test():
                    if time.monotonic() - began > SECONDS_TO_ANSWER:
                        self._unfinished.append((request, out))
                        _give_up(rank)
                        return None
                    time.sleep(_PAUSE)
            except self._mpi.Exception:
                _give_up(rank)
                return None
            return out

        return wait

    def _progress(self) -> None:
        while not self._over.wait(_REST):
            with suppress(self._mpi.Exception):  # the end of a peer, which the next read from it shows
                for _ in range(_LOOKS):
                    self._group.Iprobe()

    def finish(self) -> None:
        """Wait for reads that came too late, whose ranks are still there."""
        while self._unfinished:
            if self._unfinished[-1][0].Test():
                self._unfinished.pop()
            time.sleep(_PAUSE)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def close(self) -> None:
        """Take the memory back; collective in the group."""
        self._window.Unlock_all()
        self._window.Free()
        self.stop()  # before what it looks at is gone
        self._group.Free()


def _give_up(rank: int) -> None:
    """Ask a rank no more, and say so."""
    if rank not in _silent:
        _silent.add(rank)
        with suppress(OSError, ValueError):  # a terminal that is gone must not end the read
            sentence = f"rank {rank} does not answer; the training data of its node are read from the disk"
            print(sentence, file=sys.stderr, flush=True)


@contextmanager
def windows_closed(meet: Callable[[], bool]) -> Iterator[None]:
    """Close the windows opened in the block, where it ends well.

    ``meet`` waits for all ranks; False where one has gone. Closing would wait for it for ever then: the windows are left to the end of the
    process.
    """
    try:
        yield
        if _open and meet():
            for window in _open:
                window.finish()
            while meet() and _open:
                _open.pop().close()
    finally:
        for window in _open:
            window.stop()
        _unclosed.extend(_open)
        _open.clear()
        _silent.clear()
