"""Times of small steps that started ranks take together, for plans."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from hydragnn.datasets import Budget
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.distributed.mesh import Mesh, make_mesh, words
from hydragnn.distributed.ranks import Ranks
from hydragnn.parallel import AXES, ParallelSettings
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.costs import Curve, RankSteps
from hydragnn.runs.plan import RunPlan
from hydragnn.runs.step_costs import TURNS, Clock, OnStep, rank_of, seconds_of
from hydragnn.training.data import Feed
from hydragnn.training.loop import take_step

SIZES = (2, 4)
"""Graphs for every rank in the parts that are measured; a single graph may be cut where ranks share graphs. Larger parts are predicted."""


ROUNDS = 2
"""Steps of every size in a turn."""


def steps_of_ranks(
    run: Assembly,
    plan: RunPlan,
    layouts: Iterable[ParallelSettings],
    ranks: Ranks,
    on_step: OnStep = lambda what, left: None,
    clock: Clock = time.perf_counter,
) -> tuple[RankSteps, ...]:
    """Return times of all layouts on these ranks; collective.

    Each is measured in turns, as kinds of steps are, and the least times count.
    """
    every = [(one, make_mesh(one, ranks), dict[tuple[float, int], float]()) for one in layouts]
    begin, count = time.perf_counter(), TURNS * len(every)
    for done in range(count):
        layout, mesh, least = every[done % len(every)]
        remaining = (time.perf_counter() - begin) / done * (count - done) if done else None
        on_step(f"steps of {ranks.size} ranks, {words(layout) or 'copies'} ({done + 1} of {count})", remaining)
        for key, seconds in timed_steps(rank_of(run, plan, mesh, layout.chunks), ranks, clock):
            least[key] = min(least.get(key, np.inf), seconds)
    return tuple(as_curves(mesh, layout.chunks, least) for layout, mesh, least in every)


def timed_steps(run: Assembly, ranks: Ranks, clock: Clock) -> Iterator[tuple[tuple[float, int], float]]:
    """Yield cost of the largest part, number of parts, and seconds."""
    (branch,), mesh = run.data.branches, run.mesh
    stages, shares, peers = mesh.size("pipeline"), mesh.data_size, mesh.size("graph", "tensor")
    budget = branch.train.loader.budget.max_graphs or len(branch.train.loader.indices)
    most = max(1, budget // shares)
    steps: list[tuple[Callable[[], object], tuple[float, int]]] = []
    for count in sorted({min(size * peers, most) for size in SIZES}):
        for parts in (stages, 2 * stages):
            step, cost = step_of(run, count * parts * shares, parts)
            steps.append((step, (cost, parts)))
    for step, key in steps * ROUNDS:  # sizes alternate, as those of batches do
        yield key, seconds_of(step, ranks, run.context.device, clock, calls=1)


def step_of(run: Assembly, graphs: int, parts: int) -> tuple[Callable[[], object], float]:
    """Return a step over some graphs, and its largest part's cost."""
    (branch,), mesh = run.data.branches, run.mesh
    feed, loader = branch.train, branch.train.loader
    loader = replace(
        loader,
        indices=np.resize(loader.indices, max(graphs, len(loader.indices))),  # few graphs are repeated
        budget=Budget(max_graphs=graphs),
        rank=mesh.data_rank,
        ranks=mesh.data_size,
    )
    own = Feed(loader, feed.normalisation, replace(feed.placement, micro_batches=parts, memory=None))
    data = replace(run.data, branches=(replace(branch, train=own),))
    costs = costs_of(loader.sizes, loader.node_cost)
    shares = [share_of(loader.batches(0)[0], costs, loader.ranks, rank) for rank in range(loader.ranks)]

    def step() -> None:
        take_step(run.state, next(data.epoch(0)), run.context, 0.0)

    return step, max(float(costs[share].sum()) for share in shares) / parts


def as_curves(mesh: Mesh, chunks: int, least: Mapping[tuple[float, int], float]) -> RankSteps:
    """Return curves through the least times of a layout."""
    sizes = dict(zip(AXES, mesh.sizes))
    stages = sizes["pipeline"]
    first = {cost: seconds for (cost, parts), seconds in least.items() if parts == stages}
    twice = {cost: seconds for (cost, parts), seconds in least.items() if parts == 2 * stages}

    def curve(values: Mapping[float, float]) -> Curve:
        costs = tuple(sorted(values))
        return Curve(costs=costs, values=tuple(values[cost] for cost in costs))

    one = curve(first)
    further = {cost: max(0.0, seconds - one.at(cost)) / stages for cost, seconds in twice.items()}
    return RankSteps(sizes=sizes, chunks=chunks, first=one, further=curve(further))
