"""Parts of a store as ADIOS2 BP5 directories: one step per block."""

import ctypes
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import adios2
import numpy as np
from numpy.typing import NDArray

from hydragnn.base.environment import change_environment
from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array
from hydragnn.datasets.formats.engine import StoreEngine
from hydragnn.datasets.formats.reservation import Ballast, engine_errors
from hydragnn.datasets.manifest import Layout, PartInfo

change_environment({"ADIOS2_PLUGIN_PATH": os.devnull})
"""A file can say that its numbers were packed by a plugin, and ADIOS2 would load that library from wherever the file says.

The library looks for plugins below this path only, and below a file there is nothing. Our stores need none.
"""

DTYPES = {"double": "f8", "float": "f4", "int64_t": "i8", "int32_t": "i4", "uint8_t": "u1"}
"""What ADIOS2 calls the dtypes of stores."""

RESERVED = ".reserved"
"""A file that keeps space for a directory until it is complete."""

STEP_BYTES = 1 << 13
"""More than ADIOS2 adds to an array of a step: its description, and the gaps to whole pages."""


class ReservedBp:
    """New BP5 directory that reserves space before each step."""

    def __init__(self, path: Path) -> None:
        """A new directory at ``path``; OSError where it cannot be made."""
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

    def write_step(self, values: Mapping[str, Array | str], attributes: Mapping[str, str] | None = None) -> None:
        """Append whole arrays and texts as a step; OSError without space."""
        texts = [text for text in [*values.values(), *(attributes or {}).values()] if isinstance(text, str)]
        size = sum(value.nbytes for value in values.values() if not isinstance(value, str))
        size += 8 * sum(map(len, texts)) + STEP_BYTES * (len(values) + 1)
        self._ballast.make_room(size, self._path / "data.0")
        with engine_errors("ADIOS2"):
            self._stream.begin_step()
            for name, text in (attributes or {}).items():
                self._stream.write_attribute(name, text)
            for name, value in values.items():
                if isinstance(value, str):
                    self._stream.write(name, value)
                else:
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


class AdiosPartWriter(ReservedBp):
    """Writer of blocks as steps; a step may lack arrays."""

    def write_block(self, arrays: dict[str, Array], rows_before: dict[str, int]) -> None:
        """Append ``arrays`` as one step; OSError where there is no space."""
        self.write_step({name: array for name, array in arrays.items() if array.size})


class AdiosPartReader:
    """Reads runs of rows of a part's arrays, block by block."""

    direct = False
    """Every run is a call of the engine."""

    def __init__(self, path: Path, info: PartInfo, columns: Mapping[str, int]) -> None:
        """Open the directory; ``columns`` maps arrays to columns of ``info.blocks``."""
        self._path = path
        self._places = columns
        rows = [list(accumulate((block[column] for block in info.blocks), initial=0)) for column in range(3)]
        self._starts = rows
        self._steps: dict[str, dict[int, int]] = {}
        for name, column in columns.items():
            blocks = info.stored.get(name, range(len(info.blocks)))
            written = [block for block in blocks if info.blocks[block][column]]
            self._steps[name] = {block: step for step, block in enumerate(written)}
        try:
            self._file: Any = adios2.FileReader(str(path))
        except (RuntimeError, ValueError) as error:
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
        starts, steps = self._starts[self._places[name]], self._steps[name]
        stop = start + len(out)
        for block in range(bisect_right(starts, start) - 1, bisect_left(starts, stop)):
            first, last = max(start, starts[block]), min(stop, starts[block + 1])
            if last > first and block in steps:
                shape, step = out.shape[1:], steps[block]
                begin, size = [first - starts[block], *(0 for _ in shape)], [last - first, *shape]
                try:
                    rows = self._file.read(name, start=begin, count=size, step_selection=[step, 1])
                except (RuntimeError, ValueError) as error:
                    raise InputError(f"{self._path}: {name} cannot be read; copy the store again") from error
                out[first - start : last - start] = rows

    def joined(
        self, name: str, dtype: np.dtype[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> bytearray | None:
        """None: blocks are read by the engine."""
        return None

    def close(self) -> None:
        """Let go of the directory."""
        self._file.close()


class AdiosEngine(StoreEngine):
    """Parts as directories of ADIOS2."""

    suffixes = (".bp",)

    writer = AdiosPartWriter
    reader = AdiosPartReader
