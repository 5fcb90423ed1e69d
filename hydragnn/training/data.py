"""From a store and a configuration to the batches that the loop takes: normalised, cast and on the device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.config import RunConfig
from hydragnn.datasets import (
    GraphStore,
    Loader,
    MemoryStore,
    Normalisation,
    Split,
    WithoutEdges,
    check_graphs,
    fit_normalisation,
    make_split,
    normalise,
)
from hydragnn.datasets.arrays import array_name, flat_graphs
from hydragnn.distributed.ranks import Ranks
from hydragnn.errors import InputError, nearest
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.models import Target, targets_of
from hydragnn.training.class_metrics import balanced_weights
from hydragnn.training.metrics import RunningMoments, target_moments


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a batch is computed, with which numbers and in how many parts."""

    device: torch.device
    dtype: torch.dtype
    split: int = 1


class Feed:
    """This rank's share of every batch of one part of a store, as the model takes it.

    The part is normalised and cast once and kept in memory; with a ``window`` this happens batch by batch.
    """

    def __init__(self, loader: Loader, normalisation: Normalisation | None, place: Place) -> None:
        """Batches of ``loader``; without ``normalisation`` its store is normalised already."""
        self.loader = loader
        self.normalisation = normalisation
        self.place = place

    def steps(self, epoch: int) -> int:
        """Batches of an epoch, over all ranks."""
        settings = self.loader.settings
        by_count = not (settings.max_nodes or settings.max_edges)
        return len(self.loader) if by_count else len(self.loader.batches(epoch))

    def epoch(self, number: int, start: int = 0) -> Iterator[GraphBatch]:
        """The batches of an epoch from step ``start`` on; a share may have no graphs."""
        for _, batch in self.loader.epoch(number, start):
            if self.normalisation is not None:
                batch = normalise(batch, self.normalisation)
            yield batch.to(self.place.device, self.place.dtype)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunData:
    """The parts of a store as one run sees them."""

    store: GraphStore
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]
    targets: tuple[Target, ...]
    split: Split
    normalisation: Normalisation
    train: Feed
    valid: tuple[GraphBatch, ...]
    """This rank's shares of the validation part."""
    valid_moments: Mapping[str, RunningMoments]
    """Moments of the whole validation part's labels, in the fields' units."""


def prepare_data(
    config: RunConfig, store: GraphStore, place: Place, ranks: Ranks, lives: Callable[[], None] = lambda: None
) -> RunData:
    """Split, normalisation and feeds of a run; InputError where a field is missing, a graph is not valid or a part is empty.

    ``lives`` is called between reads, for whoever watches.
    """
    lives()
    store = store if config.data.edges else WithoutEdges(store)
    fields = {field.name: field for field in store.fields()}
    inputs = input_names(config, fields)
    for name in config.targets:
        if name not in fields:
            raise InputError(f"heads: the store has no field {name}; {nearest(name, sorted(fields))}")
    split = make_split(store, config.split)
    wanted = [*dict.fromkeys([*inputs, *config.targets])]
    seen = np.concatenate([split.train, split.valid])
    check_graphs(store, seen, wanted, needed=inputs, alive=lives)
    targets = tuple(balanced_weights(target, store, split.train) for target in targets_of(config.heads, fields))
    normalisation = fit_normalisation(store, split.train, inputs=[fields[name] for name in inputs], targets=targets)
    lives()
    feeds = {}
    for part in ("train", "valid"):
        feeds[part] = _feed(config, store, part, getattr(split, part), wanted, normalisation, place, ranks)
        lives()
    return RunData(
        store=store,
        fields={name: fields[name] for name in wanted},
        inputs=inputs,
        targets=targets,
        split=split,
        normalisation=normalisation,
        train=feeds["train"],
        valid=tuple(feeds["valid"].epoch(0)),
        valid_moments=target_moments(targets, store.read(split.valid, config.targets)),
    )


def input_names(config: RunConfig, fields: Mapping[str, Field]) -> tuple[str, ...]:
    """The input fields of a run: those it names, or all with role input."""
    if config.data.inputs is None:
        names = [name for name, field in fields.items() if field.role == "input"]
    else:
        names = config.data.inputs
    for name in names:
        if name not in fields:
            raise InputError(f"data.inputs: the store has no field {name}; {nearest(name, sorted(fields))}")
        if name in config.targets:
            raise InputError(f"data.inputs: {name} is also predicted by a head; take it out of one of them")
    return tuple(names)


def _feed(
    config: RunConfig,
    store: GraphStore,
    part: str,
    indices: NDArray[np.int64],
    fields: Sequence[str],
    normalisation: Normalisation,
    place: Place,
    ranks: Ranks,
) -> Feed:
    def loader(source: GraphStore, numbers: NDArray[np.int64], **more: Any) -> Loader:
        return Loader(
            source,
            numbers,
            config.batch,
            seed=config.train.seed,
            shuffle=part == "train",
            rank=ranks.rank,
            ranks=ranks.size,
            **more,
        )

    if config.data.window:
        needed = with_elements(fields, normalisation)
        return Feed(loader(store, indices, fields=needed, window=config.data.window), normalisation, place)
    kept = normalised_store(store, indices, fields, normalisation, place.dtype)
    return Feed(loader(kept, np.arange(len(kept))), None, place)


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
