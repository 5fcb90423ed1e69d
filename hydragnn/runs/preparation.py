"""Data of a run: checks, normalisation, feeds.

Whatever is measured on the data is read once, shared by the ranks and, of large stores, kept for later runs
(``statistics_cache``). Each rank keeps the training part and its shares of the validation part in memory, or reads them batch by
batch where a window bounds memory, or where several processes of a node read one store: what the system keeps of a file in
memory is there once. Groups of ranks may keep the training part together (``kept_by_ranks``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn import datasets
from hydragnn.base.errors import InputError, about
from hydragnn.datasets import GraphStore, Normalisation
from hydragnn.datasets.arrays import array_name, flat_graphs
from hydragnn.datasets.fit import lost_digits
from hydragnn.datasets.normalisation import no_reference
from hydragnn.datasets.split import species_counts
from hydragnn.datasets.survey import summary_from_json
from hydragnn.distributed.mesh import Mesh
from hydragnn.distributed.rank_store import kept_by_ranks
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value, shared_rows
from hydragnn.graphs.batch import GraphBatch, graph_label
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.models import Target
from hydragnn.runs.fine_tuning import of_earlier_data, start_normalisation
from hydragnn.runs.label_notes import label_notes, labels_in_parts, unlabelled
from hydragnn.runs.plan import BranchPlan, RunPlan
from hydragnn.runs.statistics_cache import LEAST_GRAPHS, StatisticsCache, digest_of
from hydragnn.training.class_metrics import balanced_weights, values_of
from hydragnn.training.data import BranchData, DevicePlacement, Feed, RunData
from hydragnn.training.evaluate import errors_on, flat_metrics, trivial_predictor
from hydragnn.training.metrics import RunningMoments, moments_of
from hydragnn.training.uploading import ahead, tensors_of_parts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draft:
    """A data set whose values are checked and whose normalisation is fitted."""

    plan: BranchPlan
    targets: tuple[Target, ...]
    """With class weights in numbers."""
    summaries: Mapping[str, datasets.FieldSummary]
    """Summaries of the inputs that have a scale."""
    normalisation: Normalisation
    valid: Mapping[str, Any]
    """Moments of the validation labels and the trivial predictor's errors."""
    notes: tuple[str, ...]
    labels: Mapping[str, Mapping[str, int]]
    """Graphs of each part that have a label, by target."""


def prepare_data(
    plan: RunPlan,
    placement: DevicePlacement,
    mesh: Mesh,
    heartbeat: Callable[[], None] = lambda: None,
    *,
    shared: bool = False,
) -> RunData:
    """Return normalised feeds of a run; InputError for invalid graphs.

    All ranks call it together. ``heartbeat`` is called between reads, for whoever watches. ``shared`` says that other processes
    of the node read the same stores, so that large ones are not copied into the memory of this one.
    """
    heartbeat()
    cost, seed = plan.branches[0].model.architecture.node_cost, plan.training.seed
    batches = partial(
        datasets.Loader, budget=plan.budget, seed=seed, rank=mesh.data_rank, ranks=mesh.data_size, node_cost=cost
    )
    reading = Reading(ranks=mesh.ranks, placement=placement, heartbeat=heartbeat, batches=batches, shared=shared)
    drafts = []
    for branch in plan.branches:
        with about(branch.subject):
            drafts.append(make_draft(branch, reading.cache(branch.store)))
    drafts = with_joint_inputs(drafts)
    if (start := plan.start) is not None:
        start.trained.model.to(placement.device)
        (own,) = plan.branches
        of_data = drafts[0].normalisation, own.model, own.store, own.split.train
        table = first_ranks_value(lambda: start_normalisation(start, *of_data).to_json(), mesh.ranks)
        drafts = [replace(drafts[0], normalisation=datasets.normalisation_from_json(table))]
    branches = []
    for each in drafts:
        with about(each.plan.subject):
            branches.append(branch_data(each, reading))
    replay = None
    if plan.replay is not None:
        of = plan.replay
        with about("start.replay"):
            check_once(of, reading.cache(of.store))
            scales = drafts[0].normalisation
            if plan.start is not None:
                scales = of_earlier_data(plan.start, scales, drafts[0].plan.model)
            train = training_feed(of, scales, reading)
        data: dict[str, Any] = {"weight": of.weight, "store": of.store, "split": of.split, "train": train}
        replay = replace(branches[0], name="replay", valid=(), valid_feed=None, **data)
    return RunData(branches=tuple(branches), seed=plan.training.seed, replay=replay)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """Way in which this rank reads the data of a run."""

    ranks: Ranks
    placement: DevicePlacement
    heartbeat: Callable[[], None]
    batches: Callable[..., datasets.Loader]
    """Makes this rank's loaders."""
    shared: bool
    """Other processes of the node read the same stores."""

    def cache(self, store: GraphStore) -> StatisticsCache:
        """Return the cached measurements of a store."""
        return StatisticsCache(store=store, ranks=self.ranks, heartbeat=self.heartbeat)


def make_draft(plan: BranchPlan, cache: StatisticsCache) -> Draft:
    """Check the values of a data set and fit its normalisation."""
    model, split = plan.model, plan.split
    check_once(plan, cache)
    of = {
        "what": "normalisation",
        "train": digest_of(split.train),
        "valid": digest_of(split.valid),
        "inputs": [field.to_json() for field in model.input_fields],
        "targets": [{k: v for k, v in one.to_json().items() if k not in WEIGHTS} for one in model.targets],
        "parts": {name: digest_of(getattr(split, name)) for name in split.counts},
    }
    measured = cache.value(of, lambda: measure(plan, cache))
    cache.heartbeat()
    return Draft(
        plan=plan,
        targets=with_class_weights(model.targets, measured["class_weights"]),
        summaries={name: summary_from_json(value) for name, value in measured["summaries"].items()},
        normalisation=datasets.normalisation_from_json(measured["normalisation"]),
        valid=measured["valid"],
        notes=tuple(measured["notes"]),
        labels=measured["labels"],
    )


MOMENTS = ("count", "mean", "squares")
WEIGHTS = ("weight", "stage_two_factor", "per_node")
"""Keys of a target that nothing measured depends on."""


def measure(plan: BranchPlan, cache: StatisticsCache) -> dict[str, Any]:
    """Return the measurements of training and validation part; collective."""
    store, model, train, valid = plan.store, plan.model, plan.split.train, plan.split.valid
    weights = first_ranks_value(
        lambda: [balanced_weights(target, store, train).class_weights for target in model.targets], cache.ranks
    )
    targets = with_class_weights(model.targets, weights)
    survey = datasets.Survey(store, train, shared_rows(cache.ranks), cache.heartbeat)
    normalisation = datasets.fit_normalisation(store, train, inputs=model.input_fields, targets=targets, survey=survey)
    for target in targets:
        if target.derivative or target.field.classes:
            continue
        if sentence := lost_digits(survey, target.field, extensive=target.extensive):
            raise InputError(sentence)
    cache.heartbeat()
    scaled = [field for field in model.input_fields if field.name in normalisation.scales]

    def of_first_rank() -> dict[str, Any]:
        return {
            "valid": valid_statistics(store, train, valid, targets, normalisation),
            "notes": [*unlabelled(store, plan.split, targets), *label_notes(store, train, targets)],
            "labels": labels_in_parts(store, plan.split, targets),
        }

    return {
        "class_weights": weights,
        "normalisation": normalisation.to_json(),
        "summaries": {field.name: survey.summary(field).to_json() for field in scaled},
        **first_ranks_value(of_first_rank, cache.ranks),
    }


def with_class_weights(targets: Sequence[Target], weights: Sequence[Sequence[float] | None]) -> tuple[Target, ...]:
    """Return targets with these weights of classes."""
    pairs = zip(targets, weights)
    return tuple(replace(one, class_weights=None if own is None else tuple(own)) for one, own in pairs)


def check_once(plan: BranchPlan, cache: StatisticsCache) -> None:
    """Raise InputError for invalid or changed graphs, checked once.

    Values are looked at once per store; later runs make sure that its files are those that were looked at.
    """
    store, model = plan.store, plan.model
    stress = [target.field.name for target in model.targets if target.derivative == "stress"]
    used = np.concatenate([plan.split.train, plan.split.valid])
    looked = False

    fields, needed = [*model.fields], model.required_inputs
    check = partial(datasets.check_graphs, store, fields=fields, needed=needed, stress=stress, alive=cache.heartbeat)

    def look() -> bool:
        nonlocal looked
        looked = True
        check_on_all(check, used, cache.ranks)
        return True

    of = {"graphs": digest_of(used), "fields": sorted(fields), "needed": needed, "stress": stress}
    cache.value({"what": "valid graphs", **of}, look)
    disk, ranks = datasets.disk_store(store), cache.ranks
    if looked:
        return
    # where there are many more ranks than files, their shares of the graphs' digests are compared sooner
    if (
        disk is None
        or ranks.size > RANKS_PER_FILE * len(disk.parts)
        or ranks.any(not datasets.files_are_whole(disk, slice(ranks.rank, None, ranks.size), cache.heartbeat))
    ):
        look()


def check_on_all(check: Callable[[NDArray[np.int64]], None], graphs: NDArray[np.int64], ranks: Ranks) -> None:
    """Raise InputError, on all ranks, for the first invalid graph."""
    problem = False
    try:
        check(graphs[ranks.rank :: ranks.size])
    except InputError:
        problem = True
    if ranks.any(problem):
        first_ranks_value(lambda: check(graphs), ranks)
        raise InputError(
            "a rank found damaged graphs in its copy of the store, and the first rank none; copy the store anew"
        )


RANKS_PER_FILE = 4


def with_joint_inputs(drafts: Sequence[Draft]) -> list[Draft]:
    """Return drafts with one common scale for every input."""
    if len(drafts) == 1:
        return list(drafts)
    first = drafts[0]
    scaled = [field for field in first.plan.model.input_fields if field.name in first.normalisation.scales]
    joint = {
        field.name: datasets.joint_scale([each.summaries[field.name] for each in drafts], field) for field in scaled
    }
    return [
        replace(one, normalisation=replace(one.normalisation, scales={**one.normalisation.scales, **joint}))
        for one in drafts
    ]


def branch_data(draft: Draft, reading: Reading) -> BranchData:
    """Return feeds of a branch."""
    plan, normalisation = draft.plan, draft.normalisation
    store, split, data = plan.store, plan.split, plan.settings.data
    train = training_feed(plan, normalisation, reading)
    reading.heartbeat()
    in_memory = train.normalisation is None
    # what is in memory is read at once, all shares of this rank
    window = max(1, len(split.valid)) if in_memory else data.window or None
    needed = with_elements([*plan.model.fields], normalisation)
    shares = reading.batches(store, split.valid, shuffle=False, fields=needed, window=window)
    if plan.weight * (steps := train.steps(0)) < 1:
        problem = f"weight = {float(plan.weight):g} leaves an epoch less than one of its {steps} batches"
        raise InputError(f"{problem}; raise it to {1 / steps:.2g} or more")
    reading.heartbeat()
    return BranchData(
        name=plan.settings.name,
        weight=plan.weight,
        store=store,
        fields=plan.model.fields,
        inputs=plan.model.inputs,
        targets=draft.targets,
        split=split,
        normalisation=normalisation,
        train=train,
        **validation_of(Feed(shares, normalisation, reading.placement), in_memory=in_memory),
        valid_moments={
            name: RunningMoments(**{key: torch.tensor(one, dtype=torch.float64) for key, one in zip(MOMENTS, value)})
            for name, value in draft.valid["moments"].items()
        },
        trivial=draft.valid["trivial"],
        notes=draft.notes,
        labels=draft.labels,
    )


def validation_of(feed: Feed, *, in_memory: bool) -> dict[str, Any]:
    """Return the members of ``BranchData`` that hold a validation part."""
    parts, placement = ValidationParts(feed), feed.placement
    passes = len(feed.loader) * placement.micro_batches if placement.in_step else 0
    return {"valid": tuple(parts) if in_memory else parts, "valid_feed": feed, "valid_passes": passes}


def placed_branch(branch: BranchData, placement: DevicePlacement) -> BranchData:
    """Return a branch in other parts."""
    train = replace(branch.train, placement=placement)
    if branch.valid_feed is None:
        return replace(branch, train=train)
    valid = replace(branch.valid_feed, placement=placement)
    return replace(branch, train=train, **validation_of(valid, in_memory=isinstance(branch.valid, tuple)))


def training_feed(plan: BranchPlan, normalisation: Normalisation, reading: Reading) -> Feed:
    """Return the batches of a training part, in memory or read."""
    ranks, placement, batches, data = reading.ranks, reading.placement, reading.batches, plan.settings.data
    store, train, names = plan.store, plan.split.train, [*plan.model.fields]
    needed = with_elements(names, normalisation)
    if data.memory == "ranks" and ranks.size > 1:
        kept = kept_by_ranks(store, train, needed, ranks, group=data.group, alive=reading.heartbeat)
        return Feed(batches(kept, train, fields=needed), normalisation, placement)
    # a large store of which files are copied from the page cache
    cached = (disk := datasets.disk_store(store)) is not None and len(disk) >= LEAST_GRAPHS and disk.direct
    if data.window or (reading.shared and cached):
        return Feed(batches(store, train, fields=needed, window=data.window or None), normalisation, placement)
    memory = normalise_store(store, train, names, normalisation, placement.dtype)
    return Feed(batches(memory, np.arange(len(memory))), None, placement)


@dataclass(frozen=True, slots=True, eq=False)
class ValidationParts:
    """This rank's shares of a validation part, read at each pass."""

    feed: Feed

    def __iter__(self) -> Iterator[GraphBatch]:
        """The shares in the parts in which they are computed."""
        device = self.feed.placement.device
        with closing(ahead((parts for _, parts in self.feed.epoch(0)), device, tensors_of_parts)) as shares:
            for parts in shares:
                yield from parts


def with_elements(names: Sequence[str], normalisation: Normalisation) -> list[str]:
    """The names, and the atomic numbers where reference values need them."""
    return [*dict.fromkeys([*names, ATOMIC_NUMBERS])] if normalisation.references else [*names]


def normalise_store(
    store: GraphStore,
    indices: NDArray[np.int64],
    names: Sequence[str],
    normalisation: Normalisation,
    dtype: torch.dtype,
) -> datasets.MemoryStore:
    """Return graphs in memory with normalised fields."""
    raw = store.read(indices, with_elements(names, normalisation)).near_origin(dtype)
    batch = datasets.normalise(raw, normalisation)
    named_fields = tuple(field for name, field in raw.fields.items() if name in names)
    flat = flat_graphs(raw.with_fields(drop=raw.fields.keys() - set(names)), named_fields)

    def cast(value: Tensor) -> Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    arrays = {name: cast(torch.from_numpy(array)).numpy() for name, array in flat.arrays.items()}
    arrays |= {array_name(field): cast(batch[field.name]).numpy() for field in named_fields}
    return datasets.MemoryStore(replace(flat, arrays=arrays))


def valid_statistics(
    store: GraphStore,
    train: NDArray[np.int64],
    valid: NDArray[np.int64],
    targets: Sequence[Target],
    normalisation: Normalisation,
) -> dict[str, Any]:
    """Return validation moments and trivial errors as JSON.

    InputError for an element without reference value.
    """
    for name, references in normalisation.references.items():
        counts, species = species_counts(store)
        unknown = ~np.isin(species, list(references))
        wrong = valid[counts[valid][:, unknown].any(axis=1)]
        if len(wrong):
            number = int(wrong[0])
            label = graph_label(store.read([number], []), 0, number)
            raise no_reference(f"{label} of the validation part", int(species[unknown & (counts[number] > 0)][0]), name)
    predict = trivial_predictor(store, train, targets, normalisation)
    trivial = errors_on(predict, store, valid, targets, datasets.Budget(max_graphs=1024))
    moments = {}
    for target in (one for one in targets if not one.field.classes):
        labels = torch.from_numpy(values_of(target.field, store, valid)[0].reshape(-1, target.field.width))
        found = moments_of(labels, labels == labels)
        moments[target.name] = [getattr(found, key).tolist() for key in MOMENTS]
    return {"moments": moments, "trivial": flat_metrics(trivial, "valid")}
