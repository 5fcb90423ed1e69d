"""Samples of the public HydraGNN end to end, by key."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array, offsets_of

LABELS = ("trainset", "valset", "testset")  # labels in the order of the parts of a split
EDGES = "edge_index"
MINMAX = "minmax_"  # begin of names of attributes with smallest and largest values


class Columns:
    """Keys of all samples, with the rows of every graph."""

    def __init__(self, path: Path, labels: Mapping[str, int], attributes: Mapping[str, Any]) -> None:
        """Take the number of graphs by label; InputError without any."""
        self.path = path
        order = (*LABELS, *sorted({*labels} - {*LABELS}))
        self.labels = {label: labels[label] for label in order if labels.get(label)}
        if not self.labels:
            raise InputError(f"{path} has no samples; copy it again, or check where it comes from")
        self.attributes = {name: as_json(name, value) for name, value in attributes.items()}
        self.offsets: dict[str, NDArray[np.int64]] = {}  # first row of every graph, by key, and the end
        self.shapes: dict[str, tuple[int, ...]] = {}  # of a row
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.left_out: dict[str, str] = {}  # keys that are not read, and why
        self._arrays: dict[str, Array] = {}

    def __len__(self) -> int:
        return sum(self.labels.values())

    def add(self, key: str, counts: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Add a key by the rows of every graph."""
        offsets = offsets_of(np.asarray(counts))
        # most keys have one of few columns of offsets, which is kept once
        self.offsets[key] = next((one for one in self.offsets.values() if np.array_equal(one, offsets)), offsets)
        self.shapes[key], self.dtypes[key] = shape, dtype

    def rows(self, key: str, first: int, last: int) -> Array:
        """Return rows of graphs ``first`` to ``last``, end to end."""
        return self._arrays[key][slice(*self.offsets[key][[first, last]].tolist())]

    def count(self, key: str) -> int | None:
        """Return the rows of each graph; None where they differ."""
        counts = np.diff(self.offsets[key])
        return int(counts[0]) if (counts == counts[0]).all() else None


def record_columns(path: Path, records: Mapping[str, Sequence[Mapping[str, Any]]], notes: dict[str, Any]) -> Columns:
    """Return arrays, numbers and texts of samples by label."""
    columns = Columns(path, {label: len(some) for label, some in records.items()}, notes)
    samples = [{key: _array(value) for key, value in one.items()} for label in columns.labels for one in records[label]]
    for key in sorted({key for one in samples for key in one}):
        arrays = [array for one in samples if (array := one.get(key)) is not None]
        alike = len(arrays) == len(samples) and len({(array.ndim, array.dtype) for array in arrays}) == 1
        axes = np.flatnonzero(np.ptp([array.shape for array in arrays], axis=0)).tolist() if alike else []
        if not alike or len(axes) > 1:
            columns.left_out[key] = "not in every sample with one dtype and shape but for its rows"
            continue
        axis = axes[0] if axes else int(key == EDGES and arrays[0].ndim > 1)
        whole = columns._arrays[key] = np.concatenate([np.moveaxis(array, axis, 0) for array in arrays])
        columns.add(key, [array.shape[axis] for array in arrays], whole.shape[1:], whole.dtype)
    return columns


def _array(value: Any) -> Array | None:
    """Return a sample's value as an array; None for what is none."""
    if isinstance(value, str):
        return np.frombuffer(value.encode(), dtype=np.uint8)
    array = np.atleast_1d(value) if isinstance(value, np.ndarray | np.generic | int | float) else None
    return array if array is not None and array.dtype.kind in "fiub" else None


def as_json(name: str, value: Any) -> Any:
    """Return an attribute as JSON has it; smallest above largest values."""
    if isinstance(value, np.ndarray) and name.startswith(MINMAX) and value.size % 2 == 0:
        value = value.reshape(2, -1)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
