"""Digits that float32 labels lose."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from hydragnn.datasets.split import species_counts
from hydragnn.datasets.store import GraphStore
from hydragnn.datasets.survey import Survey
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field

COARSE = 1e-3
"""Numbers that stand farther apart than this part of their spread have lost digits that a model could learn."""


def lost_digits(survey: Survey, field: Field, *, extensive: bool = False) -> str:
    """Return a sentence where float32 steps exceed a thousandth of the spread.

    Empty where none do. Of an ``extensive`` field the spread is that of what is left after reference energies, where
    the store has atomic numbers.
    """
    if field.dtype != "float32" or field.parity == "vector":
        return ""
    if field.on == "graph" and not field.shape:
        size, spread = survey.rows(1, 2, lambda _: _of_graphs(survey, field, extensive))[0].tolist()
        return _sentence(field, size, spread, extensive)
    summary = survey.summary(field)
    spreads = np.sqrt(summary.deviations / max(1, summary.items))
    sizes = np.hypot(summary.mean, spreads)
    sentences = (_sentence(field, size, spread, False) for size, spread in zip(sizes.tolist(), spreads.tolist()))
    return next(filter(None, sentences), "")


def _of_graphs(survey: Survey, field: Field, extensive: bool) -> Float64[ndarray, " 2"]:
    """Return size and spread of the labels of the training part."""
    column = survey.store.column(field.name)
    used = survey.train & column.present
    values = column.values[used].astype(np.float64)
    if not len(values):
        return np.zeros(2)
    rest = after_references(survey.store, values, used) if extensive else values
    return np.array([np.sqrt(np.square(values).mean()), rest.std()])


def after_references(
    store: GraphStore, values: Float64[ndarray, " graphs"], used: ndarray
) -> Float64[ndarray, " graphs"]:
    """Return values minus least squares on composition, of the ``used`` graphs."""
    if ATOMIC_NUMBERS not in {field.name for field in store.fields()}:
        return values
    counts: Int64[ndarray, "graphs species"] = species_counts(store)[0][used]
    references = np.linalg.lstsq(counts.astype(np.float64), values, rcond=None)[0]
    rest: Float64[ndarray, " graphs"] = values - counts @ references
    return rest


def _sentence(field: Field, size: float, spread: float, extensive: bool) -> str:
    step = float(np.spacing(np.float32(size)))
    if not 0 < spread * COARSE < step:
        return ""
    suffix = " after reference energies" if extensive else ""
    return (
        f"{field.name}: float32 numbers as large as {size:.3g} stand {step:.2g} apart, and the spread{suffix} is {spread:.2g}, so that "
        f'digits are lost; build the store with dtype = "float64" for {field.name}'
    )


def precision_notes(store: GraphStore) -> Iterator[str]:
    """Sentences on all fields of a store that have lost digits."""
    survey = Survey(store, np.arange(len(store)))
    for field in store.fields():
        if not field.classes:
            yield from filter(None, [lost_digits(survey, field, extensive=field.role == "target")])
