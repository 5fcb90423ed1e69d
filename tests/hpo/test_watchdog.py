"""Heartbeats that stop, records whose processes linger, and nodes that the scheduler loses."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hydragnn.hpo.launching.sites import Slurm
from hydragnn.hpo.launching.watchdog import LOOK_PATIENCE, Heartbeat, NodeWatch
from hydragnn.record import Failure, RunRecord, write_record


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


def test_a_heartbeat_is_judged_by_its_changes_whatever_time_it_says(tmp_path, clock):
    (tmp_path / "heartbeat").write_text("from an earlier attempt")
    heart = Heartbeat(folder=tmp_path, patience=10.0, every=1.0, clock=clock)
    clock.now += 9.0
    assert not heart.stopped()
    (tmp_path / "heartbeat").unlink()
    (tmp_path / "heartbeat").write_text("1970")
    clock.now += 2.0
    assert not heart.stopped()
    clock.now += 9.0
    assert not heart.stopped()
    clock.now += 2.0
    assert heart.stopped()


def test_a_run_that_never_beats_has_stopped_when_the_patience_ends(tmp_path, clock):
    heart = Heartbeat(folder=tmp_path, patience=10.0, clock=clock)
    clock.now += 10.0
    assert not heart.stopped()
    clock.now += 1.5
    assert heart.stopped()


def test_processes_linger_when_the_last_record_of_their_attempt_is_complete_and_nothing_happens(tmp_path, clock):
    heart = Heartbeat(folder=tmp_path, patience=600.0, clock=clock)
    failure = Failure(kind="lost_node", message="another rank is gone")
    record = RunRecord(config={}, config_hash="", data_hash="", seed=0, status="failed", failure=failure, attempt=2)
    write_record(record, tmp_path)
    assert not heart.lingers(2)
    clock.now += 11.0
    assert not heart.lingers(3)
    clock.now += 11.0
    assert heart.lingers(2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Told(Slurm):
    """A scheduler that says what a file says."""

    file: Path = field(default_factory=Path)

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        return ["cat", str(self.file)]


def test_nodes_are_news_when_they_fall_silent_and_once_more_when_they_are_lost(tmp_path, clock):
    told = Told(cores=1, file=tmp_path / "states")
    watch = NodeWatch(told, ["n1", "n2.site"], clock=clock)

    def news(states: str) -> dict[str, bool]:
        told.file.write_text(states)
        clock.now += 10.0
        before, found = watch.seen_at, watch.news()
        while watch.seen_at == before:
            time.sleep(0.01)
            found |= watch.news()
        return found

    assert news("n1 mixed\nn2 idle\nn3 down\n") == {}
    assert news("n1 mixed*\nn2 idle\n") == {"n1": False}
    assert news("n1 mixed*\nn2 idle\n") == {}
    assert news("n1 down*\nn2 drained\n") == {"n1": True, "n2.site": True}
    assert news("n1 idle\nn2 drained\n") == {}
    assert news("n1 down\nn2 drained\n") == {"n1": True}
    watch.close()


def test_a_scheduler_that_does_not_answer_is_asked_again(tmp_path, clock):
    class Silent(Slurm):
        def look(self, nodes: Sequence[str]) -> list[str] | None:
            return ["sleep", "1000"]

    watch = NodeWatch(Silent(cores=1), ["n1"], clock=clock)
    assert watch.news() == {}
    first = watch._asked
    clock.now += LOOK_PATIENCE + 1.0
    assert watch.news() == {} and watch._asked is not first
    watch.close()
