"""Looks at heartbeats: when, whose, and what is told of them."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from test_controller import ByHand

from hydragnn.hpo.launching.progress import AttemptProgress
from hydragnn.hpo.scheduling.events import Launched, Progressed, Tick


class AtOnce(ByHand):
    """An executor that does everything at once, or nothing while it holds."""

    holds = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if not self.holds:
            self.do()
        return future


@pytest.fixture
def now() -> list[float]:
    return [0.0]


def shows(folder: Path, trial: int, attempt: int, epochs: float) -> None:
    (folder / str(trial)).mkdir(exist_ok=True)
    (folder / str(trial) / "heartbeat").write_text(f"1795288000 {attempt} {epochs}\n")


def test_an_attempt_is_looked_at_after_a_minute_and_then_ever_more_seldom(tmp_path: Path, now: list[float]) -> None:
    progress = AttemptProgress(lambda trial: tmp_path / str(trial), AtOnce(), clock=lambda: now[0])
    progress.follow(Tick())
    progress.follow(Launched(trial=4, attempt=2, identity={}))
    seen = []
    for second in range(0, 1000, 10):
        now[0] = float(second)
        shows(tmp_path, 4, 2, second / 100)
        seen += [(second, event) for event in progress.changes(lambda trial, attempt: True)]
    assert seen == [
        (second, Progressed(trial=4, attempt=2, epochs=second / 100)) for second in (60, 120, 240, 480, 780)
    ]


def test_where_hearts_beat_rarely_the_first_look_is_later(tmp_path: Path, now: list[float]) -> None:
    progress = AttemptProgress(lambda trial: tmp_path / str(trial), AtOnce(), clock=lambda: now[0], beat_seconds=50.0)
    progress.follow(Launched(trial=4, attempt=2, identity={}))
    shows(tmp_path, 4, 2, 1.0)
    seen = []
    for second in range(500):
        now[0] = float(second)
        seen += [second for _ in progress.changes(lambda trial, attempt: True)]
    assert seen == [200, 400]


def test_nothing_is_told_of_attempts_that_are_over_or_of_heartbeats_of_others(tmp_path: Path, now: list[float]) -> None:
    progress = AttemptProgress(lambda trial: tmp_path / str(trial), AtOnce(), clock=lambda: now[0])
    for trial, attempt in ((0, 1), (1, 5), (2, 1)):
        progress.follow(Launched(trial=trial, attempt=attempt, identity={}))
    shows(tmp_path, 0, 1, 3.0)
    shows(tmp_path, 1, 4, 3.0)
    now[0] = 60.0
    assert progress.changes(lambda trial, attempt: trial > 0) == []
    shows(tmp_path, 1, 5, 0.5)
    shows(tmp_path, 2, 1, 0.25)
    now[0] = 120.0
    changes = progress.changes(lambda trial, attempt: True)
    assert changes == [Progressed(trial=1, attempt=5, epochs=0.5), Progressed(trial=2, attempt=1, epochs=0.25)]


def test_a_slow_file_system_holds_up_nobody(tmp_path: Path, now: list[float]) -> None:
    files = AtOnce()
    progress = AttemptProgress(lambda trial: tmp_path / str(trial), files, clock=lambda: now[0])
    progress.follow(Launched(trial=0, attempt=1, identity={}))
    shows(tmp_path, 0, 1, 3.0)
    files.holds, now[0] = True, 60.0
    assert progress.changes(lambda trial, attempt: True) == []
    files.do()
    assert progress.changes(lambda trial, attempt: True) == [Progressed(trial=0, attempt=1, epochs=3.0)]
    assert progress.changes(lambda trial, attempt: True) == []
