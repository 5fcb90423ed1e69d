"""Numbers of nodes, edges and graphs against their range in training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector, Stored
from hydragnn.ensemble.domain.view import Array, GraphView, Numbers, per_segment
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field

SLACK = 0.1
"""How far a number may always lie outside: a twentieth of the range, whose half is 1."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inputs(Detector):
    """Middle and half width of the range of every component, per field."""

    name: ClassVar[str] = "inputs"

    middle: Mapping[str, Float[Array, " width"]]
    half: Mapping[str, Float[Array, " width"]]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return one per field."""
        return tuple(Channel(slack=SLACK) for _ in self.middle)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the largest distance outside the range, in half widths."""
        columns = [np.zeros((len(view), 0))]
        for name, middle in self.middle.items():
            values, offsets = _values(view.batch, name)
            away = (np.abs(values - middle) / self.half[name] - 1).max(axis=1, keepdims=True, initial=0.0)
            columns.append(per_segment(np.maximum, away, offsets))
        return np.concatenate(columns, axis=1)

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the field in words."""
        return f"{list(self.middle)[channel]} is outside its range in the training data"

    def settings(self) -> dict[str, Any]:
        """Return the fields in their order."""
        return {"fields": list(self.middle)}

    def tensors(self) -> dict[str, Array]:
        """Return middles and halves."""
        ranges = {"middle": self.middle, "half": self.half}
        return {f"{name}/{what}": of[name] for name in self.middle for what, of in ranges.items()}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Inputs":
        """Return the detector with these tensors."""
        widths = {name: stored.field(name, classes=False).width for name in settings["fields"]}
        middle, half = (
            {name: stored.numbers(f"{name}/{what}", width) for name, width in widths.items()}
            for what in ("middle", "half")
        )
        if not all((values > 0).all() for values in half.values()):
            raise ValueError("a range has no width")
        return cls(middle=middle, half=half)


class InputsFit:
    """Notes the least and the greatest number of every field."""

    def __init__(self, inputs: Sequence[Field]) -> None:
        self._names = [field.name for field in inputs if not field.classes]
        self._low: dict[str, Array] = {}
        self._high: dict[str, Array] = {}

    def show(self, view: GraphView) -> None:
        """Note the ends of the ranges of some graphs."""
        for name in self._names:
            values, _ = _values(view.batch, name)
            if len(values):
                low, high = values.min(axis=0), values.max(axis=0)
                self._low[name] = np.minimum(self._low.get(name, low), low)
                self._high[name] = np.maximum(self._high.get(name, high), high)

    def detectors(self) -> list[Detector]:
        """Return the ranges; one without width is as wide as rounding."""
        names = [name for name in self._names if name in self._low]
        middle = {name: (self._low[name] + self._high[name]) / 2 for name in names}
        half = {name: (self._high[name] - self._low[name]) / 2 for name in names}
        half = {name: np.maximum(half[name], 1e-6 * np.abs(middle[name]) + 1e-12) for name in names}
        return [Inputs(middle=middle, half=half)] if names else []


def _values(batch: GraphBatch, name: str) -> tuple[Float[Array, "items width"], Numbers]:
    """Return the numbers of a field with the first of every graph."""
    if name not in batch.fields:
        return np.zeros((0, 1)), np.zeros(len(batch) + 1, dtype=np.int64)
    field = batch.fields[name]
    is_present = batch.present(name)
    values = batch[name].reshape(-1, field.width).double().numpy()
    counts = (batch.counts(field.on) * is_present).numpy()
    if not bool(is_present.all()):
        values = values[is_present[batch.owner(field.on)].numpy()]
    return values, np.concatenate([[0], np.cumsum(counts)])
