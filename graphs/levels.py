"""Clusters: coarser levels of a graph as a node field."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike, NDArray

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.coarse import Finer, Level, Levels, next_level
from hydragnn.graphs.field import Field, Location
from hydragnn.graphs.joining import concatenate, unbatch

CLUSTERS = "clusters"
"""The node field with the number of every node's cluster inside its graph, from the finest level to the coarsest."""

LEVELS: tuple[str, Location] = ("levels", "node")  # key of what ``levels_of`` made, in a batch
MOST_CLUSTERS = 2**31 - 1


def clusters_field(levels: int) -> Field:
    """Return the field ``clusters``, auxiliary whatever the inputs of models.

    >>> clusters_field(2).shape
    (2,)
    """
    return Field(name=CLUSTERS, on="node", shape=(levels,), role="auxiliary", classes=MOST_CLUSTERS, dtype="int64")


def is_levels(field: Field) -> bool:
    """Return True for a field that holds levels.

    >>> is_levels(clusters_field(2)), is_levels(Field(name="clusters", on="node", classes=7, dtype="int64"))
    (True, False)
    """
    return (field.name, field.on, field.classes, len(field.shape)) == (CLUSTERS, "node", MOST_CLUSTERS, 1)


def with_clusters(batch: GraphBatch, clusters: ArrayLike) -> GraphBatch:
    """Return the batch with clusters ``[nodes, levels]``, numbered inside each graph.

    Nodes that are one on a level are one on all that follow. InputError where they are of another shape, negative or
    not nested, and where a cluster of a periodic graph is more than a pair of neighbours of the level below: it may
    reach through the boundary, where it has no middle.
    """
    numbers = np.asarray(clusters)
    is_table = numbers.ndim == 2 and len(numbers) == batch.num_nodes and numbers.shape[1] > 0
    if not is_table or numbers.dtype.kind not in "iu":
        fault = f"clusters of shape {list(numbers.shape)} and type {numbers.dtype} for {batch.num_nodes} nodes"
        raise InputError(f"{fault}; give whole numbers [nodes, levels]")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < MOST_CLUSTERS:
        raise InputError(f"clusters are numbered from 0 to {MOST_CLUSTERS - 1} inside each graph; number them anew")
    field = clusters_field(numbers.shape[1])
    result = batch.with_fields({CLUSTERS: torch.from_numpy(numbers.astype(np.int64))}, fields=[field])
    for _, problem in cluster_problems(result):
        raise InputError(problem)
    return result


def levels_of(batch: GraphBatch, count: int, kinds: Sequence[str] = ()) -> tuple[Level, ...]:
    """Return the first ``count`` levels; edges of other ``kinds`` stay apart.

    They are made when first asked for, and kept with the batch.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> line = graph_from_arrays([[x, 0.0] for x in (0.0, 1.0, 4.0, 5.0)], [0, 1, 2], [1, 2, 3])
    >>> (level,) = levels_of(with_contracted_levels(line, 1), 1)
    >>> level.parent.tolist(), level.topology.senders.tolist(), level.topology.receivers.tolist()
    ([0, 0, 1, 1], [0], [1])
    """
    levels, fields = batch._derived.get(LEVELS), frozenset({CLUSTERS, *kinds})
    if levels is None or levels.fields != fields or len(levels.levels) < count:
        finer, coarser = replace(finest_of(batch, kinds), clusters=batch.nodes[CLUSTERS]), list[Level]()
        with torch.no_grad():
            for _ in range(count):
                level, finer = next_level(finer)
                coarser.append(level)
        batch._derived[LEVELS] = levels = Levels(levels=tuple(coarser), fields=fields)
    return levels.levels[:count]


def finest_of(batch: GraphBatch, kinds: Sequence[str] = ()) -> Finer:
    """Return the batch as the finest graph of levels."""
    images = None
    if batch.dim and bool(batch.periodic.any()):
        shifts = torch.nn.functional.pad(batch.edge_shifts.double(), (0, 3 - batch.dim))
        inverse = torch.linalg.pinv(batch.cell.double()).index_select(0, batch.owner("edge"))
        images = torch.einsum("ea,eab->eb", shifts, inverse).round().long()
    return Finer(
        topology=batch.topology,
        owner=batch.owner("node"),
        graphs=batch.num_graphs,
        clusters=batch.topology.senders.new_empty(batch.num_nodes, 0),
        edge_kinds={name: batch.edges[name] for name in kinds},
        vectors=edge_vectors(batch).detach() if batch.dim else None,
        positions=batch.positions.detach() if batch.dim else None,
        images=images,
    )


def cluster_problems(batch: GraphBatch) -> Iterator[tuple[int, str]]:
    """Return graphs with clusters that are not nested, or no pairs."""
    owner = batch.owner("node").cpu().numpy()
    columns = [np.arange(batch.num_nodes), *batch.nodes[CLUSTERS].cpu().numpy().T]
    # numbers of clusters over the whole batch; [nodes] for every level, from the nodes themselves on
    whole = [
        np.unique(owner * (column.max(initial=0) + 1) + column, return_inverse=True)[1].ravel() for column in columns
    ]
    torn: set[int] = set()
    for level, (below, above) in enumerate(pairwise(whole)):
        first = np.unique(below, return_index=True)[1]
        for graph in np.unique(owner[above != above[first][below]]).tolist():
            if graph not in torn:
                yield (
                    graph,
                    f"a cluster of level {level} lies in two clusters of level {level + 1}; let each level join whole clusters of the last",
                )
            torn.add(graph)
    if batch.dim and bool(batch.periodic.any()):
        images = batch.periodic.any(1) & (batch.counts("edge") > 0)
        wrong = _no_pairs(batch, whole) & images.cpu().numpy()[owner]
        for graph in np.unique(owner[wrong]).tolist():
            if graph not in torn:
                yield (
                    graph,
                    "clusters of a periodic graph reach through the boundary, where only pairs of neighbours have a middle; make its levels by "
                    "contraction, or clear periodic where images do not matter",
                )


def _no_pairs(batch: GraphBatch, whole: Sequence[NDArray[np.int64]]) -> Bool[ndarray, " nodes"]:
    """Return nodes whose cluster is no pair of neighbours below."""
    ends = batch.senders.cpu().numpy(), batch.receivers.cpu().numpy()
    result = np.zeros(batch.num_nodes, dtype=np.bool_)
    for below, above in pairwise(whole):
        sizes = np.bincount(above[np.unique(below, return_index=True)[1]])
        inside = above[ends[0]] == above[ends[1]]
        distinct = below[ends[0]] != below[ends[1]]
        joined = np.unique(above[ends[0]][inside & distinct])
        wrong = (sizes > 2) | ((sizes == 2) & ~np.isin(np.arange(len(sizes)), joined))
        result |= wrong[above]
    return result


def with_contracted_levels(batch: GraphBatch, levels: int) -> GraphBatch:
    """Return the batch with levels of joined pairs, the closest first.

    Without positions those with few neighbours are joined first (weights 1 / degree + 1 / degree: Dhillon et al. 2007,
    doi:10.1109/TPAMI.2007.1115). Among equals the order of the nodes decides. Directions are ignored. In periodic graphs neighbours are as
    close as their closest images, and their middle lies between these.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> line = graph_from_arrays([[x, 0.0] for x in (0.0, 1.0, 1.5, 3.0)], [0, 1, 2], [1, 2, 3])
    >>> with_contracted_levels(line, 2)["clusters"].T.tolist()
    [[0, 1, 1, 2], [0, 0, 0, 1]]
    """

    if levels < 1:
        raise InputError(f"{levels} levels; give at least 1")
    if CLUSTERS in batch.fields:
        raise InputError(f"the batch already has the field {CLUSTERS}; take it away first")

    graphs = [(graph, _contracted(finest_of(graph.to(dtype=torch.float64)), levels)) for graph in unbatch(batch)]
    return concatenate([with_clusters(graph, clusters) for graph, clusters in graphs])


def _contracted(finer: Finer, levels: int) -> NDArray[np.int64]:
    """Return the clusters of every node after joining ``levels`` times."""
    nodes = finer.topology.num_rows
    columns, parents = [], (parent := np.arange(nodes))
    for level in range(levels):
        if level:
            finer = next_level(replace(finer, clusters=torch.from_numpy(parent).unsqueeze(1)))[1]
        ends = np.sort(np.stack([finer.topology.senders.numpy(), finer.topology.receivers.numpy()], axis=1), axis=1)
        lengths = np.zeros(len(ends)) if finer.vectors is None else finer.vectors.norm(dim=1).numpy()
        order = np.lexsort((lengths, ends[:, 1], ends[:, 0]))
        order = order[ends[order, 0] != ends[order, 1]]
        distinct, first = np.unique(ends[order], axis=0, return_index=True)
        price = lengths[order][first]  # of the closest images
        if finer.vectors is None:
            degrees = np.bincount(distinct.ravel(), minlength=nodes)
            price = -(1 / degrees[distinct[:, 0]] + 1 / degrees[distinct[:, 1]])
        parent = _matched(distinct, price, nodes)
        parents, nodes = parent[parents], int(parent.max(initial=-1)) + 1
        columns.append(parents)
    return np.stack(columns, axis=1)


def _matched(distinct: Int[ndarray, "pairs 2"], price: Float[ndarray, " pairs"], nodes: int) -> NDArray[np.int64]:
    scale = np.abs(price).max(initial=0) or 1.0
    order = np.lexsort((distinct[:, 1], distinct[:, 0], (price / scale).round(9)))
    partner = list(range(nodes))
    free = [True] * nodes
    for a, b in distinct[order].tolist():
        if free[a] and free[b]:
            free[a] = free[b] = False
            partner[b] = a
    return np.unique(np.array(partner, dtype=np.int64), return_inverse=True)[1].ravel()
