"""Batch of graphs as layers see it: lazy geometry and coarser levels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as member
from typing import Any, TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from hydragnn import kernels
from hydragnn.base.errors import InputError
from hydragnn.graphs.coarse import Level, Merging
from hydragnn.kernels import Topology, pairs_of, spread
from hydragnn.layers.halo import HaloExchange
from hydragnn.layers.radial import RadialFeatures

States = dict[int, Tensor]
"""Node states by degree: ``{0: [nodes, channels], 1: [nodes, dim, channels], ...}``; most architectures use degree 0 alone.

Under numbers below zero an architecture may hand on states of edges, ``[edges, channels]``, that its layers need; ``finish`` takes them out.
"""

AT_ZERO = 1e-15
"""The length at which a node sees itself, in units of length: zero but for functions that divide by it."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MessageGraph:
    """Topology, geometry, edge inputs and owner of every node.

    Layers are functions ``(States, MessageGraph) -> States``.

    What is derived (lengths, directions, radial features, whatever a layer asks for by ``once``) is made once and kept
    inside; ``dataclasses.replace`` starts afresh, so that nothing outlives the vectors it was made from.
    """

    topology: Topology
    owner: Int[Tensor, " nodes"]
    """The graph of every node; ascending."""
    nodes_per_graph: Int[Tensor, " graphs"]
    vectors: Float[Tensor, "edges dim"] | None = None
    """From receiver to sender of every edge; None for graphs without geometry, and for architectures that do not declare that they see any."""
    without_vectors: str = "these graphs have no positions; use graphs that have some"
    """Why there are no vectors, and the next move, for a layer that needs them."""
    edge_features: Float[Tensor, "edges features"] | None = None
    """Edge inputs as numbers; None without any."""
    edge_kinds: Mapping[str, Int[Tensor, " edges"]] = member(default_factory=dict)
    """Categorical edge inputs that the architecture reads as they are."""
    species: Int[Tensor, " nodes"] | None = None
    """Atomic numbers; None where the data have none or the architecture does not see them."""
    condition: Float[Tensor, "graphs channels"] | None = None
    """Condition of every graph from its inputs; None if nodes have them."""
    basis: RadialFeatures | None = None
    """The architecture's radial basis; None where it sees no lengths."""
    levels: tuple[Level, ...] = ()
    """The coarser levels of the graph, from the finest on; none for models that do not pool by clusters."""
    wider: "MessageGraph | None" = None
    """The same nodes with the pairs that global attention looks at as edges; None where none has its own."""
    repulsion: Float[Tensor, " nodes"] | None = None
    """Half the repulsion (eV) of atoms nearer to others than in training; None where there are none, and for models without repulsion."""
    derived_once: bool = False
    """True if derivatives in positions are final values: forces and stress of a prediction."""
    halo: HaloExchange | None = None
    """Exchanges with the ranks that share the graphs; None for whole graphs. The last nodes of each graph are copies of other ranks' then, and have no edges."""
    cache: dict[Any, Any] = member(default_factory=dict, init=False, repr=False)

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs together."""
        return self.topology.num_rows

    @property
    def num_graphs(self) -> int:
        """Graphs of the batch."""
        return self.nodes_per_graph.shape[0]

    @property
    def is_differentiated_twice(self) -> bool:
        """Return True if training takes second derivatives in positions."""
        return self.vectors is not None and self.vectors.requires_grad and not self.derived_once

    def prepare(self) -> None:
        """Compute the geometry now, for layers that are computed twice."""
        if self.vectors is not None:
            _ = self._geometry
        _ = self.edge_inputs, self.paired_inputs, self.envelope, self.sharing
        if self.wider is not None:
            self.wider.prepare()

    def again(self) -> "MessageGraph":
        """Return a copy for a layer that is computed twice."""
        repeated = replace(self, wider=None if self.wider is None else self.wider.again())
        repeated.cache.update(self.cache)
        return repeated

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Return ``make()``, computed at the first call with this key."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def filled(self, states: States) -> States:
        """Return the states with those of other ranks' nodes."""
        if self.halo is None:
            return states
        return dict(zip(states, self.halo.fill(list(states.values()))))

    def sum_over_nodes(self, values: Float[Tensor, "nodes *features"]) -> Float[Tensor, "graphs *features"]:
        """Return the sum over the nodes of every graph, wherever they are."""
        if self.halo is None:
            return kernels.segment_sum(values, self.owner, self.num_graphs)
        return self.halo.sum_over_nodes(values, self.owner, self.num_graphs)

    @property
    def coarser(self) -> "Coarser":
        """The next coarser level of itself; there must be clusters for it."""
        return self.once("coarser", lambda: coarser_of(self))

    @property
    def lengths(self) -> Float[Tensor, " edges"]:
        """Length of every edge; 1e-6, without derivatives, for zero."""
        return self._geometry[0]

    @property
    def directions(self) -> Float[Tensor, "edges dim"]:
        """Unit vector of every edge, from receiver to sender, or zero."""
        return self._geometry[1]

    @property
    def _geometry(self) -> tuple[Tensor, Tensor]:
        vectors = self.known_vectors("lengths or directions")
        return self.once("geometry", lambda: kernels.lengths_and_directions(vectors))

    def known_vectors(self, what: str) -> Float[Tensor, "edges dim"]:
        """Return ``vectors``; InputError, with ``what`` is missing, without them."""
        if self.vectors is None:
            raise InputError(f"a layer reads {what} of edges, and there are none: {self.without_vectors}")
        return self.vectors

    @property
    def bonds(self) -> Float[Tensor, " edges"] | None:
        """Sum of both ends' covalent radii per edge, if the basis needs it."""
        transform = None if self.basis is None else self.basis.transform
        if transform is None:
            return None
        species = self.species
        if species is None:
            raise InputError(
                'lengths are measured by covalent radii, and the layers see no atomic numbers; add "species" to `sees` and `requires` '
                "of the architecture's class, or make its radial basis without a transform"
            )
        ends = self.topology.senders, self.topology.receivers
        return self.once("bonds", lambda: transform.bonds(*(species.index_select(0, end) for end in ends)))

    @property
    def edge_inputs(self) -> tuple[Float[Tensor, "edges width"] | None, Float[Tensor, "edges 1"] | None]:
        """Edge features and cutoff envelope (None without one)."""
        basis = self.basis
        if basis is None:
            return self.edge_features, None
        return self.once("edge inputs", lambda: basis(self.lengths, self.edge_features, self.bonds))

    @property
    def pairs(self) -> kernels.Pairs | None:
        """Pairs of reverse edges.

        None if edge inputs depend on more than length, or an edge has no reverse.
        """
        vectors = self.vectors
        if vectors is None or self.basis is None or self.edge_features is not None:
            return None
        return self.once("pairs", lambda: pairs_of(vectors, self.topology))

    @property
    def sharing(self) -> Topology:
        """Topology with one weight per pair, for use with ``paired_inputs``."""
        pairs, edges = self.pairs, self.topology
        if pairs is None:
            return edges
        return self.once("sharing", lambda: edges.sharing(pairs.pair, pairs.first.shape[0]))

    @property
    def paired_inputs(self) -> tuple[Float[Tensor, "items width"] | None, Float[Tensor, "items 1"] | None]:
        """``edge_inputs`` of one edge per pair, or of all edges."""
        pairs, basis = self.pairs, self.basis
        if pairs is None or basis is None:
            return self.edge_inputs
        return self.once("paired inputs", lambda: basis(self.paired_lengths, None, self.paired_bonds))

    @property
    def ended_inputs(self) -> Float[Tensor, "items width"]:
        """Features times envelope, as ``paired_inputs``; there must be a radial basis."""
        basis, pairs = self.basis, self.pairs
        assert basis is not None

        def make() -> Tensor:
            if "paired inputs" in self.cache or (pairs is None and "edge inputs" in self.cache):
                features, envelope = self.paired_inputs
                assert features is not None
                return features if envelope is None else features * envelope
            inputs = None if pairs is not None else self.edge_features
            return basis.ended(self.paired_lengths, inputs, self.paired_bonds)

        return self.once("ended inputs", make)

    @property
    def paired_lengths(self) -> Float[Tensor, " items"]:
        """``lengths`` of one edge per pair, or of all edges."""
        pairs = self.pairs
        if pairs is None:
            return self.lengths
        return self.once("paired lengths", lambda: spread(self.lengths, pairs.first))

    @property
    def paired_bonds(self) -> Float[Tensor, " items"] | None:
        """``bonds`` of one edge per pair, or of all edges."""
        pairs, bonds = self.pairs, self.bonds
        return bonds if pairs is None or bonds is None else spread(bonds, pairs.first)

    @property
    def envelope(self) -> Float[Tensor, "edges 1"] | None:
        """Factor that ends messages at the cutoff; None without one."""
        ending = self.paired_inputs[1]
        return None if ending is None else self.once("envelope", lambda: self.to_edges(ending))

    def to_nodes(self, values: Float[Tensor, "graphs *features"]) -> Float[Tensor, "nodes *features"]:
        """Return the row of each node's graph."""
        return spread(values, self.owner)

    def to_edges(self, values: Float[Tensor, "items features"]) -> Float[Tensor, "edges features"]:
        """Return for every edge a value computed from ``paired_inputs``."""
        pairs = self.pairs
        return values if pairs is None else pairs.spread(values)


def radial_inputs(graph: MessageGraph) -> tuple[Tensor, Tensor | None]:
    """Return features and envelope of edges, computed once per pair."""
    features, envelope = graph.paired_inputs  # [items, width], [items, 1]
    assert features is not None
    return features, envelope


def inputs_at_zero(graph: MessageGraph) -> tuple[Tensor, Tensor | None]:
    """Return features and envelope of self loops, one row per graph."""

    def make() -> tuple[Tensor, Tensor | None]:
        assert graph.basis is not None
        lengths = graph.lengths.new_full((graph.num_graphs,), AT_ZERO)
        features = graph.edge_features
        return graph.basis(
            lengths, None if features is None else features.new_zeros(graph.num_graphs, features.shape[1])
        )

    return graph.once("inputs at zero", make)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Coarser:
    """Coarser graph, with the map of nodes and edges to it."""

    graph: MessageGraph
    joining: Topology
    """From every finer node to its cluster: a row per cluster, a column per finer node."""
    leaving: Topology
    """From every cluster to its nodes: one edge per finer node."""
    share: Float[Tensor, " nodes"]
    """One over the number of nodes of each cluster, in the order of ``joining``."""
    merging: Merging
    """Edges of the finer graph that each edge stands for."""
    finer_edges: int
    """Edges of the finer graph, also those that are gone."""

    def pooled(self, states: Float[Tensor, "nodes *shape"]) -> Float[Tensor, "rows *shape"]:
        """Return the mean over the nodes of each cluster."""
        means = kernels.gather_multiply_sum(states.flatten(1), self.share.to(states.dtype), self.joining)
        return means.unflatten(1, states.shape[1:])

    def pooled_edges(self, states: Float[Tensor, "edges *shape"]) -> Float[Tensor, "rows *shape"]:
        """Return the mean over the edges that each coarser one replaces."""
        merging = self.merging
        return kernels.segment_mean(spread(states, merging.finer), merging.coarser, merging.num_edges)

    def pooled_states(self, states: States) -> States:
        """Return states of all degrees, and of edges, on the coarser level."""
        return {key: self.pooled_edges(value) if key < 0 else self.pooled(value) for key, value in states.items()}

    def unpooled_states(self, states: States) -> States:
        """Return states of the coarser level at nodes and edges; zero at edges without one."""
        # no two finer edges are one: a sum is a copy, whose derivatives add without atomics
        return {
            key: kernels.segment_sum(spread(value, self.merging.coarser), self.merging.finer, self.finer_edges)
            if key < 0
            else kernels.gather_multiply_sum(value.flatten(1), None, self.leaving).unflatten(1, value.shape[1:])
            for key, value in states.items()
        }


def coarser_of(graph: MessageGraph) -> Coarser:
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
        else kernels.segment_mean(spread(features, merging.finer), merging.coarser, merging.num_edges),
        edge_kinds=level.edge_kinds,
        species=None,
        levels=graph.levels[1:],
    )
    edges, ways = graph.topology.num_edges, {"joining": level.joining, "leaving": level.leaving}
    return Coarser(graph=coarse, share=level.share, merging=merging, finer_edges=edges, **ways)
