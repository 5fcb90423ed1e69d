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
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hydragnn.architectures import architecture_of
from hydragnn.base.allocator import keep_memory
from hydragnn.datasets import Sizes, share_of
from hydragnn.datasets.packing import costs_of, graph_costs, loads_of
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.joining import concatenate
from hydragnn.scripts.bench.planning import (
    PER_RANK,
    TRACES,
    Counts,
    MeasuredCosts,
    balance,
    efficiency,
    measured_costs,
    planning_times,
    trace_of,
)
from hydragnn.scripts.bench.structures import WITH_FORCES, model_of, step, structures
from hydragnn.scripts.bench.timing import seconds

RANKS = (2, 64, 1024, 8192)


def longest_first_of_all(batch: Counts, sizes: Sizes, ranks: int) -> None:
    """What every rank planned before: the shares of all."""
    costs = graph_costs(sizes, batch)
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
        planned.append(loads_of(shares["ours"], sizes))
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
