"""Ranks that watch the next on their machine, and end it.

A stopped process (SIGSTOP) holds up all others in the next collective, and they cannot tell it from one that takes a long step. The system
can: it has the state of every process. Once a stopped rank is ended its connections break, and all others leave as they do
whenever a rank is lost. A rank that is alone on its machine has no neighbour; its peers wait for it as long as a collective lasts.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hydragnn.distributed.launch import host_name

LOOK_EVERY = 5.0
"""Seconds between two looks at a neighbour."""

LOOKS = 9
"""So many looks in a row must find it stopped. Looks are counted, because a whole job may be suspended and resumed."""

OnStopped = Callable[[int, str], None]
"""Called with the number of a stopped rank, and a sentence, before it is ended."""


def next_on_machine(rank: int, machines: Sequence[int]) -> int | None:
    """Return the next rank on the same machine, None if alone.

    >>> [next_on_machine(rank, [7, 8, 7, 7]) for rank in range(4)]
    [2, None, 3, 0]
    """
    neighbours = [other for other, machine in enumerate(machines) if machine == machines[rank]]
    following = neighbours[(neighbours.index(rank) + 1) % len(neighbours)]
    return None if following == rank else following


@contextmanager
def watch_neighbour(rank: int, pid: int, on_stopped: OnStopped) -> Iterator[None]:
    """Watch another rank's process from a thread in the block."""
    over = threading.Event()
    with suppress(psutil.Error):  # it has died; the next collective says so
        neighbour = psutil.Process(pid)
        threading.Thread(target=_watch, args=(neighbour, rank, on_stopped, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(neighbour: psutil.Process, rank: int, on_stopped: OnStopped, over: threading.Event) -> None:
    stopped = 0
    with suppress(psutil.Error):
        while not over.wait(LOOK_EVERY):
            stopped = stopped + 1 if neighbour.status() == psutil.STATUS_STOPPED else 0
            if stopped == LOOKS:
                sentence = (
                    f"rank {rank} on {host_name()} (process {neighbour.pid}) was stopped for {LOOKS * LOOK_EVERY:.0f} s, while all others "
                    "waited for it; it is ended, and the run with it"
                )
                print(sentence, file=sys.stderr, flush=True)
                on_stopped(rank, sentence)
                neighbour.kill()  # the very process: psutil knows when it began
                return


def process_namespace() -> int:
    """Return the number of this process's namespace; 0 for the only one."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
