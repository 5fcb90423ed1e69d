"""Who computes what of a global batch: how evenly, and how long one rank plans.

    python -m tests.benchmarks.bench_planning [--steps 4] [--measured-costs] [--kind schnet] [--node-cost 8] [--measured]

Two traces of graph sizes with 32 graphs per rank and step: periodic alloys of 8 to 64 atoms, and a mixture of data sets with 1 to 444
atoms. The work of a graph is its edges and, for every node, as many as the architecture says (``--node-cost``). Efficiency is the mean over the largest work of a rank, summed over
steps. Beside it graphs dealt as they come, and batches filled to a budget of nodes, sorted and dealt, as the public
HydraGNN's cost-aware sampler does it (what it repeats to fill the last step is not counted against it). The time is that of one rank's plan:
packing per graph, and its share per step, over that of longest-first among all ranks.

``--measured-costs``: shares follow from the predicted work as ever, but balance is that of measured times: every graph of the traces
takes what fits per node and edge, off by as much as the one most like it among 40 whose training steps (``--kind``, forces where it gives
them, processor time, the shortest of four rounds) are measured first.

``--measured``: training steps with forces (PNA: energies alone) on real alloys, the shares of two ranks one after the other in one
process, the CPU time of each the median of three: its balance beside that of the work that was planned, and of graphs as they come.
"""

import argparse
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hydragnn.architectures import architecture_of
from hydragnn.base.allocator import keep_memory
from hydragnn.datasets import Budget, Sizes, pack, share_of
from hydragnn.datasets.packing import NODE_COST, costs_of
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.joining import concatenate
from tests.benchmarks.harness import seconds
from tests.benchmarks.structures import CUTOFF, WITH_FORCES, model_of, random_structure, step, structures

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


def measured_costs(graphs: int, edges: int, kind: str = "painn") -> MeasuredCosts:
    """Times of steps of so many graphs, spread over the sizes of all traces; each in a batch of copies with about ``edges`` edges.

    A batch of one graph would tell the overhead of a step, which a rank pays once for all its graphs. All are measured in rounds, each
    in an order of its own, and the shortest time counts: what else a machine does would be taken for a matter of size.
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
            taken[number] = min(taken[number], seconds(partial(step, model, model, batch)) / copies[number])
    counts = (np.array([getattr(graph, f"num_{what}") for graph in some]) for what in ("nodes", "edges"))
    return MeasuredCosts(nodes=next(counts), edges=next(counts), seconds=taken)


RANKS = (2, 64, 1024, 8192)


def longest_first_of_all(batch: Counts, sizes: Sizes, ranks: int) -> None:
    """What every rank planned before: the shares of all."""
    costs = costs_of(sizes)[batch]
    loads = [(0, rank) for rank in range(ranks)]
    for position in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + int(costs[position]), rank))


def row(name: str, ranks: int, steps: int, measured: MeasuredCosts | None, node_cost: int) -> list[str]:
    """A line of the table."""
    sizes, batches = trace_of(name, ranks, steps)
    work = costs_of(sizes, node_cost) if measured is None else measured.of(sizes)
    found = balance(sizes, batches, ranks, work, node_cost)
    packed, own = planning_times(sizes, batches, ranks)
    former = seconds(partial(longest_first_of_all, batches[0], sizes, ranks))
    figures = (found.dealt, found.node_budget, found.ours, found.ours / found.node_budget)
    times = (packed * 1e6, own * 1e3, former * 1e3)
    return [name, str(ranks), *(f"{value:.3f}" for value in figures), *(f"{value:.2f}" for value in times)]


def measured(kind: str, steps: int) -> list[str]:
    """A line of the table of measured steps."""
    graphs = [from_ase(atoms, cutoff=5.0).to(dtype=torch.float32) for atoms in structures(2 * PER_RANK * steps)]
    sizes = Sizes(nodes=np.array([g.num_nodes for g in graphs]), edges=np.array([g.num_edges for g in graphs]))
    model = model_of(kind, concatenate(graphs[:PER_RANK]), 5.0, 64, 3, ["forces"] if kind in WITH_FORCES else [])
    taken, planned = {"dealt": [], "ours": []}, []
    node_cost = architecture_of(kind).node_cost
    for batch in np.arange(len(graphs)).reshape(steps, -1):
        shares = {
            "dealt": [batch[0::2], batch[1::2]],
            "ours": [share_of(batch, costs_of(sizes, node_cost), 2, rank) for rank in (0, 1)],
        }
        planned.append([int(costs_of(sizes)[share].sum()) for share in shares["ours"]])
        for way, of_ranks in shares.items():
            batches = [concatenate([graphs[number] for number in share]) for share in of_ranks]
            taken[way].append([seconds(partial(step, model, model, one), 3) for one in batches])
    balance = [efficiency(np.array(times)) for times in (taken["dealt"], planned, taken["ours"])]
    return [kind, *(f"{value:.3f}" for value in balance)]


HEADS = (
    "trace",
    "ranks",
    "as they come",
    "node budget",
    "ours",
    "over budget",
    "pack us/graph",
    "share ms/step",
    "was ms/step",
)


def print_rates(costs: MeasuredCosts, node_cost: int) -> None:
    """How measured times follow what sizes predict."""
    rates = costs.seconds / costs_of(Sizes(nodes=costs.nodes, edges=costs.edges), node_cost)
    low, middle, high = np.quantile(rates / rates.mean(), [0.1, 0.5, 0.9])
    print(
        f"{len(rates)} graphs of {costs.nodes.min()} to {costs.nodes.max()} atoms and {costs.edges.min()} to {costs.edges.max()} edges took "
        f"{costs.seconds.min() * 1e3:.2f} to {costs.seconds.max() * 1e3:.1f} ms each; measured over predicted, tenths: {low:.2f} {middle:.2f} {high:.2f}; "
        f"a node takes as long as {costs.rates[0] / costs.rates[1]:.1f} edges, planned {node_cost}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="above 1,000 ranks; twenty times as many below")
    parser.add_argument("--measured", action="store_true", help="measured steps of two ranks")
    parser.add_argument("--measured-costs", action="store_true", help="judge balance by measured times of graphs")
    parser.add_argument("--kind", default="painn", help="architecture whose steps are measured")
    parser.add_argument(
        "--node-cost", type=int, help="edges that a node counts for; default: what the architecture says"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    if options.measured:
        table = Table("measured, 2 ranks", "as they come", "planned", "ours")
        for kind in ("painn", "schnet", "egnn", "pna"):
            table.add_row(*measured(kind, 10 * options.steps))
        Console(width=160).print(table)
        return
    node_cost = options.node_cost or architecture_of(options.kind).node_cost
    costs = measured_costs(40, PER_RANK * 500, kind=options.kind) if options.measured_costs else None
    if costs is not None:
        print_rates(costs, node_cost)
    table = Table(*HEADS)
    for name in TRACES:
        for ranks in RANKS:
            table.add_row(*row(name, ranks, options.steps if ranks > 1000 else 20 * options.steps, costs, node_cost))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
