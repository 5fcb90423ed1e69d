"""The promise that every place where graphs are kept makes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt8
from numpy import ndarray

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field, Location
from hydragnn.graphs.texts import NAME, Texts, label

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Numbers = Sequence[int] | Int64[ndarray, " chosen"]  # graphs by number


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sizes:
    """Nodes and edges of every graph of a store."""

    nodes: Int64[ndarray, " graphs"]
    edges: Int64[ndarray, " graphs"]

    def __len__(self) -> int:
        return len(self.nodes)

    def counts(self, location: Location) -> Int64[ndarray, " graphs"]:
        """Return the nodes or edges of every graph; ones for ``"graph"``."""
        if location == "graph":
            return np.ones(len(self), dtype=np.int64)
        return self.nodes if location == "node" else self.edges


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Column:
    """Field of consecutive graphs: values end to end, zero where absent."""

    values: Shaped[ndarray, "items ..."]
    present: Bool[ndarray, " graphs"]


@runtime_checkable
class GraphStore(Protocol):
    """Graphs by number, which come back bit for bit."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """JSON values about the whole store: origin, cutoff, units of length."""

    @property
    def dim(self) -> int:
        """Spatial dimension of positions; 0 for graphs without geometry."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content; equal for equal graphs whatever the backend."""

    def __len__(self) -> int: ...

    def fields(self) -> tuple[Field, ...]:
        """Return the fields of all graphs."""

    def sizes(self) -> Sizes:
        """Nodes and edges of every graph."""

    def digests(self) -> UInt8[ndarray, "graphs 16"]:
        """Return the digest of every graph, whatever its texts."""

    @property
    def texts(self) -> Mapping[str, Texts]:
        """Return one text per graph and key, read on first use."""

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """Return these graphs in this order, with the named fields (None: all).

        Numbers may repeat. InputError where a number is out of range or a field is not there.
        """

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """Return the field ``name`` of consecutive graphs without reading anything else."""


def is_graph_store(value: Any) -> "TypeIs[GraphStore]":
    """Return True for a store, without asking for its fingerprint."""
    return isinstance(type(value), GraphStore) or isinstance(value, GraphStore)


def read_checked(
    store: Any, graphs: Int64[ndarray, " chosen"], fields: Collection[str] | None = None
) -> tuple[GraphBatch, Bool[ndarray, " chosen"]]:
    """Return graphs, and which of them were changed; none without digests."""
    if (own := getattr(store, "read_checked", None)) is not None:
        checked: tuple[GraphBatch, Bool[ndarray, " chosen"]] = own(graphs, fields)
        return checked
    return store.read(graphs, fields), np.zeros(len(graphs), dtype=np.bool_)


def stored_label(store: GraphStore, graph: int) -> str:
    """Return the name of a graph in messages, else its number."""
    return label(store.texts[NAME][graph] if NAME in store.texts else "", graph)


def changed_sentence(graph: int) -> str:
    """Return the sentence on a graph whose digest is another."""
    return f"graph {graph} is not as it was written: its digest is another; copy the store again"
