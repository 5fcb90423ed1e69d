"""Checkpoints: complete or absent, safetensors and JSON, for any ranks.

``checkpoints/<epoch>-<step>/`` holds the tensors in safetensors files and ``state.json``, which says everything else: the
position, the curves, whose checkpoint it is, which file holds what, and the checksum of every file and of itself.
``checkpoints/latest.json`` points to the newest. A checkpoint is written under another name, flushed and renamed. Reading
one runs no code, whoever made it.
"""

import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_version, checksum_of, flush_directory, read_json, read_sealed, write_sealed
from hydragnn.base.settings import Settings
from hydragnn.distributed.ranks import Ranks
from hydragnn.runs.attempt import Attempt, Fenced
from hydragnn.runs.tensor_files import Count, TensorFiles, TensorIndex, write_tensors
from hydragnn.training.state import TrainState

VERSION = 2
KEEP = 2
"""Checkpoints that stay; the weights of the best epoch are inside each."""
TENSORS = "tensors.safetensors"


class SavedState(Settings):
    """Content of ``state.json`` beside version and checksum."""

    epoch: Count
    step: Count
    steps: Count
    curves: dict[str, list[float | None]]
    layout: list[tuple[str, list[Count], Count]]
    """Name, shape and place of every parameter in the flat vectors."""
    identity: dict[str, str]
    """Whose state it is: hashes of configuration and data."""
    ranks: Annotated[int, pydantic.Field(strict=True, ge=1)]
    index: TensorIndex

    @pydantic.model_validator(mode="after")
    def _curves_have_one_value_per_epoch(self) -> "SavedState":
        if any(len(curve) != self.epoch for curve in self.curves.values()):
            raise ValueError(f"a curve does not have {self.epoch} values")
        return self


def save_checkpoint(folder: Path, state: TrainState, ranks: Ranks, identity: dict[str, Any], attempt: Attempt) -> Path:
    """Write the newest checkpoint of a folder; collective, rank 0 writes.

    ``identity`` says whose state it is (hashes of configuration and data). InputError where the disk is full or refuses;
    the checkpoint before stays the newest then. Fenced where a later attempt owns the run.
    """
    attempt.check()
    name = f"{state.epoch:06d}-{state.step:06d}"
    target, temporary = folder / name, folder / f".{name}.{attempt.name}.tmp"
    if target == latest_checkpoint(folder):  # resumed from it and not moved since
        return target
    totals = ranks.gather(state.totals)
    problem: Exception | None = None
    if ranks.first:
        try:
            _write(temporary, state, totals, identity)
            _put_in_place(temporary, target, attempt)
        except (Fenced, InputError, OSError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            problem = error
    failed = bool(ranks.sum_in_place(torch.tensor(float(problem is not None), device=totals.device)))
    if isinstance(problem, OSError):
        raise InputError(
            f"cannot write a checkpoint into {folder}: {problem.strerror or problem}; free space there and resume the run"
        ) from problem
    if problem:
        raise problem
    if failed:
        attempt.check()
        raise InputError(f"the first rank cannot write a checkpoint into {folder}; free space there and resume the run")
    return target


def _write(folder: Path, state: TrainState, totals: torch.Tensor, identity: dict[str, Any]) -> None:
    """Write tensors and ``state.json`` into a new folder, flushed to disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    saved = SavedState(
        epoch=state.epoch,
        step=state.step,
        steps=state.steps,
        curves=state.curves,
        layout=state.parameters.layout,
        identity=identity,
        ranks=len(totals),
        index=write_tensors(folder, TENSORS, {**state.tensors(), "totals": totals}),
    )
    write_sealed(folder / "state.json", {"version": VERSION, **saved.to_json()})
    flush_directory(folder)


def _put_in_place(temporary: Path, target: Path, attempt: Attempt) -> None:
    """Rename the finished folder, point to it, and remove older ones."""
    folder = target.parent
    attempt.check()
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    flush_directory(folder)
    write_sealed(folder / "latest.json", {"version": VERSION, "checkpoint": target.name}, attempt.check)
    _remove_old(folder, target.name, attempt)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint, None before the first."""
    pointer = folder / "latest.json"
    if not pointer.exists():
        return None
    value = read_sealed(pointer)
    name = value.get("checkpoint") if isinstance(value, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"\d{6,}-\d{6,}", name):
        raise InputError(f"{pointer} is damaged; write the name of a complete folder in {folder} into it")
    path = folder / name
    if not (path / "state.json").is_file():
        raise InputError(f"{pointer} points to {path.name}, which is gone; copy it back or start the run anew")
    return path


def load_checkpoint(path: Path, state: TrainState, ranks: Ranks, identity: Mapping[str, Collection[str]]) -> None:
    """Load a checkpoint into ``state``, whatever wrote it.

    ``identity`` holds the values that it may have.

    InputError where it belongs to another configuration or other data, was made by another version, or is damaged.
    """
    saved = _read_saved(path)
    _check(path, saved, state, identity)
    files = TensorFiles(path, saved.index)
    for name, value in state.tensors().items():
        value.copy_(files.read(name, tuple(value.shape), value.dtype))
    totals = files.read("totals", (saved.ranks, *state.totals.shape), torch.float64)
    if saved.ranks == ranks.size:
        state.totals.copy_(totals[ranks.rank])
    elif ranks.first:
        state.totals.copy_(totals.sum(0))
    state.epoch, state.step, state.steps = saved.epoch, saved.step, saved.steps
    state.curves = {name: list(values) for name, values in saved.curves.items()}


def _read_saved(path: Path) -> SavedState:
    """Return ``state.json``; InputError if damaged or of another version."""
    file = path / "state.json"
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(version := content.pop("version", None), int):
        raise InputError(f"{file} is damaged (it has no version); resume from another copy")
    check_version(version, path, oldest=VERSION, newest=VERSION)
    if content.pop("checksum", None) != checksum_of({"version": version, **content}):
        raise InputError(f"{file} is damaged (its checksum is another); resume from another copy")
    return SavedState.parse(content, str(file))


def _check(path: Path, saved: SavedState, state: TrainState, identity: Mapping[str, Collection[str]]) -> None:
    """InputError where the checkpoint is of another run or another model."""
    for name, values in identity.items():
        if saved.identity.get(name) not in values:
            raise InputError(
                f"checkpoint {path} belongs to another {name.removesuffix('_hash')} ({saved.identity.get(name)}, now {next(iter(values))}); "
                "resume with what the run began with, or start a new run in another folder"
            )
    layout = [(name, list(shape), start) for name, shape, start in state.parameters.layout]
    if saved.layout != layout or set(saved.index.tensors) != {*state.tensors(), "totals"}:
        raise InputError(f"checkpoint {path} holds another model; it was written by a different version of the program")


def _remove_old(folder: Path, keep: str, attempt: Attempt) -> None:
    """Remove older checkpoints and unfinished ones."""
    complete = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    later = [path for path in complete if path.name > keep]  # of a future that a resumed run has not reached yet
    earlier = [path for path in complete if path.name < keep]
    unfinished = [path for path in folder.iterdir() if path.name.startswith(".") and path.suffix == ".tmp"]
    attempt.check()  # after looking, so that nothing that a later attempt writes can be among them
    for path in [*later, *earlier[: len(earlier) - KEEP + 1], *unfinished]:
        shutil.rmtree(path, ignore_errors=True)
