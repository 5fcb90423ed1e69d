"""Graphs in memory: what training reads from when the data fits."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.datasets.access import Access, attribute_at
from hydragnn.datasets.arrays import FlatGraphs, array_name, flat_graphs, mask_name
from hydragnn.datasets.fingerprint import fingerprint_of, graph_digests
from hydragnn.datasets.gather import gather
from hydragnn.datasets.store import Column, Numbers, Sizes
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.texts import Texts


class MemoryStore(Access):
    """Graphs in flat arrays in memory; reading costs microseconds per graph."""

    in_memory = True
    attributes: Mapping[str, Any] = attribute_at("_attributes")
    dim: int = attribute_at("flat.dim")
    texts: Mapping[str, Texts] = attribute_at("flat.texts")

    def __init__(
        self, graphs: GraphBatch | Sequence[GraphBatch] | FlatGraphs, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Take graphs as a batch, as several batches, or as flat arrays.

        A field that only some graphs have gets a mask. InputError on an empty list, mixed dimensions, or a field with
        two meanings.
        """
        if isinstance(graphs, FlatGraphs):
            self.flat = graphs  # arrays that are not to be changed
        else:
            batch = graphs if isinstance(graphs, GraphBatch) else concatenate(graphs)
            self.flat = flat_graphs(batch, tuple(batch.fields.values()))
        self._attributes = dict(attributes or {})
        self._digests: UInt8[ndarray, "graphs 16"] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content; equal for equal graphs whatever the backend."""
        return fingerprint_of(self.dim, self.flat.fields, self.digests())

    def digests(self) -> UInt8[ndarray, "graphs 16"]:
        """Return the digest of every graph."""
        if self._digests is None:
            self._digests = graph_digests(self.flat)
        return self._digests

    def __len__(self) -> int:
        return len(self.flat)

    def fields(self) -> tuple[Field, ...]:
        """Return the fields of all graphs."""
        return self.flat.fields

    def sizes(self) -> Sizes:
        """Nodes and edges of every graph."""
        return Sizes(nodes=np.diff(self.flat.node_offsets), edges=np.diff(self.flat.edge_offsets))

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """Return these graphs in this order, repeats allowed, with the named fields."""
        check_fields(self.fields(), fields)
        return gather(self.flat, checked_indices(indices, len(self)), fields)

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """The field ``name`` of the graphs ``start`` to ``stop``."""
        field = field_named(self.fields(), name)
        stop = len(self) if stop is None else stop
        first, last = self.flat.offsets(field.on)[[start, stop]]
        mask = self.flat.arrays.get(mask_name(field), np.ones(len(self), dtype=np.bool_))
        return Column(values=self.flat.arrays[array_name(field)][first:last], present=mask[start:stop])


def checked_indices(indices: Numbers, graphs: int) -> Int64[ndarray, " _"]:
    """Return graph numbers as int64; InputError for anything else."""
    numbers = np.asarray(indices).reshape(-1)
    if numbers.dtype.kind not in "iu" and len(numbers):
        raise InputError(f"{indices!r:.80} are no numbers of graphs; give a list or an array of whole numbers")
    numbers = numbers.astype(np.int64, copy=False)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= graphs):
        wrong = int(numbers[(numbers < 0) | (numbers >= graphs)][0])
        raise InputError(f"there is no graph {wrong}; the store has {graphs} graphs, numbered from 0")
    return numbers


def check_fields(fields: Sequence[Field], requested: Collection[str] | None) -> None:
    """InputError where a field is asked for that is not there."""
    for name in requested or ():
        field_named(fields, name)


def field_named(fields: Sequence[Field], name: str) -> Field:
    """Return the field of a store; InputError where it has none such."""
    for field in fields:
        if field.name == name:
            return field
    names = sorted(field.name for field in fields)
    raise InputError(f"the store has no field {name}; it has {', '.join(names) or 'none'}")
