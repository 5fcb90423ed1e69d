"""From a store and a configuration to what the loop takes: split, normalisation, feeds.

Whatever is measured on the data is read once and shared by the ranks; each rank keeps the training part and its shares of
the validation part.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.architectures import ArchitectureSettings, GraphStatistics, architecture_of
from hydragnn.config import AnyConfig, BranchSettings
from hydragnn.datasets import (
    BatchSettings,
    GraphStore,
    Loader,
    MemoryStore,
    Normalisation,
    Split,
    Survey,
    WithoutEdges,
    check_graphs,
    fit_normalisation,
    joint_scale,
    make_split,
    normalise,
)
from hydragnn.datasets.arrays import array_name, flat_graphs
from hydragnn.datasets.survey import Rows
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value, shared_rows
from hydragnn.errors import InputError, about, nearest
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.models import Target, check_shared, targets_of
from hydragnn.models.description import degree_sums, merged_degrees
from hydragnn.training.class_metrics import balanced_weights
from hydragnn.training.data import BranchData, DevicePlacement, Feed, RunData
from hydragnn.training.evaluate import errors_on, flattened, trivial_predictor
from hydragnn.training.metrics import RunningMoments, target_moments

DEGREE_BLOCK = 4096
"""Graphs whose edges are read at once to count them."""


Stores = GraphStore | Mapping[str, GraphStore]
"""The store of a run, or those of its branches by their names."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draft:
    """A branch whose values are checked and whose normalisation is fitted."""

    settings: BranchSettings
    store: GraphStore
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]
    split: Split
    targets: tuple[Target, ...]
    survey: Survey
    normalisation: Normalisation

    @property
    def names(self) -> list[str]:
        """The fields that are read: inputs, then targets."""
        return [*dict.fromkeys([*self.inputs, *self.settings.targets])]


def prepare_data(
    config: AnyConfig,
    store: Stores,
    placement: DevicePlacement,
    ranks: Ranks,
    heartbeat: Callable[[], None] = lambda: None,
) -> RunData:
    """Split, normalisation and feeds of a run; InputError where a field is missing, a graph is not valid or a part is empty.

    All ranks call it together. ``heartbeat`` is called between reads, for whoever watches.
    """
    heartbeat()
    stores = [store[branch.name] if isinstance(store, Mapping) else store for branch in config.branches]
    inputs = [_inputs(branch, config.model, store) for branch, store in zip(config.branches, stores)]
    if len(stores) > 1:
        described = {one.name: (store.dim, fields) for one, store, fields in zip(config.branches, stores, inputs)}
        check_shared(described)
        inputs = [[*inputs[0]] for _ in inputs]  # one order for all
    drafts = []
    for branch, one, fields in zip(config.branches, stores, inputs):
        with about(_called(branch)):
            drafts.append(drafted(branch, one, fields, placement, ranks, heartbeat))
    drafts = with_joint_inputs(drafts)
    branches = []
    for each in drafts:
        with about(_called(each.settings)):
            branches.append(branch_data(each, config, placement, ranks, heartbeat))
    return RunData(branches=tuple(branches), seed=config.train.seed)


def _called(branch: BranchSettings) -> str:
    return f"branch {branch.name}" if branch.name else ""


def _inputs(branch: BranchSettings, model: ArchitectureSettings, store: GraphStore) -> list[Field]:
    fields = {field.name: field for field in store.fields()}
    with about(_called(branch)):
        return [fields[name] for name in input_names(branch, model, fields)]


def drafted(
    branch: BranchSettings,
    store: GraphStore,
    inputs: Sequence[Field],
    placement: DevicePlacement,
    ranks: Ranks,
    heartbeat: Callable[[], None],
) -> Draft:
    """Split a data set, check its values and fit its normalisation."""
    store = store if branch.data.edges else WithoutEdges(store)
    fields = {field.name: field for field in store.fields()}
    read = tuple(field.name for field in inputs)
    split = make_split(store, branch.split)
    seen = np.concatenate([split.train, split.valid])
    names = [*dict.fromkeys([*read, *branch.targets])]
    check_values(store, seen, names, read, ranks, placement.device, heartbeat)
    plain = tuple(replace(target, branch=branch.name) for target in targets_of(branch.heads, fields))
    targets = with_class_weights(plain, store, split.train, ranks, placement.device)
    survey = Survey(store, split.train, shared_rows(ranks, placement.device), heartbeat)
    normalisation = fit_normalisation(
        store, split.train, inputs=[fields[name] for name in read], targets=targets, survey=survey
    )
    heartbeat()
    return Draft(
        settings=branch,
        store=store,
        fields=fields,
        inputs=read,
        split=split,
        targets=targets,
        survey=survey,
        normalisation=normalisation,
    )


def with_joint_inputs(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts with one scale for every input, from the training parts of all: equal values look equal to the trunk."""
    if len(drafts) == 1:
        return list(drafts)
    first, surveys = drafts[0], [each.survey for each in drafts]
    scaled = [name for name in first.inputs if name in first.normalisation.scales]
    joint = {name: joint_scale(surveys, first.fields[name]) for name in scaled}
    return [
        replace(one, normalisation=replace(one.normalisation, scales={**one.normalisation.scales, **joint}))
        for one in drafts
    ]


def branch_data(
    draft: Draft, config: AnyConfig, placement: DevicePlacement, ranks: Ranks, heartbeat: Callable[[], None]
) -> BranchData:
    """Feeds of the training and the validation part, and what is known of the latter."""
    store, split, normalisation, names = draft.store, draft.split, draft.normalisation, draft.names
    measured = first_ranks_value(
        lambda: valid_statistics(store, split.train, split.valid, draft.targets, normalisation), ranks, placement.device
    )
    heartbeat()
    window, needed = draft.settings.data.window, with_elements(names, normalisation)
    loader = partial(Loader, settings=config.batch, seed=config.train.seed, rank=ranks.rank, ranks=ranks.size)
    if window:
        train = Feed(loader(store, split.train, fields=needed, window=window), normalisation, placement)
    else:
        kept = normalised_store(store, split.train, names, normalisation, placement.dtype)
        train = Feed(loader(kept, np.arange(len(kept))), None, placement)
    weight = Fraction(str(draft.settings.weight))
    if weight * train.steps(0) < 1:
        raise InputError(
            f"weight = {draft.settings.weight:g} leaves an epoch less than one of its {train.steps(0)} batches; raise it to "
            f"{1 / train.steps(0):.2g} or more"
        )
    heartbeat()
    # all shares of this rank in one read
    shares = loader(store, split.valid, shuffle=False, fields=needed, window=window or max(1, len(split.valid)))
    valid = tuple(part for parts in Feed(shares, normalisation, placement).epoch(0) for part in parts)
    heartbeat()
    return BranchData(
        name=draft.settings.name,
        weight=weight,
        store=store,
        fields={name: draft.fields[name] for name in names},
        inputs=draft.inputs,
        targets=draft.targets,
        split=split,
        normalisation=normalisation,
        train=train,
        valid=valid,
        valid_moments={name: moments_from(value) for name, value in measured["moments"].items()},
        trivial=measured["trivial"],
    )


def input_names(branch: BranchSettings, model: ArchitectureSettings, fields: Mapping[str, Field]) -> tuple[str, ...]:
    """The input fields of a data set: those that are named, or all with role input that the architecture sees.

    InputError where one is no input.
    """
    asked, targets = branch.data.inputs, branch.targets
    for name in targets:
        if name not in fields:
            raise InputError(f"heads: the store has no field {name}; {nearest(name, sorted(fields))}")
    names = asked
    if names is None:
        unseen = unseen_inputs(branch, model, fields.values())
        names = [name for name, field in fields.items() if field.role == "input" and name not in unseen]
    for name in names:
        if name not in fields:
            raise InputError(f"data.inputs: the store has no field {name}; {nearest(name, sorted(fields))}")
        if name in targets:
            raise InputError(f"data.inputs: {name} is also predicted by a head; take it out of one of them")
    return tuple(names)


def unseen_inputs(branch: BranchSettings, model: ArchitectureSettings, fields: Iterable[Field]) -> tuple[str, ...]:
    """Fields with role input that are left out because the architecture does not see them; none where inputs are named."""
    if branch.data.inputs is not None:
        return ()
    reads = architecture_of(model.kind).reads
    return tuple(field.name for field in fields if field.role == "input" and not reads(model, field))


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
    found = 0.0
    try:
        problem_of(graphs[ranks.rank :: ranks.size])
    except InputError:
        found = 1.0
    if float(ranks.sum_in_place(torch.tensor(found, device=device))):
        first_ranks_value(lambda: problem_of(graphs), ranks, device)
        raise InputError(
            "a rank found damaged graphs in its copy of the store, and the first rank none; copy the store anew"
        )
    return None


def with_elements(names: Sequence[str], normalisation: Normalisation) -> list[str]:
    """The names, and the atomic numbers where reference values need them."""
    extra = [ATOMIC_NUMBERS] if normalisation.references and ATOMIC_NUMBERS not in names else []
    return [*names, *extra]


def normalised_store(
    store: GraphStore,
    indices: NDArray[np.int64],
    names: Sequence[str],
    normalisation: Normalisation,
    dtype: torch.dtype,
) -> MemoryStore:
    """The graphs ``indices`` in memory, with the named fields in normalised units, floats in ``dtype``."""
    raw = store.read(indices, with_elements(names, normalisation))
    batch = normalise(raw, normalisation)
    kept = tuple(field for name, field in raw.fields.items() if name in names)
    flat = flat_graphs(raw.with_fields(drop=raw.fields.keys() - set(names)), kept)

    def cast(value: Tensor) -> Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    arrays = {name: cast(torch.from_numpy(array)).numpy() for name, array in flat.arrays.items()}
    arrays |= {array_name(field): cast(batch[field.name]).numpy() for field in kept}
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
    trivial = errors_on(predict, MemoryStore(batch), np.arange(len(valid)), targets, BatchSettings(max_graphs=1024))
    moments = {
        name: [value.count.item(), value.mean.tolist(), value.squares.tolist()]
        for name, value in target_moments(targets, batch).items()
    }
    return {"moments": moments, "trivial": flattened(trivial, "valid")}


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
