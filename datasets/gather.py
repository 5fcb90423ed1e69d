"""Batches out of flat arrays: whole-array copies, no Python object per graph."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets.arrays import Array, ArraySpec, FlatGraphs, array_name, array_specs, mask_name, offsets_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field

LONG_RUN = 512  # rows from which copying run by run beats one indexed copy


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spans:
    """Which rows of an array to copy, in order: either every row by number, or a few long runs."""

    counts: NDArray[np.int64]
    total: int
    runs: list[slice]
    rows: NDArray[np.int64]

    def copy(self, array: Array) -> Array:
        """The rows as one new array."""
        if not self.runs:
            return np.take(array, self.rows, axis=0)
        out = np.empty((self.total, *array.shape[1:]), dtype=array.dtype)
        np.concatenate([array[run] for run in self.runs], out=out)
        return out


def spans_of(offsets: NDArray[np.int64], indices: NDArray[np.int64]) -> Spans:
    """The rows of the graphs ``indices``; neighbours in the array are joined into one run.

    >>> spans_of(np.array([0, 2, 5, 6]), np.array([2, 0])).rows
    array([5, 0, 1])
    """
    starts, stops = offsets[indices], offsets[indices + 1]
    counts = stops - starts
    total = int(counts.sum())
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    if total >= LONG_RUN * (len(breaks) + 1):
        heads, tails = np.r_[0, breaks], np.r_[breaks, len(starts)] - 1
        runs = [slice(a, b) for a, b in zip(starts[heads].tolist(), stops[tails].tolist()) if b > a]
        return Spans(counts=counts, total=total, runs=runs, rows=np.empty(0, dtype=np.int64))
    rows = np.repeat(starts - offsets_of(counts)[:-1], counts)
    rows += np.arange(total)
    return Spans(counts=counts, total=total, runs=[], rows=rows)


def gather(flat: FlatGraphs, indices: NDArray[np.int64], names: Collection[str] | None = None) -> GraphBatch:
    """The graphs ``indices`` in this order as a batch, with the named fields only (None: all)."""
    fields = [field for field in flat.fields if names is None or field.name in names]
    nodes, edges = spans_of(flat.node_offsets, indices), spans_of(flat.edge_offsets, indices)
    node_offsets = offsets_of(nodes.counts)

    def copy(spec: ArraySpec) -> Array:
        if spec.name not in flat.arrays:
            items = {"node": nodes.total, "edge": edges.total, "graph": len(indices)}[spec.place]
            return np.zeros((items, *spec.shape), dtype=spec.dtype)
        array = flat.arrays[spec.name]
        return array[indices] if spec.place == "graph" else (nodes if spec.place == "node" else edges).copy(array)

    values = {name: copy(spec) for name, spec in array_specs(flat.dim, fields).items()}
    base = np.repeat(node_offsets[:-1], edges.counts)
    masked = [field for field in fields if mask_name(field) in flat.arrays]
    tensors = {name: torch.from_numpy(value) for name, value in values.items() if name not in ("senders", "receivers")}
    return GraphBatch(
        positions=tensors["positions"],
        senders=torch.from_numpy(values["senders"] + base),
        receivers=torch.from_numpy(values["receivers"] + base),
        edge_shifts=tensors["edge_shifts"],
        cell=tensors["cell"],
        periodic=tensors["periodic"],
        node_offsets=torch.from_numpy(node_offsets),
        edge_offsets=torch.from_numpy(offsets_of(edges.counts)),
        fields={field.name: field for field in fields},
        nodes=_on(fields, "node", tensors),
        edges=_on(fields, "edge", tensors),
        graphs=_on(fields, "graph", tensors),
        masks={field.name: torch.from_numpy(flat.arrays[mask_name(field)][indices]) for field in masked},
    )


def _on(fields: list[Field], place: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {field.name: tensors[array_name(field)] for field in fields if field.on == place}
