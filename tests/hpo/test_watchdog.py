"""Heartbeats of many runs, and nodes that the scheduler loses."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hydragnn.base.files import write_sealed
from hydragnn.hpo.launching.attempts import seconds_between_beats
from hydragnn.hpo.launching.sites import NodeStates
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm
from hydragnn.hpo.launching.watchdog import LOOK_PATIENCE, TROUBLE, SchedulerWatch
from hydragnn.record import RunRecord, write_record
from hydragnn.runs.attempt import BEAT_SECONDS, Heartbeat, RunAttempt


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


PERIODS, LOOKS = 20, 20
"""Times between beats that are watched, and calls of the heartbeat in each."""
MEDDLING = ("open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir", "os.truncate")
"""Audited operations that a file system has to answer; ``stat`` is not audited."""


@pytest.mark.parametrize(("runs", "steps"), [(16_384, False), (9_408, False), (2_000, False), (500, True), (4, True)])
def test_runs_ask_the_file_system_fifty_times_a_second(runs: int, steps: bool, tmp_path: Path, clock: Clock) -> None:
    """Those in packs beat on their nodes, and report through pipes; those in job steps beat in their folders, which the controller reads."""
    every, asked = seconds_between_beats(runs, 600.0 if steps else math.inf), list[str]()
    folder, node = tmp_path / "run", tmp_path / "node"
    folder.mkdir()
    write_sealed(folder / "attempt.json", {"attempt": 1, BEAT_SECONDS: every})
    attempt = RunAttempt(folder=folder, number=1, beats=None if steps else node)
    heart, record_at = Heartbeat(attempt, first=True, clock=clock), clock.now
    record = RunRecord(config={}, config_hash="", data_hash="", seed=0, status="running", attempt=1)
    heart.beat(0.0)
    watching = True
    sys.addaudithook(
        lambda event, given: (
            asked.append(str(given[0])) if watching and event in MEDDLING and str(folder) in str(given) else None
        )
    )
    with attempt.alone():
        for look in range(PERIODS * LOOKS):
            clock.now += every / LOOKS
            heart.beat(look / 60)
            if clock.now - record_at > heart.every:  # as at the end of each epoch
                write_record(record, folder, attempt.check)
                record_at = clock.now
    watching = False
    assert node.exists() is not steps
    looks = len(asked) + (PERIODS if steps else 0)  # the controller's own
    assert not steps or every <= 150.0
    assert 0 < runs * looks / (PERIODS * every) <= 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Told(Slurm):
    """A scheduler that says of nodes and of its job what two files say, or fails where one is missing."""

    folder: Path = field(default_factory=Path)

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        return ["cat", str(self.folder / "nodes")]

    def look_at_job(self, job: str) -> list[str] | None:
        return ["cat", str(self.folder / "job")] if job else None


class Witness:
    """A watch, and what it is told next; every look is ten seconds after the one before."""

    def __init__(self, folder: Path, nodes: Sequence[str], clock: Clock, job: str = "") -> None:
        self._folder, self._clock = folder, clock
        self.watch = SchedulerWatch(Told(folder=folder), nodes, job, clock=clock)

    def says(self, nodes: str | None = None, job: str | None = None) -> NodeStates:
        for name, text in (("nodes", nodes), ("job", job)):
            (self._folder / name).unlink(missing_ok=True)
            if text is not None:
                (self._folder / name).write_text(text)
        self._clock.now += 10.0
        self.watch.hurry()
        found = self.watch.changes()
        for question in (self.watch._of_nodes, self.watch._of_job):
            if question._asked is not None:
                question._asked[0].exception()
        return found | self.watch.changes()


@pytest.fixture
def witness(tmp_path: Path, clock: Clock) -> Callable[..., Witness]:
    return lambda *nodes, job="": Witness(tmp_path, nodes, clock, job)


def test_nodes_are_news_when_they_fall_silent_and_once_more_when_they_are_lost(witness: Callable[..., Witness]) -> None:
    harness = witness("n1", "n2.site", "n4", "n5")
    assert harness.says("n1 mixed\nn2 idle\nn3 down\nn4 idle\nn5 idle\n") == {}
    assert harness.says("n1 mixed*\nn2 idle\n") == {"n1": "silent"}
    assert harness.says("n1 mixed*\nn2 idle\n") == {}
    assert harness.says("n1 down*\nn2 drained\n") == {"n1": "lost", "n2.site": "lost"}
    assert harness.says("n1 idle\nn2 drained\n") == {}
    assert harness.says("n1 down\nn2 drained\n") == {"n1": "lost"}


@pytest.mark.parametrize(
    "answer",
    [None, "", "n1 unknown\nn2 unknown*\n", "slurm_load_node error: Unable to contact slurm controller\n"],
    ids=["an error", "nothing", "unknown", "a complaint"],
)
def test_silence_and_errors_are_no_news(witness: Callable[..., Witness], clock: Clock, answer: str | None) -> None:
    harness = witness("n1", "n2", "n3")
    assert harness.says("n1 down*\nn2 mixed\nn3 mixed\n") == {"n1": "lost"}
    before = clock.now + 1.0
    assert harness.says(answer) == {}
    assert harness.watch.states == {"n1": "lost", "n2": "well", "n3": "well"}
    assert not harness.watch.knows(["n2"], before)
    assert harness.says("n1 down*\nn2 down*\nn3 unknown\n") == {"n2": "lost"}, (
        "what is known of one is news all the same"
    )
    assert harness.watch.knows(["n2"], before) and not harness.watch.knows(["n3"], before)


def test_the_loss_of_a_few_is_believed_not_that_of_all(witness: Callable[..., Witness], clock: Clock) -> None:
    harness = witness("n1", "n2", "n3")
    assert harness.says("n1 down*\nn2 down*\nn3 down*\n") == {}
    assert harness.says("n1 mixed*\nn2 mixed*\nn3 mixed*\n") == {}
    assert not harness.watch.states and not harness.watch.knows(["n1"], 0.0)
    assert harness.says("n1 mixed\nn2 down*\nn3 down*\n") == {"n2": "lost", "n3": "lost"}
    assert harness.says("n1 down*\nn2 down*\nn3 down*\n") == {}, "heartbeats and exits decide about the last one"


def test_of_many_nodes_a_cabinet_can_be_lost_and_not_the_larger_part(witness: Callable[..., Witness]) -> None:
    names = [f"n{number}" for number in range(100)]
    harness = witness(*names)
    lost = dict.fromkeys(names[:50], "lost")
    assert harness.says("".join(f"{name} {'down*' if k < 51 else 'mixed'}\n" for k, name in enumerate(names))) == {}
    assert harness.says("".join(f"{name} {'down*' if k < 50 else 'mixed'}\n" for k, name in enumerate(names))) == lost


def test_an_allocation_is_over_when_the_scheduler_says_so_twice(witness: Callable[..., Witness], clock: Clock) -> None:
    harness = witness("n1", "n2", job="7")
    for alive in ("RUNNING\n", "", "squeue: error: Unable to contact slurm controller\n", None):
        harness.says("n1 mixed\n", alive)
        assert not harness.watch.over and not harness.watch.suspicious
    harness.says("n1 mixed\nn2 mixed\n", "COMPLETING\n")
    assert not harness.watch.over and harness.watch.suspicious and not harness.watch.knows(["n1", "n2"], 0.0)
    harness.says("n1 mixed\nn2 mixed\n", "RUNNING\n")
    assert not harness.watch.suspicious and harness.watch.knows(["n1", "n2"], clock.now)
    harness.says("n1 mixed\n", "COMPLETING\n")
    harness.says("n1 mixed\n", None)
    assert not harness.watch.over and harness.watch.suspicious
    harness.says("n1 mixed\n", "slurm_load_jobs error: Invalid job id specified\n")
    assert harness.watch.over


def test_a_scheduler_that_hangs_is_asked_again_and_counts_as_not_answering(
    witness: Callable[..., Witness], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = witness("n1", "n2")
    harness.says("n1 mixed\nn2 mixed\n")
    watch = harness.watch
    monkeypatch.setattr(watch._of_nodes, "command", ["sleep", "60"])
    clock.now += 10.0
    assert watch.changes() == {} and watch.answering
    first = watch._of_nodes._asked
    assert first is not None
    clock.now += LOOK_PATIENCE + 1.0
    assert watch.changes() == {} and watch._of_nodes._asked is not first and not watch.in_order(["n1"], clock.now)
    clock.now += LOOK_PATIENCE
    assert not watch.answering


def test_tools_that_never_worked_say_nothing_about_the_scheduler(witness: Callable[..., Witness], clock: Clock) -> None:
    harness = witness("n1", "n2")
    for _ in range(10):
        assert harness.says(None) == {}
    assert harness.watch.answering and harness.watch.in_order(["n1", "n2"], clock.now)
    harness.says("n1 mixed\n")
    assert harness.watch.in_order(["n1", "n2"], clock.now), "a node that it never spoke of"
    harness.says("n1 unknown\n")
    assert not harness.watch.in_order(["n1"], clock.now) and harness.watch.in_order(["n2"], clock.now)
    harness.says("n1 mixed\n")
    assert not harness.watch.in_order(["n1"], clock.now - 1.0) and harness.watch.in_order(["n1"], clock.now)
    harness.says("n1 unknown\n")
    clock.now += TROUBLE + 1.0
    assert harness.watch.in_order(["n1"], clock.now)


def test_a_scheduler_that_cannot_be_asked_is_never_to_blame(clock: Clock) -> None:
    watch = SchedulerWatch(Mpiexec(hydra=True, pbsnodes=False), ["n1"], clock=clock)
    clock.now += 1e6
    assert watch.changes() == {} and watch.answering and watch.knows(["n1"], clock.now)
