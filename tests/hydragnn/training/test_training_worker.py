"""The worker process: what its exit code and its record say."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.record import read_record
from tests.forked import Forked
from tests.hydragnn.training.conftest import MPIRUN, TORCHRUN, Configs, Process, Trained, needs_mpirun

RunFolder = Callable[..., tuple[RunConfig, Path]]
Work = Callable[..., tuple[int, str]]


@pytest.fixture
def run_folder(stored: Path, make_config: Configs, tmp_path: Path) -> RunFolder:
    """Makes a run folder that holds config.json only, as a search leaves it for its workers."""

    def make(**changes: Any) -> tuple[RunConfig, Path]:
        config = make_config(**{"data__store": str(stored), **changes})
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config.to_json()))
        return config, folder

    return make


@pytest.fixture
def start(environment: dict[str, str]) -> Callable[..., Process]:
    """Starts ``python -m hydragnn.runs.run``, alone or behind a launcher command."""

    def begin(folder: Path, *options: str, launcher: list[str] | None = None) -> Process:
        words = ["-m", "hydragnn.runs.run", str(folder), *options]
        if launcher is None:
            return Forked(words, environment)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*launcher, *words], env=environment, start_new_session=True, **pipes)

    return begin


def code_and_output(process: Process) -> tuple[int, str]:
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


@pytest.fixture
def work(start: Callable[..., Process]) -> Work:
    """Gives the exit code and the output of a worker."""
    return lambda *words, **options: code_and_output(start(*words, **options))


def test_segments_of_a_worker_end_paused_then_finished_like_one_run(
    store: MemoryStore, run_folder: RunFolder, work: Work, trained: Trained
) -> None:
    config, folder = run_folder()
    code, output = work(folder, "--until", "1")
    assert code == 0 and read_record(folder).status == "paused", output
    assert "paused after 1 epochs" in output
    code, output = work(folder)
    record = read_record(folder)
    assert code == 0 and record.status == "finished", output
    assert record.curves == trained("whole", config).curves
    assert record.data_hash == store.fingerprint


@pytest.mark.parametrize(("launcher", "codes"), [(None, {3}), (TORCHRUN, {1, 3})], ids=["alone", "two ranks"])
def test_a_diverged_run_says_so_in_its_exit_code_and_its_record(
    launcher: list[str] | None, codes: set[int], run_folder: RunFolder, work: Work
) -> None:
    _, folder = run_folder(train__learning_rate=1e200, train__clip_norm=0, train__optimizer="sgd")
    code, output = work(folder, launcher=launcher)
    record = read_record(folder)
    assert code in codes and record.status == "failed" and record.failure.kind == "diverged", output
    assert "lower the learning rate" in record.failure.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"heads__0__field": "enrgy"}, "did you mean energy"), ({"data__store": "/nowhere.h5"}, "nowhere.h5")],
)
def test_bad_input_exits_with_2_in_one_sentence_and_is_recorded_as_configuration(
    changes: dict[str, Any], words: str, run_folder: RunFolder, work: Work
) -> None:
    _, folder = run_folder(**changes)
    code, output = work(folder)
    failure = read_record(folder).failure
    assert code == 2 and words in output and "Traceback" not in output
    assert failure.kind == "configuration" and words in failure.message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])
def test_a_signal_pauses_a_worker_and_it_goes_on_with_the_same_bits(
    number: signal.Signals, run_folder: RunFolder, start: Callable[..., Process], trained: Trained
) -> None:
    config, folder = run_folder(train__epochs=4000, train__patience=0)
    process = start(folder)
    while process.poll() is None and not (folder / "checkpoints" / "latest.json").exists():
        time.sleep(0.01)
    process.send_signal(number)
    code, output = code_and_output(process)
    record = read_record(folder)
    assert code == 0 and record.status == "paused", output
    assert "stopped after step" in output
    until = record.epochs + 2
    again, whole = (trained(name, config, until=until, resume=name == "run") for name in ("run", "whole"))
    assert again.curves == whole.curves


def test_a_folder_without_configuration_exits_with_2(work: Work, tmp_path: Path) -> None:
    code, output = work(tmp_path)
    assert code == 2 and "config.json does not exist" in output


def test_another_number_of_ranks_than_asked_for_is_a_failed_launch(run_folder: RunFolder, work: Work) -> None:
    _, folder = run_folder()
    (folder / "attempt.json").write_text('{"attempt": 5}')
    code, output = work(folder, "--ranks", "2", "--attempt", "5")
    record = read_record(folder)
    assert code == 3 and "Traceback" not in output and (record.status, record.attempt) == ("failed", 5)
    assert record.failure.kind == "launch" and "2 ranks were asked for, but this process is one of 1" in output
    code, output = work(folder, "--ranks", "1", "--attempt", "5")
    assert code == 0 and read_record(folder).status == "finished" and read_record(folder).failure is None, output


def test_a_failure_of_a_fenced_worker_is_not_recorded(run_folder: RunFolder, work: Work) -> None:
    _, folder = run_folder(heads__0__field="enrgy")
    (folder / "attempt.json").write_text('{"attempt": 6}')
    code, output = work(folder, "--ranks", "2", "--attempt", "5")
    assert code == 4 and "belongs to attempt 6 now" in output
    assert sorted(path.name for path in folder.iterdir()) == ["attempt.json", "config.json"]


@needs_mpirun
def test_two_ranks_leave_cleanly_with_exit_code_0(run_folder: RunFolder, work: Work) -> None:
    _, folder = run_folder()
    code, output = work(folder, launcher=MPIRUN)
    record = read_record(folder)
    assert code == 0 and record.status == "finished" and record.cost.ranks == 2 and record.cost.nodes == 1, output
    assert output.count("finished after 3 epochs") == 1 and "terminate called" not in output
