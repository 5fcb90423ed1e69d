"""Predictions on disk: one format per suffix, streamed piece by piece, complete or absent.

What graphs become in a file, a ``Piece``, is made by any rank; whoever writes the file only appends.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.files import rename_all
from hydragnn.ensemble.predictions import Predictions, estimates_of
from hydragnn.ensemble.screening import Screened
from hydragnn.models import Target

Column = NDArray[Any] | list[str]
"""Numbers, truth values or bytes; or texts."""

Piece = Mapping[str, Column]
"""What is appended to a file, by name: arrays of values, texts, or the bytes of lines (uint8)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Block:
    """Consecutive graphs of the output: their numbers in the source, what is predicted, and the graphs where they could be read."""

    numbers: Int[np.ndarray, " graphs"]
    predictions: Predictions
    graphs: Screened | None

    def edge_ends(self) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]:
        """Sender and receiver of every edge, as numbers of nodes in their own graph."""
        if self.graphs is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        batch = self.graphs.whole
        first = batch.node_offsets[batch.owner("edge")]
        return (batch.senders - first).numpy(), (batch.receivers - first).numpy()


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """What every prediction file says about itself."""

    targets: tuple[Target, ...]
    nominal: float
    ensemble: str
    """Digest of the ensemble."""
    members: tuple[str, ...]
    absent: frozenset[str] = frozenset()
    """Arrays and columns that are not in the file, as ``fields/NAME/QUANTITY`` or by their names."""
    length: float = 1.0
    """The unit of positions in Angstrom."""

    def quantities(self, target: Target) -> list[str]:
        """Return what the file holds of a target."""
        every = estimates_of(target).quantities
        return [quantity for quantity in every if f"fields/{target.name}/{quantity}" not in self.absent]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "kind": "hydragnn predictions",
            "version": 1,
            "fields": [{**target.field.to_json(), "name": target.name} for target in self.targets],
            "nominal": self.nominal,
            "ensemble": self.ensemble,
            "members": list(self.members),
        }


class Sink(ABC):
    """A file of predictions, written under another name, which gets its own when everything is in it."""

    def __init__(self, path: Path, heading: Heading) -> None:
        """Nothing is written yet."""
        self.path = path
        self.heading = heading

    @property
    def finals(self) -> Sequence[Path]:
        """Every file that there will be."""
        return (self.path,)

    @abstractmethod
    def piece(self, block: Block) -> Piece:
        """What these graphs become in the file; the same whoever makes it, and nothing is written."""

    def sizes(self, piece: Piece) -> tuple[int, ...]:
        """What has to be known of a piece before the file is laid out; nothing where pieces are appended."""
        return ()

    def refusal(self, error: OSError) -> InputError:
        """What the user reads where the file system says no."""
        return InputError(
            f"cannot write {self.path}: {error.strerror or error}; free space or choose another place, then --resume"
        )


class AppendingSink(Sink):
    """A file to which one process appends piece after piece, beside its final name."""

    @property
    def temporaries(self) -> Mapping[Path, Path]:
        """Every file in the making and its final name."""
        return {self.path.with_name(f".{self.path.name}.part"): self.path}

    @property
    def temporary(self) -> Path:
        """The file in the making."""
        return next(iter(self.temporaries))

    @property
    def finals(self) -> Sequence[Path]:
        """Every file that there will be."""
        return tuple(self.temporaries.values())

    @abstractmethod
    def open(self) -> None:
        """Begin the file."""

    @abstractmethod
    def write(self, piece: Piece) -> None:
        """Append some graphs."""

    @abstractmethod
    def close(self, *, complete: bool) -> None:
        """End the file; not complete means that it will be thrown away."""

    def __enter__(self) -> "AppendingSink":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.open()
        except OSError as error:
            self._discard()
            raise self.refusal(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(complete=kind is None)
            if kind is None:
                rename_all(self.temporaries)
        except OSError as problem:
            raise self.refusal(problem) from problem
        finally:
            self._discard()
        if isinstance(error, OSError):
            raise self.refusal(error) from error

    def _discard(self) -> None:
        for temporary in self.temporaries:
            with suppress(OSError):  # why it cannot be removed is why it could not be written
                shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)


def joined(pieces: Sequence[Piece]) -> Piece:
    """Pieces of consecutive graphs as one."""
    return {name: _end_to_end([piece[name] for piece in pieces]) for name in pieces[0]}


def _end_to_end(columns: Sequence[Any]) -> Column:
    return list(chain.from_iterable(columns)) if isinstance(columns[0], list) else np.concatenate(columns)


def size_of(piece: Piece) -> int:
    """Bytes in memory, or so."""
    return sum(sum(map(len, column)) if isinstance(column, list) else column.nbytes for column in piece.values())


def texts(values: Sequence[str]) -> list[str]:
    """Texts on one line each."""
    return [" ".join(value.split()) for value in values]


def lines_array(text: str) -> NDArray[np.uint8]:
    """The bytes of lines."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def save_arrays(arrays: Piece) -> bytes:
    """Piece of numbers, truth values and texts, in their order, as bytes that hold no code.

    >>> load_arrays(save_arrays({"b": ["ok", ""], "a": np.zeros((0, 3))}))
    {'b': ['ok', ''], 'a': array([], shape=(0, 3), dtype=float64)}
    """
    rows = [
        (name, "", (), column) if isinstance(column, list) else (name, column.dtype.str, column.shape, column.tobytes())
        for name, column in arrays.items()
    ]
    return msgspec.msgpack.encode(rows)


_ROWS = msgspec.msgpack.Decoder(list[tuple[str, str, tuple[int, ...], memoryview | list[str]]])


def load_arrays(content: bytes) -> dict[str, Any]:
    """The arrays that ``save_arrays`` made bytes of; ValueError for other bytes."""
    return {
        name: values if isinstance(values, list) else np.frombuffer(values, dtype=dtype).reshape(shape).copy()
        for name, dtype, shape, values in _ROWS.decode(content)
    }
