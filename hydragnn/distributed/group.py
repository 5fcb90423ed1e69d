"""Processes that work together: they meet, share queues, and notice dead ones.

Ranks of a launcher and local workers do all of it with a store of keys and values of ``torch.distributed``: a private file on one
machine, and torch's server on several.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from hydragnn.base.allocator import keep_memory
from hydragnn.base.errors import InputError, SaidByFirst
from hydragnn.base.forked import workers_context
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.distributed.launch import Launch, abandon, machine_name, this_launch
from hydragnn.distributed.meeting import ServedStore, file_store, meet
from hydragnn.distributed.ranks import own_gpu

Table = dict[str, Any]
Meet = Callable[["Group", Path], AbstractContextManager[dist.Store]]

BEAT = 2.0
"""Seconds between two signs of life of a rank on another machine, at least."""
BEATS_PER_SECOND = 500
"""Signs of life of all ranks together, at most."""
SILENT_BEATS = 15
"""Signs of life that may be missing before a rank counts as dead."""
STOPPED = 5.0
"""Seconds after which a rank of this machine that was stopped (SIGSTOP) counts as dead."""
PAUSE = 0.02
"""Seconds between two questions to the store of a rank that waits."""
FAREWELL = 10.0
"""Seconds that the last ranks are given, once everything is done, before the rank that wrote the file leaves."""
PATIENCE = 60
"""Times ``FAREWELL`` that rank 0 waits for the others where another rank wrote the file."""
LAST_SECONDS = 5.0
"""Seconds that a local worker has to leave once everything is done."""


def alone(group: "Group", folder: Path) -> AbstractContextManager[dist.Store]:
    """Return a store in this process."""
    return nullcontext(dist.HashStore())


class Group:
    """Processes that work together, seen from one of them."""

    def __init__(self, rank: int = 0, size: int = 1, meet: Meet = alone, *, by_mpi: bool = False) -> None:
        """Create rank ``rank`` of ``size``; ``meet`` gives the store to ``begin``."""
        self.rank, self.size, self.wrote = rank, size, False
        self._meet, self._by_mpi = meet, by_mpi
        self._began = time.monotonic()
        self._stack, self._over = ExitStack(), threading.Event()
        self._stopped_since: dict[int, float] = {}
        self._beats: dict[int, tuple[int, float]] = {}
        self.store: dist.Store = dist.HashStore()

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Meet beside ``folder``; return rank 0's opening or raise its InputError."""
        self.store = self._stack.enter_context(self._meet(self, folder))
        self._began = time.monotonic()
        self.store.set(f"process-{self.rank}", json.dumps([machine_name(), os.getpid()]))
        if isinstance(self.store, ServedStore):
            threading.Thread(target=self._beat, args=(self.store.another(),), daemon=True).start()
        if self.rank == 0:
            try:
                self.store.set("opening", json.dumps({**make(), "error": ""}))
            except InputError as error:
                self.store.set("opening", json.dumps({"error": str(error)}))
                raise InputError(str(error)) from error
        while not self.store.check(["opening"]):
            time.sleep(PAUSE)
        opening: Table = json.loads(self.store.get("opening"))
        if opening["error"]:
            raise SaidByFirst(opening["error"])
        return opening

    def take(self, queue: str, count: int) -> int | None:
        """Return the next of a queue's ``count`` positions; None at its end."""
        position = int(self.store.add(f"queue {queue}", 1)) - 1
        if position >= count:
            return None
        self.store.set(f"owner of {queue}-{position}", str(self.rank))
        return position

    def first_to(self, name: str) -> bool:
        """Claim ``name``; return True where this rank is the first."""
        if self.store.add(f"claims of {name}", 1) > 1:
            return False
        self.store.set(f"owner of {name}", str(self.rank))
        return True

    def owner(self, name: str) -> int | None:
        """Return the rank that claimed ``name`` or took it, if known."""
        key = f"owner of {name}"
        return int(self.store.get(key)) if self.store.check([key]) else None

    def signal(self, word: str) -> None:
        """Let ``is_signalled`` be True on all ranks."""
        self.store.set(f"signal {word}", "1")

    def is_signalled(self, word: str) -> bool:
        """Return True after a rank's signal; InputError after rank 0's failure."""
        if self.rank and self.store.check(["failure"]):
            raise SaidByFirst(f"rank 0 ended: {self.store.get('failure').decode()}")
        return bool(self.store.check([f"signal {word}"]))

    def note(self, name: str, value: Any) -> None:
        """Leave a note of this rank, in place of an earlier one."""
        self.store.set(f"note {name} {self.rank}", json.dumps(value))

    def notes(self, name: str) -> list[Any]:
        """Return the notes of all ranks so far, in order."""
        keys = [f"note {name} {rank}" for rank in range(self.size)]
        return [json.loads(self.store.get(key)) for key in keys if self.store.check([key])]

    def gone(self, rank: int) -> bool:
        """Return True where the rank is dead, stopped on this machine, or silent on another."""
        if rank == self.rank:
            return False
        if not self.store.check([f"process-{rank}"]):
            return time.monotonic() - self._began > self._silence
        machine, process = json.loads(self.store.get(f"process-{rank}"))
        if machine == machine_name():
            return self._is_dead(process)
        beats, now = self.store.add(f"beats of {rank}", 0), time.monotonic()
        if beats != self._beats.get(rank, (-1, now))[0]:
            self._beats[rank] = (beats, now)
        return now - self._beats[rank][1] > self._silence

    def _is_dead(self, process: int) -> bool:
        """Return True where a local process is gone, or stopped for seconds."""
        try:
            status = psutil.Process(process).status()
        except psutil.NoSuchProcess:
            return True
        if status != psutil.STATUS_STOPPED:
            self._stopped_since.pop(process, None)
            return bool(status == psutil.STATUS_ZOMBIE)
        now = time.monotonic()
        return now - self._stopped_since.setdefault(process, now) > STOPPED

    @property
    def _pause_between_beats(self) -> float:
        return max(BEAT, self.size / BEATS_PER_SECOND)

    @property
    def _silence(self) -> float:
        return SILENT_BEATS * self._pause_between_beats

    def _beat(self, store: dist.Store) -> None:
        while not self._over.wait(self._pause_between_beats):
            try:
                store.add(f"beats of {self.rank}", 1)
            except dist.DistError:  # rank 0 has left
                return

    def __enter__(self) -> "Group":
        """Return the group, of which ``begin`` makes this rank a member."""
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        """Leave the group."""
        with self._stack:
            self._over.set()
            if self.size == 1 or self.store is None:
                return
            if error is not None:
                if self.rank == 0 and isinstance(error, InputError):
                    self.store.set("failure", str(error).encode(errors="backslashreplace").decode())  # names of files
                    self._wait_for(self.size - 1, FAREWELL)
                elif isinstance(error, InputError):
                    self.store.add("ranks that left", 1)
                return
            if not self.wrote:
                self.store.add("ranks that left", 1)
            if self.wrote or self.rank == 0:
                complete = self._wait_for(self.size - self.wrote, FAREWELL if self.wrote else PATIENCE * FAREWELL)
                if self.wrote:
                    self.store.add("ranks that left", 1)
                if self._by_mpi and not complete:
                    text = "some ranks hang; all work is done, so the job ends without them"
                    print(text, file=sys.stderr, flush=True)
                    abandon()

    def _wait_for(self, count: int, seconds: float) -> bool:
        """Wait until so many ranks have left, or, without MPI, are gone."""
        deadline = time.monotonic() + seconds
        while self.store.add("ranks that left", 0) < count:
            if time.monotonic() > deadline:
                return False
            gone = 0 if self._by_mpi else sum(map(self.gone, range(self.size)))
            if gone and self.store.add("ranks that left", 0) + gone >= count:
                return True
            time.sleep(PAUSE)
        return True


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Start child processes with SIGINT blocked; the parent receives it afterwards."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def join_group() -> Group:
    """Join the ranks that a launcher started."""
    launch = this_launch()
    if torch.cuda.is_available():
        torch.cuda.set_device(own_gpu(launch.local_rank))
    if launch.size == 1:
        return Group()

    def met(group: Group, folder: Path) -> AbstractContextManager[dist.Store]:
        return nullcontext(meet(launch, folder.parent).store)

    return Group(launch.rank, launch.size, met, by_mpi=launch.by == "mpi")


def join_leaders(store: dist.Store, launch: Launch, graph_ranks: int) -> Group:
    """Join the first ranks of all groups that share graphs."""
    number, count = launch.rank // graph_ranks, launch.size // graph_ranks
    return Group(number, count, lambda group, folder: nullcontext(store), by_mpi=launch.by == "mpi")


def worker_group(workers: int, work: Callable[..., None], *arguments: Any) -> Group:
    """Join ranks of a launcher, or start local workers, which ``work``."""
    if workers == 1 or this_launch().size > 1:
        return join_group()

    @contextmanager
    def start(group: Group, folder: Path) -> Iterator[dist.Store]:
        context, processes = workers_context(), list[Any]()
        threads = max(1, torch.get_num_threads() // workers)
        torch.set_num_threads(threads)
        with tempfile.TemporaryDirectory(prefix="hydragnn-ranks-", ignore_cleanup_errors=True) as place:
            store = file_store(f"{place}/store")
            for rank in range(1, workers):
                own = (rank, workers, threads, f"{place}/store", allowed_code(), work, arguments)
                processes.append(context.Process(target=work_as_child, args=own, daemon=True))
                with sigint_blocked():
                    processes[-1].start()
                # known to be dead also where it ends before it meets the others
                store.set(f"process-{rank}", json.dumps([machine_name(), processes[-1].pid]))
            try:
                yield store
            finally:
                for process in processes:
                    process.terminate()
                    process.join(LAST_SECONDS)
                    process.kill()  # one that was stopped, or hangs
                    process.join()

    return Group(0, workers, start)


def work_as_child(
    rank: int,
    size: int,
    threads: int,
    store: str,
    allowed: Sequence[str],
    work: Callable[..., None],
    arguments: Sequence[Any],
) -> None:
    """Work as a local worker."""
    allow_code(allowed)
    keep_memory()
    torch.set_num_threads(threads)
    with suppress(KeyboardInterrupt, SaidByFirst):
        work(join_parent(rank, size, store), *arguments)


def join_parent(rank: int, size: int, store: str) -> Group:
    """Join the process that started this local worker, which ends with it."""

    def end_with_parent() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    def met(group: Group, folder: Path) -> AbstractContextManager[dist.Store]:
        threading.Thread(target=end_with_parent, daemon=True).start()
        return nullcontext(file_store(store))

    return Group(rank, size, met)
