"""From the plan of a run to a state ready to train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest
from hydragnn.distributed.graph_ranks import make_cutter
from hydragnn.distributed.mesh import Mesh, make_mesh
from hydragnn.distributed.parallelize import parallelize
from hydragnn.distributed.pipeline import SharedSteps, make_pipeline
from hydragnn.distributed.ranks import Ranks, number_of
from hydragnn.models import BranchedModel, GraphModel, build_branched, build_from_description
from hydragnn.record import RunRecord
from hydragnn.runs.fine_tuning import OpenStart, load_start, merged_limits, merged_ranges, rate_factors
from hydragnn.runs.folder import decisive
from hydragnn.runs.graph_statistics import close_range_of, training_statistics
from hydragnn.runs.plan import RunPlan
from hydragnn.runs.preparation import prepare_data
from hydragnn.runs.provenance import first_record, notes_on
from hydragnn.runs.statistics_cache import StatisticsCache
from hydragnn.training.context import TrainingContext, training_context
from hydragnn.training.data import DevicePlacement, RunData
from hydragnn.training.schedule import batch_factor
from hydragnn.training.state import TrainState


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Assembly:
    """A run that is ready for its next step."""

    state: TrainState
    data: RunData
    context: TrainingContext
    record: RunRecord
    start: OpenStart | None = None
    mesh: Mesh = field(default_factory=Mesh)


def assemble(
    plan: RunPlan, placement: DevicePlacement, ranks: Ranks, heartbeat: Callable[[], None], *, shared: bool = False
) -> Assembly:
    """Read data, build the model and distribute it; collective."""
    check_alike(plan, ranks)
    mesh = make_mesh(plan.parallel, ranks)
    placement = placement_on(mesh, plan, placement)
    data = prepare_data(plan, placement, mesh, heartbeat, shared=shared)
    caches = [StatisticsCache(store=one.store, ranks=ranks, heartbeat=heartbeat) for one in data.branches]
    start, first = plan.start, plan.branches[0].model
    bounded, needs = first.bounded_inputs, first.architecture.needs if start is None else ()
    statistics = training_statistics(data, caches, needs, bounded)
    if start is not None:  # its layers have their own
        statistics = merged_ranges(start.description.statistics, statistics)
    descriptions = [replace(branch.model, statistics=statistics) for branch in plan.branches]
    descriptions = close_range_of(descriptions, data, caches, plan.begun)
    notes = notes_on(plan, data, caches)
    factors: dict[str, float] = {}
    if start is None:
        model: GraphModel | BranchedModel = build_branched(descriptions, plan.training.seed)
    else:
        model = build_from_description(merged_limits(start, descriptions[0]), plan.training.seed)
        model = model.to(start.trained.dtype)
        absent, factors = load_start(model, start), rate_factors(model, start)
        notes = [*notes, *start.notes]
        if absent:
            new = [name for name in first.inputs if name not in start.description.inputs]
            why = f"the start does not have the inputs {', '.join(new)}" if new else ""
            why = why or "heads read states that the start does not have"
            notes.append(f"{len(absent)} weights of the encoder are new, since {why}")
    state, context = begin_on(mesh, plan, data, model, placement, factors)
    if plan.training.base_batch:
        rate, graphs = context.settings.learning_rate, data.graphs_per_step
        notes = [*notes, f"batches of {graphs:,.4g} graphs train at a learning rate of up to {rate:.3g}, by base_batch"]
    count = mesh.sum_in_place(torch.tensor(state.parameters.count, device=placement.device), "pipeline")
    record = first_record(plan, data, int(count), placement.device, notes)
    record = replace(record, start=start.to_json() if start else {})
    return Assembly(state=state, data=data, context=context, record=record, start=start, mesh=mesh)


def check_alike(plan: RunPlan, ranks: Ranks) -> None:
    """Raise InputError where ranks have other data or settings; collective."""
    settings = [decisive(plan.table), plan.table.get("parallel")]
    own = [digest(settings), digest([branch.store.fingerprint for branch in plan.branches])]
    columns = zip(*ranks.numbers(*map(number_of, own)))
    for what, column in zip(("another configuration", "other data"), columns):
        other = next((rank for rank, number in enumerate(column) if number != column[0]), None)
        if other is not None:
            problem = f"rank {other} of {ranks.size} reads {what} than rank 0"
            raise InputError(f"{problem}; give all nodes the same files, and copy again what was copied")


def placement_on(mesh: Mesh, plan: RunPlan, placement: DevicePlacement) -> DevicePlacement:
    """Return where a rank computes, and in how many parts."""
    most = plan.budget.max_graphs or max(len(branch.split.train) for branch in plan.branches)  # a part has a graph
    parts = min(max(placement.micro_batches, plan.parallel.micro_batches), max(1, most))
    placement = replace(placement, micro_batches=parts, in_step=mesh.size("shard") > 1)
    if mesh.size("graph") == 1:
        return placement
    return replace(placement, cut=make_cutter(mesh, plan.branches[0].model.architecture.node_cost))


def begin_on(
    mesh: Mesh,
    plan: RunPlan,
    data: RunData,
    model: GraphModel | BranchedModel,
    placement: DevicePlacement,
    factors: Mapping[str, float] = MappingProxyType({}),
) -> tuple[TrainState, TrainingContext]:
    """Return the first state and the loop's constants of a rank; collective."""
    stages = make_pipeline(model, mesh, plan.parallel.chunks, placement.device)
    parameters = parallelize(model, mesh, placement, plan.training, factors)
    totals = torch.zeros(2, len(data.targets), dtype=torch.float64, device=placement.device)
    state = TrainState(model=model, parameters=parameters, totals=totals)
    # ranks with the same graphs, nodes and layers draw the same random numbers
    number = mesh.item * mesh.size("pipeline") + mesh.coordinate("pipeline")
    plain = data.replay is not None or 0.0 in factors.values() or mesh.shares_model or mesh.size("graph") > 1
    training = plan.training
    if training.base_batch:
        rate = training.learning_rate * batch_factor(training, data.graphs_per_step)
        training = training.model_copy(update={"learning_rate": rate})
    unrecorded = "some weights are frozen or shared by ranks, or earlier data are replayed" if plain else ""
    targets, replayed = [branch.targets for branch in data.branches], data.replay is not None
    context = training_context(training, targets, state, replayed=replayed, unrecorded=unrecorded)
    executors = context.executors
    if stages is not None:
        executors = tuple(SharedSteps(**vars(one), pipeline=stages) for one in executors)
    context = replace(
        context,
        executors=executors,
        rank=number,
        reduce=mesh.sum_in_place,
        reduce_all=mesh.ranks.sum_in_place,
        # the last stage has predictions
        reduce_predicted=lambda values: mesh.sum_in_place(mesh.sum_in_place(values, "pipeline")),
    )
    return state, context
