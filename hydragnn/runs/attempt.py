"""Attempts at a run: fenced by number, with a heartbeat.

Whoever starts attempts writes ``RUN/attempt.json`` before each. An attempt thought dead that wakes up reads another number
there and leaves without a trace. It may also wake up between this look and its renaming of a file: it writes aside in a folder of its
own, which its successor has removed, so that there is nothing to rename.
"""

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_regular, read_sealed

SECONDS_BETWEEN_BEATS = 1.0
LONGEST = 3600.0
"""Seconds for which long work shows that it lives; whatever takes longer hangs, and a watchdog may find out."""
BEAT_SECONDS = "beat_seconds"
"""Key under which ``attempt.json`` asks for more."""


class Fenced(Exception):
    """A later attempt owns the run; this one writes nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAttempt:
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

    @property
    def aside(self) -> Path:
        """Folder in which a numbered attempt writes what it then renames."""
        return self.folder / f".attempt-{self.name}.tmp"

    def check(self) -> Path | None:
        """Return the folder to write in aside; called right before every write.

        Fenced unless ``attempt.json`` names this attempt. None where nobody counts.
        """
        if self.number is None:
            return None
        self.note()
        return self.aside

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder to write in aside; remove those of others."""
        if self.number is None:
            yield
            return
        is_made = False
        with suppress(OSError):  # a folder that cannot be written says so at the first file
            self.aside.mkdir()
            is_made = True
        try:
            self.check()  # after it was made: a fenced attempt must not make it anew
            for other in {*self.folder.glob(".attempt-*.tmp")} - {self.aside}:
                with suppress(OSError):  # moved first: nothing can be renamed out of it while it is emptied
                    shutil.rmtree(other.rename(self.aside / other.name))
            yield
        finally:
            with suppress(OSError):
                if is_made:  # else the first rank, for which this one stands in, may still write there
                    self.aside.rmdir()

    def note(self) -> dict[str, Any]:
        """Return ``attempt.json``, or nothing; Fenced as of ``check``."""
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
    """``RUN/heartbeat``: written once a second while the run progresses.

    Where thousands of runs share a file system, ``attempt.json`` asks for more seconds between beats; a file on the node itself
    (``Attempt.beats``) is written every second all the same. Inside are the time, the attempt and, once steps are taken, the epochs done.
    """

    def __init__(self, attempt: RunAttempt, *, first: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Write on the first rank only."""
        self.attempt, self.first, self.clock = attempt, first, clock
        self.every, self.beaten_at, self.felt_at = SECONDS_BETWEEN_BEATS, -math.inf, -math.inf
        self.epochs: float | None = None

    def beat(self, epochs: float | None = None) -> None:
        """Write a heartbeat with the epochs; Fenced for a later attempt."""
        now = self.clock()
        self.epochs = self.epochs if epochs is None else epochs
        if not self.first or now - self.felt_at < SECONDS_BETWEEN_BEATS:
            return
        self.felt_at = now
        if self.attempt.beats is not None:
            self._write(self.attempt.beats)
        if now - self.beaten_at < self.every:
            return
        interval = self.attempt.note().get(BEAT_SECONDS)
        self.every = max(SECONDS_BETWEEN_BEATS, interval) if isinstance(interval, float) else SECONDS_BETWEEN_BEATS
        self.beaten_at = now
        self._write(self.attempt.folder / "heartbeat")

    def _write(self, file: Path) -> None:
        with suppress(OSError):  # a full disk stops the run where it matters, at a checkpoint
            # opened and closed each time, so that network file systems show the new time to others
            descriptor = open_regular(file, os.O_WRONLY | os.O_CREAT)
            try:
                epochs = "" if self.epochs is None else f"{self.epochs:.6f}"
                line = f"{time.time():.0f} {self.attempt.name:8} {epochs:>16}\n"  # always as long
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)


def shown_epochs(folder: Path, attempt: int) -> float | None:
    """Return the epochs in an attempt's heartbeat, or None."""
    try:
        with os.fdopen(open_regular(folder / "heartbeat")) as file:
            _, number, epochs = file.read().split()
        return float(epochs) if int(number) == attempt else None
    except (OSError, ValueError, InputError):
        return None


@contextmanager
def keep_beating(
    heartbeat: Callable[[], None], every: float = SECONDS_BETWEEN_BEATS, longest: float = LONGEST
) -> Iterator[None]:
    """Call ``heartbeat`` from a thread during the block; reraise its errors."""
    finished = threading.Event()
    errors: list[Exception] = []

    def beat() -> None:
        end = time.monotonic() + longest
        try:
            while not finished.wait(every) and time.monotonic() < end:
                heartbeat()
        except Exception as error:  # a fenced or interrupted run
            errors.append(error)

    heartbeat()
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
    heartbeat()
    if errors:
        raise errors[0]
