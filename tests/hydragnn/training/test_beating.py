"""A run shows that it lives while it does long work."""

import itertools
import threading
import time
from pathlib import Path

import pytest

from hydragnn.base.files import write_json
from hydragnn.runs.attempt import SECONDS_BETWEEN_BEATS, Attempt, Fenced, Heartbeat
from hydragnn.runs.beating import keep_beating


def test_long_work_shows_that_the_run_lives(tmp_path: Path) -> None:
    attempt = Attempt(folder=tmp_path, number=3)
    write_json(tmp_path / "attempt.json", {"attempt": 3})
    ticks = itertools.count()
    heart = Heartbeat(attempt, first=True, clock=lambda: next(ticks) * SECONDS_BETWEEN_BEATS)

    def seen(content: str) -> bool:
        """Wait for a heartbeat file that is not this one."""
        end = time.monotonic() + 30
        while (tmp_path / "heartbeat").read_text() == content and time.monotonic() < end:
            time.sleep(0.01)
        return (tmp_path / "heartbeat").read_text() != content

    with keep_beating(heart.beat, every=0.01):
        (tmp_path / "heartbeat").write_text("")
        assert seen("")  # written by nobody but the thread
    with pytest.raises(Fenced), keep_beating(heart.beat, every=0.01):
        write_json(tmp_path / "attempt.json", {"attempt": 4})
    with keep_beating(lambda: None, every=0.01, longest=0.0):
        (thread,) = [one for one in threading.enumerate() if one.name == "heartbeat"]
        thread.join(30)
        assert not thread.is_alive()  # what hangs for ever shows no life for ever
