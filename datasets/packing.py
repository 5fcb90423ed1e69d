"""Batches within a budget, and their shares of equal cost for several ranks."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from hydragnn.datasets.store import Sizes
from hydragnn.errors import InputError

NODE_COST = 8  # measured: one node costs about as much as eight edges


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a batch holds at most; 0 means no limit."""

    max_graphs: int = 0
    max_nodes: int = 0
    max_edges: int = 0


def pack(sizes: Sizes, indices: Int64[ndarray, " chosen"], budget: Budget) -> list[Int64[ndarray, " _"]]:
    """Batches of consecutive ``indices``, each as full as the budget allows; nothing lost, nothing twice, order kept.

    InputError where a single graph exceeds the budget.

    >>> sizes = Sizes(nodes=np.array([3, 4, 2]), edges=np.array([0, 0, 0]))
    >>> pack(sizes, np.array([2, 0, 1]), Budget(max_nodes=6))
    [array([2, 0]), array([1])]
    """
    nodes, edges = sizes.nodes[indices], sizes.edges[indices]
    check_budget(indices, nodes, budget.max_nodes, "nodes")
    check_budget(indices, edges, budget.max_edges, "edges")
    limits = (budget.max_graphs or np.inf, budget.max_nodes or np.inf, budget.max_edges or np.inf)
    cuts, graphs, node_sum, edge_sum = [0], 0, 0, 0
    for position, (node_count, edge_count) in enumerate(zip(nodes.tolist(), edges.tolist())):
        graphs, node_sum, edge_sum = graphs + 1, node_sum + node_count, edge_sum + edge_count
        if graphs > limits[0] or node_sum > limits[1] or edge_sum > limits[2]:
            cuts.append(position)
            graphs, node_sum, edge_sum = 1, node_count, edge_count
    return [indices[a:b] for a, b in zip(cuts, [*cuts[1:], len(indices)]) if b > a]


def check_budget(indices: Int64[ndarray, " chosen"], counts: Int64[ndarray, " graphs"], limit: int, what: str) -> None:
    """InputError that names the largest graph where it does not fit into the budget; a limit of 0 is none."""
    if limit and len(counts) and int(counts.max()) > limit:
        graph, count = int(indices[counts.argmax()]), int(counts.max())
        raise InputError(
            f"graph {graph} has {count} {what}, more than the budget of {limit}; raise batch.max_{what} to at least {count}"
        )


def graph_costs(sizes: Sizes, indices: Int64[ndarray, " chosen"]) -> Int64[ndarray, " chosen"]:
    """The work that each graph means for a model, in edges."""
    return sizes.edges[indices] + NODE_COST * sizes.nodes[indices]


def shard(batch: Int64[ndarray, " chosen"], sizes: Sizes, ranks: int) -> list[Int64[ndarray, " _"]]:
    """The batch as one share per rank, of nearly equal cost: longest processing time first (Graham 1969).

    A rank has an empty share where there are fewer graphs than ranks. The order inside a share is that of the batch.

    >>> sizes = Sizes(nodes=np.array([1, 1, 1]), edges=np.array([90, 50, 40]))
    >>> shard(np.array([1, 2, 0]), sizes, ranks=2)
    [array([0]), array([1, 2])]
    """
    if ranks == 1:
        return [batch]
    costs = graph_costs(sizes, batch)
    loads = [(0, rank) for rank in range(ranks)]
    heapify(loads)
    owner = np.empty(len(batch), dtype=np.int64)
    for position in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        owner[position] = rank
        heapreplace(loads, (load + int(costs[position]), rank))
    return [batch[owner == rank] for rank in range(ranks)]


def loads_of(shares: Iterable[Int64[ndarray, " _"]], sizes: Sizes) -> list[int]:
    """The cost of every share."""
    return [int(graph_costs(sizes, share).sum()) for share in shares]
