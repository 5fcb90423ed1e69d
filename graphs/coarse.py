"""Coarser levels of a batch: nodes, edges and vectors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydragnn.graphs.topology import HasTensors, Topology

TIE = 1e-5  # edges whose lengths differ by less than this share are as short: no rounding decides where a pair is one


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Merging(HasTensors):
    """Finer edges that each coarser edge stands for."""

    finer: Int[Tensor, " kept"]
    """Numbers of the finer edges, in the order of the coarser ones."""
    coarser: Int[Tensor, " kept"]
    num_edges: int

    def kind(self, kinds: Int[Tensor, " edges"]) -> Int[Tensor, " coarse_edges"]:
        """The kind of what each coarser edge stands for, which is one."""
        return kinds.new_zeros(self.num_edges).scatter(0, self.coarser, kinds.index_select(0, self.finer))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Level(HasTensors):
    """Level of a batch: clusters of the next finer level, joined once."""

    topology: Topology
    owner: Int[Tensor, " clusters"]
    """The graph of every cluster; ascending."""
    nodes_per_graph: Int[Tensor, " graphs"]
    joining: Topology
    """From every finer node to its cluster: a row per cluster, a column per finer node."""
    leaving: Topology
    """From every cluster to its nodes: one edge per finer node."""
    share: Float[Tensor, " nodes"]
    """One over the number of nodes of each cluster, in the order of ``joining``; float64."""
    merging: Merging
    edge_kinds: Mapping[str, Int[Tensor, " edges"]]
    vectors: Float[Tensor, "edges dim"] | None
    """From middle to middle along every edge; None without positions."""

    @property
    def parent(self) -> Int[Tensor, " nodes"]:
        """The cluster of every finer node."""
        return self.leaving.senders


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Levels(HasTensors):
    """Coarser levels of a batch."""

    levels: tuple[Level, ...]
    """From the finest to the coarsest."""
    fields: frozenset[str]
    """The fields that they were made from."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Finer:
    """A graph that levels are made of."""

    topology: Topology
    owner: Int[Tensor, " nodes"]
    graphs: int
    clusters: Int[Tensor, "nodes levels"]
    edge_kinds: Mapping[str, Int[Tensor, " edges"]]
    vectors: Float[Tensor, "edges dim"] | None
    positions: Float[Tensor, "nodes dim"] | None
    images: Int[Tensor, "edges axes"] | None = None
    """Cell vectors that each edge leads through; None where no graph is periodic. In a graph that is, clusters are pairs of neighbours, or single nodes."""


def next_level(finer: Finer) -> tuple[Level, Finer]:
    """Return the first level, and the graph that later levels coarsen.

    Clusters are joined where any edge joins nodes of theirs, by one edge in each direction that there is, or, where there are kinds of
    edges, by one of every kind that there is; in periodic graphs by one for every image. Its vector leads from middle to middle, scaled so
    that the longest edge of each graph stays as long as it was, within the cutoff of a radial basis.
    """
    parent, owner = numbered(finer.clusters[:, 0], finer.owner)
    order = torch.sort(parent, stable=True).indices
    members = torch.bincount(parent, minlength=owner.shape[0])
    kinds, loops, images = [*finer.edge_kinds.values()], None, None
    if finer.images is not None:
        finer, images = unwrapped(finer, parent, order, members)
        loops = (images != 0).any(1)
        kinds += [*(images - images.amin(0) if len(images) else images).unbind(1)]
    topology, merging = merged_edges(finer.topology, parent, owner.shape[0], kinds, loops)
    vectors, middles = between_middles(finer, parent, order, members, topology, merging)
    joining, leaving = both_ways(parent, order, members)
    level = Level(
        topology=topology,
        owner=owner,
        nodes_per_graph=torch.bincount(owner, minlength=finer.graphs),
        joining=joining,
        leaving=leaving,
        share=members.double().reciprocal().index_select(0, joining.receivers),
        merging=merging,
        edge_kinds={name: merging.kind(kinds) for name, kinds in finer.edge_kinds.items()},
        vectors=vectors,
    )
    first = order.index_select(0, members.cumsum(0) - members)
    return level, Finer(
        topology=topology,
        owner=level.owner,
        graphs=finer.graphs,
        clusters=finer.clusters.index_select(0, first)[:, 1:],
        edge_kinds=level.edge_kinds,
        vectors=vectors,
        positions=middles,
        images=None if images is None else torch.stack([merging.kind(axis) for axis in images.unbind(1)], dim=1),
    )


def both_ways(
    parent: Int[Tensor, " nodes"], order: Int[Tensor, " nodes"], members: Int[Tensor, " clusters"]
) -> tuple[Topology, Topology]:
    """Return edges from nodes to their clusters, and back."""
    nodes, count = parent.shape[0], members.shape[0]
    each = torch.arange(nodes + 1, device=parent.device)
    rows = parent.index_select(0, order)
    offsets = torch.nn.functional.pad(members.cumsum(0), (1, 0))
    joining = Topology(senders=order, receivers=rows, num_columns=nodes, num_rows=count)
    joining.index_arrays.update(
        row_offsets=offsets,
        degrees=members,
        by_sender=torch.empty_like(order).index_copy_(0, order, each[:-1]),
        sorted_senders=each[:-1],
        column_offsets=each,
        receivers_by_sender=parent,
    )
    leaving = Topology(senders=parent, receivers=each[:-1], num_columns=count, num_rows=nodes)
    leaving.index_arrays.update(
        row_offsets=each, by_sender=order, sorted_senders=rows, column_offsets=offsets, receivers_by_sender=order
    )
    return joining, leaving


def unwrapped(
    finer: Finer, parent: Int[Tensor, " nodes"], order: Int[Tensor, " nodes"], members: Int[Tensor, " clusters"]
) -> tuple[Finer, Int[Tensor, "edges axes"]]:
    """Return the graph with whole clusters, and the images of their edges.

    The second node of a pair is moved to where the shortest edge leads from the first, of several as short the one that comes first. Where there is none
    it stays.
    """
    images, vectors, positions = finer.images, finer.vectors, finer.positions
    assert images is not None and vectors is not None and positions is not None
    senders, receivers = finer.topology.senders, finer.topology.receivers
    first = order.index_select(0, members.cumsum(0) - members).index_select(0, parent)  # [nodes], of its cluster
    to_second, from_second = (
        (one != first.index_select(0, one)) & (other == first.index_select(0, one))
        for one, other in ((senders, receivers), (receivers, senders))
    )
    inside = (to_second | from_second).nonzero().squeeze(1)
    sign = torch.where(to_second, 1, -1).index_select(0, inside)  # vectors lead from receivers to senders
    second = torch.where(to_second, senders, receivers).index_select(0, inside)
    lengths = vectors.index_select(0, inside).norm(dim=1)
    least = lengths.new_full(parent.shape, torch.inf).scatter_reduce(0, second, lengths, "amin")
    near = (lengths <= least.index_select(0, second) * (1 + TIE)).nonzero().squeeze(1)
    place = second.new_full(parent.shape, len(inside)).scatter_reduce(0, second.index_select(0, near), near, "amin")
    moved = (place < len(inside)).nonzero().squeeze(1)
    index = place.index_select(0, moved)
    edge, sign = inside.index_select(0, index), sign.index_select(0, index).unsqueeze(1)
    moved_to = positions.index_select(0, first.index_select(0, moved)) + sign * vectors.index_select(0, edge)
    through = images.new_zeros(parent.shape[0], images.shape[1])
    through = through.index_copy(0, moved, sign * images.index_select(0, edge))
    whole = replace(finer, positions=positions.index_copy(0, moved, moved_to))
    return whole, images - through.index_select(0, senders) + through.index_select(0, receivers)


def numbered(clusters: Int[Tensor, " nodes"], owner: Int[Tensor, " nodes"]) -> tuple[Tensor, Int[Tensor, " clusters"]]:
    """Return every node's cluster in the batch, and every cluster's graph.

    >>> numbered(torch.tensor([4, 0, 4, 0]), torch.tensor([0, 0, 0, 1]))
    (tensor([1, 0, 1, 2]), tensor([0, 0, 1]))
    """
    stride = clusters.max() + 1 if len(clusters) else 1
    keys, parent = torch.unique(owner * stride + clusters, return_inverse=True)
    return parent, keys // stride


def merged_edges(
    topology: Topology,
    parent: Int[Tensor, " nodes"],
    count: int,
    kinds: Iterable[Int[Tensor, " edges"]] = (),
    loops: Bool[Tensor, " edges"] | None = None,
) -> tuple[Topology, Merging]:
    """Return one edge per kind, direction and pair of clusters.

    Of edges inside a cluster ``loops`` stay, which lead to another image of it.

    >>> line = Topology.square(torch.tensor([0, 1, 1, 2]), torch.tensor([2, 2, 3, 3]), 4)
    >>> merged, _ = merged_edges(line, torch.tensor([0, 0, 1, 1]), 2, [torch.tensor([0, 5, 5, 5])])
    >>> merged.senders.tolist(), merged.receivers.tolist()
    ([0, 0], [1, 1])
    """
    senders = parent.index_select(0, topology.senders)
    receivers = parent.index_select(0, topology.receivers)
    differs = senders != receivers if loops is None else (senders != receivers) | loops
    between = differs.nonzero().squeeze(1)
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
    finer: Finer,
    parent: Int[Tensor, " nodes"],
    order: Int[Tensor, " nodes"],
    members: Int[Tensor, " clusters"],
    topology: Topology,
    merging: Merging,
) -> tuple[Float[Tensor, "coarse_edges dim"] | None, Float[Tensor, "clusters dim"] | None]:
    """Return vectors between the middles of clusters, and the middles."""
    vectors, positions = finer.vectors, finer.positions
    if vectors is None or positions is None:
        return None, None
    middles = torch.segment_reduce(
        positions.index_select(0, order), "mean", lengths=members, unsafe=True
    )  # none is empty
    aside = positions - middles.index_select(0, parent)  # [nodes, dim], of every node from the middle of its cluster
    senders, receivers = finer.topology.senders, finer.topology.receivers
    # shifts through a boundary are part of the vectors, and stay
    between = vectors - aside.index_select(0, senders) + aside.index_select(0, receivers)
    merged = torch.bincount(merging.coarser, minlength=merging.num_edges)
    coarse = torch.segment_reduce(between.index_select(0, merging.finer), "mean", lengths=merged, unsafe=True)
    owner = finer.owner.index_select(0, order.index_select(0, members.cumsum(0) - members))  # [clusters]
    of_edge = owner.index_select(0, topology.receivers)
    longest = longest_of(vectors, finer.owner.index_select(0, receivers), finer.graphs)
    coarse_longest = longest_of(coarse, of_edge, finer.graphs)
    ratio = longest / coarse_longest.clamp_min(torch.finfo(coarse_longest.dtype).tiny)
    scale = ratio.clamp_max(1.0).unsqueeze(1)  # [graphs, 1]
    return coarse * scale.index_select(0, of_edge), middles * scale.index_select(0, owner)


def longest_of(
    vectors: Float[Tensor, "edges dim"], owner: Int[Tensor, " edges"], graphs: int
) -> Float[Tensor, " graphs"]:
    """Return the longest vector of every graph; 0 without any."""
    counts = torch.bincount(owner, minlength=graphs)
    return torch.segment_reduce(vectors.norm(dim=1), "max", lengths=counts, unsafe=True, initial=0.0)
