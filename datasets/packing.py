"""Batches within a budget, and the equal shares of ranks."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from jaxtyping import Float64, Int64, Integer
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.datasets.store import Sizes
from hydragnn.graphs.cutting import whole_graphs

NODE_COST = 8  # where nothing else is known, one node costs about as much as eight edges
TEAM = 16  # ranks whose shares are balanced one by one
BLOCK = 1024  # ranks among whose teams graphs are dealt
CLASSES = 65_535  # of costs, when they are dealt
WINDOW = 1 << 18  # graphs whose batches are found at once


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of a batch; 0 means no limit."""

    max_graphs: int = 0
    max_nodes: int = 0
    max_edges: int = 0
    max_bytes: int = 0
    """Memory of a rank in a step: a batch that takes more is computed in parts."""

    def limited(self, nodes: T, edges: T) -> list[tuple[str, T, int]]:
        """Return the counts that have a limit, with their names and limits."""
        every = ("nodes", nodes, self.max_nodes), ("edges", edges, self.max_edges)
        return [(name, counts, limit) for name, counts, limit in every if limit]


def pack(sizes: Sizes, indices: Int64[ndarray, " chosen"], budget: Budget) -> list[Int64[ndarray, " _"]]:
    """Return batches of consecutive ``indices``, as full as the budget allows.

    InputError where a single graph exceeds the budget.

    >>> sizes = Sizes(nodes=np.array([3, 4, 2]), edges=np.array([0, 0, 0]))
    >>> pack(sizes, np.array([2, 0, 1]), Budget(max_nodes=6))
    [array([2, 0]), array([1])]
    """
    nodes, edges = sizes.nodes[indices], sizes.edges[indices]
    check_budget(sizes, indices, budget)
    return [indices[a:b] for a, b in pairwise(_walk(_ends(nodes, edges, budget)).tolist())]


def batches_in_order(
    sizes: Sizes, breaks: Int64[ndarray, " breaks"], budget: Budget
) -> tuple[Int64[ndarray, " batches"], Float64[ndarray, " batches"]]:
    """Return ends and costs of batches of all graphs between ascending ``breaks``.

    They are those that ``pack`` makes. Costs count edges. A graph that exceeds the budget stands alone if there is a
    break before and after it. Looks at ``WINDOW`` graphs at a time, so that it needs little memory beside the sizes.
    """
    stops: list[ndarray] = [np.zeros(0, dtype=np.int64)]
    loads: list[ndarray] = [np.zeros(0)]
    start, window = 0, WINDOW
    while start < len(sizes):
        stop = min(start + window, len(sizes))
        nodes, edges = sizes.nodes[start:stop], sizes.edges[start:stop]
        end_of = np.maximum(_ends(nodes, edges, budget), np.arange(1, stop - start + 1))
        inside = breaks[slice(*np.searchsorted(breaks, [start + 1, stop]))] - start
        next_break = np.append(inside, stop - start)[np.searchsorted(inside, np.arange(stop - start), side="right")]
        cuts = _walk(np.minimum(end_of, next_break))
        if stop < len(sizes):
            cuts = cuts[:-1]  # the last one may go on beyond the window
        window = 2 * window if len(cuts) == 1 else WINDOW
        sums = np.concatenate([[0], (edges + NODE_COST * nodes).cumsum()])
        stops.append(cuts[1:] + start)
        loads.append(np.diff(sums[cuts]).astype(np.float64))
        start += int(cuts[-1])
    return np.concatenate(stops), np.concatenate(loads)


def _walk(ends: Int64[ndarray, " chosen"]) -> Int64[ndarray, " cuts"]:
    """Return the cuts of consecutive batches, given the end for each start."""
    cuts, end_of = [0], ends.tolist()
    while cuts[-1] < len(end_of):
        cuts.append(end_of[cuts[-1]])
    return np.array(cuts, dtype=np.int64)


def _ends(
    nodes: Int64[ndarray, " chosen"], edges: Int64[ndarray, " chosen"], budget: Budget
) -> Int64[ndarray, " chosen"]:
    """Return the end of the batch that begins at each position."""
    ends = np.full(len(nodes), len(nodes), dtype=np.int64)
    if budget.max_graphs:
        ends = np.minimum(np.arange(len(nodes)) + budget.max_graphs, ends)
    for _, counts, limit in budget.limited(nodes, edges):
        sums = np.concatenate([[0], counts.cumsum()])
        ends = np.minimum(np.searchsorted(sums, sums[:-1] + limit, side="right") - 1, ends)
    return ends


def check_budget(sizes: Sizes, indices: Int64[ndarray, " chosen"], budget: Budget) -> None:
    """Raise InputError for the largest graph where it exceeds the budget."""
    for what, counts, limit in budget.limited(sizes.nodes, sizes.edges):
        if len(indices) and int(counts[indices].max()) > limit:
            graph = int(indices[counts[indices].argmax()])
            problem = f"graph {graph} has {counts[graph]} {what}, more than the budget of {limit}"
            raise InputError(f"{problem}; raise batch.max_{what} to at least {counts[graph]}")


def costs_of(sizes: Sizes, node_cost: int = NODE_COST) -> Integer[ndarray, " graphs"]:
    """Return the cost of every graph in edges, int32 where possible.

    >>> costs_of(Sizes(nodes=np.array([1, 2]), edges=np.array([10, 20]))).tolist()
    [18, 36]
    """
    costs = sizes.edges + node_cost * sizes.nodes
    return costs if costs.max(initial=0) > np.iinfo(np.int32).max else costs.astype(np.int32)


def share_of(
    batch: Int64[ndarray, " chosen"], costs: Integer[ndarray, " graphs"], ranks: int, rank: int
) -> Int64[ndarray, " _"]:
    """Return the graphs of a batch that one rank computes.

    Costs of all ranks are nearly equal. A rank plans only for its team: blocks of at most ``BLOCK`` ranks take
    consecutive parts of the batch, whose graphs are dealt by cost to teams of at most ``TEAM`` ranks, and inside a team
    the longest comes first (Graham 1969). So planning hardly grows with the number of ranks. A share is empty where
    there are fewer graphs than ranks. Its order is that of the batch.

    >>> costs = np.array([90, 50, 40])
    >>> [share_of(np.array([1, 2, 0]), costs, ranks=2, rank=rank) for rank in range(2)]
    [array([0]), array([1, 2])]
    """
    if ranks == 1:
        return batch
    blocks = -(-ranks // BLOCK)
    block = rank * blocks // ranks
    first, last = (-(-number * ranks // blocks) for number in (block, block + 1))  # its ranks
    part = batch[len(batch) * first // ranks : len(batch) * last // ranks]
    costs = costs[part]
    ranks, rank = last - first, rank - first
    teams = -(-ranks // TEAM)
    dealt = dealt_to(rank % teams, costs, teams, ranks)
    owner, _ = whole_graphs(costs[dealt], len(range(rank % teams, ranks, teams)))
    return part[dealt[owner == rank // teams]]


def dealt_to(team: int, costs: Integer[ndarray, " chosen"], teams: int, ranks: int) -> Int64[ndarray, " _"]:
    """Return the ascending positions of a team's graphs, dealt by cost.

    The dearest comes first, to and fro among the teams. A round has a card for each of the ranks, so that teams of more
    ranks get more, and every other round goes backwards.
    """
    if teams == 1:
        return np.arange(len(costs))
    width = int(costs.max(initial=1)) // CLASSES + 1
    order = np.argsort((CLASSES - costs // width).astype(np.uint16), kind="stable")  # by counting, as two bytes allow
    turns, seat = np.divmod(np.arange(ranks), teams)
    whole = (turns + 1) * teams <= ranks
    own = (np.where(whole & (turns % 2 == 1), teams - 1 - seat, seat) == team).nonzero()[0]  # cards of a round
    rounds, over = divmod(len(order), ranks)
    table = order[: rounds * ranks].reshape(rounds, ranks)
    last = own if rounds % 2 == 0 else ranks - 1 - own
    dealt = [table[0::2, own], table[1::2, ranks - 1 - own], order[rounds * ranks + last[last < over]]]
    return np.sort(np.concatenate([one.ravel() for one in dealt]))
