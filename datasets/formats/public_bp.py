"""Sets of graphs that the public HydraGNN wrote with ADIOS2."""

import faulthandler
import math
import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import adios2
import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array
from hydragnn.datasets.formats.adios import DTYPES
from hydragnn.datasets.formats.public_columns import Columns, Piece, by_part
from hydragnn.datasets.formats.reservation import state_of

SECONDS, BYTES = 20, 1 << 30
"""Time and memory of a trial, and those of its files more: damaged files hang or end ADIOS2."""
FILE_RATE = 1e8
"""Bytes a second that a slow file system reads."""

MINMAX = "minmax_"
"""Begin of names of attributes with smallest and largest values."""


class BpColumns(Columns):
    """Keys of a ``.bp`` set, whose names nothing evaluates."""

    def __init__(self, path: Path, *, is_trial: bool = False) -> None:
        """Open a set; InputError where files contradict each other."""
        self._broken = f"{path} is damaged, or no set of the public HydraGNN; copy it again"
        self._data = sorted(path.glob("data.*"))
        if not is_trial and not _opens(path):
            raise InputError(self._broken)
        try:
            self._file: Any = adios2.FileReader(str(path))
            self._state = [state_of(file) for file in self._data]
            attributes = {name: self._file.read_attribute(name) for name in self._file.available_attributes()}
            variables = self._file.available_variables()
            self._types = {name: str(one["Type"]) for name, one in variables.items()}
            self._shapes = {
                name: tuple(map(int, filter(None, one["Shape"].replace(" ", "").split(","))))
                for name, one in variables.items()
            }
            self._check_bytes(path)
            super().__init__(path, self._pieces_of(attributes))
        except InputError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, OSError, AttributeError) as error:
            raise InputError(self._broken) from error
        self.attributes = {name: _plain(name, value) for name, value in attributes.items() if "/" not in name}

    def __reduce__(self) -> tuple[type["BpColumns"], tuple[Path]]:
        return BpColumns, (self.path,)

    def _check_bytes(self, path: Path) -> None:
        """Raise InputError for too few bytes, for which ADIOS2 would wait."""
        claim = sum(
            math.prod(shape) * np.dtype(DTYPES.get(self._types[name], "u1")).itemsize
            for name, shape in self._shapes.items()
        )
        present = sum(file.stat().st_size for file in self._data)
        if claim > present:
            raise InputError(f"{path} claims {claim:,} bytes and has {present:,}; it was cut off, so copy it again")

    def _pieces_of(self, attributes: Mapping[str, Any]) -> Iterator[Piece]:
        """Yield the keys of every label; InputError where counts contradict arrays."""
        known: list[NDArray[np.int64]] = []
        labels = [name.removesuffix("/ndata") for name in attributes if name.endswith("/ndata")]
        for label in sorted(labels, key=by_part):
            graphs = int(attributes[f"{label}/ndata"])
            for key in sorted({*np.atleast_1d(attributes[f"{label}/keys"]).tolist()}):
                name = f"{label}/{key}"
                axis, shape = int(attributes[f"{name}/variable_dim"]), self._shapes[name]
                counts, starts = (self._index(f"{name}/variable_{which}", graphs) for which in ("count", "offset"))
                stops = np.cumsum(counts)
                if not 0 <= axis < len(shape) or (counts < 0).any() or (starts != stops - counts).any():
                    raise InputError(f"{self._broken}: offsets of {name} are not the sums of its counts")
                if int(stops[-1]) != shape[axis]:
                    raise InputError(
                        f"{self._broken}: counts of {name} are {stops[-1]} in all, and it has {shape[axis]}"
                    )
                counts = next((one for one in known if np.array_equal(one, counts)), counts)
                known.append(counts)  # most keys have one of few columns of counts, which is kept once
                dtype = np.dtype(DTYPES.get(self._types[name], object))
                yield Piece(label=label, key=str(key), axis=axis, shape=shape, dtype=dtype, counts=counts)

    def _index(self, name: str, graphs: int) -> NDArray[np.int64]:
        if self._shapes[name] != (graphs,) or self._types[name] != "int64_t" or graphs < 1:
            raise InputError(f"{self._broken}: {name} is not one whole number for each of {graphs} graphs")
        values: NDArray[np.int64] = self._file.read(name)
        return values

    def slab(self, piece: Piece, start: int, stop: int) -> Array:
        """Return a run of an array; InputError for changed files."""
        name, shape = f"{piece.label}/{piece.key}", piece.shape
        out = np.empty((*shape[: piece.axis], stop - start, *shape[piece.axis + 1 :]), dtype=piece.dtype)
        try:
            if self._state != [state_of(file) for file in self._data]:  # reading beyond an end would end the process
                raise OSError("the set was changed while it was read")
            for place in np.ndindex(shape[: piece.axis]) if stop > start else ():  # ADIOS2 reads all in between, too
                begin = [*place, start, *(0 for _ in shape[piece.axis + 1 :])]
                size = [*(1 for _ in place), *out.shape[piece.axis :]]
                out[place] = self._file.read(name, start=begin, count=size).reshape(out.shape[piece.axis :])
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"{self.path}: {name} cannot be read; copy the set again") from error
        return out


def _opens(path: Path) -> bool:
    """Return True where a child process can open a set and read its ends."""
    files = sum(file.stat().st_size for file in path.glob("*"))
    child = os.fork()
    if child == 0:
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            with suppress(ValueError):  # where less is allowed anyway
                resource.setrlimit(resource.RLIMIT_AS, (size + files + BYTES, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with suppress(InputError):  # which the parent raises
                columns = BpColumns(path, is_trial=True)
                for key in columns.offsets:
                    columns.rows(key, 0, 1)
                    columns.rows(key, len(columns) - 1, len(columns))
            os._exit(0)
        finally:
            os._exit(1)
    stop = time.monotonic() + SECONDS + files / FILE_RATE
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < stop:
        time.sleep(0.001)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    return ended[1] == 0


def _plain(name: str, value: Any) -> Any:
    """Return an attribute as JSON has it."""
    if isinstance(value, np.ndarray) and name.startswith(MINMAX) and value.size % 2 == 0:
        return value.reshape(2, -1).tolist()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
