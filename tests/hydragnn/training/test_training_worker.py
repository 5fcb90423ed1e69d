"""The worker process: what its exit code and its record say."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.record import read_record
from hydragnn.runs import train
from tests.forked import Forked

Process = subprocess.Popen[str] | Forked


@pytest.fixture(scope="module")
def store_path(store: MemoryStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "clusters.h5"
    with StoreWriter(path, store.fields(), dim=3, attributes=dict(store.attributes)) as writer:
        writer.write(store.read(range(len(store))))
    return path


@pytest.fixture
def run_folder(
    store_path: Path, make_config: Callable[..., RunConfig], tmp_path: Path
) -> Callable[..., tuple[RunConfig, Path]]:
    """Makes a run folder that holds config.json only, as a search leaves it for its workers."""

    def make(name: str = "run", **changes: Any) -> tuple[RunConfig, Path]:
        config = make_config(**{"data__store": str(store_path), **changes})
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config.to_json()))
        return config, folder

    return make


@pytest.fixture
def work(environment: dict[str, str]) -> Callable[..., Process]:
    """Starts ``python -m hydragnn.runs.run``, alone or behind a launcher command."""

    def start(folder: Path, *options: str, launcher: tuple[str, ...] = ()) -> Process:
        words = ["-m", "hydragnn.runs.run", str(folder), *options]
        if not launcher:
            return Forked(words, environment)
        return subprocess.Popen(
            [*launcher, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def code_and_output(process: Process) -> tuple[int, str]:
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def test_segments_of_a_worker_end_paused_then_finished_like_one_run(
    store: MemoryStore,
    run_folder: Callable[..., tuple[RunConfig, Path]],
    work: Callable[..., Process],
    tmp_path: Path,
) -> None:
    config, folder = run_folder()
    code, output = code_and_output(work(folder, "--until", "1"))
    assert code == 0 and read_record(folder).status == "paused", output
    assert "paused after 1 epochs" in output
    code, output = code_and_output(work(folder))
    record = read_record(folder)
    assert code == 0 and record.status == "finished", output
    assert record.curves == train(config, tmp_path / "whole", store=store).curves
    assert record.data_hash == store.fingerprint


def test_a_diverged_run_exits_with_3_and_says_so_in_its_record(
    run_folder: Callable[..., tuple[RunConfig, Path]], work: Callable[..., Process]
) -> None:
    _, folder = run_folder(train__learning_rate=1e200, train__clip_norm=0, train__optimizer="sgd")
    code, output = code_and_output(work(folder))
    record = read_record(folder)
    assert code == 3 and record.status == "failed" and record.failure.kind == "diverged", output
    assert "lower the learning rate" in record.failure.message


def test_bad_input_exits_with_2_and_is_recorded_as_configuration(
    run_folder: Callable[..., tuple[RunConfig, Path]], work: Callable[..., Process]
) -> None:
    _, folder = run_folder(heads__0__field="enrgy")
    code, output = code_and_output(work(folder))
    record = read_record(folder)
    assert code == 2 and "did you mean energy" in output and "Traceback" not in output
    assert record.failure.kind == "configuration" and "did you mean energy" in record.failure.message


def test_a_missing_store_exits_with_2_in_one_sentence(
    run_folder: Callable[..., tuple[RunConfig, Path]], work: Callable[..., Process], tmp_path: Path
) -> None:
    _, folder = run_folder(data__store=str(tmp_path / "nowhere.h5"))
    code, output = code_and_output(work(folder))
    assert code == 2 and "nowhere.h5" in output and "Traceback" not in output
    assert read_record(folder).failure.kind == "configuration"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])
def test_a_signal_pauses_a_worker_and_it_goes_on_with_the_same_bits(
    number: signal.Signals,
    store: MemoryStore,
    run_folder: Callable[..., tuple[RunConfig, Path]],
    work: Callable[..., Process],
    tmp_path: Path,
) -> None:
    config, folder = run_folder(train__epochs=4000, train__patience=0)
    process = work(folder)
    while process.poll() is None and not (folder / "checkpoints" / "latest.json").exists():
        time.sleep(0.01)
    process.send_signal(number)
    code, output = code_and_output(process)
    record = read_record(folder)
    assert code == 0 and record.status == "paused", output
    assert "stopped after step" in output
    until = record.epochs + 2
    again, whole = (
        train(config, path, store=store, until=until, resume=path == folder) for path in (folder, tmp_path / "whole")
    )
    assert again.curves == whole.curves


def test_a_folder_without_configuration_exits_with_2(work: Callable[..., Process], tmp_path: Path) -> None:
    code, output = code_and_output(work(tmp_path))
    assert code == 2 and "config.json does not exist" in output


def test_another_number_of_ranks_than_asked_for_is_a_failed_launch(
    run_folder: Callable[..., tuple[RunConfig, Path]], work: Callable[..., Process]
) -> None:
    _, folder = run_folder()
    (folder / "attempt.json").write_text('{"attempt": 5}')
    code, output = code_and_output(work(folder, "--ranks", "2", "--attempt", "5"))
    record = read_record(folder)
    assert code == 3 and "Traceback" not in output and (record.status, record.attempt) == ("failed", 5)
    assert record.failure.kind == "launch" and "2 ranks were asked for, but this process is one of 1" in output
    code, output = code_and_output(work(folder, "--ranks", "1", "--attempt", "5"))
    assert code == 0 and read_record(folder).status == "finished" and read_record(folder).failure is None, output


def test_a_failure_of_a_fenced_worker_is_not_recorded(
    run_folder: Callable[..., tuple[RunConfig, Path]], work: Callable[..., Process]
) -> None:
    _, folder = run_folder(heads__0__field="enrgy")
    (folder / "attempt.json").write_text('{"attempt": 6}')
    code, output = code_and_output(work(folder, "--ranks", "2", "--attempt", "5"))
    assert code == 4 and "belongs to attempt 6 now" in output
    assert sorted(path.name for path in folder.iterdir()) == ["attempt.json", "config.json"]


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
MPIRUN = (str(Path(sys.executable).parent / "mpirun"), "-n", "2", sys.executable)


@pytest.mark.skipif(not Path(MPIRUN[0]).exists(), reason="no mpirun beside this Python; install mpich")
def test_two_ranks_leave_cleanly_with_exit_code_0(
    run_folder: Callable[..., tuple[RunConfig, Path]], work: Callable[..., Process]
) -> None:
    _, folder = run_folder()
    code, output = code_and_output(work(folder, launcher=MPIRUN))
    record = read_record(folder)
    assert code == 0 and record.status == "finished" and record.cost.ranks == 2 and record.cost.nodes == 1, output
    assert output.count("finished after 3 epochs") == 1 and "terminate called" not in output


def test_a_diverged_run_of_two_ranks_is_recorded_and_exits_above_0(
    run_folder: Callable[..., tuple[RunConfig, Path]], work: Callable[..., Process]
) -> None:
    _, folder = run_folder(train__learning_rate=1e200, train__clip_norm=0, train__optimizer="sgd")
    code, output = code_and_output(work(folder, launcher=TORCHRUN))
    assert code != 0 and read_record(folder).failure.kind == "diverged", output
