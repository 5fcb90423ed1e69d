"""Costs of steps on one device, from a few small ones.

A process computes what one rank of a layout does, by torch's process group without peers, whose collectives return at once. They are counted.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn.base.errors import InputError
from hydragnn.datasets import Budget, Loader
from hydragnn.datasets.footprint import footprint_from_json
from hydragnn.distributed.fabric import Collective
from hydragnn.distributed.graph_ranks import make_cutter
from hydragnn.distributed.mesh import Mesh, words
from hydragnn.distributed.parallelize import parallelize
from hydragnn.distributed.pipeline import make_pipeline
from hydragnn.distributed.ranks import Ranks
from hydragnn.models import GraphModel
from hydragnn.models.checks import check_channels, check_cuttable, check_stages
from hydragnn.parallel import AXES, Axis, ParallelSettings
from hydragnn.runs.assembly import Assembly, build, context_of
from hydragnn.runs.costs import Curve, Exchange, Kind, RunCosts, StepCosts, Vectors, Workload, kind_of
from hydragnn.runs.memory import footprint_in_training, size_of_levels
from hydragnn.runs.plan import RunPlan
from hydragnn.training.data import Feed
from hydragnn.training.loop import gradient_of, move
from hydragnn.training.parameters import FlatParameters
from hydragnn.training.state import first_state

TURNS = 3
"""Measurements of each size, of which the least counts. All layouts take turns, so that a short disturbance meets none of them alone."""

LONG = 0.2
"""Seconds of a step after which no larger one is measured."""

BATCHES = 4
"""Batches that stand for all of an epoch."""

Clock = Callable[[], float]
OnStep = Callable[[str, float | None], None]
"""Called with what is measured next, and about how many seconds are left."""


def workload_of(loader: Loader) -> Workload:
    """Return some batches; graphs are repeated where a batch has room."""
    batches, budget = loader.batches(0)[:BATCHES], loader.budget
    full = [batch for batch in batches if len(batch) == budget.max_graphs] or batches[:1]
    if len(full[0]) < budget.max_graphs and not (budget.max_nodes or budget.max_edges):
        full = [np.resize(full[0], budget.max_graphs)]
    return Workload(sizes=loader.sizes, batches=tuple(full), node_cost=loader.node_cost)


@contextmanager
def as_rank_of(run: Assembly, plan: RunPlan, layout: ParallelSettings, number: int = 0) -> Iterator[Assembly]:
    """Provide a rank of one replica of a layout, without its peers.

    Weights and their collectives are as in training, and mean nothing.
    """
    if layout.ranks_per_replica == 1:
        yield run
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore  # what torch tests its own layouts with

    size = layout.ranks_per_replica
    dist.init_process_group("fake", rank=number, world_size=size, store=FakeStore())
    try:
        sizes = {"replicate": 1, **{axis: getattr(layout, axis) for axis in AXES[1:]}}
        mesh = Mesh(ranks=Ranks(rank=number, size=size), sizes=tuple(sizes[axis] for axis in AXES))
        yield rank_of(run, plan, mesh, layout.chunks)
    finally:
        dist.destroy_process_group()


def rank_of(run: Assembly, plan: RunPlan, mesh: Mesh, chunks: int = 1) -> Assembly:
    """Return a run as a rank of a mesh; it reads whole batches."""
    assert isinstance(run.state.model, GraphModel)
    model, (branch,) = build([run.state.model.description], plan.training.seed), run.data.branches
    placement = replace(branch.train.placement, in_step=mesh.size("shard") > 1)
    if mesh.size("graph") > 1:
        placement = replace(placement, cut=make_cutter(mesh, branch.train.loader.node_cost, placement.device))
    stages = make_pipeline(model, mesh, chunks, placement.device)
    parameters = parallelize(model, mesh, placement, plan.training)
    data = replace(run.data, branches=(replace(branch, train=branch.train.placed(placement)),))
    context = replace(context_of(plan, data, mesh, placement.device, frozen=False), stages=stages)
    state = first_state(model, parameters, len(run.data.targets))
    return replace(run, state=state, mesh=mesh, data=data, context=context)


class Collectives(TorchDispatchMode):
    """Counts collectives and their bytes by axis and kind."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.counts: dict[tuple[Axis, Collective], int] = defaultdict(int)
        self.bytes: dict[tuple[Axis, Collective], int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Count a collective, then compute it."""
        kind = KINDS.get(func.overloadpacket.__name__) if func.namespace == "c10d" else None
        if kind is not None:
            group = next(dist.ProcessGroup.unbox(one) for one in args if isinstance(one, torch.ScriptObject))
            groups = {axis: self.mesh.group(axis) for axis in AXES}
            named = [axis for axis, one in groups.items() if one is not None and one.group_name == group.group_name]
            axis = named[0] if named else "graph"  # whose exchanges have a group of their own
            self.counts[axis, kind] += 1
            self.bytes[axis, kind] += max(map(_bytes, args[:2]))
        return func(*args, **(kwargs or {}))


KINDS: Mapping[str, Collective] = {
    "allreduce_": "all-reduce",
    "allgather_": "all-gather",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "all-gather",
    "alltoall_base_": "all-to-all",
    "alltoall_": "all-to-all",
}


def _bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of all in nested lists."""
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


def measured_costs(
    run: Assembly,
    plan: RunPlan,
    ranks: Ranks,
    clock: Clock = time.perf_counter,
    earlier: StepCosts | None = None,
) -> StepCosts:
    """Return the costs of a rank's steps.

    All ``ranks`` measure at the same time, and disturb each other as in training. Batches begin with one graph and double, while steps are
    short and the batch has so many. Those of an ``earlier`` turn are measured again, and the lesser times count.
    """
    branch, state, device = run.data.branches[0], run.state, run.context.device
    parameters, limit = state.parameters, branch.train.loader.budget.max_graphs or len(branch.train.loader.indices)
    assert isinstance(parameters, FlatParameters)
    if earlier is None:
        footprint = footprint_from_json(footprint_in_training(run, 0, plan.branches[0].model))
    else:
        footprint = earlier.footprint
    rows, count = dict[float, Measured](), 1
    while True:
        cost, step = measured_step(run, count, ranks, clock)
        rows[cost] = step
        if count >= limit or (step.gradient > LONG if earlier is None else len(rows) == len(earlier.part.costs)):
            break
        count = min(2 * count, limit)
    update = seconds_of(partial(move, state, 0.0, state.totals[0, 0]), ranks, device, clock)
    parameters.zero_gradient()
    costs = tuple(sorted(rows))
    last = rows[costs[-1]]

    def curve(values: Iterable[float]) -> Curve:
        return Curve(costs=costs, values=tuple(map(float, values)))

    costs_of_turn = StepCosts(
        vectors=vectors_of(parameters, run.mesh.size("shard")),
        footprint=footprint,
        valid=sum(part.size for part in branch.valid) + size_of_levels(branch, plan.branches[0].model),
        part=curve(rows[cost].gradient for cost in costs),
        load=curve(rows[cost].read for cost in costs),
        backward=last.backward,
        update=update,
        exchanges=tuple(
            Exchange(axis=axis, kind=kind, count=count, size=curve(rows[cost].seen.bytes[axis, kind] for cost in costs))
            for (axis, kind), count in last.seen.counts.items()
        ),
        of_nodes=last.of_nodes,
        of_edges=last.of_edges,
        repeats=(last.gradient,),
    )
    return costs_of_turn if earlier is None else earlier.least(costs_of_turn)


def vectors_of(parameters: FlatParameters, shards: int) -> Vectors:
    """Return the bytes of all weights and states, of which a rank has a share."""
    moments = sum(value.nbytes for value in parameters.optimizer.moments.values())
    kept = [parameters.best_vector, *([] if parameters.average_vector is None else [parameters.average_vector])]
    return Vectors(
        weights=shards * parameters.vector.nbytes,
        states=shards * (moments + sum(vector.nbytes for vector in kept)),
        moments=shards * moments,
        gathered=parameters.gathered.bytes if parameters.gathered else 0,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measured:
    """Measurements of one batch."""

    read: float
    gradient: float
    backward: float
    seen: Collectives
    of_nodes: float
    of_edges: float


def measured_step(run: Assembly, count: int, ranks: Ranks, clock: Clock) -> tuple[float, Measured]:
    """Return the cost of a batch of graphs, and its measurements."""
    branch, context, state = run.data.branches[0], run.context, run.state
    feed, loader = branch.train, replace(branch.train.loader, budget=Budget(max_graphs=count))
    small = Feed(loader, feed.normalisation, replace(feed.placement, micro_batches=1, memory=None))
    _, (batch,) = next(small.epoch(0))
    graphs = loader.batches(0)[0]
    nodes, edges = float(loader.sizes.nodes[graphs].sum()), float(loader.sizes.edges[graphs].sum())
    scale, predict = torch.zeros_like(context.loss_weights[context.branches[0]]), context.predictor(state, 0)

    def gradient() -> None:
        gradient_of(state, 0, batch, context, scale)

    def forward() -> None:
        with state.parameters.in_use("forward"), context.arithmetic(), context.autocast():
            predict(batch)

    read = seconds_of(lambda: next(small.epoch(0)), ranks, context.device, clock)
    whole = seconds_of(gradient, ranks, context.device, clock)
    ahead = seconds_of(forward, ranks, context.device, clock, calls=1)
    with Collectives(run.mesh) as seen:
        gradient()
    return edges + loader.node_cost * nodes, Measured(
        read=read,
        gradient=whole,
        backward=max(0.0, 1.0 - ahead / whole),
        seen=seen,
        of_nodes=batch.num_nodes / nodes,
        of_edges=batch.num_edges / max(edges, 1.0),
    )


def seconds_of(work: Callable[[], object], ranks: Ranks, device: torch.device, clock: Clock, calls: int = 2) -> float:
    """Return the least time of some calls, on the slowest rank."""
    own = np.inf
    for _ in range(calls):  # kernels are made in the first
        ranks.wait()
        begin = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        own = min(own, clock() - begin)
    return float(ranks.gather(torch.tensor(own, dtype=torch.float64, device=device)).max())


def costs_of_layouts(
    run: Assembly,
    plan: RunPlan,
    layouts: Iterable[ParallelSettings],
    on_step: OnStep = lambda what, left: None,
    clock: Clock = time.perf_counter,
    *,
    followed: bool = False,
) -> RunCosts:
    """Return the costs of every kind of layout; the kinds take turns.

    ``on_step`` is called before each, with about how many seconds are left. Where ranks take steps afterwards (``followed``), one turn of all kinds
    but the first is enough: it only says what of a step is computed.
    """
    shares: dict[Kind, ParallelSettings] = {}
    for one in [ParallelSettings(), *layouts]:
        shares.setdefault(kind_of(one), one.model_copy(update={"shard": min(one.shard, 2), "replicate": "auto"}))
    kinds: dict[Kind, StepCosts] = {}
    every = [*shares.items()]
    rounds, begin = every + (every[:1] if followed else every) * (TURNS - 1), 0.0
    for done, (kind, layout) in enumerate(rounds):
        if done == 1:
            begin = time.perf_counter()  # the first loads and compiles what others use
        remaining = (time.perf_counter() - begin) / (done - 1) * (len(rounds) - done) if done > 1 else None
        on_step(f"{words(layout) or 'one device'} ({done + 1} of {len(rounds)})", remaining)
        with as_rank_of(run, plan, layout) as rank:
            kinds[kind] = measured_costs(rank, plan, Ranks(), clock, kinds.get(kind))
    return RunCosts(
        workload=workload_of(run.data.branches[0].train.loader),
        kinds=kinds,
        accelerator=run.context.device.type == "cuda",
    )


def is_possible(plan: RunPlan, layout: ParallelSettings) -> bool:
    """Return True where the model can be divided like this."""
    (branch,) = plan.branches
    try:
        check_channels(branch.model.model, layout.tensor)
        check_stages(branch.model, layout.pipeline, layout.chunks)
        if layout.graph > 1:
            check_cuttable(branch.model)
    except InputError:
        return False
    return True
