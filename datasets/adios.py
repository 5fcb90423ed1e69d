"""Parts of a store as ADIOS2 BP5 directories: one step per block, one variable per flat array."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import adios2
import numpy as np
from numpy.typing import NDArray

from hydragnn.datasets.arrays import Array
from hydragnn.datasets.manifest import Layout, PartInfo
from hydragnn.errors import InputError

os.environ["ADIOS2_PLUGIN_PATH"] = os.devnull
"""A file can say that its numbers were packed by a plugin, and ADIOS2 would load that library from wherever the file says.

The library looks for plugins below this path only, and below a file there is nothing. Our stores need none.
"""

DTYPES = {"double": "f8", "float": "f4", "int64_t": "i8", "int32_t": "i4", "uint8_t": "u1"}
"""What ADIOS2 calls the dtypes of stores."""

UNWRITABLE = "ADIOS2 could not write (is the disk full?)"  # its own message is an escape-coded log line without errno


class AdiosPartWriter:
    """Appends blocks of arrays as steps; an array may be missing from a step."""

    def __init__(self, path: Path) -> None:
        """A new directory at ``path``; OSError where it cannot be made."""
        self._path = path
        self._adios = adios2.Adios()
        self._io = self._adios.declare_io("write")
        self._io.set_engine("BP5")
        self._io.set_parameters({"NumAggregators": "1", "StatsLevel": "0"})
        try:
            self._stream = adios2.Stream(self._io, str(path), "w")
        except RuntimeError as error:
            raise OSError(UNWRITABLE) from error

    def write_block(self, arrays: dict[str, Array], rows_before: dict[str, int]) -> None:
        """Append ``arrays`` as one step; OSError where there is no space."""
        try:
            self._stream.begin_step()
            for name, array in arrays.items():
                if array.size:
                    shape = list(array.shape)
                    writable = np.require(array, requirements=["C", "W"])  # ADIOS2 refuses read-only arrays
                    self._stream.write(name, writable, shape, [0] * len(shape), shape)
            self._stream.end_step()
        except RuntimeError as error:
            raise OSError(UNWRITABLE) from error

    def close(self) -> None:
        """Finish the directory."""
        try:
            self._stream.close()
        except RuntimeError as error:
            raise OSError(UNWRITABLE) from error
        (self._path / "profiling.json").unlink(missing_ok=True)


class AdiosPartReader:
    """Reads runs of rows of a part's arrays, block by block."""

    def __init__(self, path: Path, part: PartInfo, places: dict[str, int]) -> None:
        """Open the directory; ``places`` maps arrays to the column of ``part.blocks`` that counts their rows."""
        self._path = path
        self._places = places
        rows = [list(accumulate((block[column] for block in part.blocks), initial=0)) for column in range(3)]
        self._starts = rows
        self._steps: dict[str, dict[int, int]] = {}
        for name, column in places.items():
            blocks = part.stored.get(name, range(len(part.blocks)))
            written = [block for block in blocks if part.blocks[block][column]]
            self._steps[name] = {block: step for step, block in enumerate(written)}
        try:
            self._file: Any = adios2.FileReader(str(path))
        except RuntimeError as error:
            raise InputError(f"{path} cannot be read as ADIOS2 BP5; copy the store again") from error

    @property
    def direct(self) -> bool:
        """Return False: every run is a call of the engine."""
        return False

    def check(self, layout: Mapping[str, Layout]) -> None:
        """Raise InputError where an array is missing or has other rows, another shape or another dtype in some block."""
        for name, expected in layout.items():
            rows = [count for count in expected.rows if count]
            array: Any = self._file.inquire_variable(name) if rows else None
            steps = 0 if array is None else array.steps()
            if steps != len(rows):
                raise InputError(
                    f"{self._path}: {name} is in {steps} steps, expected are {len(rows)}; copy the store again"
                )
            for step, count in enumerate(rows):
                there, *shape = array.shape(step)
                dtype = np.dtype(DTYPES.get(array.type(), object))
                expected.check(f"{self._path}: {name}", (there, count), tuple(shape), dtype)

    def fill(self, name: str, out: Array, start: int) -> None:
        """Put the rows from ``start`` on into ``out``; rows of blocks that do not store the array stay as they are."""
        starts, steps = self._starts[self._places[name]], self._steps[name]
        stop = start + len(out)
        for block in range(bisect_right(starts, start) - 1, bisect_left(starts, stop)):
            first, last = max(start, starts[block]), min(stop, starts[block + 1])
            if last > first and block in steps:
                rows = self._rows(name, steps[block], first - starts[block], last - first, out.shape[1:])
                out[first - start : last - start] = rows

    def joined(
        self, name: str, dtype: np.dtype[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> bytearray | None:
        """None: blocks are read by the engine."""
        return None

    def _rows(self, name: str, step: int, first: int, count: int, shape: tuple[int, ...]) -> Array:
        try:
            rows: Array = self._file.read(
                name, start=[first, *(0 for _ in shape)], count=[count, *shape], step_selection=[step, 1]
            )
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{self._path}: {name} cannot be read; copy the store again") from error
        return rows

    def close(self) -> None:
        """Let go of the directory."""
        self._file.close()
