"""Configurations for new trials, worked out beside the controller's loop, so that a slow sampler delays no event."""

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

from hydragnn.hpo.estimates import Estimates
from hydragnn.hpo.sampler import proposal
from hydragnn.hpo.scheduling.events import Event, Exhausted, Proposed
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space import Point, Space, point_key


class Proposals:
    """Answers requests in the order of the trials, one at a time, each from the whole history so far.

    So with one worker, where nothing happens while a request is open, the campaign is a function of the seed.
    """

    def __init__(
        self, settings: CampaignSettings, space: Space, enqueued: list[Point], state: State, estimates: Estimates
    ) -> None:
        """``enqueued``: configurations of earlier campaigns, which the first trials get."""
        self._settings, self._space, self._enqueued, self._estimates = settings, space, enqueued, estimates
        self._known = {point_key(trial.values) for trial in state.trials.values() if trial.values}
        self._asked: deque[int] = deque()
        self._thread = ThreadPoolExecutor(1, "sampler")
        self._coming: Future[Event] | None = None

    @property
    def busy(self) -> bool:
        """Return True where a request is open."""
        return bool(self._asked)

    def ask(self, trial: int) -> None:
        """Take a request."""
        self._asked.append(trial)

    def answer(self, state: State, deadline: float) -> Event | None:
        """The answer to the oldest request, given the history in ``state``; None before it is known, or without a request."""
        if not self._asked or time.monotonic() >= deadline:
            return None
        if self._coming is None:
            self._coming = self._thread.submit(self._answer, state, self._asked[0])
        if not wait([self._coming], max(0.0, deadline - time.monotonic())).done:
            return None
        event, self._coming = self._coming.result(), None
        self._asked.popleft()
        if isinstance(event, Proposed):
            self._known.add(point_key(event.values))
        return event

    def close(self) -> None:
        """Wait for the sampler to end."""
        self._thread.shutdown(cancel_futures=True)

    def _answer(self, state: State, number: int) -> Event:
        """The best of earlier campaigns first, then what the sampler says."""
        if number < len(self._enqueued):
            known = self._settings.runs[number] if self._settings.runs else None
            return Proposed(
                trial=number,
                values=self._enqueued[number],
                origin="warm start",
                work=None if known is None else known.work,
                scaling=None if known is None else known.scaling,
            )
        if state.exhausted:
            return Exhausted(trial=number)
        point = proposal(self._settings, self._space, state, number, self._known)
        if point is None:
            return Exhausted(trial=number)
        work, scaling = self._estimates.of(state, point)
        return Proposed(trial=number, values=point, work=work, scaling=scaling)
