"""Coarser levels of a store's graphs in flat arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.datasets.arrays import Array, offsets_of
from hydragnn.datasets.gather import spans_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.coarse import Level, Levels, Merging, level_of_clusters
from hydragnn.graphs.levels import CLUSTERS, levels_of
from hydragnn.graphs.topology import Topology

BLOCK = 256
"""Graphs of which levels are made at once."""

INDICES: Mapping[str, tuple[str, str]] = {
    "parent": ("finer node", "node"),
    "order": ("finer node", "finer node"),
    "senders": ("edge", "node"),
    "receivers": ("edge", "node"),
    "by_sender": ("edge", "edge"),
    "finer": ("kept", "finer edge"),
    "coarser": ("kept", "edge"),
}
"""Rows of every array of a level, and what they number; numbers begin with each graph."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FlatLevel:
    """One level of many graphs."""

    offsets: Mapping[str, Int64[ndarray, " graphs_plus_one"]]
    """First row of each graph: of nodes and edges of this level and of the next finer one, and of finer edges that are kept."""
    indices: Mapping[str, NDArray[np.int32]]
    members: NDArray[np.int32]
    """Finer nodes of every node."""
    vectors: Array | None
    edge_kinds: Mapping[str, NDArray[np.int64]]

    def of_graphs(self, graphs: Int64[ndarray, " chosen"]) -> Level:
        """The level of a batch of these graphs."""
        spans = {what: spans_of(offsets, graphs) for what, offsets in self.offsets.items()}
        bases = {what: offsets_of(span.counts)[:-1] for what, span in spans.items()}

        def numbers(name: str) -> torch.Tensor:
            rows, of = INDICES[name]
            return torch.from_numpy(spans[rows].copy(self.indices[name]) + bases[of].repeat(spans[rows].counts))

        def edges(values: Array) -> torch.Tensor:
            return torch.from_numpy(spans["edge"].copy(values))

        topology = Topology.square(numbers("senders"), numbers("receivers"), spans["node"].total)
        by_sender = numbers("by_sender")
        topology.index_arrays.update(by_sender=by_sender, sorted_senders=topology.senders.index_select(0, by_sender))
        return level_of_clusters(
            parent=numbers("parent"),
            order=numbers("order"),
            members=torch.from_numpy(spans["node"].copy(self.members).astype(np.int64)),
            topology=topology,
            nodes_per_graph=torch.from_numpy(spans["node"].counts),
            merging=Merging(finer=numbers("finer"), coarser=numbers("coarser"), num_edges=spans["edge"].total),
            edge_kinds={name: edges(kinds) for name, kinds in self.edge_kinds.items()},
            vectors=None if self.vectors is None else edges(self.vectors),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FlatLevels:
    """The levels of many graphs, from the finest to the coarsest."""

    levels: tuple[FlatLevel, ...]
    fields: frozenset[str]
    """The fields that they were made from."""

    def of_graphs(self, graphs: Int64[ndarray, " chosen"]) -> Levels:
        """The levels of a batch of these graphs."""
        return Levels(levels=tuple(level.of_graphs(graphs) for level in self.levels), fields=self.fields)


def flat_levels(
    read: Callable[[Int64[ndarray, " block"]], GraphBatch], graphs: int, count: int, kinds: Sequence[str]
) -> FlatLevels:
    """Return the first ``count`` levels of all graphs that ``read`` gives."""
    blocks = [
        pieces_of(batch, levels_of(batch, count, kinds))
        for batch in (read(np.arange(first, min(first + BLOCK, graphs))) for first in range(0, graphs, BLOCK))
    ]
    levels = tuple(joined(pieces) for pieces in zip(*blocks, strict=True))
    return FlatLevels(levels=levels, fields=frozenset({CLUSTERS, *kinds}))


def pieces_of(batch: GraphBatch, levels: Sequence[Level]) -> Iterator[FlatLevel]:
    """The levels of a batch, numbered inside each graph."""
    finer = {"finer node": batch.counts("node").numpy(), "finer edge": batch.counts("edge").numpy()}
    for level in levels:
        kept_graphs = level.owner[level.topology.receivers[level.merging.coarser]]
        counts = finer | {
            "node": level.nodes_per_graph.numpy(),
            "edge": np.bincount(level.owner[level.topology.receivers].numpy(), minlength=batch.num_graphs),
            "kept": np.bincount(kept_graphs.numpy(), minlength=batch.num_graphs),
        }
        tensors = {
            "parent": level.parent,
            "order": level.joining.senders,
            "senders": level.topology.senders,
            "receivers": level.topology.receivers,
            "by_sender": level.topology.by_sender,
            "finer": level.merging.finer,
            "coarser": level.merging.coarser,
        }
        bases = {what: offsets_of(number)[:-1] for what, number in counts.items()}
        yield FlatLevel(
            offsets={what: offsets_of(number) for what, number in counts.items()},
            indices={
                name: (tensors[name].numpy() - bases[of].repeat(counts[rows])).astype(np.int32)
                for name, (rows, of) in INDICES.items()
            },
            members=level.joining.degrees.numpy().astype(np.int32),
            vectors=None if level.vectors is None else level.vectors.numpy(),
            edge_kinds={name: kinds.numpy() for name, kinds in level.edge_kinds.items()},
        )
        finer = {f"finer {what}": counts[what] for what in ("node", "edge")}


def joined(pieces: Sequence[FlatLevel]) -> FlatLevel:
    """One level of all graphs of the pieces, in order."""
    first = pieces[0]
    vectors = [piece.vectors for piece in pieces if piece.vectors is not None]
    return FlatLevel(
        offsets={
            what: offsets_of(np.concatenate([np.diff(piece.offsets[what]) for piece in pieces]))
            for what in first.offsets
        },
        indices={name: np.concatenate([piece.indices[name] for piece in pieces]) for name in first.indices},
        members=np.concatenate([piece.members for piece in pieces]),
        vectors=np.concatenate(vectors) if vectors else None,
        edge_kinds={name: np.concatenate([piece.edge_kinds[name] for piece in pieces]) for name in first.edge_kinds},
    )
