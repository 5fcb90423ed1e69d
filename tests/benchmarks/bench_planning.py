"""Who computes what of a global batch: how evenly, and how long one rank plans.

    python -m tests.benchmarks.bench_planning [--steps 4] [--measured]

Two traces of graph sizes with 32 graphs per rank and step: periodic alloys of 8 to 64 atoms, and a mixture of data sets with 1 to 444
atoms. The work of a graph is its edges and eight for every node. Efficiency is the mean over the largest work of a rank, summed over
steps. Beside it graphs dealt as they come, and batches filled to a budget of nodes, sorted and dealt, as the public
HydraGNN's cost-aware sampler does it (what it repeats to fill the last step is not counted against it). The time is that of one rank's plan:
packing per graph, and its share per step, over that of longest-first among all ranks.

``--measured``: training steps with forces (PNA: energies alone) on real alloys, the shares of two ranks one after the other in one
process, the CPU time of each the median of three: its balance beside that of the work that was planned, and of graphs as they come.
"""

import argparse
import heapq
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hydragnn.allocator import keep_memory
from hydragnn.datasets import Budget, Sizes, pack, share_of
from hydragnn.datasets.packing import graph_costs, loads_of
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import concatenate
from tests.benchmarks.bench_compile import WITH_FORCES, model_of, step
from tests.benchmarks.bench_compiled import structures

PER_RANK = 32
RANKS = (2, 64, 1024, 8192)
Counts = NDArray[np.int64]


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


def by_node_budget(sizes: Sizes, ranks: int) -> float:
    """Efficiency of batches filled in order to 32 times the mean of nodes, sorted by nodes, one per rank and step."""
    budget = max(int(PER_RANK * sizes.nodes.mean()), int(sizes.nodes.max()))
    batches = pack(sizes, np.arange(len(sizes.nodes)), Budget(max_nodes=budget))
    nodes = np.array([sizes.nodes[batch].sum() for batch in batches])
    work = np.array(loads_of(batches, sizes))[np.argsort(nodes, kind="stable")]
    missing = -len(work) % ranks
    return efficiency(np.concatenate([work, work[:missing]]).reshape(-1, ranks))


def efficiency(work: NDArray[np.int64] | NDArray[np.float64]) -> float:
    """Mean over largest work, ``work[step, rank]``."""
    return float(work.mean(axis=1).sum() / work.max(axis=1).sum())


def longest_first_of_all(batch: Counts, sizes: Sizes, ranks: int) -> None:
    """What every rank planned before: the shares of all."""
    costs = graph_costs(sizes, batch)
    loads = [(0, rank) for rank in range(ranks)]
    for position in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + int(costs[position]), rank))


def seconds(do: Callable[[], object], repeats: int = 3) -> float:
    """Median process seconds of some calls."""
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        do()
        taken.append(time.process_time() - begin)
    return median(taken)


def row(name: str, ranks: int, steps: int) -> list[str]:
    """A line of the table."""
    count = steps * ranks * PER_RANK
    sizes, every = TRACES[name](count, np.random.default_rng(0)), np.arange(count)
    batches = every.reshape(steps, -1)
    dealt = graph_costs(sizes, every).reshape(steps, ranks, PER_RANK).sum(axis=2)
    ours = np.array([loads_of([share_of(b, sizes, ranks, r) for r in range(ranks)], sizes) for b in batches])
    budget = by_node_budget(sizes, ranks)
    edges = max(int(PER_RANK * sizes.edges.mean()), int(sizes.edges.max()))
    packed = seconds(partial(pack, sizes, every, Budget(max_edges=edges, max_nodes=edges)))
    own = seconds(partial(share_of, batches[0], sizes, ranks, 0))
    former = seconds(partial(longest_first_of_all, batches[0], sizes, ranks))
    figures = (efficiency(dealt), budget, efficiency(ours), efficiency(ours) / budget)
    times = (packed / count * 1e6, own * 1e3, former * 1e3)
    return [name, str(ranks), *(f"{value:.3f}" for value in figures), *(f"{value:.2f}" for value in times)]


def measured(kind: str, steps: int) -> list[str]:
    """A line of the table of measured steps."""
    graphs = [from_ase(atoms, cutoff=5.0).to(dtype=torch.float32) for atoms in structures(2 * PER_RANK * steps)]
    sizes = Sizes(nodes=np.array([g.num_nodes for g in graphs]), edges=np.array([g.num_edges for g in graphs]))
    model = model_of(kind, concatenate(graphs[:PER_RANK]), 5.0, 64, 3, ["forces"] if kind in WITH_FORCES else [])
    taken, planned = {"dealt": [], "ours": []}, []
    for batch in np.arange(len(graphs)).reshape(steps, -1):
        shares = {"dealt": [batch[0::2], batch[1::2]], "ours": [share_of(batch, sizes, 2, rank) for rank in (0, 1)]}
        planned.append(loads_of(shares["ours"], sizes))
        for way, of_ranks in shares.items():
            batches = [concatenate([graphs[number] for number in share]) for share in of_ranks]
            taken[way].append([seconds(partial(step, model, model, one)) for one in batches])
    balance = [efficiency(np.array(times)) for times in (taken["dealt"], planned, taken["ours"])]
    return [kind, *(f"{value:.3f}" for value in balance)]


TRACES = {"alloys": alloys, "mixture": mixture}
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="above 1,000 ranks; twenty times as many below")
    parser.add_argument("--measured", action="store_true", help="measured steps of two ranks")
    options = parser.parse_args()
    if options.measured:
        torch.set_num_threads(1)
        keep_memory()
        table = Table("measured, 2 ranks", "as they come", "planned", "ours")
        for kind in ("painn", "schnet", "egnn", "pna"):
            table.add_row(*measured(kind, 10 * options.steps))
        Console(width=160).print(table)
        return
    table = Table(*HEADS)
    for name in TRACES:
        for ranks in RANKS:
            table.add_row(*row(name, ranks, options.steps if ranks > 1000 else 20 * options.steps))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
