"""Measured steps of started ranks in every layout, for plans."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log2
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets import Budget
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.distributed.mesh import Mesh, make_mesh, words
from hydragnn.distributed.ranks import Ranks
from hydragnn.models import GraphModel, build_branched
from hydragnn.parallel import AXES, Axis, ParallelSettings, check_divisible
from hydragnn.runs.assembly import Assembly, begin_on, placement_on
from hydragnn.runs.memory import measured_step
from hydragnn.runs.plan import RunPlan
from hydragnn.training.context import Diverged
from hydragnn.training.data import Share
from hydragnn.training.loop import gradient_of_share, take_step
from hydragnn.training.loss import label_counts
from hydragnn.training.schedule import batch_factor

TURNS = 3
"""Repeats of every measurement.

Layouts take turns, so that a short disturbance meets none of them alone.
"""

LONG = 1.0
"""Seconds, about, of the longest step that is measured."""
PARTS = 4
"""Parts of a batch for every stage."""

WARM_UP, MEASURED = 40, 16
"""Steps of training before noise is measured, and measured ones.

At first, noise is less than it becomes.
"""

SHORT, WIDE, FEWEST, LIMIT = 32, 256, 8, 60.0
"""Most graphs of these steps, fewest parts, and seconds of all."""
Seconds = NDArray[np.float64]
"""Seconds of bytes, and seconds of latency."""
OnStep = Callable[[str, float | None], None]
"""Callback with the next measurement, and about how many seconds are left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interconnect:
    """Latency and bandwidth of messages between ranks."""

    latency: float
    """Seconds of a message without bytes between nodes."""
    inside: float
    """Seconds of one inside a node."""
    within: float
    """Bytes per second of a rank inside a node."""
    between: float
    """Bytes per second of a whole node."""
    source: str

    def sums(self, ranks: int, stride: int, per_node: int, size: float, ways: int = 2) -> Seconds:
        """Return seconds of bytes and of latency of a sum.

        Rings move bytes and trees hide latency (Thakur et al. 2005, doi:10.1177/1094342005051521). One of its two ``ways`` is a gather, which
        libraries only do by rings.

        >>> network = Interconnect(latency=1.0, inside=0.1, within=1.0, between=1.0, source="")
        >>> network.sums(8, 1, 4, 8.0).tolist(), network.sums(8, 1, 4, 8.0, ways=1).tolist()
        ([14.0, 2.4], [7.0, 1.6])
        """
        if ranks == 1:
            return np.zeros(2)
        neighbours = min(ranks, max(1, per_node // stride))
        bandwidth = self.within if neighbours == ranks else min(self.within, self.between * neighbours / per_node)
        nodes = ceil(ranks / neighbours)
        within, between = (ranks - nodes, nodes - 1) if ways == 1 else (ceil(log2(neighbours)), ceil(log2(nodes)))
        return ways * np.array([(ranks - 1) / ranks * size / bandwidth, within * self.inside + between * self.latency])


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Measured steps of a layout.

    The batch comes last, before it one of half or twice the size, and first smaller ones.
    """

    sizes: Mapping[Axis, int]
    chunks: int
    parts: int
    costs: tuple[float, ...]
    """Work of the largest share in edges."""
    repeats: tuple[tuple[float, ...], ...]
    memory: tuple[float, ...]
    """Most bytes of a rank beside its weights and states."""
    state: int
    """Bytes of weights, gradient and states of a rank."""

    @property
    def difference(self) -> float:
        """Return the largest relative difference between repeats of two large batches."""
        return max(max(each) / min(each) - 1.0 for each in self.repeats[-2:])

    @property
    def held(self) -> int:
        """Return the ranks among which weights and their states are divided."""
        return self.sizes["shard"] * self.sizes["pipeline"] * self.sizes["tensor"]

    def distance(self, sizes: Mapping[Axis, int], chunks: int) -> list[float]:
        """Return how far another layout is, by chunks, stages, shards and copies."""
        axes: tuple[Axis, ...] = ("pipeline", "shard", "replicate")
        return [float(abs(self.chunks - chunks)), *(abs(log2(self.sizes[axis] / sizes[axis])) for axis in axes)]

    def seconds(self, cost: float, parts: int) -> float:
        """Return the time of a share of some cost, between measured ones."""
        times = [min(each) for each in self.repeats]
        fixed = max(0.0, line(self.costs, times, 0.0)) / self.parts
        return line(self.costs, times, cost) + (parts - self.parts) * fixed


def line(at: Sequence[float], values: Sequence[float], position: float) -> float:
    """Return the value of a line that rises from point to point.

    >>> line((1.0, 2.0), (3.0, 4.0), 4.0), line((2.0, 1.0), (3.0, 4.0), 4.0), line((1.0, 3.0, 4.0), (3.0, 5.0, 9.0), 2.0)
    (6.0, 4.0, 4.0)
    """
    order = np.argsort(at, kind="stable")
    x, y = np.asarray(at)[order], np.maximum.accumulate(np.asarray(values)[order])
    if x[0] <= position <= x[-1]:
        return float(np.interp(position, x, y))
    # far above, noise of two neighbours would be multiplied
    (x0, x1), (y0, y1) = (x[:2], y[:2]) if position < x[0] else (x[[0, -1]], y[[0, -1]])
    slope = (y1 - y0) / (x1 - x0) if x1 != x0 else 0.0
    return max(0.0, float(y1 + slope * (position - x1)))


def measured_steps(
    run: Assembly,
    plan: RunPlan,
    layouts: Iterable[ParallelSettings],
    ranks: Ranks,
    graphs: int,
    on_step: OnStep = lambda what, left: None,
) -> tuple[Steps, list[Steps]]:
    """Return steps of one device without peers, and of all layouts; collective.

    ``run`` is one without peers. Batches of ``graphs`` and of half or twice as many are measured over all ranks, fewer where a step would be long.
    """
    seconds_of(step_of(run, 1)[0], ranks)  # loads and compiles what others use
    most = max(1, int(LONG / seconds_of(step_of(run, 1)[0], ranks)))
    graphs = min(max(graphs, ranks.size), most * ranks.size)
    every = [ParallelSettings(), *layouts]
    last_steps: list[Steps | None] = [None] * len(every)
    begin, count = time.perf_counter(), TURNS * len(every)
    for done in range(count):
        number = done % len(every)
        layout = every[number]
        remaining = (time.perf_counter() - begin) / done * (count - done) if done else None
        on_step(f"{words(layout) or ('copies' if number else 'one device')} ({done + 1} of {count})", remaining)
        if number:
            own, batch = rank_of(run, replace(plan, parallel=layout), make_mesh(layout, ranks)), graphs
        else:
            own, batch = run, ceil(graphs / ranks.size)
        last_steps[number] = turn_of(own, layout.chunks, batch, ranks, last_steps[number])
    alone, *together = (steps for steps in last_steps if steps is not None)
    return alone, together


def turn_of(run: Assembly, chunks: int, graphs: int, ranks: Ranks, earlier: Steps | None) -> Steps:
    """Return the steps of a layout with those of one more turn."""
    mesh, stages = run.mesh, run.mesh.size("pipeline")
    parts = max(1, min(PARTS * stages, graphs // mesh.data_size)) if stages > 1 else 1
    costs, seconds, memory = [], [], []
    least = mesh.data_size * parts
    graphs = max(least, graphs)
    half = graphs // 2 if graphs >= 2 * least else 2 * graphs
    few = [least * 4**power for power in range(8) if least * 4**power < min(half, graphs)]
    for count in (*few, half, graphs):
        step, share, cost = step_of(run, count, parts)
        if earlier is None:
            seconds_of(step, ranks)
            memory += ranks.largest(measured_step(run, share))
        costs.append(cost)
        seconds.append(seconds_of(step, ranks))
    if earlier is not None:
        return replace(earlier, repeats=tuple((*a, b) for a, b in zip(earlier.repeats, seconds)))
    return Steps(
        sizes=dict(zip(AXES, mesh.sizes)),
        chunks=chunks,
        parts=parts,
        costs=tuple(costs),
        repeats=tuple((one,) for one in seconds),
        memory=tuple(memory),
        state=int(ranks.largest(run.state.parameters.bytes)[0]),
    )


def step_of(run: Assembly, graphs: int, parts: int = 1) -> tuple[Callable[[], object], Share, float]:
    """Return a step, a rank's share, and the largest share's cost."""
    (branch,), mesh = run.data.branches, run.mesh
    feed, loader = branch.train, branch.train.loader
    every, budget = np.resize(loader.indices, max(graphs, len(loader.indices))), Budget(max_graphs=graphs)
    batch = replace(loader, indices=every, budget=budget).batches(0)[0]  # few graphs are repeated
    # no other graphs: an epoch reads those of several batches at once
    loader = replace(loader, indices=batch, budget=budget, window=None, rank=mesh.data_rank, ranks=mesh.data_size)
    own = replace(feed, loader=loader, placement=replace(feed.placement, micro_batches=parts))
    data = replace(run.data, branches=(replace(branch, train=own),))
    costs = costs_of(loader.sizes, loader.node_cost)
    batch = loader.batches(0)[0]
    shares = [float(costs[share_of(batch, costs, loader.ranks, rank)].sum()) for rank in range(loader.ranks)]

    def step() -> None:
        take_step(run.state, next(data.epoch(0)), run.context, 0.0)

    return step, next(data.epoch(0)), max(shares)


def seconds_of(work: Callable[[], object], ranks: Ranks) -> float:
    """Return the time of a call on the slowest rank."""
    ranks.wait()
    begin = time.perf_counter()
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return ranks.largest(time.perf_counter() - begin)[0]


def rank_of(run: Assembly, plan: RunPlan, mesh: Mesh) -> Assembly:
    """Return a run as a rank of a mesh."""
    assert isinstance(run.state.model, GraphModel)
    model, (branch,) = build_branched([run.state.model.description], plan.training.seed), run.data.branches
    placement = placement_on(mesh, plan, branch.train.placement)
    data = replace(run.data, branches=(replace(branch, train=replace(branch.train, placement=placement)),))
    state, context = begin_on(mesh, plan, data, model, placement)
    return replace(run, state=state, mesh=mesh, data=data, context=context)


def possible(plan: RunPlan, layouts: Iterable[ParallelSettings]) -> Iterator[ParallelSettings]:
    """Yield the layouts in which the model can be divided."""
    (branch,) = plan.branches
    for layout in layouts:
        try:
            check_divisible(layout, branch.model, plan.training.optimizer)
        except InputError:
            continue
        yield layout


def noise_scale(squares: NDArray[np.float64], small: int, large: int) -> dict[str, float | None]:
    """Return the noise scale, tr(Sigma) / |G|^2 in graphs.

    ``squares`` are those of gradients of two sizes of batches ``[steps, 2]``. Their means are unbiased (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1). Where noise hides the mean gradient there
    is a bound alone, for a |G|^2 that is two standard errors larger.
    """
    noise = (squares[:, 0] - squares[:, 1]) / (1 / small - 1 / large)
    signal = (large * squares[:, 1] - small * squares[:, 0]) / (large - small)
    mean, spread = float(signal.mean()), float(signal.std(ddof=1) / len(signal) ** 0.5)
    size = max(0.0, float(noise.mean()))
    scale = size / mean if mean > 2 * spread else None
    error = None if scale is None else float((noise - scale * signal).std(ddof=1) / (mean * len(signal) ** 0.5))
    return {"graphs": scale, "standard_error": error, "at_least": size / max(max(0.0, mean) + 2 * spread, 1e-99)}


def measured_noise(run: Assembly, alone: Steps, batch: int, devices: int, on_step: OnStep) -> dict[str, Any]:
    """Train some steps, and return the noise scale of the next.

    Diverged where the gradient is not finite. Graphs are drawn with replacement, and a part has at most those of a device. Steps are those of the run by the peak of its rate.
    """
    state, feed, settings = run.state, run.data.branches[0].train, run.context.settings
    for moment in state.parameters.optimizer.moments.values():  # which measured steps moved
        moment.zero_()
    own, short, wide = feed.loader.indices, min(batch, SHORT), WIDE
    cost = costs_of(feed.loader.sizes, feed.loader.node_cost)[own].mean() / alone.costs[-1]
    while wide > FEWEST and min(alone.repeats[-1]) * cost * (WARM_UP * short + MEASURED * wide) > LIMIT:
        wide, short = wide // 2, min(short, wide // 2)
    most = max(1, batch // devices)
    part = min(most, wide // FEWEST)
    sizes = [(short, min(short, most))] * WARM_UP + [(wide, part)] * MEASURED
    random, squares = np.random.default_rng(settings.seed), list[list[float]]()
    rule = settings.model_copy(update={"base_batch": min(batch, len(own))})
    peak = settings.learning_rate * (batch_factor(rule, short) if settings.base_batch else 1.0)
    for number, (graphs, size) in enumerate(sizes):
        if number % 8 == 0:
            rest = min(alone.repeats[-1]) * cost * sum(graphs for graphs, _ in sizes[number:])
            on_step(f"gradient noise (step {number + 1} of {len(sizes)})", rest)
        draws = random.choice(own, (graphs // size, size))
        squares.append(step_of_parts(run, [Share(branch=0, parts=feed.parts_of(draw)) for draw in draws]))
        state.parameters.step(peak * min(1.0, (number + 1) / WARM_UP))
        state.step += 1
    large = wide // part * part
    scale = noise_scale(np.array(squares[WARM_UP:]), part, large)
    counts = {"batch": min(batch, len(own)), "training_graphs": len(own), "graphs_per_step": large, "warm_up": WARM_UP}
    rate = settings.learning_rate * batch_factor(rule, max(1.0, scale["graphs"] or 0.0))
    return {**scale, **counts, "learning_rates": [settings.learning_rate, rate]}


def step_of_parts(run: Assembly, shares: Sequence[Share]) -> list[float]:
    """Return squared gradients of a step's parts and of itself.

    It is left as the run's gradient, clipped. Parts count as ranks: each has its random numbers, and labels are counted over all.
    """
    targets, parameters = run.data.branches[0].targets, run.state.parameters
    labels = torch.stack([label_counts(targets, part) for share in shares for part in share.parts]).sum(0)
    total, small = torch.zeros_like(parameters.gradient, dtype=torch.float64), 0.0
    for rank, share in enumerate(shares):
        gradient_of_share(run.state, share, replace(run.context, reduce=lambda own: labels.to(own), rank=rank))
        total += parameters.gradient
        small += len(shares) * float(parameters.gradient.to(torch.float64).square().sum())
    large = float(total.square().sum())
    if not np.isfinite(small + large):
        raise Diverged(f"the gradient is {small + large} in step {run.state.step + 1} of training")
    parameters.gradient.copy_(total)
    parameters.clip()
    return [small, large]


SIZES: Sequence[int] = (4 * 2**10, 4 * 2**20)
"""Bytes of the sums over ranks by which a network is measured."""


def measured_network(ranks: Ranks) -> Interconnect:
    """Return latency and bandwidth of sums over these ranks; collective.

    Bandwidth follows from the least times. Latency is the median: where cores are shared, ranks also wait to be woken.
    """
    times = []
    for size in SIZES:
        add = partial(dist.all_reduce, torch.zeros(size // 4, device=ranks.device))
        times.append([seconds_of(add, ranks) for _ in range(15)])
    moved = 2 * (ranks.size - 1) / ranks.size * (SIZES[1] - SIZES[0])
    within = moved / max(min(times[1]) - min(times[0]), 1e-9)
    latency = float(np.median(times[0])) / (2 * ceil(log2(ranks.size)))
    between, source = within * ranks.size / ranks.nodes, f"measured with {ranks.size} ranks on {ranks.nodes} node(s)"
    return Interconnect(latency=latency, inside=latency, within=within, between=between, source=source)
