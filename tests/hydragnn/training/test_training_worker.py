"""The worker process: its exit code and its record, also without its terminal."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.config import RunConfig
from hydragnn.record import read_record
from tests.hydragnn.training.conftest import STORE, TORCHRUN, Process, Trained, environment, make_config, start_process

RunFolder = Callable[..., tuple[RunConfig, Path]]


@pytest.fixture
def run_folder(stored: Path, tmp_path: Path) -> RunFolder:
    """Makes a run folder that holds config.json only, as a search leaves it for its workers."""

    def make(**changes: Any) -> tuple[RunConfig, Path]:
        config = make_config(**{"data__store": str(stored), **changes})
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config.to_json()))
        return config, folder

    return make


def start(folder: Path, *options: str, launcher: list[str] | None = None) -> Process:
    return start_process(["-m", "hydragnn.runs.run", str(folder), *options], environment(), launcher)


def work(folder: Path, *options: str, **launcher: Any) -> tuple[int, str]:
    process = start(folder, *options, **launcher)
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def test_segments_of_a_worker_end_paused_then_finished_like_one_run(run_folder: RunFolder, trained: Trained) -> None:
    config, folder = run_folder()
    code, output = work(folder, "--until", "1")
    assert code == 0 and read_record(folder).status == "paused", output
    assert "paused after 1 epochs" in output
    code, output = work(folder)
    record = read_record(folder)
    assert code == 0 and record.status == "finished", output
    assert record.curves == trained("whole", config).curves
    assert record.data_hash == STORE.fingerprint


@pytest.mark.parametrize(("launcher", "codes"), [(None, {3}), (TORCHRUN, {1, 3})], ids=["alone", "two ranks"])
def test_exit_code_and_record_say_diverged(launcher: list[str] | None, codes: set[int], run_folder: RunFolder) -> None:
    _, folder = run_folder(train__learning_rate=1e200, train__clip_norm=0, train__optimizer="sgd")
    code, output = work(folder, launcher=launcher)
    record = read_record(folder)
    assert code in codes and record.status == "failed" and record.failure.kind == "diverged", output
    assert "lower the learning rate" in record.failure.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"heads__0__field": "enrgy"}, "did you mean energy"), ({"data__store": "/nowhere.h5"}, "nowhere.h5")],
)
def test_bad_input_exits_with_2_and_is_recorded(changes: dict[str, Any], words: str, run_folder: RunFolder) -> None:
    _, folder = run_folder(**changes)
    code, output = work(folder)
    failure = read_record(folder).failure
    assert code == 2 and words in output and "Traceback" not in output
    assert failure.kind == "configuration" and words in failure.message
    (folder / "config.json").unlink()
    code, output = work(folder)
    assert code == 2 and "config.json does not exist" in output


def test_a_signal_pauses_a_worker_and_it_goes_on_with_the_same_bits(run_folder: RunFolder, trained: Trained) -> None:
    config, folder = run_folder(train__epochs=4000, train__patience=0)
    latest = folder / "checkpoints" / "latest.json"
    for number in (signal.SIGTERM, signal.SIGUSR1):
        before, process = latest.read_text() if latest.exists() else "", start(folder)
        while process.poll() is None and (not latest.exists() or latest.read_text() == before):
            time.sleep(0.01)
        process.send_signal(number)
        output, _ = process.communicate(timeout=600)
        record = read_record(folder)
        assert process.returncode == 0 and record.status == "paused", output
        assert "stopped after step" in output
    until = record.epochs + 2
    again, whole = (trained(name, config, until=until, resume=name == "run") for name in ("run", "whole"))
    assert again.curves == whole.curves


def test_another_number_of_ranks_than_asked_for_is_a_failed_launch(run_folder: RunFolder) -> None:
    _, folder = run_folder()
    (folder / "attempt.json").write_text('{"attempt": 5}')
    (folder / "attempt-5.log").write_text("")  # that its starter keeps
    code, output = work(folder, "--ranks", "2", "--attempt", "5")
    record = read_record(folder)
    assert code == 3 and "Traceback" not in output and (record.status, record.attempt) == ("failed", 5)
    assert record.failure.kind == "launch" and "2 ranks were asked for, but this process is one of 1" in output
    code, output = work(folder, "--ranks", "1", "--attempt", "5")
    assert code == 0 and read_record(folder).status == "finished" and read_record(folder).failure is None, output


def test_a_failure_of_a_fenced_worker_is_not_recorded(run_folder: RunFolder) -> None:
    _, folder = run_folder(heads__0__field="enrgy")
    (folder / "attempt.json").write_text('{"attempt": 6}')
    code, output = work(folder, "--ranks", "2", "--attempt", "5")
    assert code == 4 and "belongs to attempt 6 now" in output
    assert sorted(path.name for path in folder.iterdir()) == ["attempt.json", "config.json"]


PATIENCE = 240.0  # seconds for what a loaded machine does within ten
RUN = """
data.store = "{store}"
model = {{ kind = "schnet", hidden_dim = 8, num_layers = 1 }}
heads = [{{ kind = "scalar", field = "charge" }}]
train = {{ epochs = 4000, patience = 0, checkpoint_seconds = 0 }}
"""


@pytest.mark.parametrize("nohup", [False, True])
def test_a_run_whose_terminal_is_closed_saves_or_under_nohup_goes_on(nohup: bool, stored: Path, tmp_path: Path) -> None:
    """Closing a window sends SIGHUP, and printing is an error from then on."""
    (tmp_path / "run.toml").write_text(RUN.format(store=stored))
    latest, (ours, theirs) = tmp_path / "run" / "checkpoints" / "latest.json", os.openpty()
    words = [*["nohup"] * nohup, sys.executable, "-m", "hydragnn", "train", "run.toml", "--out", "run"]
    ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen(["setsid", "--ctty", *words], cwd=tmp_path, env=environment(), **ends)
    try:
        while not latest.exists():
            assert process.poll() is None
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 4096)
        os.close(ours)
        os.close(theirs)
        before = latest.read_text()
        while nohup and latest.read_text() == before:
            assert process.poll() is None
            time.sleep(0.05)
        if nohup:
            process.terminate()
        assert process.wait(timeout=PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
    assert read_record(tmp_path / "run").status == "paused"
