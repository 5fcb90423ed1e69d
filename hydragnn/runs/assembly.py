"""From the plan of a run to a state ready to train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hydragnn.distributed.parallelize import parallelize
from hydragnn.distributed.ranks import Ranks
from hydragnn.models import BranchedModel, GraphModel, ModelDescription, build_branched, build_from_description
from hydragnn.record import RunRecord
from hydragnn.runs.close_range import close_range_of
from hydragnn.runs.compilation import compiled_on_all
from hydragnn.runs.compile_choice import choose_compiling
from hydragnn.runs.graph_statistics import training_statistics
from hydragnn.runs.plan import RunPlan
from hydragnn.runs.preparation import prepare_data
from hydragnn.runs.provenance import first_record, notes_on
from hydragnn.training.context import TrainingContext, training_context
from hydragnn.training.data import DevicePlacement, RunData
from hydragnn.training.state import TrainState, first_state


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Assembly:
    """A run that is ready for its next step."""

    state: TrainState
    data: RunData
    context: TrainingContext
    record: RunRecord
    """What is known before the first step."""


def assemble(
    plan: RunPlan,
    placement: DevicePlacement,
    ranks: Ranks,
    heartbeat: Callable[[], None],
    *,
    shared: bool = False,
) -> Assembly:
    """Read data, build the model and distribute it; collective.

    ``shared`` says that other processes of the node read the same stores (``prepare_data``).
    """
    data = prepare_data(plan, placement, ranks, heartbeat, shared=shared)
    architecture = plan.branches[0].model.architecture
    device = placement.device
    statistics = training_statistics(data, architecture.needs, ranks, device, heartbeat)
    descriptions = [replace(branch.model, statistics=statistics) for branch in plan.branches]
    model = build(close_range_of(descriptions, data, ranks, device, heartbeat), plan.training.seed)
    parameters = parallelize(model, ranks, placement, plan.training)
    by_branch = [branch.targets for branch in data.branches]
    context = training_context(plan.training, by_branch, placement.device, ranks.rank, ranks.sum_in_place)
    notes = notes_on(plan, data, ranks, device, heartbeat)
    compiling, reasons = choose_compiling(plan, placement.device, ranks.size)
    notes = [*notes, *reasons]
    if compiling:
        compiled, reasons = compiled_on_all(model, context.autocast, ranks, device, heartbeat)
        context, notes = replace(context, compiled=compiled), [*notes, *reasons]
    record = first_record(plan, data, parameters.count, placement.device, notes)
    return Assembly(
        state=first_state(model, parameters, fields=len(data.targets)),
        data=data,
        context=context,
        record=replace(record, compiled=bool(context.compiled)),
    )


def build(descriptions: Sequence[ModelDescription], seed: int) -> GraphModel | BranchedModel:
    """Return the model of the plan's data set or branches."""
    if len(descriptions) == 1:
        return build_from_description(descriptions[0], seed)
    return build_branched(descriptions, seed)
