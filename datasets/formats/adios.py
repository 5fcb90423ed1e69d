"""Parts of a store as ADIOS2 BP5 directories: one step per block."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import adios2
import numpy as np
from numpy.typing import NDArray

from hydragnn.base.environment import change_environment
from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array, offsets_of
from hydragnn.datasets.formats.engine import StoreEngine
from hydragnn.datasets.formats.reservation import Ballast, engine_errors, state_of
from hydragnn.datasets.manifest import Layout, PartInfo

change_environment({"ADIOS2_PLUGIN_PATH": os.devnull})
"""A file can say that its numbers were packed by a plugin, and ADIOS2 would load that library from wherever the file says.

The library looks for plugins below this path only, and below a file there is nothing. Our stores need none.
"""

DTYPES = {"double": "f8", "float": "f4", "int64_t": "i8", "int32_t": "i4", "uint8_t": "u1"}  # names of dtypes in ADIOS2
RESERVED = ".reserved"  # a file that keeps space for a directory until it is complete
STEP_BYTES = 1 << 13  # more than ADIOS2 adds to an array of a step: its description, and the gaps to whole pages
ZERO = -1  # step of a block that was never written and holds zeros


class AdiosPartWriter:
    """Writer of blocks as steps of a BP5 directory."""

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
        """Append ``arrays`` as one step; OSError without space."""
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
    """Reads runs of rows of arrays, by a call for each block."""

    direct = False
    """A call takes as long as 20 kB of a block, however few rows it reads."""

    def __init__(self, path: Path, info: PartInfo, columns: Mapping[str, int]) -> None:
        """Open the directory; ``columns`` maps arrays to columns of ``info.blocks``."""
        self._path = path
        self._lock = Lock()  # ADIOS2 has one selection for all threads
        self._bounds: dict[str, NDArray[np.int64]] = {}
        self._steps: dict[str, NDArray[np.int64]] = {}
        for name, column in columns.items():
            rows = np.array([block[column] for block in info.blocks], dtype=np.int64)
            written = np.zeros(len(rows), dtype=np.bool_)
            written[info.stored.get(name, range(len(rows)))] = True
            written &= rows > 0
            self._bounds[name] = offsets_of(rows)
            self._steps[name] = np.where(written, np.cumsum(written) - 1, ZERO)
        try:
            self._file: Any = adios2.FileReader(str(path))
            self._written = state_of(path / "data.0")
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

    def fill(self, name: str, out: Array, start: int) -> None:
        """Fill ``out`` with rows from ``start`` on; missing blocks stay zero."""
        bounds, steps, stop = self._bounds[name], self._steps[name], start + len(out)
        for block in np.flatnonzero((bounds[1:] > start) & (bounds[:-1] < stop) & (steps != ZERO)).tolist():
            first, last = max(start, int(bounds[block])), min(stop, int(bounds[block + 1]))
            begin, size = [0] * out.ndim, [last - first, *out.shape[1:]]
            begin[0] = first - int(bounds[block])
            try:
                # reading beyond the end of a file would end the process
                if state_of(self._path / "data.0") != self._written:
                    raise OSError("the file was changed while it was read")
                selection = [int(steps[block]), 1]
                with self._lock:
                    values = self._file.read(name, start=begin, count=size, step_selection=selection)
                out[first - start : last - start] = values
            except (RuntimeError, ValueError, OSError) as error:
                raise InputError(f"{self._path}: {name} cannot be read; copy the store again") from error

    def joined(self, name: str, dtype: np.dtype[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Return None: ADIOS2 reads every block."""

    def close(self) -> None:
        """Let go of the directory."""
        self._file.close()


class AdiosEngine(StoreEngine):
    """Parts as directories of ADIOS2."""

    suffixes = (".bp",)

    writer = AdiosPartWriter
    reader = AdiosPartReader
