"""Cut of a batch over ranks, and the part of each."""

from collections.abc import Callable
from dataclasses import replace
from heapq import heapreplace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Integer
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.halo import Halo, Peers
from hydragnn.graphs.topology import Topology, counted_offsets

UNEVEN = 1.1  # largest share of a rank, over the mean, with which graphs stay whole
FEW = 4  # nodes per rank from which METIS cuts; it prints complaints of fewer
Partition = Callable[[Any, NDArray[np.int64], int], NDArray[np.int64]]
"""Parts of a symmetric sparse matrix of edges, from costs of nodes and the number of parts."""


def cut_nodes(
    batch: GraphBatch, parts: int, node_cost: int = 8, partition: Partition | None = None
) -> Int[Tensor, " nodes"]:
    """Return the rank of each node, which costs ``node_cost`` more edges.

    Small graphs stay whole where that shares the work evenly. Others are cut by METIS where it is installed, else into boxes.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> line = graph_from_arrays([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [], [])
    >>> cut_nodes(line, 2).tolist()
    [0, 1, 0, 1]
    """
    costs = batch.topology.degrees + node_cost
    of_graph = torch.zeros(batch.num_graphs, dtype=torch.int64).index_add_(0, batch.owner("node"), costs)
    whole, largest = whole_graphs(of_graph.numpy(), parts)
    if largest * parts <= UNEVEN * int(of_graph.sum()):
        return torch.from_numpy(whole).index_select(0, batch.owner("node"))
    if partition is not None and batch.num_nodes >= FEW * parts:
        return torch.from_numpy(partition(adjacency(batch), costs.numpy(), parts).astype(np.int64))
    if batch.dim:
        order = box_order(batch)
    else:  # breadth first, of Cuthill and McKee 1969, doi:10.1145/800195.805928, reversed
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        order = torch.from_numpy(reverse_cuthill_mckee(adjacency(batch), symmetric_mode=True).astype(np.int64))
    starts = costs[order].cumsum(0) - costs[order]  # [nodes], the cost of the nodes before each
    result = torch.empty_like(costs)
    result[order] = starts * parts // max(1, int(costs.sum()))
    return result


def whole_graphs(costs: Integer[np.ndarray, " graphs"], parts: int) -> tuple[NDArray[np.int64], int]:
    """Return the rank of every graph, and the largest load.

    The largest graph comes first, each to the least loaded rank.

    >>> whole_graphs(np.array([1, 5, 2, 2]), 2)
    (array([1, 0, 1, 1]), 5)
    """
    loads, result = [(0, rank) for rank in range(parts)], np.empty(len(costs), dtype=np.int64)
    values = costs.tolist()
    for graph in np.argsort(-costs, kind="stable").tolist():
        load, result[graph] = loads[0]
        heapreplace(loads, (load + values[graph], loads[0][1]))
    return result, max(loads)[0]


def adjacency(batch: GraphBatch) -> Any:
    """Return the edges as a symmetric sparse matrix without a diagonal."""
    from scipy.sparse import coo_array

    ends = batch.senders.numpy(), batch.receivers.numpy()
    one_way = coo_array((np.ones(batch.num_edges, dtype=np.int32), ends), shape=(batch.num_nodes,) * 2).tocsr()
    both = (one_way + one_way.T).tocsr()
    both.setdiag(0)
    both.eliminate_zeros()
    return both


def box_order(batch: GraphBatch) -> Int[Tensor, " nodes"]:
    """Return the nodes along the leaves of a k-d tree, graph by graph."""
    from scipy.spatial import KDTree

    places, owner = batch.positions.detach().double().numpy(), batch.owner("node").numpy()
    distance = 2 * np.ptp(places, axis=0).max()  # so that the tree parts graphs first
    return torch.from_numpy(KDTree(np.column_stack([places, distance * owner]), leafsize=1).indices.astype(np.int64))


def crossing(
    batch: GraphBatch, rank_of_node: Int[Tensor, " nodes"]
) -> tuple[int, Int[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Return the number of cut edges, nodes to send, and their ranks.

    Rows ascend by the rank that receives them, and by node.
    """
    to, sender = rank_of_node.index_select(0, batch.receivers), batch.senders
    cut = (rank_of_node.index_select(0, sender) != to).nonzero().squeeze(1)
    rows = (to[cut] * max(1, batch.num_nodes) + sender[cut]).unique()
    return len(cut), rows % max(1, batch.num_nodes), rows // max(1, batch.num_nodes)


def part_of_rank(batch: GraphBatch, rank_of_node: Int[Tensor, " nodes"], peers: Peers) -> GraphBatch:
    """Return this rank's part of a batch.

    It has the nodes of the rank, copies of those that send to them, and the edges that they receive.
    """
    mine = rank_of_node == peers.rank
    edges = mine.index_select(0, batch.receivers).nonzero().squeeze(1)
    _, nodes, to = crossing(batch, rank_of_node)
    of = rank_of_node.index_select(0, nodes)
    leaving, arriving = nodes[of == peers.rank], nodes[to == peers.rank]
    arriving = arriving[torch.argsort(of[to == peers.rank], stable=True)]  # in the order of the ranks that send them
    rows = torch.cat([mine.nonzero().squeeze(1), arriving.sort().values])
    if batch.num_graphs > 1:  # graph by graph, copies last
        rows = rows[torch.argsort(batch.owner("node")[rows], stable=True)]
    number = torch.full((batch.num_nodes,), -1).index_copy(0, rows, torch.arange(len(rows)))
    halo = Halo(
        peers=peers,
        rows=number[arriving],
        sent=number[leaving],
        copies_from=_counts(of[to == peers.rank], peers.size),
        sent_to=_counts(to[of == peers.rank], peers.size),
        owned=mine[rows],
        numbers=rows,
        nodes_per_graph=batch.counts("node"),
        crosses=len(nodes) > 0,
    )
    return replace(
        batch,
        **batch.by_location(lambda at, value: value if at == "graph" else value[rows if at == "node" else edges]),
        topology=Topology.square(number[batch.senders[edges]], number[batch.receivers[edges]], len(rows)),
        node_offsets=counted_offsets(batch.owner("node")[rows], batch.num_graphs),
        edge_offsets=counted_offsets(batch.owner("edge")[edges], batch.num_graphs),
        halo=halo,
    )


def _counts(ranks: Tensor, size: int) -> tuple[int, ...]:
    return tuple(torch.bincount(ranks, minlength=size).tolist())
