"""Who computes what of a global batch: how evenly, by predicted and by measured cost, and how long one rank plans."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import Budget, Sizes, pack, share_of
from hydragnn.datasets.packing import NODE_COST, costs_of
from hydragnn.graphs.joining import concatenate
from hydragnn.scripts.bench.structures import CUTOFF, WITH_FORCES, model_of, random_structure, step
from hydragnn.scripts.bench.timing import seconds

PER_RANK = 32
"""Graphs of a rank in a step."""
Counts = NDArray[np.int64]
Work = NDArray[np.integer[Any]] | NDArray[np.float64]


def alloys(count: int, random: np.random.Generator) -> Sizes:
    """Rattled cells of 8 to 64 atoms, most of them small; 42 neighbours, in clusters fewer."""
    nodes = np.clip(random.lognormal(np.log(16), 0.55, count), 8, 64).astype(np.int64)
    periodic = random.random(count) < 0.7
    return Sizes(nodes=nodes, edges=nodes * np.where(periodic, 42, np.minimum(nodes - 1, 26)))


def mixture(count: int, random: np.random.Generator) -> Sizes:
    """Molecules, crystals, slabs with adsorbates and large molecules: 1 to 444 atoms with 13 to 60 neighbours."""
    kind = random.choice(4, count, p=[0.3, 0.25, 0.35, 0.1])
    draws = [
        np.clip(random.lognormal(np.log(15), 0.3, count), 3, 40),
        np.clip(random.lognormal(np.log(24), 0.75, count), 1, 444),
        np.clip(random.normal(75, 25, count), 20, 225),
        np.clip(random.lognormal(np.log(50), 0.7, count), 5, 350),
    ]
    nodes = np.choose(kind, draws).astype(np.int64)
    degrees = [
        np.minimum(nodes - 1, 13),
        random.uniform(25, 60, count),
        random.uniform(20, 45, count),
        np.minimum(nodes - 1, random.uniform(18, 28, count)),
    ]
    return Sizes(nodes=nodes, edges=np.maximum(nodes * np.choose(kind, degrees), 1).astype(np.int64))


TRACES: dict[str, Callable[[int, np.random.Generator], Sizes]] = {"alloys": alloys, "mixture": mixture}


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Mean over largest work of ranks, summed over steps: graphs as they come, batches of a node budget, and ours."""

    dealt: float
    node_budget: float
    ours: float


def efficiency(work: Work) -> float:
    """Mean over largest work, ``work[step, rank]``."""
    return float(work.mean(axis=1).sum() / work.max(axis=1).sum())


def trace_of(name: str, ranks: int, steps: int) -> tuple[Sizes, Counts]:
    """Sizes of a trace with 32 graphs per rank and step, and its batches ``[steps, graphs]`` in a random order."""
    count = steps * ranks * PER_RANK
    sizes = TRACES[name](count, np.random.default_rng(0))
    return sizes, np.random.default_rng(1).permutation(count).reshape(steps, -1)


def balance(sizes: Sizes, batches: Counts, ranks: int, work: Work, node_cost: int = NODE_COST) -> Balance:
    """How evenly ``work``, of every graph, lies on the ranks, whose shares follow from the work that sizes predict."""
    dealt = work[batches].reshape(len(batches), ranks, -1).sum(axis=2)
    costs = costs_of(sizes, node_cost)
    shares = [[share_of(batch, costs, ranks, rank) for rank in range(ranks)] for batch in batches]
    ours = np.array([[work[share].sum() for share in of_ranks] for of_ranks in shares])
    return Balance(
        dealt=efficiency(dealt), node_budget=by_node_budget(sizes, batches, ranks, work), ours=efficiency(ours)
    )


def by_node_budget(sizes: Sizes, batches: Counts, ranks: int, work: Work) -> float:
    """Balance of batches filled in order to 32 times the mean of nodes, sorted by nodes, one per rank and step.

    What is repeated to fill the last step is not counted against it.
    """
    budget = max(int(PER_RANK * sizes.nodes.mean()), int(sizes.nodes.max()))
    filled = pack(sizes, batches.ravel(), Budget(max_nodes=budget))
    nodes = np.array([sizes.nodes[batch].sum() for batch in filled])
    sums = np.array([work[batch].sum() for batch in filled])[np.argsort(nodes, kind="stable")]
    return efficiency(np.concatenate([sums, sums[: -len(sums) % ranks]]).reshape(-1, ranks))


def planning_times(sizes: Sizes, batches: Counts, ranks: int) -> tuple[float, float]:
    """Processor seconds of packing per graph, and of one rank's shares per step."""
    edges = max(int(PER_RANK * sizes.edges.mean()), int(sizes.edges.max()))
    packed = seconds(partial(pack, sizes, batches.ravel(), Budget(max_edges=edges, max_nodes=edges)), 3)
    costs = costs_of(sizes)
    share = float(np.median([seconds(partial(share_of, batch, costs, ranks, ranks // 2), 3) for batch in batches]))
    return packed / batches.size, share


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCosts:
    """Seconds of a training step per graph, of graphs of several sizes."""

    nodes: Counts
    edges: Counts
    seconds: NDArray[np.float64]

    def of(self, sizes: Sizes) -> NDArray[np.float64]:
        """Seconds of every graph: by the fit, off by as much as the measured graph most like it, noise of the clock included."""
        measured = Sizes(nodes=self.nodes, edges=self.edges)
        off = self.seconds / self.fitted(measured)
        own, theirs = _form(measured), _form(sizes)
        nearest = np.concatenate(
            [
                ((block[:, None] - own) ** 2).sum(axis=2).argmin(axis=1)
                for block in np.array_split(theirs, -(-len(theirs) // BLOCK))
            ]
        )
        return self.fitted(sizes) * off[nearest]

    def fitted(self, sizes: Sizes) -> NDArray[np.float64]:
        """So many seconds for every node and for every edge as are least wrong relative to what was measured."""
        seconds: NDArray[np.float64] = np.stack([sizes.nodes, sizes.edges], axis=1) @ self.rates
        return seconds

    @property
    def rates(self) -> NDArray[np.float64]:
        """Seconds of a node and of an edge."""
        counts = np.stack([self.nodes, self.edges], axis=1) / self.seconds[:, None]
        rates: NDArray[np.float64] = np.linalg.lstsq(counts, np.ones(len(counts)), rcond=None)[0].astype(np.float64)
        return rates


BLOCK = 65_536
ROUNDS = 4


def _form(sizes: Sizes) -> NDArray[np.float64]:
    """Where graphs lie ``[graphs, 2]``: logarithms of nodes and of edges per node."""
    return np.stack([np.log(sizes.nodes), np.log1p(sizes.edges / sizes.nodes)], axis=1)


def measured_costs(
    graphs: int, edges: int, told: Callable[[], None] = lambda: None, kind: str = "painn"
) -> MeasuredCosts:
    """Times of steps of so many graphs, spread over the sizes of all traces; each in a batch of copies with about ``edges`` edges.

    A batch of one graph would tell the overhead of a step, which a rank pays once for all its graphs. All are measured in rounds, each
    in an order of its own, and the shortest time counts: what else a machine does would be taken for a matter of size. ``told`` is called for each.
    """
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    drawn = [trace(100 * graphs, random) for trace in TRACES.values()]
    nodes, degrees = (np.concatenate(parts) for parts in zip(*((one.nodes, one.edges / one.nodes) for one in drawn)))
    work = costs_of(Sizes(nodes=nodes, edges=(nodes * degrees).astype(np.int64)))
    order = np.argsort(work, kind="stable")
    # as many of the large, which decide who is last, as of the small
    picks = order[np.searchsorted(work[order], np.geomspace(work.min(), work.max(), graphs)).clip(max=len(order) - 1)]
    some = [random_structure(int(nodes[pick]), float(degrees[pick]), random) for pick in picks]
    model = model_of(kind, some[len(some) // 2], CUTOFF, 64, 3, ["forces"] if kind in WITH_FORCES else [])
    copies = [max(1, edges // max(graph.num_edges, graph.num_nodes)) for graph in some]
    taken = np.full(len(some), np.inf)
    for turn in range(ROUNDS):
        for number in random.permutation(len(some)):
            batch = concatenate([some[number]] * copies[number])
            if turn == 0:
                step(model, model, batch)
                told()
            taken[number] = min(taken[number], seconds(partial(step, model, model, batch)) / copies[number])
    counts = (np.array([getattr(graph, f"num_{what}") for graph in some]) for what in ("nodes", "edges"))
    return MeasuredCosts(nodes=next(counts), edges=next(counts), seconds=taken)
