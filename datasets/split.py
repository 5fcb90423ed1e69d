"""Splits into training, validation, calibration and test."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Num
from numpy import ndarray

from hydragnn.base.errors import InputError, nearest
from hydragnn.datasets.copies import structure_labels
from hydragnn.datasets.settings import TIME_SPAN, SplitSettings
from hydragnn.datasets.store import GraphStore, stored_label
from hydragnn.datasets.survey import Rows, every_row
from hydragnn.graphs.field import ATOMIC_NUMBERS, is_labelled
from hydragnn.graphs.texts import FILE

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
PARTS_GIVEN = ("train", "valid", "test", "calibration")  # parts by the numbers of a given split
WORDS = {"valid": "validation"}
FRAMES = 2  # graphs per file, on average, from which on a random split gets a note


def make_split(store: GraphStore, settings: SplitSettings) -> Split:
    """Return the parts of a store, the same on every machine.

    InputError where training or validation would be empty, where another part would be empty although a fraction is asked
    for it or left to it, and where the field with groups or given parts is missing or not a graph field.
    """
    units, labels = LABELS.get(settings.kind, ("graphs", None))
    asked = settings.train + settings.valid + (settings.calibration or 0.0)
    field = settings.field or ""
    if settings.kind == "random" and any(one.name == TIME_SPAN for one in store.fields()):
        units, split = "windows", _by_time(graph_values(store, TIME_SPAN), settings)
    else:
        split = _given_parts(store, settings) if labels is None else _by_label(labels(store, field), settings)
    needed = {"train": True, "valid": True, "calibration": bool(settings.calibration)}
    needed["test"] = labels is not None and asked < 1 - 1e-9
    for name, count in split.counts.items():
        if count == 0 and needed[name]:
            if settings.kind == "given":
                raise InputError(
                    f"the given split has no {WORDS.get(name, name)} graphs: no value of {field} is {PARTS_GIVEN.index(name)}; give some "
                    'graphs that number, or draw parts with kind = "random"'
                )
            calibration = f", calibration = {settings.calibration:g}" if settings.calibration else ""
            raise InputError(
                f"the {name} part of the {settings.kind} split is empty ({len(store)} graphs, train = {settings.train:g}, "
                f"valid = {settings.valid:g}{calibration}); give it a larger fraction or more {units}"
            )
    return split


def _given_parts(store: GraphStore, settings: SplitSettings) -> Split:
    """Return graphs by number in a field; 3: calibration."""
    field, calibration = settings.field or "", settings.calibration
    if calibration:
        problem = f"a given split takes no fraction, and split.calibration is {calibration:g}"
        raise InputError(f"{problem}; leave it out and give graphs for calibration the number 3 in {field}")
    names = PARTS_GIVEN if calibration is None else PARTS_GIVEN[:3]
    parts = graph_values(store, field).reshape(len(store), -1)
    if parts.shape[1] != 1 or not np.isin(parts, range(len(names))).all():
        numbers_text = ", ".join(f"{number} ({WORDS.get(name, name)})" for number, name in enumerate(names))
        raise InputError(f"split field {field} must hold one of {numbers_text} per graph; it does not")
    numbers = {name: np.flatnonzero(parts[:, 0] == number) for number, name in enumerate(names)}
    return Split(**{"calibration": np.zeros(0, dtype=np.int64), **numbers})


def _by_label(rows: ndarray, cuts: SplitSettings) -> Split:
    """Cut the shuffled labels at the fractions; equal labels stay together.

    Training and validation do not depend on what the rest is for.
    """
    if rows.ndim == 1 and (np.diff(rows) > 0).all():
        labels = np.arange(len(rows))  # as they are: sorting millions takes seconds
    else:
        labels = np.unique(rows.reshape(len(rows), -1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
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


def _by_time(spans: Num[ndarray, "graphs 2"], cuts: SplitSettings) -> Split:
    """Cut time at the fractions; windows across cuts have no part."""
    begin, count = np.sort(spans[:, 0]), len(spans)
    numbers = [round(cuts.train * count), round((cuts.train + cuts.valid) * count)]
    rest = count - numbers[1]
    default = rest // 2 if rest >= LEAST else 0
    numbers += [numbers[1] + (default if cuts.calibration is None else round(cuts.calibration * count))]
    edges = [-np.inf, *(begin[number] if number < count else np.inf for number in numbers), np.inf]
    parts = [(spans[:, 0] >= edges[part]) & (spans[:, 1] < edges[part + 1]) for part in range(len(PARTS))]
    return Split(**{name: np.flatnonzero(part) for name, part in zip(PARTS, parts)})


def graph_values(store: GraphStore, name: str) -> Num[ndarray, "graphs ..."]:
    """Return a graph field of all graphs; InputError where values lack."""
    column = store.column(name)
    field = next(field for field in store.fields() if field.name == name)
    if field.on != "graph":
        raise InputError(f"field {name} lives on {field.on}s; this needs one value per graph, so name a graph field")
    present = column.present
    if field.role == "target":
        present = present & is_labelled(column.values, field).reshape(len(present), -1).all(axis=1)
    if not present.all():
        missing = int(np.flatnonzero(~present)[0])
        raise InputError(f"{stored_label(store, missing)} has no {name}; every graph needs one here")
    return column.values


DUPLICATES = "duplicates"
"""Field of a group split that stands for copies, in a store without a field or text of this name."""


def group_labels(store: GraphStore, name: str) -> ndarray:
    """Return one label per graph: a field, a text or its copies.

    InputError where every graph is a group of its own, or numbers have more digits than their field holds.
    """
    labels = _group_labels(store, name)
    whole = labels.reshape(len(labels), -1)
    if whole.dtype.kind == "f" and (np.abs(whole) >= 2 / np.finfo(whole.dtype).eps).any():
        problem = f"split: numbers in {name} may have lost digits, which would join groups"
        raise InputError(f'{problem}; build the store with dtype = "int64", or with texts = ["{name}"]')
    if name != DUPLICATES and len(labels) > 1 and len(np.unique(whole, axis=0)) == len(labels):
        problem = f"split: {name} groups nothing, since no two graphs have the same"
        raise InputError(f"{problem}; name what they share, such as file or folder, or leave group out")
    return labels


def _group_labels(store: GraphStore, name: str) -> ndarray:
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
        return structure_labels(store)
    raise InputError(
        f"split: the store has no field or text {name}; {nearest(name, [*fields, *store.texts, DUPLICATES])}"
    )


def species_counts(store: GraphStore) -> tuple[Int64[ndarray, "graphs species"], Int64[ndarray, " species"]]:
    """Return each graph's nodes per atomic number, and these numbers, ascending.

    InputError without that field, and for a number that is none.
    """
    numbers = store.column(ATOMIC_NUMBERS)
    graphs = np.repeat(np.arange(len(store)), store.sizes().nodes)
    wrong = np.flatnonzero((numbers.values < 0) | (numbers.values > 118))
    if len(wrong):
        problem = f"graph {graphs[wrong[0]]}, field {ATOMIC_NUMBERS}: class {numbers.values[wrong[0]]} is out of range"
        raise InputError(f"{problem}; use 0 to 118")
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


LABELS: Mapping[str, tuple[str, Callable[[GraphStore, str], ndarray]]] = {
    "random": ("graphs", lambda store, field: np.arange(len(store))),
    "composition": ("compositions", lambda store, field: reduced_compositions(store)),
    "group": ("groups", group_labels),
}
"""Units of every kind of split, and the labels of graphs that stay together."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of graphs in an earlier part, with an example."""

    count: int
    of: int
    """Graphs outside the training part."""
    copy: int = -1
    original: int = -1


def copies_across(
    store: GraphStore, split: Split, rows: Rows = every_row, heartbeat: Callable[[], None] = lambda: None
) -> Copies:
    """Count the graphs outside training that are copies across parts."""
    labels = structure_labels(store, rows, heartbeat)
    part = np.full(len(store), len(PARTS), dtype=np.int64)
    for number, name in enumerate(PARTS):
        part[getattr(split, name)] = number
    first = np.full(int(labels.max(initial=0)) + 1, len(PARTS), dtype=np.int64)
    np.minimum.at(first, labels, part)
    copies = np.flatnonzero((part < len(PARTS)) & (part > first[labels]))
    of = sum(split.counts.values()) - len(split.train)
    if not len(copies):
        return Copies(0, of)
    copy = int(copies[0])
    original = int(np.flatnonzero((labels == labels[copy]) & (part == first[labels[copy]]))[0])
    return Copies(len(copies), of, copy, original)


def sentence_on_files(store: GraphStore) -> str:
    """Return a sentence on frames of few files; else empty."""
    files = len({*store.texts[FILE]}) if FILE in store.texts else 0
    if not 1 < files <= len(store) / FRAMES:
        return ""
    return (
        f"{len(store)} graphs come from {files} files, and a random split puts frames of one file into several parts; where they resemble each other, as "
        'in trajectories, errors are too small: set split.group = "file", which keeps a file together'
    )


def sentence_on_copies(store: GraphStore, split: Split, copies: Copies) -> str:
    """Return a sentence on copies in a split that has some."""
    same = stored_label(store, copies.copy) == stored_label(store, copies.original)  # as copies often are called

    def where(graph: int) -> str:
        (name,) = [name for name in PARTS if graph in getattr(split, name)]
        number = f"number {graph}, " if same else ""
        return f"{stored_label(store, graph)} ({number}{WORDS.get(name, name)})"

    return (
        f"{copies.count} of {copies.of} graphs outside the training part are copies of graphs in another part (exact, or the same structure wrapped, "
        f"shifted, turned, permuted, rounded or repeated), such as {where(copies.copy)} of {where(copies.original)}, so that errors there are too small; "
        'set split.group = "duplicates", which keeps copies together'
    )
