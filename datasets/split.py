"""Splits into training, validation, calibration and test."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from hydragnn.base.errors import InputError, nearest
from hydragnn.datasets.settings import SplitSettings
from hydragnn.datasets.store import GraphStore, stored_label
from hydragnn.graphs.field import ATOMIC_NUMBERS

LEAST = 40
"""Graphs that training and validation must leave before, without a word about it, half of them calibrate: with fewer than
20 the 90 % quantile rests on the largest error or two."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """Ascending graph numbers of the four parts, which share none."""

    train: Int64[ndarray, " train"]
    valid: Int64[ndarray, " valid"]
    calibration: Int64[ndarray, " calibration"]
    """Empty where intervals are calibrated on the validation part."""
    test: Int64[ndarray, " test"]

    @property
    def counts(self) -> dict[str, int]:
        """Graphs in each part."""
        return {name: len(getattr(self, name)) for name in PARTS}


PARTS = ("train", "valid", "calibration", "test")
WORDS = {"valid": "validation"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Fractions of what is parted, and the seed that shuffles it."""

    train: float
    valid: float
    calibration: float | None
    """None for half of what the others leave."""
    seed: int


class SplitKind(ABC):
    """A rule by which graphs are parted."""

    units: str
    """What is parted as a whole."""

    @abstractmethod
    def split(self, store: GraphStore, field: str, cuts: Cuts) -> Split:
        """Return the parts of a store; InputError where the rule does not apply."""

    @abstractmethod
    def leaves_rest(self, cuts: Cuts) -> bool:
        """Return True where something must remain for the test part."""


class ByLabel(SplitKind):
    """Split by labels: graphs with equal labels stay together."""

    def __init__(self, units: str, labels: Callable[[GraphStore, str], ndarray]) -> None:
        self.units, self._labels = units, labels

    def split(self, store: GraphStore, field: str, cuts: Cuts) -> Split:
        """Cut the shuffled labels; every graph follows its label."""
        rows = self._labels(store, field)
        if rows.ndim == 1 and (np.diff(rows) > 0).all():
            return _by_label(np.arange(len(rows)), cuts)  # as they are: sorting millions takes seconds
        _, labels = np.unique(rows.reshape(len(store), -1), axis=0, return_inverse=True)
        return _by_label(np.asarray(labels, dtype=np.int64).reshape(-1), cuts)

    def leaves_rest(self, cuts: Cuts) -> bool:
        """Return True where the fractions do not sum to 1."""
        return cuts.train + cuts.valid + (cuts.calibration or 0.0) < 1 - 1e-9


class Given(SplitKind):
    """The parts that a field of the store names by number."""

    units = "graphs"

    def split(self, store: GraphStore, field: str, cuts: Cuts) -> Split:
        """Return the graphs of every number; 3 is for calibration."""
        if cuts.calibration:
            raise InputError(
                f"a given split takes no fraction, and split.calibration is {cuts.calibration:g}; leave it out and give "
                f"graphs for calibration the number 3 in {field}"
            )
        names = ("train", "valid", "test", *(("calibration",) if cuts.calibration is None else ()))
        parts = graph_values(store, field).reshape(len(store), -1)
        if parts.shape[1] != 1 or not np.isin(parts, range(len(names))).all():
            numbers_text = ", ".join(f"{number} ({WORDS.get(name, name)})" for number, name in enumerate(names))
            raise InputError(f"split field {field} must hold one of {numbers_text} per graph; it does not")
        numbers = {name: np.flatnonzero(parts[:, 0] == number) for number, name in enumerate(names)}
        return Split(**{"calibration": np.zeros(0, dtype=np.int64), **numbers})

    def leaves_rest(self, cuts: Cuts) -> bool:
        """The field decides."""
        return False


def make_split(store: GraphStore, settings: SplitSettings) -> Split:
    """Return the parts of a store, the same on every machine.

    InputError where training or validation would be empty, where another part would be empty although a fraction is asked
    for it or left to it, and where the field with groups or given parts is missing or not a graph field.
    """
    kind = SPLIT_KINDS[settings.kind]
    cuts = Cuts(train=settings.train, valid=settings.valid, calibration=settings.calibration, seed=settings.seed)
    split = kind.split(store, settings.field or "", cuts)
    needed = {
        "train": True,
        "valid": True,
        "calibration": bool(settings.calibration),
        "test": kind.leaves_rest(cuts),
    }
    for name, count in split.counts.items():
        if count == 0 and needed[name]:
            calibration = f", calibration = {settings.calibration:g}" if settings.calibration else ""
            raise InputError(
                f"the {name} part of the {settings.kind} split is empty ({len(store)} graphs, train = {settings.train:g}, "
                f"valid = {settings.valid:g}{calibration}); give it a larger fraction or more {kind.units}"
            )
    return split


def _by_label(labels: Int64[ndarray, " graphs"], cuts: Cuts) -> Split:
    """Cut the shuffled labels at the fractions; every graph follows its label.

    Training and validation do not depend on what the rest is for.
    """
    groups = int(labels.max()) + 1 if len(labels) else 0
    rank = np.empty(groups, dtype=np.int64)
    rank[np.random.default_rng(cuts.seed).permutation(groups)] = np.arange(groups)
    first = round(cuts.train * groups)
    second = min(groups, round((cuts.train + cuts.valid) * groups))
    place = rank[labels]
    if cuts.calibration is not None:
        third = min(groups, round((cuts.train + cuts.valid + cuts.calibration) * groups))
    else:
        rest = np.count_nonzero(place >= second)
        third = second + (groups - second) // 2 if rest >= LEAST else second
    return Split(
        train=np.flatnonzero(place < first),
        valid=np.flatnonzero((place >= first) & (place < second)),
        calibration=np.flatnonzero((place >= second) & (place < third)),
        test=np.flatnonzero(place >= third),
    )


def graph_values(store: GraphStore, name: str) -> Float64[ndarray, "graphs ..."]:
    """Return a graph field of all graphs; InputError where values lack."""
    column = store.column(name)
    location = next(field.on for field in store.fields() if field.name == name)
    if location != "graph":
        raise InputError(f"field {name} lives on {location}s; this needs one value per graph, so name a graph field")
    if not column.present.all():
        missing = int(np.flatnonzero(~column.present)[0])
        raise InputError(f"{stored_label(store, missing)} has no {name}; every graph needs one here")
    return column.values.astype(np.float64)


DUPLICATES = "duplicates"
"""Field of a group split that stands for exact copies, in a store without a field or text of this name."""


def group_labels(store: GraphStore, name: str) -> ndarray:
    """Return one label per graph: a field, a text or its copies."""
    fields = [field.name for field in store.fields()]
    if name in fields:
        return graph_values(store, name)
    if name in store.texts:
        texts, labels = np.unique(np.array(list(store.texts[name]), dtype=np.str_), return_inverse=True)
        if "" in texts[:1]:
            missing = int(np.flatnonzero(labels == 0)[0])
            raise InputError(f"{stored_label(store, missing)} has no text {name}; every graph needs one here")
        return labels.reshape(-1)
    if name == DUPLICATES:
        return copy_labels(store)
    raise InputError(
        f"split: the store has no field or text {name}; {nearest(name, [*fields, *store.texts, DUPLICATES])}"
    )


def copy_labels(store: GraphStore) -> Int64[ndarray, " graphs"]:
    """Return a number per graph, equal exactly for identical graphs."""
    first, second = np.ascontiguousarray(store.digests()).view(np.uint64).T
    order = np.lexsort((second, first))
    new = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    labels = np.zeros(len(order), dtype=np.int64)
    labels[order[1:]] = np.cumsum(new)
    return labels


def species_counts(store: GraphStore) -> tuple[Int64[ndarray, "graphs species"], Int64[ndarray, " species"]]:
    """Return each graph's nodes per atomic number, and these numbers, ascending.

    InputError without that field, and for a number that is none.
    """
    numbers = store.column(ATOMIC_NUMBERS)
    graphs = np.repeat(np.arange(len(store)), store.sizes().nodes)
    wrong = np.flatnonzero((numbers.values < 0) | (numbers.values > 118))
    if len(wrong):
        raise InputError(
            f"graph {graphs[wrong[0]]}, field {ATOMIC_NUMBERS}: class {numbers.values[wrong[0]]} is out of range; use 0 to 118"
        )
    species = np.flatnonzero(np.bincount(numbers.values, minlength=119))
    width = max(len(species), 1)
    column = np.zeros(119, dtype=np.int64)
    column[species] = np.arange(len(species))
    counts = np.bincount(graphs * width + column[numbers.values], minlength=len(store) * width)
    return counts.reshape(len(store), width)[:, : len(species)], species


def reduced_compositions(store: GraphStore) -> Int64[ndarray, "graphs species"]:
    """Return species counts by their divisor: Fe2Pt2 and FePt are one composition."""
    counts, _ = species_counts(store)
    return counts // np.maximum(np.gcd.reduce(counts, axis=1, keepdims=True), 1)


SPLIT_KINDS: Mapping[str, SplitKind] = {
    "random": ByLabel("graphs", lambda store, field: np.arange(len(store))),
    "composition": ByLabel("compositions", lambda store, field: reduced_compositions(store)),
    "group": ByLabel("groups", group_labels),
    "given": Given(),
}
