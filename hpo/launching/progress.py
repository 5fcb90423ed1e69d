"""Progress of running attempts, from their heartbeats."""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from heapq import heappop, heappush
from pathlib import Path

from hydragnn.hpo.scheduling.events import Event, Launched, Progressed
from hydragnn.runs.attempt import SECONDS_BETWEEN_BEATS, shown_epochs

FIRST_LOOK = 60.0  # seconds from an attempt's start to the first read
LONGEST_LOOK = 300.0  # seconds between reads at most, where few attempts run
LOOKS_A_SECOND = 2.0  # reads per second of all attempts together, at most
BEATS_BEFORE = 4  # heartbeats before the first read, so that their age hardly matters


def next_look(age: float, running: int) -> float:
    """Return the time of the next read: twice as late, or sooner.

    >>> [next_look(age, 100) for age in (60.0, 240.0, 480.0)], next_look(960.0, 9408)
    ([120.0, 480.0, 780.0], 1920.0)
    """
    return age + min(age, max(LONGEST_LOOK, running / LOOKS_A_SECOND))


class AttemptProgress:
    """Reader of heartbeats, each a few times, in other threads."""

    def __init__(
        self,
        folder_of: Callable[[int], Path],
        files: Executor,
        clock: Callable[[], float] = time.monotonic,
        beat_seconds: float = SECONDS_BETWEEN_BEATS,
    ) -> None:
        """Read folders in threads of ``files``; heartbeats are ``beat_seconds`` old at most."""
        self._folder_of, self._files, self._clock = folder_of, files, clock
        self._first_look = max(FIRST_LOOK, BEATS_BEFORE * beat_seconds)
        self._due: list[tuple[float, float, int, int]] = []
        self._looks: list[tuple[int, int, Future[float | None]]] = []

    def follow(self, event: Event) -> None:
        """Note an attempt that begins."""
        if isinstance(event, Launched):
            age = self._first_look
            heappush(self._due, (self._clock() + age, age, event.trial, event.attempt))

    def changes(self, running: Callable[[int, int], bool]) -> list[Progressed]:
        """Return progress that was read; start reads that are due."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            _, age, trial, attempt = heappop(self._due)
            if running(trial, attempt):
                look = self._files.submit(shown_epochs, self._folder_of(trial), attempt)
                self._looks.append((trial, attempt, look))
                later = next_look(age, len(self._due) + 1)
                heappush(self._due, (now + later - age, later, trial, attempt))
        looks, self._looks = self._looks, []
        progress: list[Progressed] = []
        for trial, attempt, look in looks:
            if not look.done():
                self._looks.append((trial, attempt, look))
            elif (epochs := look.result()) is not None:
                progress.append(Progressed(trial=trial, attempt=attempt, epochs=epochs))
        return progress
