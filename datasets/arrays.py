"""Flat arrays of graphs: names, dtypes and shapes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as member
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field, Location, is_labelled
from hydragnn.graphs.problems import edge_problems
from hydragnn.graphs.texts import Texts, join_texts
from hydragnn.graphs.validate import check_structure

Array = NDArray[Any]
COMPACT = ("edge_shifts", "cell", "periodic")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySpec:
    """Flat array ``[items, *shape]`` of all nodes, edges or graphs."""

    name: str
    location: Location
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def array_specs(dim: int, fields: Iterable[Field]) -> dict[str, ArraySpec]:
    """Return the arrays of graphs with these fields, by name.

    ``docs/format.md`` is the specification.

    >>> list(array_specs(2, [Field(name="load", on="node")]))
    ['positions', 'senders', 'receivers', 'edge_shifts', 'cell', 'periodic', 'node/load']
    """
    return dict(_array_specs(dim, tuple(fields)))


@lru_cache(maxsize=64)  # every batch asks for them
def _array_specs(dim: int, fields: tuple[Field, ...]) -> Mapping[str, ArraySpec]:
    real, index = np.dtype(np.float64), np.dtype(np.int64)
    specs = [
        ArraySpec(name="positions", location="node", dtype=real, shape=(dim,)),
        ArraySpec(name="senders", location="edge", dtype=index, shape=()),
        ArraySpec(name="receivers", location="edge", dtype=index, shape=()),
        ArraySpec(name="edge_shifts", location="edge", dtype=real, shape=(dim,)),
        ArraySpec(name="cell", location="graph", dtype=real, shape=(3, 3)),
        ArraySpec(name="periodic", location="graph", dtype=np.dtype(np.bool_), shape=(3,)),
    ]
    specs += [
        ArraySpec(name=array_name(field), location=field.on, dtype=np.dtype(field.dtype), shape=field.shape)
        for field in fields
    ]
    return {spec.name: spec for spec in specs}


def array_name(field: Field) -> str:
    """The name of a field's array: its location and its name."""
    return f"{field.on}/{field.name}"


def mask_name(field: Field) -> str:
    """The name of the array that says which graphs have the field."""
    return f"present/{field.name}"


def offsets_of(counts: Int64[ndarray, " graphs"]) -> Int64[ndarray, " graphs+1"]:
    """Return the first item of each graph, and last the total.

    >>> offsets_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FlatGraphs:
    """Graphs end to end in contiguous numpy arrays.

    Node indices are int32 and local to their graph. ``edge_shifts``, ``cell`` and ``periodic`` may be absent, which
    means zero everywhere. An array ``present/NAME`` exists only where some graph lacks the field; values of absent
    fields are zero.
    """

    dim: int
    fields: tuple[Field, ...]
    node_offsets: Int64[ndarray, " graphs_plus_one"]
    edge_offsets: Int64[ndarray, " graphs_plus_one"]
    arrays: Mapping[str, Array]
    texts: Mapping[str, Texts] = member(default_factory=dict)

    def __len__(self) -> int:
        return len(self.node_offsets) - 1

    def offsets(self, location: Location) -> NDArray[np.int64]:
        """Return the first item of each graph in a location."""
        if location == "graph":
            return np.arange(len(self) + 1)
        return self.node_offsets if location == "node" else self.edge_offsets

    def full(self, spec: ArraySpec) -> Array:
        """The array in its full form: zeros written out, indices as int64."""
        if spec.name not in self.arrays:
            return np.zeros((int(self.offsets(spec.location)[-1]), *spec.shape), dtype=spec.dtype)
        return np.ascontiguousarray(self.arrays[spec.name], dtype=spec.dtype)


def flat_graphs(batch: GraphBatch, fields: tuple[Field, ...], *, checked: bool = False) -> FlatGraphs:
    """Return the batch as flat arrays with these fields.

    Offsets, shapes and edges of a batch that ``validate`` has ``checked`` are not looked at again.

    A field that the batch lacks is absent from all its graphs. InputError where the batch has a field that is not
    declared, another meaning, a wrong shape or dtype, or a cell or positions that are not float64.
    """
    declared = {field.name: field for field in fields}
    for name, field in batch.fields.items():
        if name not in declared:
            fault = f"the batch has a field {name} that was not declared"
            raise InputError(f"{fault}; add it to the store's fields, of which a build's first graph has all")
        if field != declared[name]:
            raise InputError(f"field {name} was declared as {declared[name]}, the batch has {field}; make them equal")
    if not checked:
        if len(batch):
            check_structure(batch)
        for graph, problem in edge_problems(batch):
            raise InputError(f"graph {graph}{problem}")
    for name in ("positions", "edge_shifts", "cell"):
        if getattr(batch, name).dtype != torch.float64:
            raise InputError(f"{name} has dtype {getattr(batch, name).dtype}, expected float64; convert it first")
    node_offsets, edge_offsets = batch.node_offsets.numpy(), batch.edge_offsets.numpy()
    base = np.repeat(node_offsets[:-1], np.diff(edge_offsets))
    structure = {
        "positions": batch.positions.numpy(),
        "senders": _narrow(batch.senders.numpy() - base),
        "receivers": _narrow(batch.receivers.numpy() - base),
        "edge_shifts": batch.edge_shifts.numpy(),
        "cell": batch.cell.numpy(),
        "periodic": batch.periodic.numpy(),
    }
    arrays: dict[str, Array] = {
        name: array
        for name, array in structure.items()
        if name not in COMPACT or np.ascontiguousarray(array).view(np.uint8).any()
    }
    for field in fields:
        values, mask = _field_values(batch, field)
        arrays[array_name(field)] = values
        if not mask.all():
            arrays[mask_name(field)] = mask
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return FlatGraphs(
        dim=batch.dim,
        fields=fields,
        node_offsets=node_offsets - node_offsets[0],
        edge_offsets=edge_offsets - edge_offsets[0],
        arrays=arrays,
        texts=batch.texts,
    )


def _narrow(index: NDArray[np.int64]) -> NDArray[np.int32]:
    if len(index) and int(index.max()) >= 2**31:
        raise InputError("a graph has 2147483648 nodes or more; take smaller graphs")
    return index.astype(np.int32)


def _field_values(batch: GraphBatch, field: Field) -> tuple[Array, NDArray[np.bool_]]:
    if field.name not in batch.fields:
        zeros = np.zeros((batch.num_items(field.on), *field.shape), dtype=field.dtype)
        return zeros, np.zeros(len(batch), dtype=np.bool_)
    values, mask = batch[field.name].detach().numpy(), batch.present(field.name).numpy()
    if field.role == "target" and not (labelled := is_labelled(values, field)).all():
        some = labelled.reshape(len(values), -1).any(axis=1)
        counts = np.bincount(batch.owner(field.on).numpy()[some], minlength=len(batch))
        mask = mask & (counts > 0)  # a graph without any label lacks the field
    if not mask.all():
        absent = np.repeat(~mask, batch.counts(field.on).numpy())
        values = values.copy()
        values[absent] = 0
    return values, mask


def join(parts: list[FlatGraphs]) -> FlatGraphs:
    """All graphs of ``parts``, which have the same fields, in order."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    specs = array_specs(first.dim, first.fields)
    arrays: dict[str, Array] = {}
    for name, spec in specs.items():
        if any(name in part.arrays for part in parts):
            every = [part.arrays[name] if name in part.arrays else part.full(spec) for part in parts]
            arrays[name] = np.concatenate(every)
    for field in first.fields:
        name = mask_name(field)
        if any(name in part.arrays for part in parts):
            everywhere = [part.arrays.get(name, np.ones(len(part), dtype=np.bool_)) for part in parts]
            arrays[name] = np.concatenate(everywhere)
    return FlatGraphs(
        dim=first.dim,
        fields=first.fields,
        node_offsets=offsets_of(np.concatenate([np.diff(part.node_offsets) for part in parts])),
        edge_offsets=offsets_of(np.concatenate([np.diff(part.edge_offsets) for part in parts])),
        arrays=arrays,
        texts=join_texts([(part.texts, len(part)) for part in parts]),
    )
