"""What follows from a report waits for few operations of the file system, however many reports come at once and however slow it is."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from test_controller import Instant

from hydragnn.hpo import CampaignSettings, controller, journal, run_search
from hydragnn.hpo.controller import Controller
from hydragnn.hpo.launching.launcher import Begun, Exit, Report, Task
from hydragnn.hpo.scheduling.events import Event

ASKED = ("open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir", "os.truncate")
"""What Python says of the operations that a file system has to answer."""
OF_A_LOOK = 3
"""In the controller's own thread: the lines of the journal, their flush, and a look whether another controller wrote before them."""
OF_A_VERDICT = 1
"""One after the other for one report, beside those of other reports: its record."""


class Waves(Instant):
    """Whatever runs ends together, at the next look."""

    def __init__(self, *slots: str) -> None:
        super().__init__(*slots)
        self.running: list[Task] = []
        self.on_go = self.running.append

    def poll(self, seconds: float, bell: int | None = None) -> list[Report]:
        if not any(isinstance(report, Begun) for report in self.reports):
            for task in self.running:
                self.succeed(task)
            self.running.clear()
        return super().poll(seconds, bell)


class Counted(threading.local):
    """Operations of a thread since it was told to count."""

    here: int | None = None


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[int, int]], list[int]]:
    """Of each look, its reports and operations in the controller's thread; and of each verdict on an attempt, operations in a row."""
    looks, verdicts, count = list[tuple[int, int]](), list[int](), Counted()

    def note(event: str = "", given: tuple[object, ...] = ()) -> None:
        if count.here is not None and (not event or (event in ASKED and str(tmp_path) in str(given[:1]))):
            count.here += 1

    def noted(inner: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            note()
            return inner(*given)

        return call

    def look(one: Controller, reports: list[Report]) -> None:
        count.here = 0
        handle(one, reports)
        looks.append((len(reports), count.here))
        count.here = None

    def judge(end: Exit, *given: str) -> Event:
        count.here = 0
        event = verdict(end, *given)
        verdicts.append(count.here)
        count.here = None
        return event

    handle, verdict = Controller.handle, controller.verdict
    sys.addaudithook(note)
    for name in ("write", "fsync"):
        monkeypatch.setattr(journal.os, name, noted(getattr(os, name)))
    monkeypatch.setattr(Controller, "handle", look)
    monkeypatch.setattr(controller, "verdict", judge)
    return looks, verdicts


@pytest.mark.parametrize("slots", [1, 64])
def test_a_decision_waits_for_as_many_operations_whether_one_report_comes_or_many(
    slots: int,
    settings: Callable[..., CampaignSettings],
    asked: tuple[list[tuple[int, int]], list[int]],
    tmp_path: Path,
) -> None:
    looks, verdicts = asked
    campaign = settings(trials=max(4, slots), sampler="random")
    launcher = Waves(*(f"n{number}" for number in range(slots)))
    assert run_search(campaign, tmp_path / "c", launcher=launcher).ending == "finished"
    assert max(reports for reports, _ in looks) >= slots // 2
    assert max(own for _, own in looks) <= OF_A_LOOK
    assert len(verdicts) >= slots and max(verdicts) <= OF_A_VERDICT
