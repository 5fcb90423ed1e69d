"""One pass over each field of a store: what is missing, what is not finite, sums of the training part.

A pass goes block by block. Several processes share the blocks and merge them in one order, so that the sums are the same
bits however many there are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.datasets.store import GraphStore
from hydragnn.graphs.field import Field

BLOCK = 8192  # graphs read at once: bounds memory, whatever the store

Row = Callable[[int], NDArray[np.float64]]
Rows = Callable[[int, int, Row], NDArray[np.float64]]
"""``rows(count, width, row)``: ``row(0)`` to ``row(count - 1)``, each computed by one process and known to all."""


def every_row(count: int, width: int, row: Row) -> NDArray[np.float64]:
    """All rows ``[count, width]``, where one process is alone.

    >>> every_row(2, 1, lambda number: np.array([10.0 * number])).tolist()
    [[0.0], [10.0]]
    """
    return np.stack([row(number) for number in range(count)]) if count else np.zeros((0, width))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FieldSummary:
    """What one pass over a field tells."""

    absent: int
    """Graphs without the field."""
    first_absent: int
    """The first of them; -1 where there is none."""
    not_finite: int
    """Graphs with NaN or infinity in the field."""
    first_not_finite: int
    """The first of them; -1 where there is none."""
    items: int
    """Nodes, edges or graphs of the training part that have the field."""
    mean: Float64[ndarray, " components"]
    """Over those items."""
    deviations: Float64[ndarray, " components"]
    """Summed squared deviations from the mean, of scalars; zeros for vectors and tensors."""
    squares: float
    """Sum of all squares over items and components."""


class Survey:
    """Summaries of the fields of a store, each made when it is first asked for.

    With ``rows`` that several processes share, all of them ask for the same fields in the same order.
    """

    def __init__(
        self,
        store: GraphStore,
        train: Int64[ndarray, " train"],
        others: Int64[ndarray, " others"] | None = None,
        rows: Rows = every_row,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """Sums of the graphs ``train``; missing and unusable values of these and ``others``. ``heartbeat`` between reads."""
        self.store, self.rows, self.heartbeat = store, rows, heartbeat
        self.train = np.zeros(len(store), dtype=np.bool_)
        self.train[train] = True
        self.looked_at = self.train.copy()
        if others is not None:
            self.looked_at[others] = True
        self._sizes = store.sizes()
        self._known: dict[str, FieldSummary] = {}

    def summary(self, field: Field) -> FieldSummary:
        """What there is to know about a field; its values are read once."""
        if field.name not in self._known:
            blocks = -(-len(self.store) // BLOCK)
            rows = self.rows(blocks, 6 + 2 * field.width, lambda block: self._row(field, block))
            self._known[field.name] = _merged(rows, field.width)
        return self._known[field.name]

    def _row(self, field: Field, block: int) -> NDArray[np.float64]:
        """The numbers of one block: absent, not finite (each with the first), items, squares, means, deviations."""
        self.heartbeat()
        start, stop = block * BLOCK, min((block + 1) * BLOCK, len(self.store))
        looked_at = self.looked_at[start:stop]
        numbers = np.zeros(6 + 2 * field.width)
        numbers[[1, 3]] = -1
        if not looked_at.any():
            return numbers
        column = self.store.column(field.name, start, stop)
        absent = start + np.flatnonzero(looked_at & ~column.present)
        numbers[0:2] = len(absent), absent[0] if len(absent) else -1
        if field.classes:
            return numbers
        counts = self._counts(field, start, stop)
        if not np.isfinite(column.values).all():
            broken = np.repeat(np.arange(start, stop), counts)
            broken = broken[~np.isfinite(column.values).reshape(len(broken), -1).all(axis=1)]
            broken = np.intersect1d(broken, start + np.flatnonzero(looked_at & column.present))
            numbers[2:4] = len(broken), broken[0] if len(broken) else -1
        wanted = np.repeat(column.present & self.train[start:stop], counts)
        values = column.values[wanted].reshape(int(wanted.sum()), field.width).astype(np.float64)
        if len(values):
            with np.errstate(invalid="ignore", over="ignore"):  # who asks is told what is not finite
                numbers[4:] = _moments(values, field.parity == "scalar")
        return numbers

    def _counts(self, field: Field, start: int, stop: int) -> NDArray[np.int64]:
        """Items of the field in each graph of a block."""
        if field.on == "graph":
            return np.ones(stop - start, dtype=np.int64)
        return (self._sizes.nodes if field.on == "node" else self._sizes.edges)[start:stop]


def _moments(values: Float64[ndarray, "items components"], scalar: bool) -> NDArray[np.float64]:
    """Number, squares, means and squared deviations of one block."""
    width = values.shape[1]
    mean = values.mean(axis=0) if scalar else np.zeros(width)
    deviations = np.square(values - mean).sum(axis=0) if scalar else np.zeros(width)
    return np.concatenate([[len(values), np.square(values).sum()], mean, deviations])


def _merged(rows: Float64[ndarray, "blocks numbers"], width: int) -> FieldSummary:
    """The summary of all blocks, in their order: Chan et al. 1979."""
    items, mean, deviations, squares = 0, np.zeros(width), np.zeros(width), 0.0
    for row in rows:
        here, block_mean = int(row[4]), row[6 : 6 + width]
        squares += float(row[5])
        if here:
            total, shift = items + here, block_mean - mean
            deviations = deviations + row[6 + width :]
            deviations = deviations + np.square(shift) * (items * here / total)
            mean, items = mean + shift * (here / total), total
    return FieldSummary(
        absent=int(rows[:, 0].sum()),
        first_absent=_first(rows[:, 1]),
        not_finite=int(rows[:, 2].sum()),
        first_not_finite=_first(rows[:, 3]),
        items=items,
        mean=mean,
        deviations=deviations,
        squares=squares,
    )


def _first(graphs: Iterable[float]) -> int:
    return next((int(graph) for graph in graphs if graph >= 0), -1)
