"""Heartbeats of a run during long work."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hydragnn.runs.attempt import SECONDS_BETWEEN_BEATS

LONGEST = 3600.0
"""Seconds for which long work shows that it lives; whatever takes longer hangs, and a watchdog may find out."""


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
