"""Batches out of flat arrays: whole-array copies, no Python object per graph."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.datasets.arrays import Array, FlatGraphs, array_name, array_specs, mask_name, offsets_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import MISSING_CLASS, Field, Location
from hydragnn.graphs.topology import Topology

GAP = 16
"""Graphs between two wanted ones that are cheaper to read than to skip, where an engine has to be called for every run."""

LONG_RUN = 12  # rows per run from which copying run by run beats one indexed copy (measured: 0.15 us a run, 4 ns a row)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spans:
    """Rows of an array to copy: runs, or single rows by number."""

    counts: Int64[ndarray, " graphs"]
    total: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    rows: NDArray[np.int64] | None
    run: slice | None = None
    """All rows, where they follow each other."""

    def copy(self, array: Array) -> Array:
        """The rows of a contiguous array as one new array."""
        if self.run is not None:
            return array[self.run].copy()
        if self.rows is not None:
            return array.take(self.rows, axis=0)
        width = array.itemsize * math.prod(array.shape[1:])
        if not self.total * width:
            return np.empty((self.total, *array.shape[1:]), dtype=array.dtype)
        # joining slices of the raw bytes is one memcpy per run: a third of what numpy.concatenate takes for short runs
        source = array.reshape(-1).view(np.uint8).data
        runs = map(slice, (self.starts * width).tolist(), (self.stops * width).tolist())
        joined = bytearray().join(map(source.__getitem__, runs))
        return np.frombuffer(joined, dtype=array.dtype).reshape(self.total, *array.shape[1:])


def spans_of(offsets: Int64[ndarray, " graphs_plus_one"], indices: Int64[ndarray, " chosen"]) -> Spans:
    """Return the rows of the graphs ``indices``, neighbours as one run.

    >>> spans_of(np.array([0, 2, 5, 6]), np.array([2, 0])).copy(np.arange(6))
    array([5, 0, 1])
    """
    starts, stops = offsets.take(indices), offsets.take(indices + 1)
    counts = stops - starts
    if len(indices) == 1:  # graphs that are read one by one
        run = slice(int(starts[0]), int(stops[0]))
        return Spans(counts=counts, total=run.stop - run.start, starts=starts, stops=stops, rows=None, run=run)
    total = int(counts.sum())
    cut = starts[1:] != stops[:-1]
    if total >= LONG_RUN * (int(cut.sum()) + 1):
        if not cut.all():
            edge = np.ones(1, dtype=np.bool_)
            starts, stops = starts[np.concatenate([edge, cut])], stops[np.concatenate([cut, edge])]
        return Spans(counts=counts, total=total, starts=starts, stops=stops, rows=None)
    rows = (starts - offsets_of(counts)[:-1]).repeat(counts)
    rows += np.arange(total)
    return Spans(counts=counts, total=total, starts=starts, stops=stops, rows=rows)


class GatherPlan:
    """Plan of the copies for batches of ``flat`` with these fields."""

    def __init__(self, flat: FlatGraphs, names: Collection[str] | None = None) -> None:
        self.flat = flat
        self.fields = {field.name: field for field in flat.fields if names is None or field.name in names}
        specs = array_specs(flat.dim, self.fields.values())
        self.specs = [spec for name, spec in specs.items() if name not in ("senders", "receivers")]
        self.masked = [name for name, field in self.fields.items() if mask_name(field) in flat.arrays]

    def batch(self, indices: Int64[ndarray, " chosen"]) -> GraphBatch:
        """The graphs ``indices`` in this order as a batch."""
        arrays = self.flat.arrays
        nodes, edges = spans_of(self.flat.node_offsets, indices), spans_of(self.flat.edge_offsets, indices)
        items = {"node": nodes.total, "edge": edges.total, "graph": len(indices)}
        tensors: dict[str, torch.Tensor] = {}
        for spec in self.specs:
            if spec.name not in arrays:
                value = np.zeros((items[spec.location], *spec.shape), dtype=spec.dtype)
            elif spec.location == "graph":
                value = arrays[spec.name].take(indices, axis=0)
            else:
                value = (nodes if spec.location == "node" else edges).copy(arrays[spec.name])
            tensors[spec.name] = torch.from_numpy(value)
        node_offsets = offsets_of(nodes.counts)
        senders, receivers = (edges.copy(arrays[name]) for name in ("senders", "receivers"))
        # numbers that are out of range, as a store from elsewhere may have them, must not become others on the way
        most = nodes.total + max(int(senders.max(initial=0)), int(receivers.max(initial=0)))
        base = node_offsets[:-1].astype(np.int32 if most < 2**31 else np.int64).repeat(edges.counts)
        sender, receiver = (torch.from_numpy((one + base).astype(np.int64, copy=False)) for one in (senders, receivers))

        def on(location: Location) -> dict[str, torch.Tensor]:
            return {name: tensors[array_name(field)] for name, field in self.fields.items() if field.on == location}

        masks = {name: arrays[mask_name(self.fields[name])].take(indices) for name in self.masked}
        for name, field in self.fields.items():
            values = tensors[array_name(field)].numpy()
            if field.role == "target" and name not in masks and _lacks_labels(values, field):
                masks[name] = np.ones(len(indices), dtype=np.bool_)  # a mask says that some labels are missing
        return GraphBatch(
            positions=tensors["positions"],
            topology=Topology.square(sender, receiver, nodes.total),
            edge_shifts=tensors["edge_shifts"],
            cell=tensors["cell"],
            periodic=tensors["periodic"],
            node_offsets=torch.from_numpy(node_offsets),
            edge_offsets=torch.from_numpy(offsets_of(edges.counts)),
            fields=self.fields,
            nodes=on("node"),
            edges=on("edge"),
            graphs=on("graph"),
            masks={name: torch.from_numpy(mask) for name, mask in masks.items()},
            texts={key: texts.select(indices) for key, texts in self.flat.texts.items()},
        )


def _lacks_labels(values: Array, field: Field) -> bool:
    """Return True where labels are missing; a sum shows a NaN fastest."""
    if field.classes:
        return bool(values.min(initial=0) == MISSING_CLASS)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isnan(values.sum()))


def gather(flat: FlatGraphs, indices: Int64[ndarray, " chosen"], names: Collection[str] | None = None) -> GraphBatch:
    """Return some graphs as a batch, with the named fields (None: all)."""
    return GatherPlan(flat, names).batch(indices)


def take_graphs(flat: FlatGraphs, graphs: Int64[ndarray, " chosen"]) -> FlatGraphs:
    """Some graphs of ``flat``, in this order."""
    nodes, edges = spans_of(flat.node_offsets, graphs), spans_of(flat.edge_offsets, graphs)
    locations = {name: spec.location for name, spec in array_specs(flat.dim, flat.fields).items()}

    def copy(name: str, array: Array) -> Array:
        location = locations.get(name, "graph")
        return array[graphs] if location == "graph" else (nodes if location == "node" else edges).copy(array)

    return FlatGraphs(
        dim=flat.dim,
        fields=flat.fields,
        node_offsets=offsets_of(nodes.counts),
        edge_offsets=offsets_of(edges.counts),
        arrays={name: copy(name, array) for name, array in flat.arrays.items()},
        texts={key: texts.select(graphs) for key, texts in flat.texts.items()},
    )


def no_graphs(dim: int, fields: Sequence[Field]) -> FlatGraphs:
    """Return flat arrays without any graph."""
    none, specs = np.zeros(1, dtype=np.int64), array_specs(dim, fields)
    arrays = {name: np.zeros((0, *spec.shape), dtype=spec.dtype) for name, spec in specs.items()}
    return FlatGraphs(dim=dim, fields=tuple(fields), node_offsets=none, edge_offsets=none, arrays=arrays)
