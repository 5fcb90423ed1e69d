"""Samples of the public HydraGNN end to end, by key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array, offsets_of

LABELS = ("trainset", "valset", "testset")
"""Labels in the order of the parts of a split."""

EDGES = "edge_index"


def by_part(label: str) -> tuple[int, str]:
    """Return what labels are sorted by.

    >>> sorted(["extra", "testset", "trainset"], key=by_part)
    ['trainset', 'testset', 'extra']
    """
    return (LABELS.index(label) if label in LABELS else len(LABELS), label)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Array of a key: samples of one label along ``axis``."""

    label: str
    key: str
    axis: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    counts: NDArray[np.int64]
    """Extent of every sample along the axis."""
    values: Array | None = None
    """The array, where it is in memory."""


class Columns:
    """Keys of all labels, with the rows of every graph."""

    def __init__(self, path: Path, pieces: Iterable[Piece]) -> None:
        """Take pieces in the order of labels; InputError without any."""
        self.path = path
        self.attributes: dict[str, Any] = {}
        by_key: dict[str, list[Piece]] = {}
        self.labels: dict[str, int] = {}
        """Graphs by label."""
        for piece in pieces:
            by_key.setdefault(piece.key, []).append(piece)
            self.labels[piece.label] = len(piece.counts)
        if not self.labels:
            raise InputError(f"{path} has no samples; copy it again, or check where it comes from")
        self.offsets: dict[str, NDArray[np.int64]] = {}
        """First row of every graph, by key, and the end."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Shapes of a row."""
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.left_out: dict[str, str] = {}
        """Keys that are not read, and why."""
        self._pieces: dict[str, list[tuple[Piece, bool]]] = {}
        for key, some in by_key.items():
            if reason := self._add(key, some):
                self.left_out[key] = reason

    def __len__(self) -> int:
        return sum(self.labels.values())

    def _add(self, key: str, pieces: Sequence[Piece]) -> str:
        """Take a key; return why not."""
        axis = max(int(key.startswith(EDGES)), *(piece.axis for piece in pieces))
        lone = {(piece.dtype, _row_shape(piece, axis)) for piece in pieces}
        if {piece.label for piece in pieces} != {*self.labels}:
            return "not in every part"
        if len(lone) > 1 or axis > 1 or pieces[0].dtype == object or any(-1 in shape for _, shape in lone):
            return "of several dtypes or shapes, or of those that are not read"
        counts = [np.full(len(p.counts), p.shape[1]) if p.axis < axis else p.counts for p in pieces]
        offsets = offsets_of(np.concatenate(counts))
        # most keys have one of few columns of offsets, which is kept once
        self.offsets[key] = next((one for one in self.offsets.values() if np.array_equal(one, offsets)), offsets)
        ((self.dtypes[key], self.shapes[key]),) = lone
        self._pieces[key] = [(replace(piece, counts=piece.counts[:1].copy()), piece.axis < axis) for piece in pieces]
        return ""

    def rows(self, key: str, first: int, last: int) -> Array:
        """Return rows of graphs ``first`` to ``last``, end to end."""
        runs, skip = [np.zeros((0, *self.shapes[key]), dtype=self.dtypes[key])], 0
        for piece, lies_across in self._pieces[key]:
            count, bounds = self.labels[piece.label], self.offsets[key]
            start, stop = (min(max(graph - skip, 0), count) for graph in (first, last))
            if lies_across and stop > start:  # all samples of this label have one shape, and lie along another axis
                width = int(piece.counts[0])
                slab = self.slab(piece, start * width, stop * width).reshape(-1, width, *piece.shape[1:])
                runs.append(slab.swapaxes(1, 2).reshape(-1, *self.shapes[key]))
            elif stop > start:
                begin, end = (int(bounds[skip + graph] - bounds[skip]) for graph in (start, stop))
                runs.append(np.moveaxis(self.slab(piece, begin, end), piece.axis, 0))
            skip += count
        return np.ascontiguousarray(np.concatenate(runs))

    def count(self, key: str) -> int | None:
        """Return the rows of each graph; None where they differ."""
        counts = np.diff(self.offsets[key])
        return int(counts[0]) if (counts == counts[0]).all() else None

    def slab(self, piece: Piece, start: int, stop: int) -> Array:
        """Return a run of an array along its axis."""
        assert piece.values is not None
        return np.take(piece.values, range(start, stop), axis=piece.axis)


def _row_shape(piece: Piece, axis: int) -> tuple[int, ...]:
    """Return the shape of a row along another axis than a sample's."""
    if piece.axis < axis:
        return (int(piece.counts[0]), *piece.shape[2:]) if (piece.counts == piece.counts[0]).all() else (-1,)
    return (*piece.shape[:axis], *piece.shape[axis + 1 :])


def record_columns(path: Path, records: Mapping[str, Sequence[Mapping[str, Any]]], notes: dict[str, Any]) -> Columns:
    """Return arrays, numbers and texts of samples by label."""
    other: dict[str, str] = {}
    columns = Columns(path, _pieces(records, other))
    columns.attributes, columns.left_out = notes, columns.left_out | other
    return columns


def _pieces(records: Mapping[str, Sequence[Mapping[str, Any]]], other: dict[str, str]) -> Iterator[Piece]:
    for label in sorted(records, key=by_part):
        samples = [{key: _array(value) for key, value in sample.items()} for sample in records[label]]
        for key in sorted({key for sample in samples for key in sample}):
            arrays = [array for sample in samples if (array := sample.get(key)) is not None]
            ranks, dtypes = {array.ndim for array in arrays}, {array.dtype for array in arrays}
            if len(arrays) < len(samples) or len(ranks) > 1 or len(dtypes) > 1:
                other[key] = "not in every sample, or of several kinds"
                continue
            sizes = np.array([array.shape for array in arrays])
            axes = np.flatnonzero(np.ptp(sizes, axis=0)).tolist()
            if len(axes) > 1:
                other[key] = "of shapes that differ along several axes"
                continue
            axis = (axes or [0])[0]
            values = np.concatenate(arrays, axis=axis)
            counts = sizes[:, axis].astype(np.int64)
            yield Piece(
                label=label, key=key, axis=axis, shape=values.shape, dtype=values.dtype, counts=counts, values=values
            )


def _array(value: Any) -> Array | None:
    """Return a sample's value as an array; None for what is none."""
    if isinstance(value, str):
        return np.frombuffer(value.encode(), dtype=np.uint8)
    array = np.atleast_1d(value) if isinstance(value, np.ndarray | np.generic | int | float) else None
    return array if array is not None and array.dtype.kind in "fiub" else None
