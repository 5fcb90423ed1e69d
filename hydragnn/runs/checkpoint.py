"""Checkpoints: complete or absent, made with torch.distributed.checkpoint, readable by any number of ranks.

``checkpoints/<epoch>-<step>/`` holds the tensors (one file per writing rank and DCP's own index) and ``state.json``;
``checkpoints/latest.json`` points to the newest. A checkpoint is written under another name, flushed and renamed.
"""

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from hydragnn.distributed.ranks import Ranks
from hydragnn.errors import InputError
from hydragnn.files import flush_directory, read_json, write_json
from hydragnn.runs.attempt import Attempt, Fenced
from hydragnn.training.state import TrainState

VERSION = 1
KEPT = 2
"""Checkpoints that stay; the weights of the best epoch are inside each."""


def save_checkpoint(folder: Path, state: TrainState, ranks: Ranks, identity: dict[str, Any], attempt: Attempt) -> Path:
    """Write the state as the newest checkpoint of ``folder``; all ranks call it together, rank 0 gives it its name.

    ``identity`` says whose state it is (hashes of configuration and data). InputError where the disk is full or refuses;
    the checkpoint before stays the newest then. Fenced where a later attempt owns the run.
    """
    attempt.check()
    name = f"{state.epoch:06d}-{state.step:06d}"
    target, temporary = folder / name, folder / f".{name}.{attempt.name}.tmp"
    if target == latest_checkpoint(folder):  # resumed from it and not moved since
        return target
    try:
        _write(temporary, state, ranks, identity)
        if ranks.first:
            _put_in_place(temporary, target, attempt)
    except Fenced:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except (OSError, CheckpointException) as error:
        if ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)
        why = _cause(error) if isinstance(error, CheckpointException) else error.strerror or str(error)
        raise InputError(
            f"cannot write a checkpoint into {folder}: {why}; free space there and resume the run"
        ) from error
    ranks.wait()
    return target


def _write(folder: Path, state: TrainState, ranks: Ranks, identity: dict[str, Any]) -> None:
    """Write tensors and ``state.json`` into a new folder, flushed to disk."""
    totals = ranks.gather(state.totals)
    if ranks.first:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    ranks.wait()
    with _quietly():
        dcp.save({**state.tensors(), "totals": totals}, checkpoint_id=folder, no_dist=ranks.size == 1)
    if ranks.first:
        write_json(folder / "state.json", {**_described(state), **identity, "ranks": ranks.size})
        flush_directory(folder)


def _put_in_place(temporary: Path, target: Path, attempt: Attempt) -> None:
    """Give the finished folder its name, point to it, and remove what is no longer needed."""
    folder = target.parent
    attempt.check()
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    flush_directory(folder)
    write_json(folder / "latest.json", {"version": VERSION, "checkpoint": target.name}, attempt.check)
    _remove_old(folder, target.name, attempt)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint in ``folder``; None before the first. InputError where the pointer is damaged."""
    pointer = folder / "latest.json"
    if not pointer.exists():
        return None
    value = read_json(pointer)
    if not isinstance(value, dict) or not isinstance(value.get("checkpoint"), str):
        raise InputError(f"{pointer} is damaged; write the name of a complete folder in {folder} into it")
    path = folder / value["checkpoint"]
    if not (path / "state.json").is_file():
        raise InputError(f"{pointer} points to {path.name}, which is gone; copy it back or start the run anew")
    return path


def load_checkpoint(path: Path, state: TrainState, ranks: Ranks, identity: dict[str, Any]) -> None:
    """Put the state of a checkpoint into ``state``, whatever the number of ranks that wrote it.

    InputError where it belongs to another configuration or other data, was made by a newer version, or is damaged.
    """
    described = read_json(path / "state.json")
    _check(path, described, state, identity)
    writers = int(described["ranks"])
    totals = torch.zeros(writers, *state.totals.shape, dtype=torch.float64)
    try:
        with _quietly():
            dcp.load({**state.tensors(), "totals": totals}, checkpoint_id=path, no_dist=ranks.size == 1)
    except CheckpointException as error:
        raise InputError(f"checkpoint {path} cannot be read ({_cause(error)}); resume from another copy") from error
    state.epoch, state.step, state.steps = described["epoch"], described["step"], described["steps"]
    state.curves = {name: list(values) for name, values in described["curves"].items()}
    if writers == ranks.size:
        state.totals.copy_(totals[ranks.rank])
    elif ranks.first:
        state.totals.copy_(totals.sum(0))


def _described(state: TrainState) -> dict[str, Any]:
    return {
        "version": VERSION,
        "epoch": state.epoch,
        "step": state.step,
        "steps": state.steps,
        "curves": state.curves,
        "layout": [list(entry) for entry in state.weights.layout],
        "tensors": sorted(state.tensors()),
    }


def _check(path: Path, described: Any, state: TrainState, identity: dict[str, Any]) -> None:
    try:
        version, layout = described["version"], described["layout"]
    except (TypeError, KeyError) as error:
        raise InputError(f"{path / 'state.json'} is damaged ({error!r}); resume from another copy") from error
    if version > VERSION:
        raise InputError(
            f"checkpoint {path} has version {version}, this program reads up to {VERSION}; update the program"
        )
    for name, value in identity.items():
        if described.get(name) != value:
            raise InputError(
                f"checkpoint {path} belongs to another {name.removesuffix('_hash')} ({described.get(name)}, now {value}); "
                "resume with what the run began with, or start a new run in another folder"
            )
    if layout != json.loads(json.dumps(state.weights.layout)) or described["tensors"] != sorted(state.tensors()):
        raise InputError(f"checkpoint {path} holds another model; it was written by a different version of the program")


def _remove_old(folder: Path, keep: str, attempt: Attempt) -> None:
    """Remove all but the newest checkpoints, and what an interrupted writer left behind."""
    complete = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    later = [path for path in complete if path.name > keep]  # of a future that a resumed run has not reached yet
    earlier = [path for path in complete if path.name < keep]
    unfinished = [path for path in folder.iterdir() if path.name.startswith(".") and path.suffix == ".tmp"]
    attempt.check()  # after looking, so that nothing that a later attempt writes can be among them
    for path in [*later, *earlier[: len(earlier) - KEPT + 1], *unfinished]:
        shutil.rmtree(path, ignore_errors=True)


def _cause(error: CheckpointException) -> str:
    """The first rank's own error."""
    first = next(iter(error.failures.values()), (error,))[0]
    return getattr(first, "strerror", None) or (str(first) or type(first).__name__).splitlines()[0]


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warning that one process is not distributed, which is what we ask for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
