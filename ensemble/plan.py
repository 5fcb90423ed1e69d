"""What has to be predicted, in which pieces and in which order."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.datasets.packing import Budget, graph_costs, pack
from hydragnn.datasets.store import Sizes

Numbers = Int[NDArray[np.int64], " graphs"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chunk:
    """Neighbouring graphs of a source that are predicted together, or one graph that cannot be."""

    graphs: Int[NDArray[np.int64], " built"]
    """Their numbers in the store; empty where the graph could not even be built."""
    numbers: Numbers
    """Their numbers in the output."""
    load: float = 0.0
    """Edges plus eight times nodes: what a batch costs, up to a factor for each member."""
    reason: str = ""
    """Why nothing can be predicted; empty where it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """The smallest piece of work that is done or not done: one member predicts one chunk."""

    member: int
    chunk: int
    cost: float


def default_budget(sizes: Sizes) -> Budget:
    """64 graphs or about 100,000 edges per batch, and no graph too large: more does not run faster on a processor."""
    return Budget(max_graphs=64, max_edges=max(100_000, int(sizes.edges.max(initial=0))))


def chunks_of(sizes: Sizes, numbers: Numbers, budget: Budget, failures: Mapping[int, str]) -> list[Chunk]:
    """All graphs in the order of ``numbers``, packed under the budget; one that exceeds it or failed stands alone.

    Neighbouring graphs stay together, so that input is read and output written as a stream. ``failures`` are the numbers
    of graphs that could not be built, which ``sizes`` does not know.
    """
    reasons = [too_large(int(n), int(e), budget) for n, e in zip(sizes.nodes, sizes.edges)]
    alone = {int(numbers[graph]) for graph, reason in enumerate(reasons) if reason} | set(failures)
    breaks = np.searchsorted(numbers, sorted(alone))
    after = breaks + np.isin(sorted(alone), numbers)
    chunks = [_unbuilt(number, reason) for number, reason in failures.items()]
    chunks += [_chunk(sizes, numbers, np.array([graph]), reason) for graph, reason in enumerate(reasons) if reason]
    for start, stop in zip([0, *after.tolist()], [*breaks.tolist(), len(sizes)]):
        chunks += [_chunk(sizes, numbers, graphs) for graphs in pack(sizes, np.arange(start, stop), budget)]
    return sorted(chunks, key=lambda chunk: int(chunk.numbers[0]))


def _chunk(sizes: Sizes, numbers: Numbers, graphs: Int[NDArray[np.int64], " some"], reason: str = "") -> Chunk:
    return Chunk(graphs=graphs, numbers=numbers[graphs], load=float(graph_costs(sizes, graphs).sum()), reason=reason)


def _unbuilt(number: int, reason: str) -> Chunk:
    return Chunk(graphs=np.empty(0, dtype=np.int64), numbers=np.array([number]), reason=reason)


def too_large(nodes: int, edges: int, budget: Budget) -> str:
    """Why a graph of this size can never be in a batch; empty where it can.

    >>> too_large(9, 0, Budget(max_nodes=8))
    '9 nodes are more than the budget of 8; raise batch.max_nodes to at least 9'
    """
    for count, limit, what in ((nodes, budget.max_nodes, "nodes"), (edges, budget.max_edges, "edges")):
        if limit and count > limit:
            return f"{count} {what} are more than the budget of {limit}; raise batch.max_{what} to at least {count}"
    return ""


def units_of(chunks: Sequence[Chunk], member_costs: Sequence[float]) -> list[Unit]:
    """Every member on every chunk that can be predicted, costliest first; ties in order of chunk and member."""
    units = [
        Unit(member=member, chunk=number, cost=cost * chunk.load)
        for number, chunk in enumerate(chunks)
        if not chunk.reason
        for member, cost in enumerate(member_costs)
    ]
    return sorted(units, key=lambda unit: (-unit.cost, unit.chunk, unit.member))


def makespan(costs: Sequence[float], workers: int) -> float:
    """When the last of ``workers`` is done if each takes the next cost in the list as soon as it is free.

    >>> makespan([3.0, 2.0, 2.0], workers=2)
    4.0
    """
    free = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def certificate(units: Sequence[Unit], queue: Sequence[float], workers: int) -> dict[str, float]:
    """How good a plan is: its makespan against the bound that no plan can beat, in the units of the costs.

    ``queue`` are the costs of what is taken at once, in the order in which it is taken. The bound is the larger of the
    mean load of a worker and the costliest unit.
    """
    costs = [unit.cost for unit in units]
    bound = max(sum(costs) / workers, max(costs, default=0.0))
    planned = makespan(queue, workers)
    return {
        "units": float(len(units)),
        "workers": float(workers),
        "makespan": planned,
        "lower_bound": bound,
        "ratio": planned / bound if bound > 0 else 1.0,
    }
