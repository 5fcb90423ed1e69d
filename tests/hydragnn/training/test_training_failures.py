"""Failures are typed from evidence."""

import json
from pathlib import Path

import pytest
import torch

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.distributed.ranks import Ranks
from hydragnn.record import Failure
from hydragnn.runs.failures import failure_of, first_failure, nothing_left
from hydragnn.training.context import Diverged

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


def test_a_real_allocation_beyond_memory_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46)
    assert failure_of(caught.value).kind == "out_of_memory"


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
def test_a_refused_run_leaves_no_file_of_any_rank(
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
