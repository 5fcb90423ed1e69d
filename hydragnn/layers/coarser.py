"""The next coarser level of a graph: clusters of nodes as nodes, or some of the nodes, with the edges that remain between them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydragnn.kernels import Topology, gather_multiply_sum, segment_max, segment_mean

if TYPE_CHECKING:
    from hydragnn.layers.message_graph import MessageGraph


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Coarser:
    """A coarser graph, and which of its nodes each node of the finer one belongs to."""

    graph: "MessageGraph"
    joining: Topology
    """From every finer node to its cluster: a row per cluster, a column per finer node."""
    leaving: Topology
    """From every cluster to its nodes: one edge per finer node."""
    share: Float[Tensor, " nodes"] | None
    """One over the number of nodes of each cluster, in the order of ``joining``; None: one."""

    def pooled(self, states: Float[Tensor, "nodes *shape"]) -> Float[Tensor, "rows *shape"]:
        """The mean over the nodes of each cluster; vectors and tensors turn as those of the nodes do."""
        share = None if self.share is None else self.share.to(states.dtype)
        means = gather_multiply_sum(states.flatten(1), share, self.joining)
        return means.unflatten(1, states.shape[1:])

    def unpooled(self, states: Float[Tensor, "rows *shape"]) -> Float[Tensor, "nodes *shape"]:
        """The state of its cluster for every node; zero where it is in none."""
        return gather_multiply_sum(states.flatten(1), None, self.leaving).unflatten(1, states.shape[1:])


def coarser_of(graph: "MessageGraph") -> Coarser:
    """The graph whose nodes are the clusters of the first level that ``graph`` knows, and which knows those that follow.

    Clusters are joined where any edge joins nodes of theirs, by one edge in each direction that there is, or, where layers tell kinds of
    edges apart, by one of every kind that there is; its features are the mean of what they stand for. Its vector leads from
    middle to middle, scaled so that the longest edge of each graph stays as long as it was, within the cutoff of the radial basis.
    """
    clusters = graph.clusters
    assert clusters is not None, "levels of a graph without clusters"
    parent, owner = numbered(clusters[:, 0], graph.owner)
    nodes, count = graph.num_nodes, owner.shape[0]
    order = torch.sort(parent, stable=True).indices
    rows = parent.index_select(0, order)
    joining = Topology(senders=order, receivers=rows, num_columns=nodes, num_rows=count)
    each = torch.arange(nodes, device=parent.device)
    leaving = Topology(senders=parent, receivers=each, num_columns=count, num_rows=nodes)
    with torch.no_grad():
        share = joining.degrees.clamp_min(1).double().reciprocal().index_select(0, rows)
        topology, merging = merged_edges(graph.topology, parent, count, graph.edge_kinds.values())
        features = graph.edge_features
        vectors, positions = between_middles(graph, joining, merging, topology, parent)
    coarse = replace(
        graph,
        topology=topology,
        owner=owner,
        nodes_per_graph=torch.bincount(owner, minlength=graph.num_graphs),
        vectors=vectors,
        positions=positions,
        edge_features=None if features is None else merging.mean(features),
        edge_kinds={name: merging.kind(kinds) for name, kinds in graph.edge_kinds.items()},
        species=None,
        clusters=clusters[order][joining.row_offsets[:-1], 1:] if count else clusters[:0, 1:],
    )
    return Coarser(graph=coarse, joining=joining, leaving=leaving, share=share)


def part_of(
    graph: "MessageGraph",
    stay: Bool[Tensor, " nodes"],
    edges: Int[Tensor, " kept_edges"],
    share: Float[Tensor, " kept"] | None = None,
) -> Coarser:
    """The level of the nodes that stay, with these of the edges between them, all as they were; the others hear nothing from ``unpooled``."""
    kept = stay.nonzero().squeeze(1)
    count, nodes = kept.shape[0], graph.num_nodes
    each = torch.arange(count, device=kept.device)
    number = stay.long().cumsum(0) - 1  # of every node that stays
    senders, receivers = (number[end[edges]] for end in (graph.topology.senders, graph.topology.receivers))
    owner = graph.owner[kept]

    def of(values: Tensor | None, which: Tensor) -> Tensor | None:
        return None if values is None else values[which]

    part = replace(
        graph,
        topology=Topology.square(senders, receivers, count),
        owner=owner,
        nodes_per_graph=torch.bincount(owner, minlength=graph.num_graphs),
        vectors=of(graph.vectors, edges),
        positions=of(graph.positions, kept),
        edge_features=of(graph.edge_features, edges),
        edge_kinds={name: kinds[edges] for name, kinds in graph.edge_kinds.items()},
        species=of(graph.species, kept),
        clusters=None,
    )
    return Coarser(
        graph=part,
        joining=Topology(senders=kept, receivers=each, num_columns=nodes, num_rows=count),
        leaving=Topology(senders=each, receivers=kept, num_columns=count, num_rows=nodes),
        share=share,
    )


def numbered(clusters: Int[Tensor, " nodes"], owner: Int[Tensor, " nodes"]) -> tuple[Tensor, Int[Tensor, " clusters"]]:
    """The number of every node's cluster in the whole batch, ascending with the graphs, and the graph of every cluster.

    >>> numbered(torch.tensor([4, 0, 4, 0]), torch.tensor([0, 0, 0, 1]))
    (tensor([1, 0, 1, 2]), tensor([0, 0, 1]))
    """
    stride = clusters.max() + 1 if len(clusters) else 1
    keys, parent = torch.unique(owner * stride + clusters, return_inverse=True)
    return parent, keys // stride


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Merging:
    """Which edges of a finer graph each edge of a coarser one stands for; those inside a cluster are gone."""

    finer: Int[Tensor, " kept"]
    """Numbers of the finer edges, in the order of the coarser ones."""
    coarser: Int[Tensor, " kept"]
    num_edges: int

    def mean(self, values: Float[Tensor, "edges width"]) -> Float[Tensor, "coarse_edges width"]:
        """The mean over what each coarser edge stands for."""
        return segment_mean(values.index_select(0, self.finer), self.coarser, self.num_edges)

    def kind(self, kinds: Int[Tensor, " edges"]) -> Int[Tensor, " coarse_edges"]:
        """The kind of what each coarser edge stands for, which is one."""
        return kinds.new_zeros(self.num_edges).scatter(0, self.coarser, kinds.index_select(0, self.finer))


def merged_edges(
    topology: Topology, parent: Int[Tensor, " nodes"], count: int, kinds: Iterable[Int[Tensor, " edges"]] = ()
) -> tuple[Topology, Merging]:
    """One edge for all of the same ``kinds`` between the same two clusters in the same direction, sorted by receiver.

    >>> line = Topology.square(torch.tensor([0, 1, 1, 2]), torch.tensor([2, 2, 3, 3]), 4)
    >>> merged, _ = merged_edges(line, torch.tensor([0, 0, 1, 1]), 2, [torch.tensor([0, 5, 5, 5])])
    >>> merged.senders.tolist(), merged.receivers.tolist()
    ([0, 0], [1, 1])
    """
    senders = parent.index_select(0, topology.senders)
    receivers = parent.index_select(0, topology.receivers)
    between = (senders != receivers).nonzero().squeeze(1)
    key = receivers.index_select(0, between) * count + senders.index_select(0, between)
    of_pair = 1  # numbers of kinds that a pair of clusters may have
    for values in kinds:
        number = int(values.max()) + 1 if len(values) else 1
        key, of_pair = key * number + values.index_select(0, between), of_pair * number
    key, order = torch.sort(key, stable=True)
    keys, coarser = torch.unique_consecutive(key, return_inverse=True)
    pairs, many = keys // of_pair, max(count, 1)
    merged = Topology.square(pairs % many, pairs // many, count)
    return merged, Merging(finer=between.index_select(0, order), coarser=coarser, num_edges=keys.shape[0])


def between_middles(
    graph: "MessageGraph", joining: Topology, merging: Merging, topology: Topology, parent: Int[Tensor, " nodes"]
) -> tuple[Float[Tensor, "coarse_edges dim"] | None, Float[Tensor, "clusters dim"] | None]:
    """From middle to middle along every edge of the coarser graph, at most as long as the longest edge of its graph was; and the middles."""
    vectors, positions = graph.vectors, graph.positions
    if vectors is None or positions is None:
        return None, None
    order, first = joining.senders, joining.row_offsets[:-1]
    middles = segment_mean(positions.index_select(0, order), joining.receivers, joining.num_rows)
    aside = positions - middles.index_select(0, parent)  # [nodes, dim], of every node from the middle of its cluster
    senders, receivers = graph.topology.senders, graph.topology.receivers
    # shifts through a boundary are part of the vectors, and stay
    between = vectors - aside.index_select(0, senders) + aside.index_select(0, receivers)
    coarse = merging.mean(between)
    owner = graph.owner.index_select(0, order.index_select(0, first))  # [clusters]
    of_edge = owner.index_select(0, topology.receivers)
    before = longest_of(vectors, graph.owner.index_select(0, receivers), graph.num_graphs)
    after = longest_of(coarse, of_edge, graph.num_graphs)
    scale = (before / after.clamp_min(torch.finfo(after.dtype).tiny)).clamp_max(1.0).unsqueeze(1)  # [graphs, 1]
    return coarse * scale.index_select(0, of_edge), middles * scale.index_select(0, owner)


def longest_of(
    vectors: Float[Tensor, "edges dim"], owner: Int[Tensor, " edges"], graphs: int
) -> Float[Tensor, " graphs"]:
    """The length of the longest vector of every graph; 0 without any."""
    return segment_max(vectors.norm(dim=1, keepdim=True), owner, graphs).squeeze(1)
