"""Parts of a store as ADIOS2 BP5 directories: one step per block."""

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import adios2
import numpy as np
from numpy.typing import NDArray

from hydragnn.base.environment import change_environment
from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array, offsets_of
from hydragnn.datasets.formats.engine import StoreEngine
from hydragnn.datasets.formats.mapped import ZERO, MappedFile, Places
from hydragnn.datasets.formats.reservation import Ballast, engine_errors
from hydragnn.datasets.manifest import Layout, PartInfo

change_environment({"ADIOS2_PLUGIN_PATH": os.devnull})
"""A file can say that its numbers were packed by a plugin, and ADIOS2 would load that library from wherever the file says.

The library looks for plugins below this path only, and below a file there is nothing. Our stores need none.
"""

DTYPES = {"double": "f8", "float": "f4", "int64_t": "i8", "int32_t": "i4", "uint8_t": "u1"}
"""Names of dtypes in ADIOS2."""

RESERVED = ".reserved"
"""A file that keeps space for a directory until it is complete."""

STEP_BYTES = 1 << 13
"""More than ADIOS2 adds to an array of a step: its description, and the gaps to whole pages."""

UNKNOWN, ABSENT = ZERO - 1, ZERO - 2
"""In place of the first byte of a block: not yet looked up, and looked up in vain."""

CALL_BYTES = 200_000
"""Ten times what is read at once in the time of a call, since who reads often from a block mostly goes on."""

NEEDLE = 256
"""First bytes of a block, by which it is looked up before all of them are compared."""


class AdiosPartWriter:
    """Writer of blocks as steps of a BP5 directory, with space reserved before each."""

    def __init__(self, path: Path) -> None:
        """Make a directory at ``path``; OSError where that is not possible."""
        self._path = path
        path.mkdir()
        Ballast(path / RESERVED)  # which ADIOS2 removes as it begins
        self._adios = adios2.Adios()
        io = self._adios.declare_io("write")
        io.set_engine("BP5")
        io.set_parameters({"NumAggregators": "1", "StatsLevel": "0"})
        with engine_errors("ADIOS2"):
            self._stream = adios2.Stream(io, str(path), "w")
        try:
            self._ballast = Ballast(path / RESERVED)
        except OSError:
            self.close()
            raise

    def write_block(self, arrays: dict[str, Array], rows_before: dict[str, int]) -> None:
        """Append ``arrays`` as one step, which may lack some; OSError where there is no space."""
        values = {name: array for name, array in arrays.items() if array.size}
        size = sum(value.nbytes for value in values.values()) + STEP_BYTES * (len(values) + 1)
        self._ballast.make_room(size, self._path / "data.0")
        with engine_errors("ADIOS2"):
            self._stream.begin_step()
            for name, value in values.items():
                shape = list(value.shape)
                writable = np.require(value, requirements=["C", "W"])  # ADIOS2 refuses read-only arrays
                self._stream.write(name, writable, shape, [0] * len(shape), shape)
            self._stream.end_step()

    def close(self) -> None:
        """Finish the directory."""
        (self._path / RESERVED).unlink(missing_ok=True)
        try:
            with engine_errors("ADIOS2"):
                self._stream.close()
        except OSError:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # closing a failed stream again ends the process
            raise
        (self._path / "profiling.json").unlink(missing_ok=True)


class AdiosPartReader:
    """Reads runs of rows of a part's arrays.

    A call of ADIOS2 takes as long as 20 kB of a block, however few rows it reads. So a block that was read from a few times is
    read whole, its bytes are looked up in the file, and from then on its rows are copied from there.
    """

    direct = True
    """Short runs of blocks that are looked up cost little."""

    def __init__(self, path: Path, info: PartInfo, columns: Mapping[str, int]) -> None:
        """Open the directory; ``columns`` maps arrays to columns of ``info.blocks``."""
        self._path = path
        self._steps: dict[str, NDArray[np.int64]] = {}
        self._places: dict[str, Places] = {}
        for name, column in columns.items():
            rows = np.array([block[column] for block in info.blocks], dtype=np.int64)
            written = np.zeros(len(rows), dtype=np.bool_)
            written[info.stored.get(name, range(len(rows)))] = True
            written &= rows > 0
            self._steps[name] = np.where(written, np.cumsum(written) - 1, ZERO)
            offsets = np.where(written, UNKNOWN, ZERO)
            self._places[name] = Places(bounds=offsets_of(rows), row_bytes=0, offsets=offsets)
        self._calls = {name: np.zeros(len(info.blocks), dtype=np.int64) for name in columns}
        try:
            self._file: Any = adios2.FileReader(str(path))
            self._bytes = MappedFile(path / "data.0")
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"{path} cannot be read as ADIOS2 BP5; copy the store again") from error

    def check(self, layout: Mapping[str, Layout]) -> None:
        """Raise InputError for missing arrays or another shape, dtype or length."""
        for name, expected in layout.items():
            rows = [count for count in expected.rows if count]
            array: Any = self._file.inquire_variable(name) if rows else None
            steps = 0 if array is None else array.steps()
            if steps != len(rows):
                raise InputError(f"{self._path}: {name} is in {steps} steps, not {len(rows)}; copy the store again")
            for step, count in enumerate(rows):
                rows_found, *shape = array.shape(step)
                dtype = np.dtype(DTYPES.get(array.type(), object))
                expected.check(f"{self._path}: {name}", (rows_found, count), tuple(shape), dtype)
            self._places[name] = replace(self._places[name], row_bytes=expected.row_bytes)

    def fill(self, name: str, out: Array, start: int) -> None:
        """Fill ``out`` with rows from ``start`` on; missing blocks stay zero."""
        places = self._places[name]
        stop = start + len(out)
        touched = places.piece_of(np.array([start, stop - 1])).clip(max=len(places.offsets) - 1)
        for block in range(int(touched[0]), int(touched[1]) + 1):
            first, last = max(start, int(places.bounds[block])), min(stop, int(places.bounds[block + 1]))
            own, origin = out[first - start : last - start], int(places.offsets[block])
            if origin >= 0:
                with self._reading(name):
                    content = places.joined(memoryview(self._bytes.content), np.array([first]), np.array([last]))
                own[...] = np.frombuffer(content, dtype=out.dtype).reshape(own.shape)
            elif origin != ZERO and last > first:
                own[...] = self._block(name, block, first, last, out.shape[1:])

    def _block(self, name: str, block: int, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """Return rows of one block as ADIOS2 reads them."""
        begin, size = [first - int(self._places[name].bounds[block]), *(0 for _ in shape)], [last - first, *shape]
        with self._reading(name):
            rows: Array = self._file.read(
                name, start=begin, count=size, step_selection=[int(self._steps[name][block]), 1]
            )
        return rows

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turn errors of ADIOS2 into InputError with the array's name."""
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"{self._path}: {name} cannot be read; copy the store again") from error

    def joined(
        self, name: str, dtype: np.dtype[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> bytearray | None:
        """Return mapped runs of rows; None where ADIOS2 must read a block."""
        places, calls = self._places[name], self._calls[name]
        if not places.row_bytes:  # stored nowhere
            return None
        if (places.offsets < ZERO).any() and len(starts):
            some = stops > starts
            touched = np.zeros(len(calls) + 1, dtype=np.int64)
            np.add.at(touched, places.piece_of(starts[some]), 1)
            np.add.at(touched, places.piece_of(stops[some] - 1) + 1, -1)
            unknown = (np.cumsum(touched)[:-1] > 0) & (places.offsets < ZERO)
            calls += np.cumsum(touched)[:-1]
            sizes = np.diff(places.bounds) * places.row_bytes
            for block in np.flatnonzero(unknown & (places.offsets == UNKNOWN) & (calls * CALL_BYTES > sizes)).tolist():
                places.offsets[block] = self._found(name, block, dtype)
            if (places.offsets[unknown] < ZERO).any():
                return None
        with self._reading(name):
            return places.joined(memoryview(self._bytes.content), starts, stops)

    def _found(self, name: str, block: int, dtype: np.dtype[Any]) -> int:
        """Return a block's first byte in the file, or ``ABSENT``.

        Between arrays of a step there are small gaps, and arrays mostly lie in the order of their names here.
        """
        shape = tuple(self._file.inquire_variable(name).shape(int(self._steps[name][block]))[1:])
        first, last = self._places[name].bounds[block : block + 2].tolist()
        data = np.ascontiguousarray(self._block(name, block, first, last, shape), dtype=dtype).reshape(-1)
        wanted, names = data.view(np.uint8), list(self._places)
        low, end = (sum(self._bytes_of(other, stop) for other in names) for stop in (block, block + 1))
        likely = low + sum(
            self._bytes_of(other, block + 1) - self._bytes_of(other, block) for other in names[: names.index(name)]
        )
        end += STEP_BYTES * (len(names) + 1) * (block + 1)
        with self._reading(name):
            content = self._bytes.content
            for start in (likely, low):
                while (start := content.find(wanted[:NEEDLE].tobytes(), start, end)) >= 0:
                    size = min(len(wanted), len(content) - start)
                    if np.array_equal(np.frombuffer(content, np.uint8, size, start), wanted):
                        return start
                    start += 1
        return ABSENT

    def _bytes_of(self, name: str, blocks: int) -> int:
        """Return the bytes of an array in the first blocks."""
        places = self._places[name]
        stored = places.offsets[:blocks] != ZERO
        return int(np.diff(places.bounds[: blocks + 1])[stored].sum()) * places.row_bytes

    def close(self) -> None:
        """Let go of the directory."""
        self._bytes.close()
        self._file.close()


class AdiosEngine(StoreEngine):
    """Parts as directories of ADIOS2."""

    suffixes = (".bp",)

    writer = AdiosPartWriter
    reader = AdiosPartReader
