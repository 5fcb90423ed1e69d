"""From a store and a configuration to what the loop takes: split, normalisation, feeds.

Whatever is measured on the data is read once and shared by the ranks; each rank keeps the training part and its shares of
the validation part.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.architectures import GraphStatistics, architecture_of
from hydragnn.config import RunConfig
from hydragnn.datasets import (
    BatchSettings,
    GraphStore,
    Loader,
    MemoryStore,
    Normalisation,
    Survey,
    WithoutEdges,
    check_graphs,
    fit_normalisation,
    make_split,
    normalise,
)
from hydragnn.datasets.arrays import array_name, flat_graphs
from hydragnn.datasets.survey import Rows
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value, shared_rows
from hydragnn.errors import InputError, nearest
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.models import Target, targets_of
from hydragnn.models.description import degree_sums, merged_degrees
from hydragnn.training.class_metrics import balanced_weights
from hydragnn.training.data import DevicePlacement, Feed, RunData
from hydragnn.training.evaluate import errors_on, flattened, trivial_predictor
from hydragnn.training.metrics import RunningMoments, target_moments

DEGREE_BLOCK = 4096
"""Graphs whose edges are read at once to count them."""


def prepare_data(
    config: RunConfig,
    store: GraphStore,
    placement: DevicePlacement,
    ranks: Ranks,
    heartbeat: Callable[[], None] = lambda: None,
) -> RunData:
    """Split, normalisation and feeds of a run; InputError where a field is missing, a graph is not valid or a part is empty.

    All ranks call it together. ``heartbeat`` is called between reads, for whoever watches.
    """
    heartbeat()
    store = store if config.data.edges else WithoutEdges(store)
    fields = {field.name: field for field in store.fields()}
    inputs = input_names(config, fields)
    names = [*dict.fromkeys([*inputs, *config.targets])]
    split = make_split(store, config.split)
    seen = np.concatenate([split.train, split.valid])
    check_values(store, seen, names, inputs, ranks, placement.device, heartbeat)
    targets = with_class_weights(targets_of(config.heads, fields), store, split.train, ranks, placement.device)
    survey = Survey(store, split.train, shared_rows(ranks, placement.device), heartbeat)
    normalisation = fit_normalisation(
        store,
        split.train,
        inputs=[fields[name] for name in inputs],
        targets=targets,
        survey=survey,
    )
    heartbeat()
    measured = first_ranks_value(
        lambda: valid_statistics(store, split.train, split.valid, targets, normalisation), ranks, placement.device
    )
    heartbeat()
    window, needed = config.data.window, with_elements(names, normalisation)
    loader = partial(Loader, settings=config.batch, seed=config.train.seed, rank=ranks.rank, ranks=ranks.size)
    if window:
        train = Feed(loader(store, split.train, fields=needed, window=window), normalisation, placement)
    else:
        kept = normalised_store(store, split.train, names, normalisation, placement.dtype)
        train = Feed(loader(kept, np.arange(len(kept))), None, placement)
    heartbeat()
    # all shares of this rank in one read
    shares = loader(store, split.valid, shuffle=False, fields=needed, window=window or max(1, len(split.valid)))
    valid = tuple(part for parts in Feed(shares, normalisation, placement).epoch(0) for part in parts)
    heartbeat()
    return RunData(
        store=store,
        fields={name: fields[name] for name in names},
        inputs=inputs,
        targets=targets,
        split=split,
        normalisation=normalisation,
        train=train,
        valid=valid,
        valid_moments={name: moments_from(value) for name, value in measured["moments"].items()},
        trivial=measured["trivial"],
    )


def input_names(config: RunConfig, fields: Mapping[str, Field]) -> tuple[str, ...]:
    """The input fields of a run: those that it names, or all with role input that its architecture sees.

    InputError where one is no input.
    """
    asked, targets = config.data.inputs, config.targets
    for name in targets:
        if name not in fields:
            raise InputError(f"heads: the store has no field {name}; {nearest(name, sorted(fields))}")
    names = asked
    if names is None:
        unseen = unseen_inputs(config, fields.values())
        names = [name for name, field in fields.items() if field.role == "input" and name not in unseen]
    for name in names:
        if name not in fields:
            raise InputError(f"data.inputs: the store has no field {name}; {nearest(name, sorted(fields))}")
        if name in targets:
            raise InputError(f"data.inputs: {name} is also predicted by a head; take it out of one of them")
    return tuple(names)


def unseen_inputs(config: RunConfig, fields: Iterable[Field]) -> tuple[str, ...]:
    """Fields with role input that are left out because the architecture does not see them; none where inputs are named."""
    if config.data.inputs is not None:
        return ()
    reads = architecture_of(config.model.kind).reads
    return tuple(field.name for field in fields if field.role == "input" and not reads(config.model, field))


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
    """Degree statistics of the training part, read in blocks that the ranks share."""
    indices = data.split.train

    def sums(block: int) -> NDArray[np.float64]:
        heartbeat()
        return np.array(degree_sums(data.store.read(indices[block * DEGREE_BLOCK : (block + 1) * DEGREE_BLOCK], [])))

    table = rows(-(-len(indices) // DEGREE_BLOCK), 3, sums).tolist()
    return merged_degrees((float(total), int(nodes), int(edges)) for total, nodes, edges in table)
