"""Checkpoints: complete or absent, safetensors and JSON, for any layout.

``checkpoints/<epoch>-<step>/`` holds the tensors in safetensors files, one of each rank that has weights that no other writes, and
``state.json``, which says everything else: the position, the curves, whose checkpoint it is, where every parameter lies in the files,
and the checksum of every file and of itself. ``checkpoints/latest.json`` points to the newest. A checkpoint is written under another
name, flushed and renamed by the first rank. Reading one runs no code, whoever made it, and each rank reads what it needs.
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
import torch
from torch import Tensor

from hydragnn.base import files
from hydragnn.base.errors import InputError
from hydragnn.base.settings import Settings
from hydragnn.distributed.mesh import ITEMS, Mesh
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import texts_of_all
from hydragnn.runs.attempt import Fenced, RunAttempt
from hydragnn.runs.tensor_files import Count, TensorFiles, TensorIndex, joined, write_indexed
from hydragnn.training.parameters import ParameterSpan
from hydragnn.training.pieces import Piece
from hydragnn.training.state import TrainState

VERSION = 3
OLDEST = 2
"""Version in which the first rank wrote whole vectors."""
KEEP = 2
"""Checkpoints that stay; the weights of the best epoch are inside each."""


class SavedPart(Settings):
    """Consecutive numbers of a parameter, of rows that one rank had."""

    at: Count
    """Position in the vectors."""
    first: Count
    last: Count
    """Half-open range of the flat rows."""
    dim: Count = 0
    rows: tuple[tuple[Count, Count], ...]


SavedLayout = dict[str, tuple[SavedPart, ...]]


class SavedState(Settings):
    """Content of ``state.json``, beside version and checksum."""

    epoch: Count
    step: Count
    steps: Count
    curves: dict[str, list[float | None]]
    identity: dict[str, str]
    """Hashes of configuration and data, of which this is the state."""
    ranks: Annotated[int, pydantic.Field(strict=True, ge=1)]
    """Rows of ``totals``: ranks that had other graphs or nodes."""
    index: TensorIndex
    shapes: dict[str, list[Count]]
    layout: SavedLayout
    """Positions of their numbers in the vectors, whose pieces are end to end."""

    @pydantic.model_validator(mode="after")
    def _curves_have_one_value_per_epoch(self) -> "SavedState":
        if any(len(curve) != self.epoch for curve in self.curves.values()):
            raise ValueError(f"a curve does not have {self.epoch} values")
        return self


class OwnPart(Settings):
    """Files and parameters of one rank."""

    index: TensorIndex
    layout: SavedLayout
    shapes: dict[str, list[Count]]
    length: Count


def save_checkpoint(folder: Path, state: TrainState, mesh: Mesh, identity: dict[str, Any], attempt: RunAttempt) -> Path:
    """Write the newest checkpoint of a folder; collective.

    Every rank writes the weights that no other rank before it has. ``identity`` says whose state it is (hashes of configuration
    and data). InputError where the disk is full or refuses; the checkpoint before stays the newest then. Fenced where a later
    attempt owns the run.
    """
    aside, ranks = attempt.check() or folder, mesh.ranks
    target = folder / f"{state.epoch:06d}-{state.step:06d}"
    temporary = aside / f".{target.name}.tmp"
    if target == latest_checkpoint(folder):  # resumed from it and not moved since
        return target
    totals = state.totals.new_zeros(mesh.size(*ITEMS), *state.totals.shape)  # of ranks with different items
    if mesh.coordinate("pipeline") == mesh.coordinate("tensor") == 0:
        totals[mesh.item] = state.totals
    totals = ranks.sum_in_place(totals)

    def begin() -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()

    def seal() -> None:
        saved = SavedState(
            epoch=state.epoch,
            step=state.step,
            steps=state.steps,
            curves=state.curves,
            shapes={name: shape for part in parts for name, shape in part.shapes.items()},
            layout=merged([part.layout for part in parts], [part.length for part in parts]),
            identity=identity,
            ranks=len(totals),
            index=joined([part.index for part in parts]),
        )
        files.write_sealed(temporary / "state.json", {"version": VERSION, **saved.to_json()})
        files.flush_directory(temporary)
        _put_in_place(temporary, target, attempt)

    try:
        on_all(begin if ranks.first else None, folder, ranks, attempt)
        write = partial(write_own, temporary, state, mesh, totals)
        own = on_all(write if state.parameters.is_written else None, folder, ranks, attempt)
        texts = texts_of_all(json.dumps(own.to_json()) if own else "", ranks)
        parts = [OwnPart.parse(json.loads(text), "the part of a rank") for text in texts if text]
        on_all(seal if ranks.first else None, folder, ranks, attempt)
    except (Fenced, InputError):
        if ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


T = TypeVar("T")


def on_all(work: Callable[[], T] | None, folder: Path, ranks: Ranks, attempt: RunAttempt) -> T | None:
    """Return the result of this rank's work; errors are raised on all."""
    problem: Exception | None = None
    result: T | None = None
    try:
        with files.file_errors(f"cannot write a checkpoint into {folder}", "free space there and resume the run"):
            result = work() if work else None
    except (Fenced, InputError) as error:
        problem = error
    if ranks.any(problem is not None):
        attempt.check()
        raise problem or InputError(
            f"another rank cannot write a checkpoint into {folder}; free space there and resume the run"
        )
    return result


def write_own(folder: Path, state: TrainState, mesh: Mesh, totals: Tensor) -> OwnPart:
    """Write this rank's tensors into the new folder, flushed to disk."""
    ranks, tensors = mesh.ranks, state.tensors()
    if ranks.first:
        tensors["totals"] = totals
    else:  # what is no vector is the same on all
        tensors = {name: value for name, value in tensors.items() if value.dim()}
    file = "tensors.safetensors" if ranks.first else f"tensors-{ranks.rank}.safetensors"
    folder.mkdir(exist_ok=True)  # of a file system that shows it late
    layout: SavedLayout = {
        one.name: (SavedPart(at=one.at, first=one.first, last=one.last, dim=one.piece.dim, rows=one.piece.rows),)
        for one in state.parameters.spans
    }
    return OwnPart(
        index=write_indexed(folder, file, tensors),
        layout=layout,
        shapes={name: list(shape) for name, shape in state.parameters.shapes.items()},
        length=len(tensors["weights"]),
    )


def _put_in_place(temporary: Path, target: Path, attempt: RunAttempt) -> None:
    """Rename the finished folder, point to it, and remove older ones."""
    folder, old = target.parent, temporary.with_name(f".{target.name}.old.tmp")
    shutil.rmtree(old, ignore_errors=True)
    attempt.check()
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    files.flush_directory(folder)
    files.write_sealed(folder / "latest.json", {"version": VERSION, "checkpoint": target.name}, attempt.check)
    _remove_old(folder, target.name, attempt)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint, None before the first."""
    pointer = folder / "latest.json"
    if not pointer.exists():
        return None
    value = files.read_sealed(pointer)
    name = value.get("checkpoint") if isinstance(value, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"\d{6,}-\d{6,}", name):
        raise InputError(f"{pointer} is damaged; write the name of a complete folder in {folder} into it")
    path = folder / name
    if not (path / "state.json").is_file():
        raise InputError(f"{pointer} points to {path.name}, which is gone; copy it back or start the run anew")
    return path


def load_checkpoint(path: Path, state: TrainState, mesh: Mesh, identity: Mapping[str, Collection[str]]) -> None:
    """Load a checkpoint into ``state``, whatever layout wrote it; collective.

    ``identity`` holds the values that it may have. InputError where it belongs to another configuration or other data, was made
    by another version, or is damaged.
    """
    saved = _read_saved(path)
    _check(path, saved, state, mesh, identity)
    disk = TensorFiles(path, saved.index)
    totals = disk.read("totals", (saved.ranks, *state.totals.shape), torch.float64)
    spans, vectors = state.parameters.spans, state.tensors()
    state.parameters.load(
        {
            name: read_vector(disk, name, saved.layout, spans, one) if one.dim() else disk.read(name, (), one.dtype)
            for name, one in vectors.items()
        }
    )
    if saved.ranks == mesh.size(*ITEMS):
        state.totals.copy_(totals[mesh.item])
    elif mesh.item == 0:
        state.totals.copy_(totals.sum(0))
    state.epoch, state.step, state.steps = saved.epoch, saved.step, saved.steps
    state.curves = {name: list(values) for name, values in saved.curves.items()}


def _read_saved(path: Path) -> SavedState:
    """Return ``state.json``; InputError if damaged or of another version."""
    file = path / "state.json"
    content = files.read_json(file)
    if not isinstance(content, dict) or not isinstance(version := content.pop("version", None), int):
        raise InputError(f"{file} is damaged (it has no version); resume from another copy")
    files.check_version(version, path, oldest=OLDEST, newest=VERSION)
    if content.pop("checksum", None) != files.checksum_of({"version": version, **content}):
        raise InputError(f"{file} is damaged (its checksum is another); resume from another copy")
    if version == OLDEST:  # whose layout has name, shape and position of every parameter
        try:
            vectors = {name: (shape, at, shape[0] if shape else 1) for name, shape, at in content["layout"]}
            content["shapes"] = {name: shape for name, (shape, *_) in vectors.items()}
            content["layout"] = {
                name: [{"at": at, "first": 0, "last": prod(shape), "rows": [[0, rows]]}]
                for name, (shape, at, rows) in vectors.items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file} is damaged ({error}); resume from another copy") from error
    return SavedState.parse(content, str(file))


def _check(
    path: Path, saved: SavedState, state: TrainState, mesh: Mesh, identity: Mapping[str, Collection[str]]
) -> None:
    """InputError where the checkpoint is of another run or another model."""
    for name, values in identity.items():
        if saved.identity.get(name) not in values:
            raise InputError(
                f"checkpoint {path} belongs to another {name.removesuffix('_hash')} ({saved.identity.get(name)}, now {next(iter(values))}); "
                "resume with what the run began with, or start a new run in another folder"
            )
    own = {name: list(shape) for name, shape in state.parameters.shapes.items()}
    same = own.items() <= saved.shapes.items() if mesh.size("pipeline") > 1 else own == saved.shapes
    is_whole = saved.layout.keys() == saved.shapes.keys()
    if not same or not is_whole or set(saved.index.tensors) != {*state.tensors(), "totals"}:
        raise InputError(f"checkpoint {path} holds another model; it was written by a different version of the program")


def _remove_old(folder: Path, keep: str, attempt: RunAttempt) -> None:
    """Remove older checkpoints and unfinished ones."""
    complete = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    later = [path for path in complete if path.name > keep]  # of a future that a resumed run has not reached yet
    earlier = [path for path in complete if path.name < keep]
    unfinished = [path for path in folder.iterdir() if path.name.startswith(".") and path.suffix == ".tmp"]
    attempt.check()  # after looking, so that nothing that a later attempt writes can be among them
    for path in [*later, *earlier[: len(earlier) - KEEP + 1], *unfinished]:
        shutil.rmtree(path, ignore_errors=True)


def merged(layouts: Sequence[SavedLayout], lengths: Sequence[int]) -> SavedLayout:
    """Return the layout of several ranks' vectors, end to end."""
    whole: dict[str, list[SavedPart]] = {}
    for layout, start in zip(layouts, accumulate(lengths, initial=0)):
        for name, parts in layout.items():
            whole.setdefault(name, []).extend(one.model_copy(update={"at": start + one.at}) for one in parts)
    return {name: tuple(parts) for name, parts in whole.items()}


def read_vector(
    tensors: TensorFiles, name: str, layout: SavedLayout, spans: Sequence[ParameterSpan], like: Tensor
) -> Tensor:
    """Return the vector of a rank's spans; nothing else is read."""
    vector = torch.zeros(like.shape, dtype=like.dtype)
    for span in spans:
        out = vector[span.at : span.at + span.last - span.first]
        parts = layout[span.name]
        own = [part for part in parts if (part.dim, part.rows) == (span.piece.dim, span.piece.rows)]
        if not _read(tensors, name, own, span.first, out):
            out.copy_(span.piece.of(_whole(tensors, name, span, parts, out.dtype)).flatten()[span.first : span.last])
    return vector


def _read(tensors: TensorFiles, name: str, parts: Sequence[SavedPart], first: int, out: Tensor) -> bool:
    """Read flat rows from ``first`` on; return False where parts lack some."""
    position, last = first, first + len(out)
    for part in sorted(parts, key=lambda part: part.first):
        if part.first <= position < part.last:
            end = min(last, part.last)
            start = part.at + position - part.first
            tensors.read_range(name, start, start + end - position, out[position - first : end - first])
            position = end
    return position == last


def _whole(
    tensors: TensorFiles, name: str, span: ParameterSpan, parts: Sequence[SavedPart], dtype: torch.dtype
) -> Tensor:
    """Return a whole parameter from the rows of several ranks, without damaged ones."""
    shape = span.piece.shape
    whole, missing = torch.empty(shape, dtype=dtype), torch.ones(shape, dtype=torch.bool)

    def rows(part: SavedPart) -> tuple[int, tuple[tuple[int, int], ...]]:
        return part.dim, part.rows

    for (dim, ranges), own in groupby(sorted(parts, key=rows), rows):
        if dim >= len(shape) or not all(first < last <= shape[dim] for first, last in ranges):
            continue
        piece = Piece(shape=shape, dim=dim, rows=ranges)
        local = torch.empty(prod(piece.local_shape), dtype=dtype)
        if _read(tensors, name, [*own], 0, local):
            piece.put(local, whole)
            piece.put(torch.zeros_like(local, dtype=torch.bool), missing)
    if missing.any():
        raise InputError(f"{tensors.folder}: {name} does not have all of {span.name}; use another copy")
    return whole
