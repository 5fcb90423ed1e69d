"""The promise that every place where graphs are kept makes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt8
from numpy import ndarray

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.texts import NAME, Texts, label


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sizes:
    """Nodes and edges of every graph of a store, known without reading any payload."""

    nodes: Int64[ndarray, " graphs"]
    edges: Int64[ndarray, " graphs"]

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Column:
    """One field of consecutive graphs: its values end to end, and which of the graphs have it (zeros elsewhere)."""

    values: Shaped[ndarray, "items ..."]
    present: Bool[ndarray, " graphs"]


@runtime_checkable
class GraphStore(Protocol):
    """Graphs by number; what was written comes back bit for bit, to any number of readers."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """JSON values about the whole store: where the data came from, cutoff, units of length."""

    @property
    def dim(self) -> int:
        """Spatial dimension of positions; 0 for graphs without geometry."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content; equal for equal graphs whatever the backend."""

    def __len__(self) -> int: ...

    def fields(self) -> tuple[Field, ...]:
        """What the store holds beside the graphs themselves."""

    def sizes(self) -> Sizes:
        """Nodes and edges of every graph."""

    def digests(self) -> UInt8[ndarray, "graphs 16"]:
        """Digest of every graph: equal for graphs that are equal in every bit, whatever their texts."""

    @property
    def texts(self) -> Mapping[str, Texts]:
        """One text per graph and key, such as its ``name``; none is read before it is asked for."""

    def read(
        self, indices: Sequence[int] | Int64[ndarray, " chosen"], fields: Collection[str] | None = None
    ) -> GraphBatch:
        """The graphs with these numbers, in this order, repeats allowed, with the named fields only (None: all).

        InputError where a number is out of range or a field is not there.
        """

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """The field ``name`` of the graphs ``start`` to ``stop`` without reading anything else."""


@runtime_checkable
class DigestedStore(Protocol):
    """A store that keeps a digest of every graph beside it."""

    def read_checked(
        self, indices: Sequence[int] | Int64[ndarray, " chosen"], fields: Collection[str] | None = None
    ) -> tuple[GraphBatch, Bool[ndarray, " chosen"]]:
        """What ``read`` gives, and which of these graphs are not as they were written."""


def read_checked(
    store: GraphStore, graphs: Int64[ndarray, " chosen"], fields: Collection[str] | None = None
) -> tuple[GraphBatch, Bool[ndarray, " chosen"]]:
    """These graphs, and which of them are not as they were written; none in a store without digests, as in memory."""
    if isinstance(store, DigestedStore):
        return store.read_checked(graphs, fields)
    return store.read(graphs, fields), np.zeros(len(graphs), dtype=np.bool_)


def stored_label(store: GraphStore, graph: int) -> str:
    """Return what messages call a graph of a store: its name, else its number."""
    return label(store.texts[NAME][graph] if NAME in store.texts else "", graph)


def changed_sentence(graph: int) -> str:
    """What to say of a graph that is not as it was written."""
    return f"graph {graph} is not as it was written: its digest is another; copy the store again"
