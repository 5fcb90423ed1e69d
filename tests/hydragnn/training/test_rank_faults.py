"""What the record says when one of two ranks fails, in the real worker."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.record import read_record
from tests.forked import Forked
from tests.hydragnn.training.conftest import WORKER, Configs, finish

Outcome = Callable[..., tuple[Path, str]]
FAULTY = Path(__file__).with_name("faults.py")
STEP = {"SLURM_JOB_ID": "78", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.fixture
def outcome(stored: Path, make_config: Configs, environment: dict[str, str], tmp_path: Path) -> Outcome:
    """Runs two ranks with a fault, as a job step; gives the run's folder and what was printed."""

    def run(fault: str, rank: int | str, **changes: Any) -> tuple[Path, str]:
        folder, config = tmp_path / "run", make_config(**{"data__store": str(stored), **changes})
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config.to_json()))
        (folder / "attempt.json").write_text('{"attempt": 3}')
        words = [str(FAULTY), fault, str(rank), str(folder), "--attempt", "3", "--ranks", "2"]
        pair = [Forked(words, {**environment, **STEP, "SLURM_PROCID": str(number)}) for number in range(2)]
        while all(process.poll() is None for process in pair):
            time.sleep(0.05)
        if fault == "in_a_step_while_the_first_hangs":
            pair[0].kill()  # srun kills what is left
        output = "".join(process.communicate(timeout=600)[0] for process in pair)
        assert any(process.returncode for process in pair) or "signal" in fault, output
        return folder, output

    return run


@pytest.mark.parametrize(
    ("fault", "rank", "changes"),
    [
        ("in_preparation", 1, {}),
        ("in_a_step_while_the_first_hangs", "all", {}),
        ("limited", 1, {"model__hidden_dim": 128, "model__num_radial": 64, "batch__max_graphs": 28}),
    ],
)
def test_one_rank_without_memory_is_out_of_memory_and_not_a_lost_node(
    fault: str, rank: int | str, changes: dict[str, Any], outcome: Outcome
) -> None:
    folder, output = outcome(fault, rank, **changes)
    record = read_record(folder)
    assert (record.status, record.attempt) == ("failed", 3), output
    assert record.failure.kind == "out_of_memory", (record.failure, output)


def test_a_run_whose_rank_dies_right_before_the_end_has_not_finished(outcome: Outcome) -> None:
    folder, output = outcome("killed_before_the_end", 1)
    record = read_record(folder)
    assert record.status == "failed" and record.failure.kind == "lost_node", output
    assert (folder / "checkpoints" / "000003-000000").is_dir()


def test_ranks_that_are_told_to_leave_while_data_are_read_leave_a_paused_record(outcome: Outcome) -> None:
    folder, output = outcome("signal_in_preparation", "all")
    record = read_record(folder)
    assert (record.status, record.attempt, record.failure) == ("paused", 3, None), output
    assert "stopped by SIGUSR1 before the first step" in output and "Traceback" not in output


def test_a_rank_that_is_stopped_for_long_is_named_and_ended_and_the_run_with_it(outcome: Outcome) -> None:
    folder, output = outcome("stopped", "all")
    record = read_record(folder)
    assert (record.status, record.failure.kind) == ("failed", "lost_node"), output
    assert re.match(r"rank 1 on \S+ \(process \d+\) was stopped for ", record.failure.message), record.failure
    assert record.failure.message in output


@pytest.mark.parametrize("what", ["other data", "another configuration"])
def test_ranks_that_read_different_files_end_with_a_sentence_before_the_first_step(
    what: str, make_config: Configs, environment: dict[str, str], tmp_path: Path
) -> None:
    pair = []
    for rank in range(2):
        path, graphs = tmp_path / f"{rank}.json", 20 + rank * (what == "other data")
        config = make_config(train__seed=rank * (what == "another configuration"))
        path.write_text(json.dumps(config.to_json()))
        words = [str(WORKER), str(tmp_path / "run"), str(path), "--graphs", str(graphs)]
        pair.append(Forked(words, {**environment, **STEP, "SLURM_PROCID": str(rank)}))
    assert f"rank 1 of 2 reads {what} than rank 0" in finish(*pair, code=2)
