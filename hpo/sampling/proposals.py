"""Configurations for new trials, worked out beside the controller's loop, so that a slow sampler delays no event.

A sampler that learns lives in a process of its own and is asked for all open requests at once. Where several trials can run
at once and it takes long, it is asked ahead, and random configurations stand in for it after a while; they say so in the
journal (origin ``stand-in``). Where only one can run it is waited for, so that the campaign is a function of its seed.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from hydragnn.hpo.costs import Estimates
from hydragnn.hpo.sampling.process import Question, SamplerProcess
from hydragnn.hpo.sampling.sampler import history_of, is_known_everywhere, learns, proposals, stand_in
from hydragnn.hpo.scheduling.events import Event, Exhausted, Origin, Proposed
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.points import Point, Space, point_key

PATIENCE = 10.0
"""Seconds that a request waits for the sampler before a random configuration stands in, where several trials can run."""

SLOW = 1.0
"""A sampler whose last answer took more seconds is asked ahead."""

BATCH = 64
"""So many configurations are asked for at once."""


Cost = tuple[float | None, float | None]
"""What a trial is expected to cost, as ``Estimates`` has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the sampler said."""

    points: list[tuple[Point, Cost]]
    """Configurations, and what they cost."""
    exhausted: bool = False
    silent: bool = False
    """True where no process answers."""
    seconds: float = 0.0


class Proposals:
    """Answers requests in the order of the trials, each from the history at the time when the sampler was asked.

    So with one worker, where nothing happens while a request is open, the campaign is a function of the seed.
    """

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
        """``enqueued``: configurations that the first trials get; ``log``: what the process says; ``ring``: called when it has answered."""
        self._settings, self._space, self._enqueued, self._estimates = settings, space, enqueued, estimates
        self._known = dict.fromkeys(point_key(trial.values) for trial in state.trials.values() if trial.values)
        self._asked: deque[tuple[int, float]] = deque()
        self._ring = ring
        self._thread = ThreadPoolExecutor(1, "sampler")
        self._process = SamplerProcess(settings, log)
        self._has_process = learns(settings.search.sampler) and is_known_everywhere(settings.search.sampler)
        self._coming: Future[Answer] | None = None
        self._last = Answer(points=[])
        self._ready: deque[tuple[Point, Cost]] = deque()
        self._met = 0
        """Requests that came while the sampler was thinking."""

    @property
    def busy(self) -> bool:
        """Return True where a request is open and something can be done for it at once; of answers, the bell will tell."""
        return bool(self._asked) and (self._coming is None or self._coming.done() or bool(self._ready))

    def ask(self, trial: int) -> None:
        """Take a request."""
        self._asked.append((trial, time.monotonic()))
        self._met += self._coming is not None

    def answer(self, state: State, deadline: float) -> Event | None:
        """The answer to the oldest request, given the history in ``state``; None before it is known, or without a request."""
        if not self._asked or time.monotonic() >= deadline:
            return None
        number, since = self._asked[0]
        if number < len(self._enqueued):
            return self._warm_start(number)
        if not self._ready and not (state.exhausted or self._last.exhausted):
            self._hear(state, number)
        self._ask_ahead(state, number)
        if self._ready:
            point, cost = self._ready.popleft()
            return self._proposed(number, point, "sampler", cost)
        if state.exhausted or self._last.exhausted:
            self._asked.popleft()
            return Exhausted(trial=number)
        late = is_wide(state) and time.monotonic() - since > PATIENCE
        if not late and not self._last.silent:
            return None
        drawn = stand_in(self._settings, self._space, number, self._known.keys())
        return None if drawn is None else self._proposed(number, drawn, "stand-in", self._estimates.known(drawn))

    def close(self) -> None:
        """End the sampler."""
        self._process.close()
        self._thread.shutdown(cancel_futures=True)

    def _warm_start(self, number: int) -> Event:
        """The best of earlier campaigns come first."""
        cost: Cost = (None, None)
        if self._settings.runs:
            cost = self._settings.runs[number].work, self._settings.runs[number].scaling
        return self._proposed(number, self._enqueued[number], "warm start", cost)

    def _proposed(self, number: int, point: Point, origin: Origin, cost: Cost) -> Proposed:
        self._asked.popleft()
        self._known[point_key(point)] = None
        return Proposed(trial=number, values=point, origin=origin, work=cost[0], scaling=cost[1])

    def _hear(self, state: State, number: int) -> None:
        """Ask the sampler if it is not asked yet, and take what it has said; points that stood in meanwhile are dropped."""
        if self._coming is None:
            self._begin(state, number, min(BATCH, len(self._asked)))
        assert self._coming is not None
        if self._coming.done():
            self._last, self._coming = self._coming.result(), None
            self._ready.extend(entry for entry in self._last.points if point_key(entry[0]) not in self._known)

    def _ask_ahead(self, state: State, number: int) -> None:
        """Let a slow sampler work out what will be asked for while it works."""
        wanted = min(BATCH, self._met)
        slow = self._last.seconds > SLOW and not self._last.exhausted
        if slow and self._coming is None and is_wide(state) and len(self._ready) <= wanted // 2:
            self._begin(state, number + len(self._asked), max(1, wanted))

    def _begin(self, state: State, first: int, count: int) -> None:
        history = history_of(self._settings, state)
        if self._has_process and state.best is not None:
            self._process.start()  # it takes seconds to come up, so that it begins with the first result
        known = [*self._known, *(point_key(point) for point, _ in self._ready)]
        self._met, self._last = 0, replace(self._last, silent=False)
        question = Question(first=first, count=count, history=history)
        self._coming = self._thread.submit(self._answer, state, question, known)
        self._coming.add_done_callback(lambda _: self._ring())

    def _answer(self, state: State, question: Question, known: list[str]) -> Answer:
        """Ask the process where there is something to learn from; random draws are made here."""
        begun = time.monotonic()
        points: list[Point] | None
        if question.history.trials and self._has_process:
            points = self._process.ask(question, known)
        else:
            points = proposals(
                self._settings, self._space, question.history, question.first, question.count, set(known)
            )
        return Answer(
            points=[(point, self._estimates.of(state, point)) for point in points or []],
            exhausted=points is not None and len(points) < question.count,
            silent=points is None,
            seconds=time.monotonic() - begun,
        )


def is_wide(state: State) -> bool:
    """Return True where several trials can run at once."""
    return len(state.slots) > state.least
