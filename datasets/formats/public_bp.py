"""Sets of graphs that the public HydraGNN wrote with ADIOS2."""

import faulthandler
import math
import os
import resource
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import adios2
import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array
from hydragnn.datasets.formats.adios import DTYPES
from hydragnn.datasets.formats.public_columns import EDGES, Columns
from hydragnn.datasets.formats.reservation import state_of

SECONDS, BYTES = 10, 1 << 30
"""Time and memory of a trial, and those of its files more: damaged files hang or end ADIOS2."""
OTHER = "V1"  # dtype in place of those that are not read
FILE_RATE = 1e8  # bytes a second that a slow file system reads


class BpColumns(Columns):
    """Keys of a ``.bp`` set, whose names nothing evaluates."""

    def __init__(self, path: Path, *, is_trial: bool = False) -> None:
        """Open a set; InputError where files contradict each other."""
        self._broken = f"{path} is damaged, or no set of the public HydraGNN; copy it again"
        self._data = sorted(path.glob("data.*"))
        if not is_trial and not _opens(path):
            raise InputError(self._broken)
        try:
            self._adios = adios2.Adios()
            io = self._adios.declare_io("read")
            io.set_parameters({"OpenTimeoutSecs": "1"})  # for which files that were cut off are waited for
            self._file: Any = adios2.FileReader(io, str(path))
            self._state = [state_of(file) for file in self._data]
            attributes = {name: self._file.read_attribute(name) for name in self._file.available_attributes()}
            variables = self._file.available_variables().items()
            self._types = {name: np.dtype(DTYPES.get(one["Type"], OTHER)) for name, one in variables}
            self._shapes = {name: tuple(map(int, filter(None, one["Shape"].split(",")))) for name, one in variables}
            self._axes: dict[str, tuple[int, bool]] = {}
            self._lock = Lock()  # ADIOS2 has one selection for all threads
            claim = sum(math.prod(shape) * self._types[name].itemsize for name, shape in self._shapes.items())
            claim = max(
                claim, *(size for shape in self._shapes.values() for size in shape)
            )  # rows without numbers, too
            present = sum(file.stat().st_size for file in self._data)
            if claim > present:  # for which ADIOS2 would wait
                raise InputError(f"{path} claims {claim:,} bytes and has {present:,}; it was cut off, so copy it again")
            labels = {name[:-6]: int(one) for name, one in attributes.items() if name.endswith("/ndata")}
            super().__init__(path, labels, {name: one for name, one in attributes.items() if "/" not in name})
            self._add_keys(attributes)
        except InputError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, OSError, AttributeError) as error:
            raise InputError(self._broken) from error

    def __reduce__(self) -> tuple[type["BpColumns"], tuple[Path]]:
        return BpColumns, (self.path,)

    def _add_keys(self, attributes: Mapping[str, Any]) -> None:
        """Add every key; InputError where counts contradict arrays."""
        keys = {label: {*np.atleast_1d(attributes[f"{label}/keys"]).tolist()} for label in self.labels}
        for key in sorted({key for some in keys.values() for key in some}):
            labels = [label for label in self.labels if key in keys[label]]
            axes = [int(attributes[f"{label}/{key}/variable_dim"]) for label in labels]
            axis = max(int(key == EDGES and len(self._shapes[f"{labels[0]}/{key}"]) > 1), *axes)
            forms = [self._form(f"{label}/{key}", own, axis, self.labels[label]) for label, own in zip(labels, axes)]
            (dtype, shape), *others = {(self._types[f"{label}/{key}"], form[1]) for label, form in zip(labels, forms)}
            if len(labels) < len(self.labels) or others or axis > 1 or dtype == OTHER or shape is None:
                self.left_out[key] = "not in every part with one dtype and shape that are read"
            else:
                self._axes |= {f"{label}/{key}": (own, own < axis) for label, own in zip(labels, axes)}
                self.add(key, np.concatenate([counts for counts, _ in forms]), shape, dtype)

    def _form(self, name: str, own: int, axis: int, graphs: int) -> tuple[NDArray[np.int64], tuple[int, ...] | None]:
        """Return rows of each graph along ``axis``, and their shape; None for several."""
        shape, indices = self._shapes[name], [f"{name}/variable_{which}" for which in ("count", "offset")]
        for index in indices:
            if self._shapes[index] != (graphs,) or self._types[index] != np.int64:
                raise InputError(f"{self._broken}: {index} is not one whole number for each of {graphs} graphs")
        counts, starts = map(self._file.read, indices)
        extent = shape[own] if 0 <= own < len(shape) else -1
        fit = (counts >= 0) & (counts <= extent) & (starts == np.cumsum(counts) - counts)
        if not fit.all() or counts.sum() != extent:
            raise InputError(f"{self._broken}: counts and offsets of {name} are not those of its shape {shape}")
        if own == axis:
            return counts, (*shape[:axis], *shape[axis + 1 :])
        alike = len(shape) > 1 and (counts == counts[0]).all()
        return (np.full(graphs, shape[1]), (int(counts[0]), *shape[2:])) if alike else (counts, None)

    def rows(self, key: str, first: int, last: int) -> Array:
        """Return rows of graphs ``first`` to ``last``; InputError for changed files."""
        row, bounds = self.shapes[key], self.offsets[key]
        runs, skip = [np.zeros((0, *row), dtype=self.dtypes[key])], 0
        for label, graphs in self.labels.items():
            name, start, stop = f"{label}/{key}", max(first - skip, 0), min(last - skip, graphs)
            if stop > start:
                axis, lies_across = self._axes[name]
                begin, end = (bounds[[skip + start, skip + stop]] - bounds[skip]).tolist()
                if lies_across:  # samples of one shape, end to end along another axis than rows
                    slab = self._slab(name, axis, start * row[0], stop * row[0])
                    slab = slab.reshape(stop - start, row[0], *slab.shape[1:]).swapaxes(1, 2)
                    runs.append(slab.reshape(end - begin, *row))
                else:
                    runs.append(np.moveaxis(self._slab(name, axis, begin, end), axis, 0))
            skip += graphs
        return np.ascontiguousarray(np.concatenate(runs))

    def _slab(self, name: str, axis: int, start: int, stop: int) -> Array:
        """Return a run of an array along its axis."""
        shape, variable = self._shapes[name], self._file.inquire_variable(name)
        out = np.empty((*shape[:axis], stop - start, *shape[axis + 1 :]), dtype=self._types[name])
        try:
            if self._state != [state_of(file) for file in self._data]:  # reading beyond an end would end the process
                raise OSError("the set was changed while it was read")
            for place in np.ndindex(shape[:axis]) if out.size else ():  # ADIOS2 reads all in between, too
                begin = [*place, start, *(0 for _ in shape[axis + 1 :])]
                with self._lock:
                    variable.set_selection([begin, [*(1 for _ in place), *out.shape[axis:]]])
                    self._file.engine.get(variable, out[place])
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"{self.path}: {name} cannot be read; copy the set again") from error
        return out


def _opens(path: Path) -> bool:
    """Return True where a child process can open and read a set."""
    files = sum(file.stat().st_size for file in path.glob("*"))
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS + int(files / FILE_RATE))
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
