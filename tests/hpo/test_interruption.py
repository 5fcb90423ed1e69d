"""Campaigns that are killed, interrupted or out of means: nothing is lost, and a resume goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from campaigns import Launchers, Search, Settings, course, environment, read_journal, weights_of

from hydragnn.hpo import LocalLauncher, State, campaign_history, campaign_records, run_search
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Reached
from tests.forked import Forked
from tests.nolock import without_locks

PATIENCE = 240.0  # seconds for what a loaded machine does within ten


DRIVER = """
import json, resource, sys
from pathlib import Path
from hydragnn.base.errors import TakenOver
from hydragnn.hpo import CampaignView, LocalLauncher, campaign_settings, run_search
table, environment, out, workers = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
largest = int(sys.argv[5])
if largest:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
LocalLauncher.module, LocalLauncher.variables = "fake.training", {**LocalLauncher.variables, **environment}
launcher = LocalLauncher(workers)
settings = campaign_settings(table, out.parent / "CAMPAIGN.toml")
try:
    print(run_search(settings, out, resume=True, launcher=launcher, on_event=CampaignView(out)).status)
except TakenOver as error:
    print(error)
    sys.exit(error.code)
"""


@pytest.fixture
def driver(table: dict[str, Any], tmp_path: Path) -> Callable[..., Forked]:
    """Starts a controller in a process of its own."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)

    def start(
        out: Path,
        workers: int,
        pause: float,
        largest_file: int = 0,
        without: dict[str, str] | None = None,
        **search: Any,
    ) -> Any:
        table["search"] |= {"sampler": "random", **search}
        settings = environment(pause, "")
        words = [str(script), json.dumps(table), json.dumps(settings), str(out), str(workers), str(largest_file)]
        variables = {**os.environ, "PYTHONPATH": settings["PYTHONPATH"]}
        if not without:
            return Forked(words, variables)
        command = [sys.executable, *words]
        return subprocess.Popen(
            command, env={**variables, **without}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start


def lines_of(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [{"sampler": "tpe"}, {"objective": ["valid/loss", {"of": "cost/parameters", "at_most": 9000.0}]}]
)
def test_a_controller_killed_again_and_again_loses_nothing(
    search: Search, driver: Any, tmp_path: Path, asked: dict[str, Any]
) -> None:
    asked = {"sampler": "auto", **asked}
    out = tmp_path / "killed"
    for more in (0, 7):
        before = lines_of(out / "journal.jsonl")
        process = driver(out, 1, pause=0.15, **asked)
        while lines_of(out / "journal.jsonl") < before + more:
            time.sleep(0.01)
            assert process.poll() is None, "the search ended before it was killed"
        workers = psutil.Process(process.pid).children()
        attempts = [attempt for worker in workers for attempt in worker.children(recursive=True)]
        process.kill()
        assert process.wait() == -signal.SIGKILL
        _, alive = psutil.wait_procs(attempts, timeout=PATIENCE)
        assert not alive, "an attempt outlived its controller"
    result = search(out, resume=True, **asked)
    assert result.status == "finished"
    assert [number for number, _, _ in campaign_records(out)] == list(range(9))
    search("undisturbed", **asked)
    assert course(out) == course(tmp_path / "undisturbed")
    assert weights_of(out) == weights_of(tmp_path / "undisturbed")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGUSR1])
def test_an_interrupted_search_saves_trials(search: Search, driver: Any, tmp_path: Path, kind: signal.Signals) -> None:
    out = tmp_path / "c"
    process = driver(out, 2, pause=1.0)
    while not list(out.glob("trials/*/record.json")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(kind)
    text, _ = process.communicate(timeout=PATIENCE)
    lines = text.splitlines()
    assert lines[-1] == "stopped"
    (sentence,) = [line for line in lines if line.startswith(kind.name)]
    assert sentence.endswith(("trial(s) save their state", "no trial is running"))
    history = campaign_history(out)
    assert history.ending == "stopped"
    assert all(trial.failure is None or trial.failure.kind == "preempted" for trial in history.trials)
    assert search(out, resume=True, workers=2).status == "finished"


def test_a_second_interrupt_changes_nothing(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    close = LocalLauncher.close

    def interrupted(launcher: LocalLauncher) -> None:
        signal.raise_signal(signal.SIGINT)
        close(launcher)

    monkeypatch.setattr(LocalLauncher, "close", interrupted)
    result = search("c", trials=2)
    assert result.status == "finished"


def test_deaf_attempts_are_killed(search: Search, settings: Settings, fake_launcher: Launchers, tmp_path: Path) -> None:
    out = tmp_path / "c"

    def stop_once_it_is_deaf(state: State, event: Event, seconds: float) -> None:
        if list(out.glob("trials/*/deaf")) and state.ending is None:
            os.kill(os.getpid(), signal.SIGUSR1)

    launcher = fake_launcher(2, fault="all deaf")
    result = run_search(settings(grace_seconds=2.0), out, launcher=launcher, on_event=stop_once_it_is_deaf)
    assert result.status == "stopped"
    assert {trial.status for trial in campaign_history(out).trials} == {"waiting"}
    assert search(out, resume=True).status == "finished"


def test_a_killed_worker_takes_its_attempt_and_the_trial_goes_on(driver: Any, tmp_path: Path, undisturbed: Any) -> None:
    out = tmp_path / "c"
    process = driver(out, 1, pause=1.0)
    workers: list[psutil.Process] = []
    attempts: list[psutil.Process] = []
    while not attempts:  # the first one has just begun, with at least a second to go
        time.sleep(0.02)
        workers = psutil.Process(process.pid).children()
        attempts = workers[0].children() if workers else []
    (worker,), (attempt,) = workers, attempts
    worker.kill()
    attempt.wait(timeout=PATIENCE)
    (out / "hurry").touch()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert (course(out), weights_of(out)) == undisturbed
    failures = [event for _, event in read_journal(out / "journal.jsonl") if isinstance(event, Failed)]
    assert [failure.kind for failure in failures] == ["preempted"]


def test_a_full_disk_stops_a_search_without_loss(search: Search, driver: Any, tmp_path: Path, undisturbed: Any) -> None:
    out = tmp_path / "c"
    process = driver(out, 1, pause=0.0, largest_file=4000)
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.search(r"InputError: cannot write .*free space.*--resume", text)
    assert len(campaign_history(out).trials) < 9
    search(out, resume=True)
    assert (course(out), weights_of(out)) == undisturbed


def test_of_two_controllers_without_locks_one_leaves_and_nothing_is_lost(driver: Any, tmp_path: Path) -> None:
    """The first one is stopped until the second is at work."""
    out = tmp_path / "c"
    first = driver(out, 2, pause=1.0, without=without_locks(37))
    while not list(out.glob("trials/*/record.json")):
        time.sleep(0.02)
    first.send_signal(signal.SIGSTOP)
    second = driver(out, 2, pause=1.0, without=without_locks(37))
    while sum(isinstance(event, Opened) for _, event in read_journal(out / "journal.jsonl")) < 2:
        time.sleep(0.02)
    first.send_signal(signal.SIGCONT)
    first.wait(PATIENCE)
    (out / "hurry").touch()
    texts = [process.communicate(timeout=PATIENCE)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (4, 0), texts
    assert "goes on with this search since" in texts[0]
    assert {trial.status for trial in campaign_history(out).trials} == {"finished", "paused"}
    reached = [(e.trial, e.epochs) for _, e in read_journal(out / "journal.jsonl") if isinstance(e, Reached)]
    assert len(reached) == len(set(reached)), "a segment was passed twice"


def test_attempts_of_a_dead_controller_are_ended_before_new_ones_start(fake_launcher: Launchers) -> None:
    import socket

    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        start_new_session=True,
        env={**os.environ, "HYDRAGNN_CAMPAIGN": "c0ffee00"},
    )
    reaper = threading.Thread(target=orphan.wait)
    reaper.start()
    identity = {"host": socket.gethostname(), "pid": orphan.pid, "created": psutil.Process(orphan.pid).create_time()}
    launcher = fake_launcher()
    launcher.recover(
        "c0ffee00", [{**identity, "created": identity["created"] - 100}, {**identity, "host": "elsewhere"}]
    )
    assert orphan.poll() is None, "another process with the same number is left alone"
    launcher.recover("decaf000", [identity])
    launcher.recover("", [identity, {**identity, "pid": None}, {**identity, "pid": -1}])
    assert orphan.poll() is None, (
        "what another campaign started, or nobody knows who, is left alone whatever a journal says"
    )
    launcher.recover("c0ffee00", [identity])
    reaper.join(timeout=PATIENCE)
    assert orphan.returncode == -signal.SIGKILL
