"""A pool of one process for samplers that learn.

An answer depends on its question only, so that a process that died or does not answer is replaced by another.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType

from threadpoolctl import threadpool_limits

from hydragnn.base.environment import changed_environment
from hydragnn.base.files import open_log
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.distributed.group import sigint_blocked
from hydragnn.distributed.launch import leave_launch
from hydragnn.hpo.sampling.sampler import History, proposals
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.points import Point

ATTEMPTS = 3  # processes that are asked the same question


class SamplerProcess:
    """The pool, which starts its process again where that is necessary."""

    hang = 600.0
    """Seconds without an answer after which a process is replaced."""

    def __init__(self, settings: CampaignSettings, log: Path) -> None:
        """``log``: output of the process."""
        self._settings, self._log = settings, log
        self._pool: ProcessPoolExecutor | None = None
        self._children: list[multiprocessing.process.BaseProcess] = []
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Return the process that answers; None before the first."""
        return self._children[0].pid if self._children else None

    def start(self) -> ProcessPoolExecutor:
        """Start the process if necessary, without waiting; BrokenProcessPool once closed."""
        with self._lock:
            if self._closed:
                raise BrokenProcessPool("the sampler is closed")
            if self._pool is None:
                open_log(self._log).close()
                others = multiprocessing.active_children()
                with clean_children():
                    context = multiprocessing.get_context("spawn")
                    arguments = (self._log, allowed_code())
                    self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=arguments)
                    self._pool.submit(os.getpid)
                self._children = [child for child in multiprocessing.active_children() if child not in others]
            return self._pool

    def ask(self, history: History, first: int, count: int, excluded: Sequence[str]) -> list[Point] | None:
        """Return points for trials from ``first`` on; None without an answer.

        ``excluded``: keys of all points that trials have.
        """
        question = (self._settings, history, first, count, frozenset(excluded))
        for _ in range(ATTEMPTS):
            try:
                return self.start().submit(proposals, *question).result(self.hang)
            except (BrokenProcessPool, TimeoutError, RuntimeError):
                self._end()
            if self._closed:
                break
        return None

    def close(self) -> None:
        """End the process; an open question has no answer."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
            children, self._children = self._children, []
        for child in children:
            child.kill()
        if pool is not None:
            pool.shutdown(cancel_futures=True)


@contextmanager
def clean_children() -> Iterator[None]:
    """Start processes without the main program, the current folder and Ctrl-C."""
    main = sys.modules["__main__"]
    resource_tracker.ensure_running()  # whose start would unblock the signal again
    try:
        sys.modules["__main__"] = ModuleType("__main__")
        with sigint_blocked(), changed_environment({"PYTHONSAFEPATH": "1"}):
            yield
    finally:
        sys.modules["__main__"] = main


def _begin(log: Path, code: list[str]) -> None:
    """Prepare the process: one thread, no rank, output to the log."""
    with open_log(log) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    leave_launch()
    threadpool_limits(1)
    allow_code(code)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(0)
