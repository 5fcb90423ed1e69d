"""Failures are typed from evidence, also where one of two ranks fails in the real worker."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.distributed.ranks import Ranks
from hydragnn.record import Failure, read_record
from hydragnn.runs.failures import failure_of, first_failure, nothing_left
from hydragnn.training.context import Diverged
from tests.forked import Forked
from tests.hydragnn.training.conftest import WORKER, environment, finish, job_step, make_config

CASES = {
    "a loss that is not finite": (Diverged("the loss is nan"), "diverged"),
    "python's memory": (MemoryError(), "out_of_memory"),
    "the GPU's memory": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
    "torch's CPU allocator": (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
    "no memory for the message either": (RuntimeError("[enforce fail a"), "out_of_memory"),
    "a file that cannot be written": (RuntimeError("[enforce fail at inline_container.cc:668] . unexpected"), "defect"),
    "bad input": (InputError("no space left"), "configuration"),
    "a peer that is gone": (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"), "lost_node"),
    "anything else": (KeyError("surprise"), "defect"),
}


@pytest.mark.parametrize("error, kind", CASES.values(), ids=CASES.keys())
def test_every_error_has_its_kind(error: BaseException, kind: str) -> None:
    failure = failure_of(error)
    assert failure.kind == kind and failure.message


def test_a_lost_peer_is_told_without_a_place_in_the_source_of_gloo_and_a_defect_with_its_own() -> None:
    said = "[/build/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:39090. This is typically caused by luck"
    assert failure_of(RuntimeError(said)).message == "another rank is gone: Connection closed by peer [127.0.0.1]:39090"
    with pytest.raises(KeyError) as caught:
        {}["surprise"]
    message = failure_of(caught.value).message
    assert "test_training_failures.py" in message and message.endswith("KeyError: 'surprise'")


def test_the_first_rank_records_what_began_on_another(tmp_path: Path) -> None:
    began = Failure(kind="out_of_memory", message="no memory left")
    assert first_failure(began, tmp_path, Ranks(rank=1, size=2)) == began
    assert json.loads((tmp_path / ".failure-1.json").read_text())["kind"] == "out_of_memory"
    seen = Failure(kind="lost_node", message="another rank is gone")
    assert first_failure(seen, tmp_path, Ranks(rank=0, size=2)) == began
    assert not list(tmp_path.iterdir())


def test_a_single_rank_and_one_whose_folder_takes_no_file_keep_their_own_failure(tmp_path: Path) -> None:
    own = Failure(kind="out_of_memory", message="no memory left")
    (tmp_path / ".failure-1.json").mkdir()
    for ranks in (Ranks(), Ranks(rank=1, size=2)):
        assert first_failure(own, tmp_path, ranks) == own


@pytest.mark.parametrize(
    ("before", "error", "left"),
    [
        (None, InputError("heads: no such field"), None),
        ([], InputError("heads: no such field"), None),
        (["config.json"], InputError("heads: no such field"), ["config.json"]),
        (["config.json"], Interrupted("SIGTERM"), [".failure-1.json", "config.json"]),
        (["config.json"], RuntimeError("surprise"), [".failure-1.json", "config.json"]),
    ],
)
def test_a_refused_run_leaves_no_file(
    before: list[str] | None, error: Exception, left: list[str] | None, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "run"
    for name in before or ():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    with pytest.raises(type(error)), nothing_left(folder):
        first_failure(Failure(kind="configuration", message="of rank 1"), folder, Ranks(rank=1, size=2))
        raise error
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else None
    assert names == left and (tmp_path / "deep").exists() is (left is not None)


WIDE = {"model__hidden_dim": 128, "model__num_radial": 64, "batch__max_graphs": 28}
FAULTS: list[tuple[str, int | str, dict[str, Any], str | None, str]] = [
    ("in_preparation", 1, {}, "out_of_memory", ""),
    ("in_a_step_while_the_first_hangs", "all", {}, "out_of_memory", ""),
    ("limited", 1, WIDE, "out_of_memory", ""),
    ("killed_before_the_end", 1, {}, "lost_node", ""),
    ("stopped", "all", {}, "lost_node", r"rank 1 on \S+ \(process \d+\) was stopped for "),
    ("signal_in_preparation", "all", {}, None, "stopped by SIGUSR1 before the first step"),
]


@pytest.mark.parametrize(("fault", "rank", "changes", "kind", "words"), FAULTS)
def test_the_record_of_two_ranks_states_one_fault(
    fault: str, rank: int | str, changes: dict[str, Any], kind: str | None, words: str, stored: Path, tmp_path: Path
) -> None:
    """As a job step of a search; a signal pauses the run."""
    (tmp_path / "config.json").write_text(json.dumps(make_config(data__store=str(stored), **changes).to_json()))
    (tmp_path / "attempt.json").write_text('{"attempt": 3}')
    command = [str(Path(__file__).with_name("faults.py")), fault, str(rank), str(tmp_path)]
    command += ["--attempt", "3", "--ranks", "2"]
    pair = [Forked(command, {**environment(), **job_step(number)}) for number in range(2)]
    while all(process.poll() is None for process in pair):
        time.sleep(0.05)
    if fault == "in_a_step_while_the_first_hangs":
        pair[0].kill()  # srun kills what is left
    output = "".join(process.communicate(timeout=600)[0] for process in pair)
    record = read_record(tmp_path)
    assert (record.status, record.attempt) == ("failed" if kind else "paused", 3), output
    assert (record.failure and record.failure.kind) == kind, (record.failure, output)
    assert re.search(words, output) and (kind or "Traceback" not in output), output
    assert record.failure is None or re.match(words, record.failure.message)
    assert not kind or any(process.returncode for process in pair), output
    assert (tmp_path / "checkpoints" / "000003-000000").is_dir() == (fault == "killed_before_the_end")


@pytest.mark.parametrize("what", ["other data", "another configuration"])
def test_ranks_that_read_different_files_end_with_a_sentence_before_the_first_step(what: str, tmp_path: Path) -> None:
    pair = []
    for rank in range(2):
        path, graphs = tmp_path / f"{rank}.json", 20 + rank * (what == "other data")
        config = make_config(train__seed=rank * (what == "another configuration"))
        path.write_text(json.dumps(config.to_json()))
        words = [str(WORKER), str(tmp_path / "run"), str(path), "--graphs", str(graphs)]
        pair.append(Forked(words, {**environment(), **job_step(rank)}))
    assert f"rank 1 of 2 reads {what} than rank 0" in finish(*pair, code=2)
