"""Rows of arrays, copied out of a mapped file.

That memory is one for all processes of a node, and the system takes it back by itself.
"""

import mmap
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ZERO = -1
"""First byte of a run of rows that was never written and holds zeros."""


class MappedFile:
    """Content of a file that must not change."""

    def __init__(self, path: Path) -> None:
        """Open the file, mapped on first use; OSError where that is impossible."""
        self._bytes = os.open(path, os.O_RDONLY)
        self._closing = weakref.finalize(self, os.close, self._bytes)  # also where nobody closes the store
        self._written = _state_of(self._bytes)
        self._mapped: mmap.mmap | None = None

    @property
    def content(self) -> mmap.mmap:
        """The bytes; OSError where the file was changed, since reading beyond its end would stop the process."""
        if _state_of(self._bytes) != self._written:
            raise OSError("the file was changed while it was read")
        if self._mapped is None:
            self._mapped = mmap.mmap(self._bytes, 0, access=mmap.ACCESS_READ)
        return self._mapped

    def close(self) -> None:
        """Let go of the file."""
        self._mapped = None
        self._closing()


def _state_of(file: int) -> tuple[int, int, int]:
    status = os.fstat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Places:
    """First bytes of pieces of an array, for fast reads."""

    bounds: NDArray[np.int64]
    """First row of every piece, and the number of all rows."""
    row_bytes: int
    offsets: NDArray[np.int64]
    """First byte of every piece; ``ZERO`` where it holds zeros."""
    chunk: int = 0
    """Rows of every piece but the last; 0 where they differ."""

    @property
    def rows(self) -> int:
        """Rows of all pieces."""
        return int(self.bounds[-1])

    def piece_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the piece that holds each row."""
        return rows // self.chunk if self.chunk else np.searchsorted(self.bounds, rows, side="right") - 1

    def joined(self, file: memoryview, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bytearray:
        """Return ascending runs of rows, with zeros beyond the last."""
        beyond = b""
        if int(stops.max(initial=0)) > self.rows:
            asked = int((stops - starts).sum())
            starts, stops = starts.clip(max=self.rows), stops.clip(max=self.rows)
            beyond = bytes((asked - int((stops - starts).sum())) * self.row_bytes)
        some = stops > starts
        starts, stops = starts[some], stops[some]
        if not len(starts):
            return bytearray(beyond)
        first, last = self.piece_of(starts), self.piece_of(stops - 1)
        pieces = last - first + 1
        if int(pieces.max()) > 1:  # cut runs where pieces end
            number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first.repeat(pieces)
            starts = np.maximum(starts.repeat(pieces), self.bounds[number])
            stops = np.minimum(stops.repeat(pieces), self.bounds[number + 1])
            first = number
        origin = self.offsets[first]
        begin = origin + (starts - self.bounds[first]) * self.row_bytes
        end = begin + (stops - starts) * self.row_bytes
        complete = int(origin.min()) >= 0
        if int((end if complete else end[origin >= 0]).max(initial=0)) > len(file):
            raise OSError("the file ends too early")
        runs = map(file.__getitem__, map(slice, begin.tolist(), end.tolist()))
        if complete:
            return bytearray().join([*runs, beyond])
        zeros = np.where(origin < 0, end - begin, 0).tolist()
        return bytearray().join([*(bytes(length) if length else run for run, length in zip(runs, zeros)), beyond])
