"""From the plan of a run to the data that its loop takes: checked values, normalisation, feeds.

Whatever is measured on the data is read once and shared by the ranks; each rank keeps the training part and its shares of
the validation part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.architectures import GraphStatistics
from hydragnn.datasets import (
    Budget,
    GraphStore,
    Loader,
    MemoryStore,
    Normalisation,
    Survey,
    check_graphs,
    fit_normalisation,
    joint_scale,
    normalise,
)
from hydragnn.datasets.arrays import array_name, flat_graphs
from hydragnn.datasets.survey import Rows
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value, shared_rows
from hydragnn.errors import InputError, about
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.models import Target
from hydragnn.models.description import degree_sums, merged_degrees
from hydragnn.runs.plan import BranchPlan, RunPlan
from hydragnn.training.class_metrics import balanced_weights
from hydragnn.training.data import BranchData, DevicePlacement, Feed, RunData
from hydragnn.training.evaluate import errors_on, flat_metrics, trivial_predictor
from hydragnn.training.metrics import RunningMoments, target_moments

DEGREE_BLOCK = 4096
"""Graphs whose edges are read at once to count them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draft:
    """A data set whose values are checked and whose normalisation is fitted."""

    plan: BranchPlan
    targets: tuple[Target, ...]
    """With class weights in numbers."""
    survey: Survey
    normalisation: Normalisation


def prepare_data(
    plan: RunPlan, placement: DevicePlacement, ranks: Ranks, heartbeat: Callable[[], None] = lambda: None
) -> RunData:
    """Normalisation and feeds of a run; InputError where a graph is not valid or a field has no value.

    All ranks call it together. ``heartbeat`` is called between reads, for whoever watches.
    """
    heartbeat()
    drafts = []
    for branch in plan.branches:
        with about(branch.subject):
            drafts.append(make_draft(branch, placement.device, ranks, heartbeat))
    drafts = with_joint_inputs(drafts)
    batches = partial(Loader, budget=plan.budget, seed=plan.training.seed, rank=ranks.rank, ranks=ranks.size)
    branches = []
    for each in drafts:
        with about(each.plan.subject):
            branches.append(branch_data(each, batches, placement, ranks, heartbeat))
    return RunData(branches=tuple(branches), seed=plan.training.seed)


def make_draft(plan: BranchPlan, device: torch.device, ranks: Ranks, heartbeat: Callable[[], None]) -> Draft:
    """Check the values of a data set and fit its normalisation."""
    store, model, train = plan.store, plan.model, plan.split.train
    used = np.concatenate([train, plan.split.valid])
    check_values(store, used, [*model.fields], model.inputs, ranks, device, heartbeat)
    targets = with_class_weights(model.targets, store, train, ranks, device)
    survey = Survey(store, train, shared_rows(ranks, device), heartbeat)
    normalisation = fit_normalisation(store, train, inputs=model.input_fields, targets=targets, survey=survey)
    heartbeat()
    return Draft(plan=plan, targets=targets, survey=survey, normalisation=normalisation)


def with_joint_inputs(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts with one scale for every input, from the training parts of all: equal values look equal to the trunk."""
    if len(drafts) == 1:
        return list(drafts)
    first, surveys = drafts[0], [each.survey for each in drafts]
    scaled = [field for field in first.plan.model.input_fields if field.name in first.normalisation.scales]
    joint = {field.name: joint_scale(surveys, field) for field in scaled}
    return [
        replace(one, normalisation=replace(one.normalisation, scales={**one.normalisation.scales, **joint}))
        for one in drafts
    ]


def branch_data(
    draft: Draft,
    batches: Callable[..., Loader],
    placement: DevicePlacement,
    ranks: Ranks,
    heartbeat: Callable[[], None],
) -> BranchData:
    """Feeds of the training and the validation part, and what is known of the latter; ``batches`` makes this rank's loaders."""
    plan, normalisation = draft.plan, draft.normalisation
    store, split, names = plan.store, plan.split, [*plan.model.fields]
    measured = first_ranks_value(
        lambda: valid_statistics(store, split.train, split.valid, draft.targets, normalisation), ranks, placement.device
    )
    heartbeat()
    needed = with_elements(names, normalisation)
    if plan.window:
        train = Feed(batches(store, split.train, fields=needed, window=plan.window), normalisation, placement)
    else:
        memory = normalise_store(store, split.train, names, normalisation, placement.dtype)
        train = Feed(batches(memory, np.arange(len(memory))), None, placement)
    check_weight(plan.weight, train.steps(0))
    heartbeat()
    # all shares of this rank in one read
    shares = batches(store, split.valid, shuffle=False, fields=needed, window=plan.window or max(1, len(split.valid)))
    valid = tuple(part for parts in Feed(shares, normalisation, placement).epoch(0) for part in parts)
    heartbeat()
    return BranchData(
        name=plan.name,
        weight=plan.weight,
        store=store,
        fields=plan.model.fields,
        inputs=plan.model.inputs,
        targets=draft.targets,
        split=split,
        normalisation=normalisation,
        train=train,
        valid=valid,
        valid_moments={name: moments_from(value) for name, value in measured["moments"].items()},
        trivial=measured["trivial"],
    )


def check_weight(weight: Fraction, batches: int) -> None:
    """InputError where an epoch would show less than one of a branch's batches."""
    if weight * batches < 1:
        raise InputError(
            f"weight = {float(weight):g} leaves an epoch less than one of its {batches} batches; raise it to {1 / batches:.2g} or more"
        )


def with_class_weights(
    targets: Sequence[Target], store: GraphStore, train: NDArray[np.int64], ranks: Ranks, device: torch.device
) -> tuple[Target, ...]:
    """The targets with balanced class weights in numbers; the labels are counted by one rank."""
    if all(target.class_weights != "balanced" for target in targets):
        return tuple(targets)
    weights = first_ranks_value(
        lambda: [balanced_weights(target, store, train).class_weights for target in targets], ranks, device
    )
    return tuple(
        replace(target, class_weights=None if numbers is None else tuple(numbers))
        for target, numbers in zip(targets, weights)
    )


def check_values(
    store: GraphStore,
    graphs: NDArray[np.int64],
    names: Sequence[str],
    inputs: Sequence[str],
    ranks: Ranks,
    device: torch.device,
    heartbeat: Callable[[], None],
) -> None:
    """InputError on all ranks that names the first of the graphs that is not valid; every rank looks at a share of them."""

    def problem_of(numbers: NDArray[np.int64]) -> None:
        check_graphs(store, numbers, names, needed=inputs, alive=heartbeat)

    if ranks.size == 1:
        return problem_of(graphs)
    problem = 0.0
    try:
        problem_of(graphs[ranks.rank :: ranks.size])
    except InputError:
        problem = 1.0
    if float(ranks.sum_in_place(torch.tensor(problem, device=device))):
        first_ranks_value(lambda: problem_of(graphs), ranks, device)
        raise InputError(
            "a rank found damaged graphs in its copy of the store, and the first rank none; copy the store anew"
        )
    return None


def with_elements(names: Sequence[str], normalisation: Normalisation) -> list[str]:
    """The names, and the atomic numbers where reference values need them."""
    extra = [ATOMIC_NUMBERS] if normalisation.references and ATOMIC_NUMBERS not in names else []
    return [*names, *extra]


def normalise_store(
    store: GraphStore,
    indices: NDArray[np.int64],
    names: Sequence[str],
    normalisation: Normalisation,
    dtype: torch.dtype,
) -> MemoryStore:
    """The graphs ``indices`` in memory, with the named fields in normalised units, floats in ``dtype``."""
    raw = store.read(indices, with_elements(names, normalisation))
    batch = normalise(raw, normalisation)
    named_fields = tuple(field for name, field in raw.fields.items() if name in names)
    flat = flat_graphs(raw.with_fields(drop=raw.fields.keys() - set(names)), named_fields)

    def cast(value: Tensor) -> Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    arrays = {name: cast(torch.from_numpy(array)).numpy() for name, array in flat.arrays.items()}
    arrays |= {array_name(field): cast(batch[field.name]).numpy() for field in named_fields}
    return MemoryStore(replace(flat, arrays=arrays))


def valid_statistics(
    store: GraphStore,
    train: NDArray[np.int64],
    valid: NDArray[np.int64],
    targets: Sequence[Target],
    normalisation: Normalisation,
) -> dict[str, Any]:
    """Moments of the validation part's labels and the trivial predictor's errors there, as JSON; the part is read once."""
    batch = store.read(valid, with_elements([target.field.name for target in targets], normalisation))
    predict = trivial_predictor(store, train, targets, normalisation)
    trivial = errors_on(predict, MemoryStore(batch), np.arange(len(valid)), targets, Budget(max_graphs=1024))
    moments = {
        name: [value.count.item(), value.mean.tolist(), value.squares.tolist()]
        for name, value in target_moments(targets, batch).items()
    }
    return {"moments": moments, "trivial": flat_metrics(trivial, "valid")}


def moments_from(value: Sequence[Any]) -> RunningMoments:
    """The moments that ``valid_statistics`` wrote."""
    count, mean, squares = (torch.tensor(number, dtype=torch.float64) for number in value)
    return RunningMoments(count=count, mean=mean, squares=squares)


def training_degrees(data: RunData, rows: Rows, heartbeat: Callable[[], None]) -> GraphStatistics:
    """Degree statistics of the training parts of all branches, read in blocks that the ranks share."""
    return merged_degrees(sums for branch in data.branches for sums in _degrees_of(branch, rows, heartbeat))


def _degrees_of(branch: BranchData, rows: Rows, heartbeat: Callable[[], None]) -> list[tuple[float, int, int]]:
    indices = branch.split.train

    def sums(block: int) -> NDArray[np.float64]:
        heartbeat()
        graphs = indices[block * DEGREE_BLOCK : (block + 1) * DEGREE_BLOCK]
        return np.array(degree_sums(branch.store.read(graphs, [])))

    table = rows(-(-len(indices) // DEGREE_BLOCK), 3, sums).tolist()
    return [(float(total), int(nodes), int(edges)) for total, nodes, edges in table]
