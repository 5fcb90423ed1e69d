"""Next coarser level of a graph."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.coarse import Merging
from hydragnn.kernels import Topology, gather_multiply_sum, segment_mean, segment_sum, spread

if TYPE_CHECKING:
    from hydragnn.layers.message_graph import MessageGraph, States


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Coarser:
    """Coarser graph, with the map of nodes and edges to it."""

    graph: "MessageGraph"
    joining: Topology
    """From every finer node to its cluster: a row per cluster, a column per finer node."""
    leaving: Topology
    """From every cluster to its nodes: one edge per finer node."""
    share: Float[Tensor, " nodes"]
    """One over the number of nodes of each cluster, in the order of ``joining``."""
    merging: Merging
    """Which edges of the finer graph each edge stands for."""
    finer_edges: int
    """Edges of the finer graph, also those that are gone."""

    def pooled(self, states: Float[Tensor, "nodes *shape"]) -> Float[Tensor, "rows *shape"]:
        """Return the mean over the nodes of each cluster."""
        means = gather_multiply_sum(states.flatten(1), self.share.to(states.dtype), self.joining)
        return means.unflatten(1, states.shape[1:])

    def unpooled(self, states: Float[Tensor, "rows *shape"]) -> Float[Tensor, "nodes *shape"]:
        """Return the state of each node's cluster."""
        return gather_multiply_sum(states.flatten(1), None, self.leaving).unflatten(1, states.shape[1:])

    def pooled_edges(self, states: Float[Tensor, "edges *shape"]) -> Float[Tensor, "rows *shape"]:
        """Return the mean over the edges that each coarser one replaces."""
        merging = self.merging
        return segment_mean(spread(states, merging.finer), merging.coarser, merging.num_edges)

    def unpooled_edges(self, states: Float[Tensor, "rows *shape"]) -> Float[Tensor, "edges *shape"]:
        """Return the state of each edge's coarser edge; zero without one."""
        merging = (
            self.merging
        )  # no two of its finer edges are one: a sum is a copy, whose derivatives add without atomics
        return segment_sum(spread(states, merging.coarser), merging.finer, self.finer_edges)

    def pooled_states(self, states: "States") -> "States":
        """Return states of all degrees, and of edges, on the coarser level."""
        return {key: self.pooled_edges(value) if key < 0 else self.pooled(value) for key, value in states.items()}

    def unpooled_states(self, states: "States") -> "States":
        """Return states of the coarser level at nodes and edges."""
        return {key: self.unpooled_edges(value) if key < 0 else self.unpooled(value) for key, value in states.items()}


def coarser_of(graph: "MessageGraph") -> Coarser:
    """Return the graph of the first level of clusters.

    It has the levels that follow.

    Edges and vectors are those of the level (``hydragnn.graphs.coarse``); the features of an edge are the mean of what it stands for.
    """
    assert graph.levels, "levels of a graph without clusters"
    level, features = graph.levels[0], graph.edge_features
    merging = level.merging
    coarse = replace(
        graph,
        topology=level.topology,
        owner=level.owner,
        nodes_per_graph=level.nodes_per_graph,
        vectors=None if graph.vectors is None else level.vectors,
        edge_features=None
        if features is None
        else segment_mean(spread(features, merging.finer), merging.coarser, merging.num_edges),
        edge_kinds=level.edge_kinds,
        species=None,
        levels=graph.levels[1:],
    )
    return Coarser(
        graph=coarse,
        joining=level.joining,
        leaving=level.leaving,
        share=level.share,
        merging=merging,
        finer_edges=graph.topology.num_edges,
    )
