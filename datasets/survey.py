"""Summaries of the fields of a store over its training part.

A pass goes block by block. Several processes share the blocks and merge them in one order, so that the sums are the same
bits however many there are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.datasets.store import GraphStore
from hydragnn.graphs.field import Field, is_labelled

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
    """Summary of a field over the training part."""

    items: Int64[ndarray, " components"]
    """Nodes, edges or graphs of the training part that have the component."""
    mean: Float64[ndarray, " components"]
    """Over those items."""
    deviations: Float64[ndarray, " components"]
    """Summed squared deviations from the mean; zeros for vectors, whose mean is not asked for."""
    squares: float
    """Sum of all squares over items and components."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``summary_from_json`` gives the same bits back."""
        items = self.items.tolist()
        return {
            "items": items[0] if len(set(items)) == 1 else items,
            "mean": self.mean.tolist(),
            "deviations": self.deviations.tolist(),
            "squares": self.squares,
        }


def summary_from_json(value: Mapping[str, Any]) -> FieldSummary:
    """The summary that ``FieldSummary.to_json`` wrote."""
    arrays = {name: np.array(value[name], dtype=np.float64) for name in ("mean", "deviations")}
    items = np.zeros(len(arrays["mean"]), dtype=np.int64) + value["items"]  # one number for all, or one for each
    return FieldSummary(items=items, squares=float(value["squares"]), **arrays)


class Survey:
    """Summaries of the fields of a store, each made on first use.

    With ``rows`` that several processes share, all of them ask for the same fields in the same order.
    """

    def __init__(
        self,
        store: GraphStore,
        train: Int64[ndarray, " train"],
        rows: Rows = every_row,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """Summarise the graphs ``train``; ``heartbeat`` is called between reads."""
        self.store, self.rows, self.heartbeat = store, rows, heartbeat
        self.train = np.zeros(len(store), dtype=np.bool_)
        self.train[train] = True
        self._sizes = store.sizes()
        self._known: dict[str, FieldSummary] = {}

    def summary(self, field: Field) -> FieldSummary:
        """Return the summary of a field; its values are read once."""
        if field.name not in self._known:
            blocks = -(-len(self.store) // BLOCK)
            rows = self.rows(blocks, 1 + 3 * field.width, lambda block: self._row(field, block))
            self._known[field.name] = joint_summary(rows, field.width)
        return self._known[field.name]

    def _row(self, field: Field, block: int) -> NDArray[np.float64]:
        """Return a block's squares, and items, means and deviations of components."""
        self.heartbeat()
        start, stop = block * BLOCK, min((block + 1) * BLOCK, len(self.store))
        numbers = np.zeros(1 + 3 * field.width)
        if field.classes or not self.train[start:stop].any():
            return numbers
        column = self.store.column(field.name, start, stop)
        usable = column.present & self.train[start:stop]
        if field.on != "graph":
            usable = np.repeat(usable, self._sizes.counts(field.on)[start:stop])
        values = column.values[usable].reshape(int(usable.sum()), field.width).astype(np.float64)
        if len(values):
            labelled = is_labelled(values, field) if field.role == "target" else np.ones_like(values, dtype=np.bool_)
            values, items = np.where(labelled, values, 0.0), labelled.sum(axis=0)
            with np.errstate(invalid="ignore", over="ignore"):  # who asks is told what is not finite
                centred = field.parity != "vector"
                mean = values.sum(axis=0) / np.maximum(items, 1) if centred else np.zeros(field.width)
                away = np.where(labelled, values - mean, 0.0)
                deviations = np.square(away).sum(axis=0) if centred else np.zeros(field.width)
                numbers[:] = np.concatenate([[np.square(values).sum()], items, mean, deviations])
        return numbers


def joint_summary(rows: Float64[ndarray, "blocks numbers"], width: int) -> FieldSummary:
    """Return the summary of all blocks, in their order: Chan et al. 1979."""
    items, mean, deviations, squares = np.zeros(width, dtype=np.int64), np.zeros(width), np.zeros(width), 0.0
    for row in rows:
        (count, block_mean, own), squares = row[1:].reshape(3, width), squares + float(row[0])
        total, shift = items + count.astype(np.int64), block_mean - mean
        deviations = deviations + own + np.square(shift) * (items * count / np.maximum(total, 1))
        mean, items = mean + shift * (count / np.maximum(total, 1)), total
    return FieldSummary(items=items, mean=mean, deviations=deviations, squares=squares)
