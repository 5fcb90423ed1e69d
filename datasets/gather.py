"""Batches out of flat arrays: whole-array copies, no Python object per graph."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray

from hydragnn.datasets.arrays import Array, FlatGraphs, array_name, array_specs, mask_name, offsets_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import MISSING_CLASS, Field, Location
from hydragnn.graphs.topology import Topology

ENDS = ("senders", "receivers")
GAP = 16
"""Graphs between two wanted ones that are cheaper to read than to skip, where an engine has to be called for every run."""

LONG_RUN = 12  # rows per run from which copying run by run beats one indexed copy (measured: 0.15 us a run, 4 ns a row)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spans:
    """Rows of an array to copy: runs, or single rows by number."""

    counts: Int64[ndarray, " graphs"]
    starts: Int64[ndarray, " runs"]
    stops: Int64[ndarray, " runs"]
    rows: Int64[ndarray, " rows"] | None

    def copy(self, array: Array) -> Array:
        """The rows of a contiguous array as one new array."""
        if self.rows is not None:
            return array.take(self.rows, axis=0)
        width, total = array.itemsize * math.prod(array.shape[1:]), int(self.counts.sum())
        if not total * width:
            return np.empty((total, *array.shape[1:]), dtype=array.dtype)
        # joining slices of the raw bytes is one memcpy per run: a third of what numpy.concatenate takes for short runs
        source = array.reshape(-1).view(np.uint8).data
        runs = map(slice, (self.starts * width).tolist(), (self.stops * width).tolist())
        joined = bytearray().join(map(source.__getitem__, runs))
        return np.frombuffer(joined, dtype=array.dtype).reshape(total, *array.shape[1:])


def spans_of(offsets: Int64[ndarray, " graphs_plus_one"], indices: Int64[ndarray, " chosen"]) -> Spans:
    """Return the rows of the graphs ``indices``, neighbours as one run.

    >>> spans_of(np.array([0, 2, 5, 6]), np.array([2, 0])).copy(np.arange(6))
    array([5, 0, 1])
    """
    starts, stops = offsets.take(indices), offsets.take(indices + 1)
    counts, cut = stops - starts, starts[1:] != stops[:-1]
    rows = None
    if counts.sum() < LONG_RUN * (cut.sum() + 1):
        rows = np.repeat(starts - offsets_of(counts)[:-1], counts) + np.arange(counts.sum())
    elif not cut.all():
        starts, stops = starts[np.concatenate([[True], cut])], stops[np.concatenate([cut, [True]])]
    return Spans(counts=counts, starts=starts, stops=stops, rows=rows)


def gather(flat: FlatGraphs, indices: Int64[ndarray, " chosen"], names: Collection[str] | None = None) -> GraphBatch:
    """Return some graphs as a batch, with the named fields (None: all)."""
    some = take_graphs(flat, indices, names)
    arrays, nodes, edges = some.arrays, some.node_offsets, some.edge_offsets
    # numbers that are out of range, as a store from elsewhere may have them, must not become others on the way
    ends = arrays["senders"], arrays["receivers"]
    most = int(nodes[-1]) + max(int(one.max(initial=0)) for one in ends)
    base = nodes[:-1].astype(np.int32 if most < 2**31 else np.int64).repeat(np.diff(edges))
    sender, receiver = (torch.from_numpy((one + base).astype(np.int64, copy=False)) for one in ends)
    specs = array_specs(some.dim, some.fields)
    values = {name: arrays[name] if name in arrays else some.full(spec) for name, spec in specs.items()}  # of any dtype
    tensors = {name: torch.from_numpy(array) for name, array in values.items() if name not in ENDS}

    def on(location: Location) -> dict[str, torch.Tensor]:
        return {field.name: tensors[array_name(field)] for field in some.fields if field.on == location}

    masks = {field.name: arrays[mask_name(field)] for field in some.fields if mask_name(field) in arrays}
    for field in some.fields:
        own = values[array_name(field)]
        if field.role == "target" and field.name not in masks and _lacks_labels(own, field):
            masks[field.name] = np.ones(len(some), dtype=np.bool_)  # a mask says that some labels are missing
    return GraphBatch(
        positions=tensors["positions"],
        topology=Topology.square(sender, receiver, int(nodes[-1])),
        edge_shifts=tensors["edge_shifts"],
        cell=tensors["cell"],
        periodic=tensors["periodic"],
        node_offsets=torch.from_numpy(nodes),
        edge_offsets=torch.from_numpy(edges),
        fields={field.name: field for field in some.fields},
        nodes=on("node"),
        edges=on("edge"),
        graphs=on("graph"),
        masks={name: torch.from_numpy(mask) for name, mask in masks.items()},
        texts=some.texts,
    )


def _lacks_labels(values: Array, field: Field) -> bool:
    """Return True where labels are missing; a sum shows a NaN fastest."""
    if field.classes:
        return bool(values.min(initial=0) == MISSING_CLASS)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isnan(values.sum()))


def take_graphs(
    flat: FlatGraphs, graphs: Int64[ndarray, " chosen"], names: Collection[str] | None = None
) -> FlatGraphs:
    """Return some graphs in this order, with the named fields."""
    spans = {"node": spans_of(flat.node_offsets, graphs), "edge": spans_of(flat.edge_offsets, graphs)}
    fields = tuple(field for field in flat.fields if names is None or field.name in names)
    locations = {mask_name(field): "graph" for field in fields}
    locations |= {name: spec.location for name, spec in array_specs(flat.dim, fields).items()}
    return FlatGraphs(
        dim=flat.dim,
        fields=fields,
        node_offsets=offsets_of(spans["node"].counts),
        edge_offsets=offsets_of(spans["edge"].counts),
        arrays={
            name: spans[on].copy(flat.arrays[name]) if on in spans else flat.arrays[name].take(graphs, axis=0)
            for name, on in locations.items()
            if name in flat.arrays
        },
        texts={key: texts.select(graphs) for key, texts in flat.texts.items()},
    )


def no_graphs(dim: int, fields: Sequence[Field]) -> FlatGraphs:
    """Return flat arrays without any graph."""
    none, specs = np.zeros(1, dtype=np.int64), array_specs(dim, fields)
    arrays = {name: np.zeros((0, *spec.shape), dtype=spec.dtype) for name, spec in specs.items()}
    return FlatGraphs(dim=dim, fields=tuple(fields), node_offsets=none, edge_offsets=none, arrays=arrays)
