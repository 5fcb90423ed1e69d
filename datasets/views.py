"""Views of stores: other ways to the same graphs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8
from numpy import ndarray

from hydragnn.base.files import digest
from hydragnn.datasets.access import Access, attribute_at
from hydragnn.datasets.disk import DiskStore
from hydragnn.datasets.store import Column, GraphStore, Numbers, Sizes, read_checked
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import with_absent
from hydragnn.graphs.texts import Texts
from hydragnn.graphs.topology import Topology


class View(Access):
    """Store that says of itself what another one does."""

    attributes: Mapping[str, Any] = attribute_at("store.attributes")
    dim: int = attribute_at("store.dim")
    texts: Mapping[str, Texts] = attribute_at("store.texts")

    def __init__(self, store: GraphStore) -> None:
        self.store = store

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the store."""
        return self.store.fingerprint

    def __len__(self) -> int:
        return len(self.store)

    def fields(self) -> tuple[Field, ...]:
        """Return the fields of the store."""
        return self.store.fields()

    def sizes(self) -> Sizes:
        """Return the nodes and edges of every graph."""
        return self.store.sizes()

    def digests(self) -> UInt8[ndarray, "graphs 16"]:
        """Return the digests of the store."""
        return self.store.digests()

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """Return a field of consecutive graphs."""
        return self.store.column(name, start, stop)


class WithoutEdges(View):
    """Same graphs, nodes and labels without edges; edge fields have no rows."""

    @property
    def fingerprint(self) -> str:
        """Differs from that of the store."""
        return digest({"without_edges": self.store.fingerprint})

    def sizes(self) -> Sizes:
        """Nodes of every graph, and no edges."""
        sizes = self.store.sizes()
        return Sizes(nodes=sizes.nodes, edges=np.zeros_like(sizes.edges))

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """The graphs with these numbers, without edges."""
        return without_edges(self.store.read(indices, fields))

    def read_checked(
        self, indices: Numbers, fields: Collection[str] | None = None
    ) -> tuple[GraphBatch, Bool[ndarray, " chosen"]]:
        """The graphs without edges; a changed edge counts all the same."""
        batch, changed = read_checked(self.store, np.asarray(indices, dtype=np.int64), fields)
        return without_edges(batch), changed

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """A field; no values where it is one of edges."""
        column = self.store.column(name, start, stop)
        of_edges = any(field.name == name and field.on == "edge" for field in self.fields())
        return replace(column, values=column.values[:0]) if of_edges else column


def disk_store(store: GraphStore) -> DiskStore | None:
    """Return the disk store behind a view; None without one."""
    under = store.store if isinstance(store, (WithAbsent, WithoutEdges)) else store
    return under if isinstance(under, DiskStore) else None


def without_edges(batch: GraphBatch) -> GraphBatch:
    """The batch with every edge taken away; edge fields keep no rows."""
    return replace(
        batch,
        **batch.by_location(lambda at, value: value[:0] if at == "edge" else value),
        topology=Topology.square(batch.senders[:0], batch.receivers[:0], batch.num_nodes),
        edge_offsets=batch.edge_offsets.new_zeros(batch.num_graphs + 1),
    )


class WithAbsent(View):
    """Same graphs, with more fields that all of them lack."""

    def __init__(self, store: GraphStore, absent: Sequence[Field]) -> None:
        super().__init__(store)
        self.absent = {field.name: field for field in absent}

    @property
    def fingerprint(self) -> str:
        """Differs from that of the store."""
        return digest({"without": sorted(self.absent), "of": self.store.fingerprint})

    def fields(self) -> tuple[Field, ...]:
        """Return the fields of the store and the absent ones."""
        return (*self.store.fields(), *self.absent.values())

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """The graphs with these numbers; absent fields are zero and masked."""
        return self.filled(self.store.read(indices, self.own(fields)), fields)

    def read_checked(
        self, indices: Numbers, fields: Collection[str] | None = None
    ) -> tuple[GraphBatch, Bool[ndarray, " chosen"]]:
        """The graphs, and which of them were changed."""
        batch, changed = read_checked(self.store, np.asarray(indices, dtype=np.int64), self.own(fields))
        return self.filled(batch, fields), changed

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """A field; zero where it is absent."""
        if name not in self.absent:
            return self.store.column(name, start, stop)
        batch = self.read(range(len(self))[start:stop], [name])
        return Column(values=batch[name].numpy(), present=np.zeros(len(batch), dtype=np.bool_))

    def own(self, fields: Collection[str] | None) -> Collection[str] | None:
        """Return those of the names that the store has."""
        return None if fields is None else [name for name in fields if name not in self.absent]

    def filled(self, batch: GraphBatch, fields: Collection[str] | None) -> GraphBatch:
        """Return the batch with the absent fields among these."""
        return with_absent(batch, [one for name, one in self.absent.items() if fields is None or name in fields])
