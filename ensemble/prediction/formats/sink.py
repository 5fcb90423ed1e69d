"""Files of predictions, streamed piece by piece, complete or absent.

Any rank makes a ``Piece``; the rank that writes the file only appends.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.files import file_errors, rename_all
from hydragnn.distributed.launch import unique_name
from hydragnn.ensemble.estimates.predictions import Predictions, estimates_of
from hydragnn.ensemble.members.screening import Screened
from hydragnn.graphs.texts import one_line
from hydragnn.models import Target

UNFINISHED = ".part"
"""Suffix of a file in the making."""

Column = NDArray[Any] | list[str]
"""Numbers, truth values or bytes; or texts."""

Piece = Mapping[str, Column]
"""Rows that are appended to a file, by name: values, texts, or the bytes of lines (uint8)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Block:
    """Consecutive graphs of the output."""

    numbers: Int[np.ndarray, " graphs"]
    predictions: Predictions
    graphs: Screened | None

    def edge_ends(self) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]:
        """Return sender and receiver of every edge, counted within its graph."""
        if self.graphs is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        batch = self.graphs.whole
        first = batch.node_offsets[batch.owner("edge")]
        return (batch.senders - first).numpy(), (batch.receivers - first).numpy()


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """Description of the targets and the ensemble in every prediction file."""

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
        """Return plain JSON."""
        return {
            "kind": "hydragnn predictions",
            "version": 1,
            "fields": [{**target.field.to_json(), "name": target.name} for target in self.targets],
            "nominal": self.nominal,
            "ensemble": self.ensemble,
            "members": list(self.members),
        }


class Sink(ABC):
    """A file of predictions of one process, renamed when complete."""

    def __init__(self, path: Path, heading: Heading, folder: Path | None = None) -> None:
        """Write nothing yet."""
        self.path, self.heading, self.folder = path, heading, folder or path.parent

    @property
    def temporaries(self) -> Mapping[Path, Path]:
        """Return every file in the making and its final name."""
        return {self.in_the_making(self.path): self.path}

    @property
    def temporary(self) -> Path:
        """Return the first file in the making."""
        return next(iter(self.temporaries))

    def in_the_making(self, final: Path) -> Path:
        """Return the path of an unfinished file, unique to this process."""
        return self.folder / f".{final.name}.{unique_name()}{UNFINISHED}"

    def errors(self) -> AbstractContextManager[None]:
        """Turn errors of the file system into one for the user."""
        return file_errors(f"cannot write {self.path}", "free space or choose another place, then --resume")

    @abstractmethod
    def piece(self, block: Block) -> Piece:
        """Return these graphs as part of the file; nothing is written."""

    @abstractmethod
    def open(self) -> None:
        """Begin the file."""

    @abstractmethod
    def write(self, piece: Piece) -> None:
        """Append some graphs."""

    @abstractmethod
    def close(self, *, complete: bool) -> None:
        """End the file, which is discarded unless it is complete."""

    def begin(self) -> None:
        """Begin the file; InputError where there is no space."""
        try:
            with self.errors():
                self.folder.mkdir(parents=True, exist_ok=True)
                self.open()
        except InputError:
            self.discard()
            raise

    def append(self, piece: Piece, part: Path | None = None) -> None:
        """Append some graphs, which lie in ``part``; InputError without space."""
        with self.errors():
            self.write(piece)

    def complete(self) -> None:
        """End the file and give it its name; InputError without space."""
        with self.errors():
            self.close(complete=True)
            rename_all(self.temporaries)
        self._remove()

    def discard(self) -> None:
        """Discard the file."""
        with suppress(Exception):  # of an engine that has failed before
            self.close(complete=False)
        self._remove()

    def _remove(self) -> None:
        for temporary in self.temporaries:
            with suppress(OSError):  # why it cannot be removed is why it could not be written
                shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return pieces of consecutive graphs as one."""
    return {name: end_to_end([piece[name] for piece in pieces]) for name in pieces[0]}


def end_to_end(columns: Sequence[Any]) -> Column:
    """Return columns of consecutive rows as one."""
    return list(chain.from_iterable(columns)) if isinstance(columns[0], list) else np.concatenate(columns)


def size_of(piece: Piece) -> int:
    """Return roughly the bytes in memory."""
    return sum(sum(map(len, column)) if isinstance(column, list) else column.nbytes for column in piece.values())


def texts(values: Sequence[str]) -> list[str]:
    """Return texts on one line each."""
    return [one_line(value) for value in values]


def lines_array(text: str) -> NDArray[np.uint8]:
    """Return the bytes of lines."""
    return np.frombuffer(text.encode(), dtype=np.uint8)
