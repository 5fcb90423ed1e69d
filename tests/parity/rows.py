"""A row of the table of comparisons, and what it is compared on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch

Pairs = Iterable[tuple[Tensor, Tensor]]
"""Numbers of ours, and of an independent implementation with the same weights."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Graphs for a comparison, and its means."""

    batch: GraphBatch
    """Two periodic graphs of atoms."""
    patch: pytest.MonkeyPatch
    real_data: Callable[[], Path]


class Row(NamedTuple):
    """A comparison: its line in the table, its pairs in every case, and its tolerance."""

    what: str
    beside: str
    compared: str
    pairs: Callable[..., Pairs]
    """Yields pairs of a bench and a case; how weights map is in it."""
    cases: Sequence[tuple[Any, ...]] = ((),)
    tolerance: float = 1e-10
    """Of a number, beside that of the largest or of 1, whichever is smaller: float64 sums in another order."""
