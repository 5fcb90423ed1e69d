"""Parts of a store as HDF5 files: one dataset per flat array."""

import io
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.files import NO_LOCKS
from hydragnn.datasets.arrays import Array
from hydragnn.datasets.formats.engine import StoreEngine
from hydragnn.datasets.formats.reservation import engine_errors, state_of
from hydragnn.datasets.manifest import Layout

CHUNK_BYTES = 1 << 18
POSITIONED = hasattr(h5py.h5d.DatasetID, "chunk_iter")
"""True where HDF5 (1.12.3 or later) gives the places of chunks in the file."""
VERSIONS = ("v110", "v110")  # versions of the format, oldest and newest
ZERO = -1  # first byte of a chunk that was never written and holds zeros


def open_hdf5(path: Path, mode: str, **options: Any) -> Any:
    """Open an HDF5 file, without its lock where files have none."""
    try:
        return h5py.File(path, mode, **options)
    except OSError as error:
        without_locks = error.errno in NO_LOCKS and "lock file" in str(error)
        if not without_locks and "locking flag" not in str(error):  # a file that is open here without its lock
            raise
    return h5py.File(path, mode, locking=False, **options)


class NotedFile(io.FileIO):
    """File that HDF5 writes by way of Python, noting a failed write.

    HDF5 does not survive a failed write, so that the write looks done.
    """

    error: OSError | None = None
    """The first one; nothing is written any more."""

    def write(self, data: Any) -> int:
        """Write all of it, or note why not."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while len(rest) and self.error is None:
                rest = rest[super().write(rest) or 0 :]
        except OSError as error:
            self.error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Cut the file, or note why that is not possible."""
        try:
            if self.error is None:
                return super().truncate(size)
        except OSError as error:
            self.error = error
        return size or 0

    def check(self) -> None:
        """Raise what was noted."""
        if self.error is not None:
            raise self.error


class NewHdf5:
    """New HDF5 file, of which a failed write is an OSError."""

    def __init__(self, path: Path) -> None:
        """A new file at ``path``; OSError where it cannot be made."""
        empty = io.BytesIO()
        h5py.File(empty, "w", libver=VERSIONS).close()  # the image of an open file has a wrong checksum before HDF5 2
        with path.open("xb") as file:
            file.write(empty.getvalue())
        self._noted = NotedFile(path, "r+")
        self.file = h5py.File(self._noted, "r+", libver=VERSIONS)

    @contextmanager
    def growing(self) -> Iterator[Any]:
        """Give the file to append to, flushed; OSError without space."""
        with engine_errors("HDF5"):
            yield self.file
            self.file.flush()
            self._noted.check()

    def close(self) -> None:
        """Finish the file."""
        with self._noted, engine_errors("HDF5"):
            self.file.close()
            self._noted.check()


class Hdf5PartWriter(NewHdf5):
    """Appends blocks of arrays."""

    def write_block(self, arrays: dict[str, Array], rows_before: dict[str, int]) -> None:
        """Append ``arrays``, zero where never written; OSError without space."""
        with self.growing() as file:
            for name, array in arrays.items():
                start, row = rows_before[name], array.shape[1:]
                if name not in file:
                    chunk = min(max(1, CHUNK_BYTES // max(1, array.itemsize * math.prod(row))), max(64, len(array)))
                    sizes = {"shape": (0, *row), "maxshape": (None, *row), "chunks": (chunk, *row)}
                    file.create_dataset(name, dtype=array.dtype.newbyteorder("<"), **sizes)
                file[name].resize(start + len(array), axis=0)
                file[name][start:] = array


class MappedFile:
    """Content of a file that processes share and nobody may change."""

    def __init__(self, path: Path) -> None:
        """Open the file, mapped on first use; OSError where that is impossible."""
        self._bytes = os.open(path, os.O_RDONLY)
        self._closing = weakref.finalize(self, os.close, self._bytes)  # also where nobody closes the store
        self._written = state_of(self._bytes)
        self._mapped: mmap.mmap | None = None

    @property
    def content(self) -> mmap.mmap:
        """Return the bytes; OSError where the file was changed.

        Reading beyond its end would stop the process.
        """
        if state_of(self._bytes) != self._written:
            raise OSError("the file was changed while it was read")
        if self._mapped is None:
            self._mapped = mmap.mmap(self._bytes, 0, access=mmap.ACCESS_READ)
        return self._mapped

    def close(self) -> None:
        """Let go of the file."""
        self._mapped = None
        self._closing()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Places:
    """First bytes of chunks of an array, for fast reads."""

    rows: int
    row_bytes: int
    offsets: NDArray[np.int64]
    """First byte of every chunk; ``ZERO`` where it holds zeros."""
    chunk: int
    """Rows of every chunk but the last."""

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
        first, last = starts // self.chunk, (stops - 1) // self.chunk
        pieces = last - first + 1
        if int(pieces.max()) > 1:  # cut runs where chunks end
            number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first.repeat(pieces)
            starts = np.maximum(starts.repeat(pieces), number * self.chunk)
            stops = np.minimum(stops.repeat(pieces), (number + 1) * self.chunk)
            first = number
        origin = self.offsets[first]
        begin = origin + (starts - first * self.chunk) * self.row_bytes
        end = begin + (stops - starts) * self.row_bytes
        complete = int(origin.min()) >= 0
        if int((end if complete else end[origin >= 0]).max(initial=0)) > len(file):
            raise OSError("the file ends too early")
        runs = map(file.__getitem__, map(slice, begin.tolist(), end.tolist()))
        if complete:
            return bytearray().join([*runs, beyond])
        zeros = np.where(origin < 0, end - begin, 0).tolist()
        return bytearray().join([*(bytes(length) if length else run for run, length in zip(runs, zeros)), beyond])


def chunk_places(data: Any) -> Places | None:
    """Return the offsets of chunks; None where only HDF5 can read them."""
    plain = data.chunks and not data.id.get_create_plist().get_nfilters() and data.chunks[1:] == data.shape[1:]
    if not plain or data.dtype.byteorder == ">" or data.dtype.hasobject or not POSITIONED:
        return None
    chunk = data.chunks[0]
    offsets = np.full(-(-len(data) // chunk), ZERO, dtype=np.int64)

    def note(one: Any) -> None:
        offsets[one.chunk_offset[0] // chunk] = one.byte_offset

    data.id.chunk_iter(note)
    row_bytes = data.dtype.itemsize * math.prod(data.shape[1:])
    return Places(rows=len(data), row_bytes=row_bytes, offsets=offsets, chunk=chunk)


class Hdf5PartReader:
    """Reads runs of rows of a part's arrays."""

    direct = POSITIONED
    """Short runs cost little."""

    def __init__(self, path: Path, info: object = None, columns: object = None) -> None:
        """Open the file; InputError where it is not what was written."""
        self._path = path
        self._places: dict[str, tuple[np.dtype[Any], Places | None]] = {}
        try:
            self._file = open_hdf5(path, "r")
        except BlockingIOError as error:
            raise InputError(f"{path} is locked by another process that writes it; wait, then run it again") from error
        except OSError as error:
            raise InputError(
                f"{path} cannot be read as HDF5 ({' '.join(str(error).split())}); copy the store again"
            ) from error
        self._bytes = MappedFile(path)

    def check(self, layout: Mapping[str, Layout]) -> None:
        """Raise InputError for missing arrays or another shape, dtype or length."""
        for name, expected in layout.items():
            with self._reading(name):
                data = self._dataset(name)
                shape, dtype = data.shape, data.dtype
            if not shape:
                raise InputError(f"{self._path}: {name} is a single number; copy the store again")
            expected.check(f"{self._path}: {name}", (shape[0], expected.reach), shape[1:], dtype)

    def fill(self, name: str, out: Array, start: int) -> None:
        """Fill ``out`` with rows from ``start`` on; rows beyond the end stay."""
        with self._reading(name):
            data = self._dataset(name)
            rows = min(len(out), len(data) - start)
            if rows > 0:
                data.read_direct(out[:rows], np.s_[start : start + rows])

    def joined(
        self, name: str, dtype: np.dtype[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> bytearray | None:
        """Return mapped runs of rows; None where ``fill`` must read."""
        with self._reading(name):
            if name not in self._places:
                data = self._dataset(name)
                self._places[name] = data.dtype, chunk_places(data)
            stored, places = self._places[name]
            if places is None or stored != dtype:
                return None
            return places.joined(memoryview(self._bytes.content), starts, stops)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turn errors of HDF5 into InputError with the array's name."""
        try:
            yield
        except InputError:
            raise
        except (OSError, KeyError, TypeError, RuntimeError, ValueError) as error:
            words = " ".join(str(error).split())
            raise InputError(f"{self._path}: {name} cannot be read ({words}); copy the store again") from error

    def _dataset(self, name: str) -> Any:
        """Return an array of this very file; InputError for links and others."""
        parts = name.split("/")
        paths = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        links = [self._file.get(path, getlink=True) for path in paths]  # looked at, not followed
        if None in links:
            raise InputError(f"{self._path}: {name} is missing; copy the store again")
        data = self._file[name] if all(isinstance(link, h5py.HardLink) for link in links) else None
        if not isinstance(data, h5py.Dataset) or data.is_virtual or data.external:
            raise InputError(
                f"{self._path}: {name} is not an array of this file but a link to something else, which is not followed; "
                "ask whoever made the store for the data themselves"
            )
        return data

    def close(self) -> None:
        """Let go of the file."""
        self._bytes.close()
        self._file.close()


class Hdf5Engine(StoreEngine):
    """Parts as HDF5 files."""

    suffixes = (".h5", ".hdf5")

    writer = Hdf5PartWriter
    reader = Hdf5PartReader
