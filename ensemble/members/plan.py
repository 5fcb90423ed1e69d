"""Batches of a prediction as arrays: a hundred million graphs fit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from hydragnn.datasets.packing import Budget, batches_in_order
from hydragnn.datasets.store import Sizes

Numbers = Int[np.ndarray, " graphs"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chunk:
    """Neighbouring graphs predicted together, or one that cannot be predicted."""

    graphs: Int[np.ndarray, " built"]
    """Numbers in the store; empty where the graph could not be built."""
    numbers: Numbers
    """Numbers in the output."""
    load: float = 0.0
    """Edges plus eight times nodes: the cost of a batch, up to a factor."""
    reason: str = ""
    """Reason why nothing can be predicted; else empty."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chunks:
    """All chunks in the order of the output."""

    stops: Int[np.ndarray, " chunks"]
    """One past the last graph of every chunk in the store; the next one begins there."""
    loads: Float[np.ndarray, " chunks"]
    numbers: Numbers | None
    """Numbers in the output of the store's graphs; None where they are the same."""
    reasons: Mapping[int, str]
    """Reasons why nothing can be predicted of these chunks."""
    unbuilt: Mapping[int, int]
    """The number in the output of these chunks, whose graph could not be built."""

    def __len__(self) -> int:
        return len(self.stops)

    def __iter__(self) -> Iterator[Chunk]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Chunk:
        graphs = np.arange(self.stops[number - 1] if number else 0, self.stops[number])
        if number in self.unbuilt:
            numbers = np.array([self.unbuilt[number]])
        else:
            numbers = graphs if self.numbers is None else self.numbers[graphs]
        load, reason = float(self.loads[number]), self.reasons.get(number, "")
        return Chunk(graphs=graphs, numbers=numbers, load=load, reason=reason)


NODES, EDGES = 16_384, 100_000
"""Nodes and edges of a batch on a CPU: thousands of small molecules, and within a second or so, so that ranks stay balanced. Time per edge hardly
depends on them beyond a few thousand edges."""

BYTES_PER_EDGE = 80_000
"""Memory of a GPU per edge of a batch: MACE with 128 channels and forces takes less than half of it."""


def device_limits() -> tuple[int, int]:
    """Return nodes and edges that batches have on the device of members."""
    if not torch.cuda.is_available():
        return NODES, EDGES
    share = max(1.0, torch.cuda.get_device_properties(0).total_memory / (BYTES_PER_EDGE * EDGES))
    return int(NODES * share), int(EDGES * share)


def default_budget(sizes: Sizes, limits: Sequence[int] | None = None) -> Budget:
    """Return limits for nodes and edges that every graph keeps."""
    nodes, edges = limits or device_limits()
    largest = int(sizes.nodes.max(initial=0)), int(sizes.edges.max(initial=0))
    return Budget(max_nodes=max(nodes, largest[0]), max_edges=max(edges, largest[1]))


def chunks_of(sizes: Sizes, numbers: Numbers | None, budget: Budget, failures: Mapping[int, str]) -> Chunks:
    """Return all graphs in order, packed under the budget.

    Neighbouring graphs stay together, so that input is read and output written as a stream. ``failures`` are the numbers
    of graphs that could not be built, which ``sizes`` does not know; without ``numbers`` there are none.
    """
    misfits = [np.flatnonzero(counts > limit) for _, counts, limit in budget.limited(sizes.nodes, sizes.edges)]
    large = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *misfits])).tolist()
    reasons = {graph: too_large(int(sizes.nodes[graph]), int(sizes.edges[graph]), budget) for graph in large}
    failed = np.array(sorted(failures), dtype=np.int64)
    gaps = np.zeros(0, dtype=np.int64) if numbers is None else np.searchsorted(numbers, failed)
    alone = np.array(list(reasons), dtype=np.int64)
    stops, loads = batches_in_order(sizes, np.unique(np.concatenate([alone, alone + 1, gaps])), budget)
    # a graph that was not built comes before what begins at its gap
    places = np.searchsorted(stops, gaps, side="right")
    unbuilt = places + np.arange(len(failed))
    stops, loads = np.insert(stops, places, gaps), np.insert(loads, places, 0.0)
    of_graph = np.searchsorted(stops, alone, side="right")
    return Chunks(
        stops=stops,
        loads=loads,
        numbers=numbers,
        reasons=dict(zip(of_graph.tolist(), reasons.values()))
        | {chunk: failures[number] for chunk, number in zip(unbuilt.tolist(), failed.tolist())},
        unbuilt=dict(zip(unbuilt.tolist(), failed.tolist())),
    )


def too_large(nodes: int, edges: int, budget: Budget) -> str:
    """Return why a graph of this size exceeds the budget; else empty.

    >>> too_large(9, 0, Budget(max_nodes=8))
    '9 nodes are more than the budget of 8; raise batch.max_nodes to at least 9'
    """
    for what, count, limit in budget.limited(nodes, edges):
        if count > limit:
            return f"{count} {what} are more than the budget of {limit}; raise batch.max_{what} to at least {count}"
    return ""
