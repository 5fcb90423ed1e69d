"""One of several attempts at a run: it writes only while no later attempt has taken over, and shows that it lives.

Whoever starts attempts writes ``RUN/attempt.json`` before each. An attempt thought dead that wakes up reads another number
there and leaves without a trace.
"""

import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_regular, read_sealed

SECONDS_BETWEEN_BEATS = 1.0
BEAT_SECONDS = "beat_seconds"
"""Under which ``attempt.json`` asks for more."""


class Fenced(Exception):
    """A later attempt has taken the run over; this one must leave without writing anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """This attempt at the run in ``folder``."""

    folder: Path
    number: int | None = None
    """As its starter counts; None where nobody counts, and then nothing is ever fenced."""
    beats: Path | None = None
    """A file on this node that shows once more that the run lives; its starter looks there, and then ``RUN/heartbeat`` may be old."""

    @property
    def name(self) -> int:
        """The number in records and names of files; 0 where nobody counts."""
        return self.number or 0

    def check(self) -> None:
        """Raise Fenced unless ``attempt.json`` names this attempt; called right before every write."""
        self.note()

    def note(self) -> dict[str, Any]:
        """What ``attempt.json`` tells this attempt, nothing where nobody counts; Fenced as in ``check``."""
        if self.number is None:
            return {}
        try:
            note = read_sealed(self.folder / "attempt.json")
            current = note["attempt"]
        except (InputError, KeyError, TypeError):
            note, current = {}, None
        if current != self.number:
            owner = "nobody" if current is None else f"attempt {current}"
            raise Fenced(f"{self.folder} belongs to {owner} now; attempt {self.number} leaves without writing")
        return note


class Heartbeat:
    """``RUN/heartbeat``, written by the first rank at most once a second while it gets on: a watchdog reads its age.

    Where thousands of runs share a file system, ``attempt.json`` asks for more seconds between beats; a file on the node itself
    (``Attempt.beats``) is written every second all the same. Inside are the time, the attempt and, once steps are taken, the epochs done.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        first: bool,
        clock: Callable[[], float] = time.monotonic,
        beside: Callable[[], Iterable["Heartbeat"]] = tuple,
    ) -> None:
        """Only the ``first`` rank writes; the hearts ``beside`` it, of runs that wait for this one, beat with it."""
        self.attempt, self.first, self.clock, self.beside = attempt, first, clock, beside
        self.every, self.beaten_at, self.felt_at = SECONDS_BETWEEN_BEATS, -math.inf, -math.inf
        self.epochs: float | None = None

    def beat(self, epochs: float | None = None) -> None:
        """Say that the run lives, and has done so many epochs; raises Fenced where it belongs to a later attempt."""
        now = self.clock()
        self.epochs = self.epochs if epochs is None else epochs
        if not self.first or now - self.felt_at < SECONDS_BETWEEN_BEATS:
            return
        self.show(now)
        for other in self.beside():
            if now - other.felt_at >= SECONDS_BETWEEN_BEATS:
                with suppress(Fenced):  # it will notice itself
                    other.show(now)

    def show(self, now: float) -> None:
        """Write the time, the attempt and its epochs: on the node now, in the run's folder where it is time; Fenced where the run belongs to a later attempt."""
        self.felt_at = now
        if self.attempt.beats is not None:
            self._write(self.attempt.beats)
        if now - self.beaten_at < self.every:
            return
        asked = self.attempt.note().get(BEAT_SECONDS)
        self.every = max(SECONDS_BETWEEN_BEATS, asked) if isinstance(asked, float) else SECONDS_BETWEEN_BEATS
        self.beaten_at = now
        self._write(self.attempt.folder / "heartbeat")

    def _write(self, file: Path) -> None:
        with suppress(OSError):  # a full disk stops the run where it matters, at a checkpoint
            # opened and closed each time, so that network file systems show the new time to others
            descriptor = open_regular(file, os.O_WRONLY | os.O_CREAT)
            try:
                done = "" if self.epochs is None else f"{self.epochs:.6f}"
                os.write(descriptor, f"{time.time():.0f} {self.attempt.name:8} {done:>16}\n".encode())  # always as long
            finally:
                os.close(descriptor)


def shown_epochs(folder: Path, attempt: int) -> float | None:
    """The epochs that an attempt's heartbeat says are done; None where it says nothing, or speaks of another attempt."""
    try:
        with os.fdopen(open_regular(folder / "heartbeat")) as file:
            _, number, epochs = file.read().split()
        return float(epochs) if int(number) == attempt else None
    except (OSError, ValueError, InputError):
        return None
