"""Tensors in safetensors files, found through an index of slices.

One file written by one rank is the common case; a tensor may as well lie in pieces in several files, of which a reader opens those
that it needs. Nothing is allocated or used before its file has its checksum and the shape in the index.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.settings import Settings
from hydragnn.models.saving import write_tensors

TensorType = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL"]

DTYPES: dict[TensorType, torch.dtype] = {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
DTYPES |= {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types of numbers by their names in safetensors files."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Count = Annotated[int, pydantic.Field(strict=True, ge=0)]
FileName = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9_-]+\.safetensors$")]
"""A file in the very folder of the index, never elsewhere."""


class FileInfo(Settings):
    """Size and checksum of one file."""

    bytes: Count
    sha256: str


class TensorSlice(Settings):
    """Slice of a tensor, stored under the tensor's name."""

    file: FileName
    start: tuple[Count, ...]
    """First index along every axis."""
    shape: tuple[Count, ...]


class TensorInfo(Settings):
    """A tensor as a whole, and where its pieces lie."""

    dtype: TensorType
    shape: tuple[Count, ...]
    pieces: tuple[TensorSlice, ...]


class TensorIndex(Settings):
    """All files and all tensors in them."""

    files: dict[FileName, FileInfo]
    tensors: dict[str, TensorInfo]


def write_indexed(folder: Path, file_name: str, tensors: Mapping[str, Tensor]) -> TensorIndex:
    """Write tensors into a new file; return their index.

    OSError where the disk refuses. Those in memory are not copied.
    """
    path = folder / file_name
    write_tensors(path, {name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return TensorIndex(
        files={file_name: FileInfo(bytes=path.stat().st_size, sha256=checksum)},
        tensors={
            name: TensorInfo(
                dtype=NAMES[value.dtype],
                shape=tuple(value.shape),
                pieces=(TensorSlice(file=file_name, start=(0,) * value.dim(), shape=tuple(value.shape)),),
            )
            for name, value in tensors.items()
        },
    )


def joined(parts: Sequence[TensorIndex]) -> TensorIndex:
    """Return the index of vectors that lie end to end in files."""
    files = {name: info for part in parts for name, info in part.files.items()}
    tensors: dict[str, TensorInfo] = {}
    for part in parts:
        for name, new in part.tensors.items():
            if (old := tensors.get(name)) is None:
                tensors[name] = new
            elif len(new.shape) == 1:
                end = old.shape[0]
                moved = [piece.model_copy(update={"start": (end + piece.start[0],)}) for piece in new.pieces]
                shape, pieces = (end + new.shape[0],), (*old.pieces, *moved)
                tensors[name] = old.model_copy(update={"shape": shape, "pieces": pieces})
    return TensorIndex(files=files, tensors=tensors)


class TensorFiles:
    """Reads tensors through their index, whoever wrote it."""

    def __init__(self, folder: Path, index: TensorIndex) -> None:
        """Take an index; InputError where pieces do not make up a tensor."""
        self.folder, self.index = folder, index
        self.opened: dict[str, Any] = {}
        for name, entry in index.tensors.items():
            self._check_pieces(name, entry)

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor; InputError for another shape or dtype."""
        entry = self.index.tensors.get(name)
        if entry is None or (entry.shape, DTYPES[entry.dtype]) != (shape, dtype):
            actual = "absent" if entry is None else f"{entry.dtype} {list(entry.shape)}"
            problem = f"{self.folder}: tensor {name} is {actual}, not {NAMES[dtype]} {list(shape)}"
            raise InputError(f"{problem}; it was written by a different version of the program")
        values = [self._piece(name, entry, piece)[...] for piece in entry.pieces]
        return torch.cat(values) if shape else values[0]

    def read_range(self, name: str, first: int, last: int, out: Tensor) -> None:
        """Copy a range of a vector; InputError for another dtype or length."""
        entry = self.index.tensors[name]
        if len(entry.shape) != 1 or last > entry.shape[0] or DTYPES[entry.dtype] != out.dtype:
            raise InputError(
                f"{self.folder}: tensor {name} has no {NAMES[out.dtype]} in {first}:{last}; use another copy"
            )
        for piece in entry.pieces:
            begin = piece.start[0]
            low, high = max(first, begin), min(last, begin + piece.shape[0])
            if low < high:
                out[low - first : high - first] = self._piece(name, entry, piece)[low - begin : high - begin]

    def _piece(self, name: str, entry: TensorInfo, piece: TensorSlice) -> Any:
        """Return a slice of safetensors, which reads what is indexed."""
        path = self.folder / piece.file
        try:
            if piece.file not in self.opened:
                with path.open("rb") as stream:
                    checksum = hashlib.file_digest(stream, "sha256").hexdigest()
                if checksum != self.index.files[piece.file].sha256:
                    raise InputError(
                        f"{path} is damaged: its checksum is not that of what was written; use another copy"
                    )
                self.opened[piece.file] = safe_open(path, framework="pt")
            values = self.opened[piece.file].get_slice(name)
            actual = (tuple(values.get_shape()), values.get_dtype())
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} cannot be read ({error}); use another copy") from error
        if actual != (piece.shape, entry.dtype):
            raise InputError(f"{path}: tensor {name} is not what the index says; use another copy")
        return values

    def _check_pieces(self, name: str, entry: TensorInfo) -> None:
        """Raise InputError unless the pieces are the tensor, end to end."""
        end, axes = 0, len(entry.shape)
        for piece in entry.pieces:
            begins = piece.start == (end, *[0] * axes)[:axes] and piece.shape[1:] == entry.shape[1:]
            if not begins or len(piece.shape) != axes or piece.file not in self.index.files:
                break
            end += piece.shape[0] if axes else 1
        else:
            if end == (entry.shape[0] if axes else 1):
                return
        raise InputError(f"{self.folder}: the pieces of tensor {name} do not make it up; use another copy")
