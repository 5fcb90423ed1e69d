"""Which graphs train, which choose and which only judge."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from hydragnn.datasets.settings import SplitSettings
from hydragnn.datasets.store import GraphStore
from hydragnn.errors import InputError
from hydragnn.graphs.field import ATOMIC_NUMBERS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """Graph numbers of the three parts, each in ascending order; no graph is in two of them."""

    train: Int64[ndarray, " train"]
    valid: Int64[ndarray, " valid"]
    test: Int64[ndarray, " test"]

    @property
    def counts(self) -> dict[str, int]:
        """Graphs in each part."""
        return {"train": len(self.train), "valid": len(self.valid), "test": len(self.test)}


def make_split(store: GraphStore, settings: SplitSettings) -> Split:
    """The parts of a store, the same for the same settings and content on every machine.

    InputError where training or validation would be empty, where the test part would be empty although train + valid is
    below 1, and where the field with groups or given parts is missing or not a graph field.
    """
    if settings.kind == "given":
        split = _given(store, settings.field or "")
    else:
        labels = _labels(store, settings.kind, settings.field or "")
        split = _by_label(labels, settings.train, settings.valid, settings.seed)
    test_wanted = settings.kind != "given" and settings.train + settings.valid < 1 - 1e-9
    for name, count in split.counts.items():
        if count == 0 and (name != "test" or test_wanted):
            raise InputError(
                f"the {name} part of the {settings.kind} split is empty ({len(store)} graphs, train = {settings.train:g}, "
                f"valid = {settings.valid:g}); give it a larger fraction or more {UNITS[settings.kind]}"
            )
    return split


UNITS = {"random": "graphs", "composition": "compositions", "group": "groups", "given": "graphs"}
"""What each kind of split cuts between."""


def _labels(store: GraphStore, kind: str, field: str) -> Int64[ndarray, " graphs"]:
    """One label per graph; graphs with equal labels stay together."""
    if kind == "random":
        return np.arange(len(store))
    rows = reduced_compositions(store) if kind == "composition" else graph_values(store, field)
    _, labels = np.unique(rows.reshape(len(store), -1), axis=0, return_inverse=True)
    return np.asarray(labels, dtype=np.int64).reshape(-1)


def _by_label(labels: Int64[ndarray, " graphs"], train: float, valid: float, seed: int) -> Split:
    """Cut the shuffled labels at the fractions; every graph follows its label."""
    groups = int(labels.max()) + 1 if len(labels) else 0
    rank = np.empty(groups, dtype=np.int64)
    rank[np.random.default_rng(seed).permutation(groups)] = np.arange(groups)
    first = round(train * groups)
    second = min(groups, round((train + valid) * groups))
    place = rank[labels]
    return Split(
        train=np.flatnonzero(place < first),
        valid=np.flatnonzero((place >= first) & (place < second)),
        test=np.flatnonzero(place >= second),
    )


def _given(store: GraphStore, field: str) -> Split:
    parts = graph_values(store, field).reshape(len(store), -1)
    if parts.shape[1] != 1 or not np.isin(parts, (0, 1, 2)).all():
        raise InputError(
            f"split field {field} must hold one of 0 (train), 1 (validation), 2 (test) per graph; it does not"
        )
    flat = parts[:, 0]
    return Split(train=np.flatnonzero(flat == 0), valid=np.flatnonzero(flat == 1), test=np.flatnonzero(flat == 2))


def graph_values(store: GraphStore, name: str) -> Float64[ndarray, "graphs ..."]:
    """A graph field of all graphs; InputError where it is missing, lives on nodes or edges, or lacks values."""
    column = store.column(name)
    location = next(field.on for field in store.fields() if field.name == name)
    if location != "graph":
        raise InputError(f"field {name} lives on {location}s; this needs one value per graph, so name a graph field")
    if not column.present.all():
        missing = int(np.flatnonzero(~column.present)[0])
        raise InputError(f"graph {missing} has no {name}; every graph needs one here")
    return column.values.astype(np.float64)


def species_counts(store: GraphStore) -> Int64[ndarray, "graphs species"]:
    """How many nodes of each atomic number every graph has: ``[graphs, 119]``.

    InputError without that field, and for a number that is none.
    """
    numbers = store.column(ATOMIC_NUMBERS)
    graphs = np.repeat(np.arange(len(store)), store.sizes().nodes)
    wrong = np.flatnonzero((numbers.values < 0) | (numbers.values > 118))
    if len(wrong):
        raise InputError(
            f"graph {graphs[wrong[0]]}, field {ATOMIC_NUMBERS}: class {numbers.values[wrong[0]]} is out of range; use 0 to 118"
        )
    return np.bincount(graphs * 119 + numbers.values, minlength=len(store) * 119).reshape(len(store), 119)


def reduced_compositions(store: GraphStore) -> Int64[ndarray, "graphs species"]:
    """Species counts divided by their greatest common divisor, so that Fe2Pt2 and FePt are one composition."""
    counts = species_counts(store)
    return counts // np.maximum(np.gcd.reduce(counts, axis=1, keepdims=True), 1)
