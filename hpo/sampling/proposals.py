"""Configurations for new trials, computed beside the controller's loop.

A sampler that learns runs in a process and is asked for all open requests at once. Where several trials can run at once, a slow
one is asked ahead, and after a while random configurations replace its answers (origin ``stand-in``). Where one trial runs at
a time, the campaign waits for the sampler and is a function of its seed.
"""

import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from hydragnn.hpo.costs import Estimates
from hydragnn.hpo.sampling.sampler import History, history_of, learns, proposals, stand_in
from hydragnn.hpo.scheduling.events import Event, Exhausted, Origin, Proposed
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.points import Point, Space, point_key

PATIENCE = 10.0
"""Seconds that a request waits for the sampler before it gets a random configuration, where several trials can run."""

SLOW = 1.0  # seconds of an answer above which a sampler is asked ahead
BATCH = 64  # configurations asked for at once
ATTEMPTS = 3  # processes that are asked the same question

Cost = tuple[float | None, float | None]  # expected cost of a trial, as ``Estimates`` has it


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer of the sampler."""

    points: list[tuple[Point, Cost]]
    """Configurations with their costs."""
    exhausted: bool = False
    silent: bool = False
    """True where no process answers."""
    seconds: float = 0.0


class Proposals:
    """Answers to requests, in the order of the trials."""

    def __init__(
        self,
        settings: CampaignSettings,
        space: Space,
        enqueued: list[Point],
        state: State,
        estimates: Estimates,
        log: Path,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        """``enqueued``: first configurations; ``ring``: called after an answer."""
        self._settings, self._space, self._enqueued, self._estimates = settings, space, enqueued, estimates
        self._known = dict.fromkeys(point_key(trial.values) for trial in state.trials.values() if trial.values)
        self._asked: deque[tuple[int, float]] = deque()
        self._ring = ring
        self._thread = ThreadPoolExecutor(1, "sampler")
        self._process = SamplerProcess(settings, log)
        self._has_process = learns(settings.search.sampler)
        self._coming: Future[Answer] | None = None
        self._last = Answer(points=[])
        self._ready: deque[tuple[Point, Cost]] = deque()
        self._met = 0  # requests made while the sampler was busy

    @property
    def busy(self) -> bool:
        """Return True where an open request can be served."""
        return bool(self._asked) and (self._coming is None or self._coming.done() or bool(self._ready))

    def ask(self, trial: int) -> None:
        """Take the request for a trial."""
        self._asked.append((trial, time.monotonic()))
        self._met += self._coming is not None

    def answer(self, state: State, deadline: float) -> Event | None:
        """Return the answer to the oldest request, if there is one."""
        if not self._asked or time.monotonic() >= deadline:
            return None
        number, since = self._asked[0]
        if number < len(self._enqueued):
            run = self._settings.runs[number] if self._settings.runs else None
            cost: Cost = (None, None) if run is None else (run.work, run.scaling)
            return self._proposed(number, self._enqueued[number], cost, "warm start")
        if not self._ready and not (state.exhausted or self._last.exhausted):
            self._take_answer(state, number)
        ahead, slow = min(BATCH, self._met), self._last.seconds > SLOW and not self._last.exhausted
        if slow and self._coming is None and is_wide(state) and len(self._ready) <= ahead // 2:
            self._begin(state, number + len(self._asked), max(1, ahead))  # for later requests
        if self._ready:
            return self._proposed(number, *self._ready.popleft())
        if state.exhausted or self._last.exhausted:
            self._asked.popleft()
            return Exhausted(trial=number)
        late = is_wide(state) and time.monotonic() - since > PATIENCE
        if not late and not self._last.silent:
            return None
        drawn = stand_in(self._settings, history_of(self._settings, self._space, state), number, self._known.keys())
        return None if drawn is None else self._proposed(number, drawn, self._estimates.of(drawn), "stand-in")

    def close(self) -> None:
        """End the sampler."""
        self._process.close()
        self._thread.shutdown(cancel_futures=True)

    def _proposed(self, number: int, point: Point, cost: Cost, origin: Origin = "sampler") -> Proposed:
        self._asked.popleft()
        self._known[point_key(point)] = None
        return Proposed(trial=number, values=point, origin=origin, work=cost[0], scaling=cost[1])

    def _take_answer(self, state: State, number: int) -> None:
        """Ask the sampler, or take its answer."""
        if self._coming is None:
            self._begin(state, number, min(BATCH, len(self._asked)))
        assert self._coming is not None
        if self._coming.done():
            self._last, self._coming = self._coming.result(), None
            self._ready.extend(entry for entry in self._last.points if point_key(entry[0]) not in self._known)

    def _begin(self, state: State, first: int, count: int) -> None:
        history = history_of(self._settings, self._space, state)
        if self._has_process and state.best is not None:
            self._process.start()  # this takes seconds, so that it begins with the first result
        excluded = [*self._known, *(point_key(point) for point, _ in self._ready)]
        self._met, self._last = 0, replace(self._last, silent=False)
        self._coming = self._thread.submit(self._answer, state, history, first, count, excluded)
        self._coming.add_done_callback(lambda _: self._ring())

    def _answer(self, state: State, history: History, first: int, count: int, excluded: list[str]) -> Answer:
        """Ask the process where there are results to learn from."""
        begun = time.monotonic()
        points: list[Point] | None
        if history.trials and self._has_process:
            points = self._process.ask(history, first, count, excluded)
        else:
            points = proposals(self._settings, history, first, count, set(excluded))
        self._estimates.fit(state)
        return Answer(
            points=[(point, self._estimates.of(point)) for point in points or []],
            exhausted=points is not None and len(points) < count,
            silent=points is None,
            seconds=time.monotonic() - begun,
        )


def is_wide(state: State) -> bool:
    """Return True where several trials can run at once."""
    return len(state.slots) > state.least


class SamplerProcess:
    """Pool of one process for samplers that learn.

    An answer depends on its question only, so that a process that died or does not answer is replaced by another.
    """

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
