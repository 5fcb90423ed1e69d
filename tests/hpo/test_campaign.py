"""Whole campaigns with attempts in real processes: determinism, faults, interruption, resumption."""

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

from hydragnn.errors import InputError
from hydragnn.hpo import (
    CampaignSettings,
    LocalLauncher,
    State,
    campaign_history,
    campaign_records,
    parameter_importance,
    run_search,
)
from hydragnn.hpo.journal import Journal, read_journal
from hydragnn.hpo.scheduling.events import Event, Failed

Settings = Callable[..., CampaignSettings]
Launchers = Callable[..., LocalLauncher]
Weights = Callable[[Path], dict[str, Any]]


def course(out: Path) -> list[tuple[Any, ...]]:
    """What a campaign did, without times and attempts."""
    return [(t.number, t.status, t.values, t.rungs) for t in campaign_history(out).trials]


def test_one_worker_gives_the_same_campaign_twice(
    settings: Settings, fake_launcher: Launchers, weights_of: Weights, tmp_path: Path
) -> None:
    results = [run_search(settings(), tmp_path / name, launcher=fake_launcher()) for name in ("a", "b")]
    assert results[0].ending == "finished"
    assert course(tmp_path / "a") == course(tmp_path / "b")
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")
    finished = [t for t in course(tmp_path / "a") if t[1] == "finished"]
    assert len(finished) == results[0].finished >= 2
    assert results[0].best_value == min(v for t in course(tmp_path / "a") for v in t[3].values())


def test_several_workers_try_everything_once(settings: Settings, fake_launcher: Launchers, tmp_path: Path) -> None:
    result = run_search(settings(), tmp_path / "c", launcher=fake_launcher(workers=3))
    assert result.trials == 9
    records = campaign_records(tmp_path / "c")
    assert [number for number, _, _ in records] == list(range(9))
    assert {record.status for _, record, _ in records} == {"paused", "finished"}
    assert len({record.seed for _, record, _ in records}) == 9


def test_failures_of_configurations_are_kept_and_the_rest_goes_on(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    result = run_search(settings(), tmp_path / "c", launcher=fake_launcher(fault="diverged"))
    assert result.failed == 3
    failed = [trial for trial in campaign_history(tmp_path / "c").trials if trial.status == "failed"]
    assert [trial.number for trial in failed] == [1, 4, 7]
    assert {trial.failure for trial in failed} == {"diverged: as planned"}
    assert all(trial.attempts == 1 for trial in failed)


def test_a_process_killed_from_outside_is_retried_from_its_last_state(
    settings: Settings, fake_launcher: Launchers, weights_of: Weights, tmp_path: Path
) -> None:
    result = run_search(settings(), tmp_path / "c", launcher=fake_launcher(fault="kill once"))
    run_search(settings(), tmp_path / "d", launcher=fake_launcher())
    assert result.failed == 0
    assert course(tmp_path / "c") == course(tmp_path / "d")
    assert weights_of(tmp_path / "c") == weights_of(tmp_path / "d")


def test_a_process_that_hangs_is_killed_and_its_trial_goes_on(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    launcher = fake_launcher(fault="hang once", hang_seconds=10.0)
    result = run_search(settings(trials=2, rungs=[], finalists=0), tmp_path / "c", launcher=launcher)
    assert (result.finished, result.failed) == (2, 0)
    failures = [event for _, event in read_journal(tmp_path / "c" / "journal.jsonl") if isinstance(event, Failed)]
    assert [(event.kind, event.message) for event in failures] == [("lost_node", "no heartbeat for 0.167 minutes")]


def test_when_everything_fails_the_reason_is_told_early(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="all 5 trials failed; trial 0: configuration: as planned"):
        run_search(settings(trials=40), tmp_path / "c", launcher=fake_launcher(fault="all configuration"))
    with pytest.raises(InputError, match=r"(?s)launch: exit code 9 without a result.*something is broken"):
        run_search(settings(trials=2, retries=1), tmp_path / "d", launcher=fake_launcher(fault="all crash"))


def test_a_trial_that_takes_too_long_fails_as_timeout(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="timeout"):
        run_search(
            settings(trials=1, rungs=[], timeout_minutes=0.02), tmp_path / "c", launcher=fake_launcher(pause=0.7)
        )


def test_a_finished_campaign_resumed_gives_its_result_and_can_be_extended(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    first = run_search(settings(), tmp_path / "c", launcher=fake_launcher())
    again = run_search(settings(), tmp_path / "c", launcher=fake_launcher(), resume=True)
    assert (again.trials, again.best_value) == (first.trials, first.best_value)
    places = {"launcher": "local", "nodes_per_trial": [1, 4], "max_node_hours": 9.0, "grace_seconds": 5.0}
    more = run_search(settings(trials=12, **places), tmp_path / "c", launcher=fake_launcher(), resume=True)
    assert more.trials == 12


def test_a_folder_is_not_taken_over(settings: Settings, fake_launcher: Launchers, tmp_path: Path) -> None:
    out = tmp_path / "c"
    run_search(settings(trials=1, rungs=[]), out, launcher=fake_launcher())
    with pytest.raises(InputError, match="--resume"):
        run_search(settings(trials=1, rungs=[]), out)
    with pytest.raises(InputError, match=r"search.reduction differs"):
        run_search(settings(trials=1, rungs=[], reduction=4), out, resume=True)
    with Journal(out / "journal.jsonl"), pytest.raises(InputError, match="another search runs"):
        run_search(settings(trials=1, rungs=[]), out, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not a campaign"):
        run_search(settings(), tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rungs": [1, 6]}, "below it"),
        ({"objective": "valid/energi/mae"}, "not recorded"),
        ({"objective": {"dipole": 1.0}}, "no head predicts dipole"),
        ({"warm_start": ["nowhere"]}, "neither a campaign"),
        ({"nodes_per_trial": [3, 2]}, r"nodes_per_trial = \(3, 2\); give the smallest"),
        ({"nodes_per_trial": 0}, "at least 1"),
        ({"nodes_per_trial": 2, "trials_per_node": 4}, "keep one of them at 1"),
        ({"nodes_per_trial": 2}, "a trial on this machine is one process"),
        ({"launcher": "slurm"}, 'launcher = "slurm", but this is no allocation'),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings: Settings, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_search(settings(**change), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_field_that_the_store_does_not_have_is_named(
    settings: Settings, table: dict[str, Any], tmp_path: Path
) -> None:
    table["heads"] = [{"field": "enthalpy"}]
    with pytest.raises(InputError, match=r"no field enthalpy; it has .*energy"):
        run_search(settings(), tmp_path / "c")


def test_the_best_of_an_earlier_campaign_are_tried_first(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    run_search(settings(), tmp_path / "a", launcher=fake_launcher())
    run_search(settings(warm_start=["a"], seed=8), tmp_path / "b", launcher=fake_launcher())
    before = min(campaign_history(tmp_path / "a").trials, key=lambda trial: trial.value or 9.0)
    after = campaign_history(tmp_path / "b").trials
    assert after[0].values == before.values
    assert [trial.origin for trial in after] == ["warm start"] * 2 + ["sampler"] * 7


def test_a_deephyper_file_is_a_warm_start(settings: Settings, fake_launcher: Launchers, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(
        "p:hidden_dim,p:train.learning_rate,p:other,objective,job_id\n"
        "16,0.01,x,-3.0,0\n64,0.001,x,-1.0,1\n64,0.001,x,F_diverged,2\n999,0.001,x,-0.1,3\n"
    )
    run_search(settings(warm_start=["results.csv"], trials=8), tmp_path / "c", launcher=fake_launcher())
    best, second = campaign_history(tmp_path / "c").trials[:2]
    assert best.values == {"model.hidden_dim": 64, "train.learning_rate": 0.001}
    assert second.values == {"model.hidden_dim": 16, "train.learning_rate": 0.01}


def test_importance_finds_the_parameter_that_matters(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    space = {
        "train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
        "train.weight_decay": {"type": "float", "low": 0.0, "high": 0.1},
    }
    run_search(
        settings(sampler="qmc", space=space, trials=16, rungs=[]),
        tmp_path / "c",
        launcher=fake_launcher(workers=2),
    )
    importance = parameter_importance(tmp_path / "c")
    assert next(iter(importance)) == "train.learning_rate"
    assert importance["train.learning_rate"] > 0.7
    assert sum(importance.values()) == pytest.approx(1.0)


def test_the_optuna_study_on_disk_says_what_the_journal_says(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    out = tmp_path / "c"
    run_search(settings(), out, launcher=fake_launcher(fault="diverged"))

    def stored() -> list[tuple[Any, ...]]:
        storage = JournalStorage(JournalFileBackend(str(out / "optuna.log")))
        study = optuna.load_study(study_name="c", storage=storage)
        return [(t.number, t.state.name, t.params, t.intermediate_values) for t in study.trials]

    names = {"finished": "COMPLETE", "paused": "PRUNED", "failed": "FAIL"}
    expected = [(number, names[status], values, rungs) for number, status, values, rungs in course(out)]
    assert stored() == expected
    run_search(settings(), out, launcher=fake_launcher(), resume=True)
    assert stored() == expected


DRIVER = """
import json, resource, sys
from pathlib import Path
from hydragnn.hpo import CampaignView, LocalLauncher, campaign_settings, run_search
table, environment, out, workers = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
largest = int(sys.argv[5])
if largest:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
launcher = LocalLauncher(workers, module="fake_training", environment=environment)
settings = campaign_settings(table, out.parent / "CAMPAIGN.toml")
print(run_search(settings, out, resume=True, launcher=launcher, on_event=CampaignView(out)).ending)
"""


@pytest.fixture
def driver(table: dict[str, Any], fake_launcher: Launchers, tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a controller in a process of its own."""
    fake_launcher()
    root = Path(__file__).resolve().parents[2]
    paths = f"{root}{os.pathsep}{tmp_path / 'modules'}"

    def start(out: Path, workers: int, pause: float, largest_file: int = 0) -> subprocess.Popen[bytes]:
        environment = {"PYTHONPATH": paths, "FAKE_PAUSE": str(pause), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", DRIVER, json.dumps(table), json.dumps(environment), str(out), str(workers)]
        return subprocess.Popen(
            [*command, str(largest_file)],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if largest_file else None,
        )

    return start


def lines_of(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def attempts_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [attempt for worker in psutil.Process(process.pid).children() for attempt in worker.children(recursive=True)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_controller_killed_again_and_again_loses_nothing(
    driver: Any, settings: Settings, fake_launcher: Launchers, weights_of: Weights, tmp_path: Path, workers: int
) -> None:
    out = tmp_path / "killed"
    for more in (0, 2, 5, 9, 6):
        before = lines_of(out / "journal.jsonl")
        process = driver(out, workers, pause=0.15)
        while lines_of(out / "journal.jsonl") < before + more:
            time.sleep(0.01)
            assert process.poll() is None, "the search ended before it was killed"
        attempts = attempts_of(process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        _, alive = psutil.wait_procs(attempts, timeout=60)
        assert not alive, "an attempt outlived its controller"
    result = run_search(settings(), out, resume=True, launcher=fake_launcher(workers))
    assert result.ending == "finished"
    assert [number for number, _, _ in campaign_records(out)] == list(range(9))
    run_search(settings(), tmp_path / "undisturbed", launcher=fake_launcher())
    if workers == 1:
        assert course(out) == course(tmp_path / "undisturbed")
        assert weights_of(out) == weights_of(tmp_path / "undisturbed")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupted_search_saves_its_trials_says_so_once_and_leaves(
    driver: Any, settings: Settings, fake_launcher: Launchers, tmp_path: Path, kind: signal.Signals
) -> None:
    out = tmp_path / "c"
    process = driver(out, 2, pause=1.0)
    while not list(out.glob("trials/*/record.json")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(kind)
    text, _ = process.communicate(timeout=60)
    lines = text.decode().splitlines()
    assert lines[-1] == "stopped"
    assert len([line for line in lines if line.endswith("save their state")]) == 1
    history = campaign_history(out)
    assert history.ending == "stopped"
    assert all(trial.failure is None or "preempted" in trial.failure for trial in history.trials)
    assert run_search(settings(), out, resume=True, launcher=fake_launcher(2)).ending == "finished"


def test_a_second_interrupt_while_the_search_tidies_up_changes_nothing(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = LocalLauncher.close

    def interrupted(launcher: LocalLauncher) -> None:
        signal.raise_signal(signal.SIGINT)
        close(launcher)

    monkeypatch.setattr(LocalLauncher, "close", interrupted)
    result = run_search(settings(trials=2), tmp_path / "c", launcher=fake_launcher())
    assert result.ending == "finished"


@pytest.mark.parametrize("limit", ["max_hours", "max_node_hours"])
def test_a_spent_budget_says_that_it_has_to_be_raised(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path, limit: str
) -> None:
    result = run_search(settings(**{limit: 1e-5}), tmp_path / "c", launcher=fake_launcher())
    assert result.summary()["ending"] == f"{limit} spent; raise it and continue with --resume"


def test_an_attempt_that_does_not_leave_is_killed_within_the_grace_period(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    out = tmp_path / "c"

    def stop_once_it_is_deaf(state: State, event: Event, seconds: float) -> None:
        if list(out.glob("trials/*/deaf")) and state.ending is None:
            os.kill(os.getpid(), signal.SIGUSR1)

    launcher = fake_launcher(2, fault="all deaf")
    result = run_search(settings(grace_seconds=2.0), out, launcher=launcher, on_event=stop_once_it_is_deaf)
    assert result.ending == "stopped"
    assert {trial.status for trial in campaign_history(out).trials} == {"waiting"}
    assert run_search(settings(), out, launcher=fake_launcher(), resume=True).ending == "finished"


def test_a_worker_that_is_killed_takes_its_attempt_with_it_and_the_trial_goes_on(
    driver: Any, settings: Settings, fake_launcher: Launchers, weights_of: Weights, tmp_path: Path
) -> None:
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
    attempt.wait(timeout=60)
    process.communicate(timeout=120)
    assert process.returncode == 0
    run_search(settings(), tmp_path / "undisturbed", launcher=fake_launcher())
    assert course(out) == course(tmp_path / "undisturbed")
    assert weights_of(out) == weights_of(tmp_path / "undisturbed")
    failures = [event for _, event in read_journal(out / "journal.jsonl") if isinstance(event, Failed)]
    assert [failure.kind for failure in failures] == ["preempted"]


def test_a_disk_that_takes_no_more_stops_the_search_with_a_sentence_and_nothing_is_lost(
    driver: Any, settings: Settings, fake_launcher: Launchers, weights_of: Weights, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    process = driver(out, 1, pause=0.0, largest_file=4000)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"InputError: cannot write .*free space.*--resume", text.decode())
    assert len(campaign_history(out).trials) < 9
    run_search(settings(), out, resume=True, launcher=fake_launcher())
    run_search(settings(), tmp_path / "undisturbed", launcher=fake_launcher())
    assert course(out) == course(tmp_path / "undisturbed")
    assert weights_of(out) == weights_of(tmp_path / "undisturbed")


def test_an_attempt_that_its_journal_never_knew_does_no_work(tmp_path: Path, fake_launcher: Launchers) -> None:
    from hydragnn.hpo import Task
    from hydragnn.hpo.launching.launcher import Begun

    launcher = fake_launcher()
    folder = tmp_path / "run"
    folder.mkdir()
    task = Task(trial=0, attempt=1, until=1, folder=folder, places=launcher.places)
    launcher.start(task)
    (report,) = launcher.poll(30.0)
    assert isinstance(report, Begun)
    assert report.task == task
    launcher.close()  # the controller ends between making the process and writing the line
    assert not (folder / "pids.txt").exists()


def test_attempts_of_a_dead_controller_are_ended_before_new_ones_start(fake_launcher: Launchers) -> None:
    import socket

    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    reaper = threading.Thread(target=orphan.wait)
    reaper.start()
    identity = {"host": socket.gethostname(), "pid": orphan.pid, "created": psutil.Process(orphan.pid).create_time()}
    launcher = fake_launcher()
    launcher.recover([{**identity, "created": identity["created"] - 100}, {**identity, "host": "elsewhere"}])
    assert orphan.poll() is None, "another process with the same number is left alone"
    launcher.recover([identity])
    reaper.join(timeout=5)
    assert orphan.returncode == -signal.SIGKILL
