"""The controller's promises: nothing happens before its line is on disk, and nothing slow delays an event."""

import copy
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from campaigns import Settings, read_journal

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest, read_sealed
from hydragnn.hpo import Exit, Task, campaign_history, campaign_status, controller, journal, run_search
from hydragnn.hpo.controller import Controller, LaunchQueue, steady_clock
from hydragnn.hpo.launching.allocation_launcher import Launcher
from hydragnn.hpo.launching.launcher import Begun, Report
from hydragnn.hpo.launching.progress import AttemptProgress
from hydragnn.hpo.sampling import sampler
from hydragnn.hpo.sampling.sampler import history_of, proposals
from hydragnn.hpo.scheduling.events import Event, Failed, Launched, Probed, Progressed, Proposed, Reached, Tick
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.space.points import point_key, space_of
from hydragnn.record import Cost, RunRecord, write_record


@Launcher.register
class Instant:
    """A launcher whose attempts begin at once and succeed at once, unless a test says otherwise."""

    deadline: float | None = None
    beat_seconds, sizes, note = 1.0, dict[str, float](), ""

    def __init__(self, *slots: str) -> None:
        self.slots = slots
        self.reports: list[Report] = []
        self.tasks: list[Task] = []
        self.probes: list[str] = []
        self.on_start: Callable[[Task], None] = lambda task: None
        self.on_go: Callable[[Task], None] = self.succeed

    def recover(self, campaign: str, identities: Iterable[Any]) -> None:
        pass

    def start(self, task: Task) -> None:
        self.tasks.append(task)
        self.on_start(task)
        self.reports.append(Begun(task=task, identity={"number": len(self.tasks)}))

    def go(self, task: Task) -> None:
        self.on_go(task)

    def poll(self, seconds: float) -> list[Report]:
        reports, self.reports = self.reports, []
        if not reports:
            time.sleep(min(seconds, 0.01))
        return reports

    def wake(self) -> None:
        pass

    def cancel(self, trial: int, grace: float) -> None:
        pass

    def probe(self, node: str) -> None:
        self.probes.append(node)
        self.reports.append(Probed(node=node, healthy=True))

    def close(self) -> None:
        pass

    def succeed(self, task: Task) -> None:
        config = json.loads((task.folder / "config.json").read_text())
        error = abs(config["model"]["hidden_dim"] - 48.0)
        status: Any = "finished" if task.until == config["train"]["epochs"] else "paused"
        record = RunRecord(
            config=config,
            config_hash=digest(config),
            data_hash="",
            seed=0,
            attempt=task.attempt,
            status=status,
            epochs=task.until,
            curves={"valid/loss": [error] * task.until},
            cost=Cost(seconds=float(config["model"]["hidden_dim"] * task.until), peak_memory_mb=70.0),
        )
        write_record(record, task.folder)
        self.reports.append(Exit(task=task, code=0))


def events_of(out: Path, kind: type[Event]) -> list[Any]:
    return [event for _, event in read_journal(out / "journal.jsonl") if isinstance(event, kind)]


@pytest.mark.parametrize("beats", [{}, {"beat_seconds": 5.0}], ids=["usual beats", "rare beats"])
def test_an_attempt_goes_after_its_line_is_on_disk(beats: dict[str, float], settings: Settings, tmp_path: Path) -> None:
    launcher = Instant("n1", "n2", "n3")
    launcher.beat_seconds = beats.get("beat_seconds", 1.0)

    def check_start(task: Task) -> None:
        assert read_sealed(task.folder / "attempt.json") == {"attempt": task.attempt, **beats}
        assert (task.folder / "config.json").is_file()
        assert task.trial in {event.trial for event in events_of(tmp_path / "c", Proposed)}

    def check_go(task: Task) -> None:
        lines = {(event.trial, event.attempt) for event in events_of(tmp_path / "c", Launched)}
        assert (task.trial, task.attempt) in lines
        launcher.succeed(task)

    launcher.on_start, launcher.on_go = check_start, check_go
    assert run_search(settings(), tmp_path / "c", launcher=launcher).status == "finished"
    assert {task.trial for task in launcher.tasks} == set(range(9))
    proposed = [event.trial for event in events_of(tmp_path / "c", Proposed)]
    assert proposed == list(range(9)), "in the order of the trials"


@pytest.mark.parametrize(("sizes", "told"), [((1, 3), True), (1, False)], ids=["sizes that change", "one size"])
def test_the_scheduler_is_told_how_far_attempts_have_come_where_they_can_change_their_size(
    sizes: Any, told: bool, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydragnn.hpo.launching.progress.FIRST_LOOK", 0.02)
    monkeypatch.setattr("hydragnn.hpo.launching.progress.BEATS_BEFORE", 0)
    launcher = Instant("n1", "n2", "n3")

    def takes_its_time(task: Task) -> None:
        (task.folder / "heartbeat").write_text(f"1795288000 {task.attempt} 0.5\n")
        threading.Timer(0.3, launcher.succeed, [task]).start()

    launcher.on_go = takes_its_time
    out = tmp_path / "c"
    assert run_search(settings(nodes_per_trial=sizes, trials=3), out, launcher=launcher).status == "finished"
    shown = events_of(out, Progressed)
    assert bool(shown) == told and {event.epochs for event in shown} <= {0.5}
    with pytest.raises(InputError, match=r"nodes_per_trial = 4, but the allocation has 3 node\(s\)"):
        run_search(settings(nodes_per_trial=4), tmp_path / "larger", launcher=launcher)
    assert not (tmp_path / "larger").exists()


def test_a_slow_sampler_delays_no_event(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydragnn.hpo.sampling import proposals

    out, launcher = tmp_path / "c", Instant("n1", "n2")
    patient: list[bool] = []
    happened = threading.Event()

    class Slow(sampler.RandomSampler):
        def propose(self, history: sampler.History, number: int) -> Any:
            if (number, history.draw) == (1, 0):  # the second trial's: until some trial's result is on disk
                patient.append(happened.wait(timeout=60))
            return super().propose(history, number)

    def watch(state: Any, event: Event, seconds: float) -> None:
        if isinstance(event, Reached):
            happened.set()

    monkeypatch.setitem(sampler.SAMPLERS, "random", Slow)
    monkeypatch.setattr(proposals, "PATIENCE", 0.3)
    run_search(settings(sampler="random", rungs=[]), out, launcher=launcher, on_event=watch)
    assert patient == [True]
    proposed = events_of(out, Proposed)
    assert [event.origin for event in proposed[:2]] == ["stand-in"] * 2
    assert campaign_status(out).stand_ins == sum(event.origin == "stand-in" for event in proposed)
    assert "sampler" in {event.origin for event in proposed}
    assert len({json.dumps(event.values) for event in proposed}) == 9


def test_one_worker_asks_with_all_history(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ``json.py`` where the search is started, a stranger's for example, is not run."""
    (tmp_path / "json.py").write_text("import pathlib; pathlib.Path('ran').touch(); raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    campaign, before, expected = settings(sampler="tpe"), [State()], dict[int, Any]()

    def watch(state: State, event: Event, seconds: float) -> None:
        if isinstance(event, Proposed):
            known = {point_key(trial.values) for trial in before[0].trials.values() if trial.values}
            history = history_of(campaign, space_of(campaign.search.space), before[0])
            (expected[event.trial],) = proposals(campaign, history, event.trial, 1, known)
        before[0] = copy.deepcopy(state)

    run_search(campaign, tmp_path / "c", launcher=Instant("n1"), on_event=watch)
    proposed = events_of(tmp_path / "c", Proposed)
    assert {event.trial: event.values for event in proposed} == expected
    assert {event.origin for event in proposed} == {"sampler"}
    assert (tmp_path / "c" / "sampler.log").exists(), "results enough to learn from, so that a process was asked"
    assert not (tmp_path / "ran").exists()


def test_new_trials_carry_the_cost_that_the_campaign_has_learned(settings: Settings, tmp_path: Path) -> None:
    space = {"model.hidden_dim": {"type": "int", "low": 8, "high": 128}}
    run_search(settings(trials=12, space=space, sampler="random"), tmp_path / "c", launcher=Instant("n1"))
    first, *_, last = events_of(tmp_path / "c", Proposed)
    assert first.work is None
    assert last.work == pytest.approx(last.values["model.hidden_dim"], rel=0.2)


def test_a_node_that_loses_an_attempt_is_probed_and_the_sampler_is_not_told(settings: Settings, tmp_path: Path) -> None:
    launcher = Instant("n1", "n2", "n3")

    def first_is_lost(task: Task) -> None:
        if (task.trial, task.attempt) == (0, 1):
            launcher.reports.append(Exit(task=task, code=-9, hung=True, suspects=task.slots, message="no heartbeat"))
        else:
            launcher.succeed(task)

    launcher.on_go = first_is_lost
    run_search(settings(), tmp_path / "c", launcher=launcher)
    (failed,) = events_of(tmp_path / "c", Failed)
    (lost,) = [task for task in launcher.tasks if (task.trial, task.attempt) == (0, 1)]
    assert (failed.kind, failed.message, failed.suspects) == ("lost_node", "no heartbeat", lost.slots)
    assert launcher.probes == list(lost.slots)
    assert all(trial.failure is None for trial in campaign_history(tmp_path / "c").trials)


def test_no_trial_on_a_full_disk_is_lost(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Instant("n1")

    def disk_is_full(path: Path, data: bytes) -> None:
        assert path.parent.name == "0002" and len(data) == controller.ROOM
        raise InputError(f"cannot write {path}: No space left on device")

    launcher.on_go = lambda task: (
        launcher.reports.append(Exit(task=task, code=1)) if task.trial == 2 else launcher.succeed(task)
    )
    with monkeypatch.context() as patch, pytest.raises(InputError, match=r"0002.*No space.*--resume"):
        patch.setattr(controller, "write_atomically", disk_is_full)
        run_search(settings(), tmp_path / "c", launcher=launcher)
    result = run_search(settings(), tmp_path / "c", resume=True, launcher=Instant("n1"))
    assert (result.status, result.trials["failed"] + result.trials["lost"], sum(result.trials.values())) == (
        "finished",
        0,
        9,
    )


class ByHand(Executor):
    """An executor whose work is done when a test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, lambda: fn(*args, **kwargs)))
        return future

    def do(self) -> None:
        for future, work in self.work:
            future.set_result(work())
        self.work = []


def test_an_attempt_that_is_cancelled_while_its_folder_is_made_ready_never_starts(tmp_path: Path) -> None:
    class Config:
        def to_json(self) -> dict[str, Any]:
            return {}

    launcher, files = Instant("n1", "n2"), ByHand()
    queue = LaunchQueue(launcher, lambda number: Config(), files)  # type: ignore[arg-type, return-value]
    tasks = [Task(trial=n, attempt=1, until=1, folder=tmp_path / str(n), slots=(f"n{n}",)) for n in (1, 2, 3)]
    for task in tasks[:2]:
        queue.add(task)
    queue.work(time.monotonic() + 0.5)
    queue.add(tasks[2])
    assert [queue.withdraw(number) for number in (1, 3, 4)] == [True, True, False]
    assert [end.task.trial for end in queue.withdrawals()] == [3]
    files.do()
    queue.work(time.monotonic() + 60.0)
    assert [task.trial for task in launcher.tasks] == [2]
    assert [end.task.trial for end in queue.withdrawals()] == [1], "its folder is left alone now"
    assert not queue.busy


class Sleeper(Instant):
    """Waits for nothing but its bell and its reports, however long it may."""

    def __init__(self, *slots: str) -> None:
        super().__init__(*slots)
        self.thinks, self.waits, self.woken = threading.Event(), list[float](), threading.Event()
        self.wake = self.woken.set

    def poll(self, seconds: float) -> list[Report]:
        self.waits.append(seconds)
        if seconds > 0.0 and not self.reports:
            self.thinks.set()
            assert self.woken.wait(240.0), "nothing would have woken the controller"
        self.woken.clear()
        return super().poll(0.0)


def test_the_controller_sleeps_meanwhile(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, made = Sleeper("n1"), list[int]()

    def think(settings: Any, history: Any, first: int, count: int, known: Any) -> Any:
        launcher.thinks.wait()
        launcher.thinks.clear()
        made.append(first)
        return proposals(settings, history, first, count, known)

    monkeypatch.setattr("hydragnn.hpo.controller.HEARTBEAT", 1e6)
    monkeypatch.setattr("hydragnn.hpo.sampling.proposals.proposals", think)
    result = run_search(settings(trials=5, sampler="random"), tmp_path / "c", launcher=launcher)
    assert result.status == "finished" and made == [0, 1, 2, 3, 4]
    turns = [sum(wait > 0.0 for wait in launcher.waits), len(launcher.waits)]
    assert turns[0] >= len(made) and turns[1] <= 12 * len(made), "it turned about a hundred times a second before"


def test_the_clock_does_not_jump_with_the_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time()
    clock = steady_clock()
    first = clock()
    monkeypatch.setattr(time, "time", lambda: before - 86400.0)
    second = clock()
    monkeypatch.setattr(time, "time", lambda: before + 86400.0)
    third = clock()
    assert before <= first <= second <= third < before + 3600


ASKED = ("open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir", "os.truncate")
"""What Python says of the operations that a file system has to answer."""
OF_A_LOOK = 3
"""In the controller's own thread: the lines of the journal, their flush, and a look whether another controller wrote before them."""


class Waves(Instant):
    """Whatever runs ends together, at the next look."""

    def __init__(self, *slots: str) -> None:
        super().__init__(*slots)
        self.running: list[Task] = []
        self.on_go = self.running.append

    def poll(self, seconds: float) -> list[Report]:
        if not any(isinstance(report, Begun) for report in self.reports):
            for task in self.running:
                self.succeed(task)
            self.running.clear()
        return super().poll(seconds)


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Reports of each look of the controller, and operations on files in its own thread."""
    looks, handle, thread = list[tuple[int, int]](), Controller.handle, threading.local()

    def note(event: str = "", given: tuple[object, ...] = ()) -> None:
        if hasattr(thread, "count") and (not event or (event in ASKED and str(tmp_path) in str(given[:1]))):
            thread.count += 1

    def noted(inner: Callable[..., object]) -> Callable[..., object]:
        return lambda *given: note() or inner(*given)

    def look(one: Controller, reports: list[Report]) -> None:
        thread.count = 0
        handle(one, reports)
        looks.append((len(reports), thread.__dict__.pop("count")))

    sys.addaudithook(note)
    for name in ("write", "fsync"):
        monkeypatch.setattr(journal.os, name, noted(getattr(os, name)))
    monkeypatch.setattr(Controller, "handle", look)
    return looks


@pytest.mark.parametrize("slots", [1, 64])
def test_few_operations_per_look(slots: int, settings: Settings, looks: list[tuple[int, int]], tmp_path: Path) -> None:
    campaign = settings(trials=max(4, slots), sampler="random")
    launcher = Waves(*(f"n{number}" for number in range(slots)))
    assert run_search(campaign, tmp_path / "c", launcher=launcher).status == "finished"
    assert max(reports for reports, _ in looks) >= slots // 2
    assert 0 < max(own for _, own in looks) <= OF_A_LOOK


class AtOnce(ByHand):
    """An executor that does everything at once, or nothing while it holds."""

    holds = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if not self.holds:
            self.do()
        return future


class Looks:
    """Heartbeats of attempts, and what is found when so many seconds have passed."""

    def __init__(self, folder: Path, *attempts: tuple[int, int], **beats: float) -> None:
        self.folder, self.now, self.files = folder, 0.0, AtOnce()
        self.progress = AttemptProgress(lambda trial: folder / str(trial), self.files, clock=lambda: self.now, **beats)
        for event in (Tick(), *(Launched(trial=trial, attempt=attempt, identity={}) for trial, attempt in attempts)):
            self.progress.follow(event)

    def beat(self, trial: int, attempt: int, epochs: float) -> None:
        (self.folder / str(trial)).mkdir(exist_ok=True)
        (self.folder / str(trial) / "heartbeat").write_text(f"1795288000 {attempt} {epochs}\n")

    def changes(self, now: float, over: Sequence[int] = ()) -> list[tuple[int, int, float]]:
        self.now = now
        changes = self.progress.changes(lambda trial, attempt: trial not in over)
        return [(event.trial, event.attempt, event.epochs) for event in changes]


@pytest.mark.parametrize(
    ("beats", "seconds"),
    [({}, [60, 120, 240, 480, 780]), ({"beat_seconds": 50.0}, [200, 400, 700])],
    ids=["after a minute and then ever more seldom", "later where hearts beat rarely"],
)
def test_an_attempt_is_looked_at(beats: dict[str, float], seconds: list[int], tmp_path: Path) -> None:
    looks, found = Looks(tmp_path, (4, 2), **beats), []
    for second in range(0, 1000, 10):
        looks.beat(4, 2, second / 100)
        found += [(second, change) for change in looks.changes(second)]
    assert found == [(second, (4, 2, second / 100)) for second in seconds]


def test_attempts_that_are_over_are_no_news_and_a_slow_file_system_holds_up_nobody(tmp_path: Path) -> None:
    looks = Looks(tmp_path, (0, 1), (1, 5), (2, 1))
    looks.beat(0, 1, 3.0)
    looks.beat(1, 4, 3.0)
    assert looks.changes(60.0, over=[0]) == []
    looks.beat(1, 5, 0.5)
    looks.beat(2, 1, 0.25)
    looks.files.holds = True
    assert looks.changes(120.0) == []
    looks.files.do()
    assert looks.changes(120.0) == [(1, 5, 0.5), (2, 1, 0.25)]
    assert looks.changes(120.0) == []
