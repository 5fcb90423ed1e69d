"""Numbers of nodes, edges and graphs against their range and their statistics in training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector, Stored, whitening
from hydragnn.ensemble.domain.view import Array, GraphView, Numbers, field_values, per_segment
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

    @property
    def node_channels(self) -> tuple[Channel, ...]:
        """Return one for all fields of nodes."""
        return (Channel(slack=SLACK),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the largest distance outside the range, in half widths."""
        columns = [np.zeros((len(view), 0))]
        columns += [per_segment(np.maximum, *self._away(view, name)) for name in self.middle]
        return np.concatenate(columns, axis=1)

    def node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        """Return the largest distance of a field of nodes outside its range."""
        result = np.zeros((view.batch.num_nodes, 1))
        for name in self.middle:
            field = view.batch.fields.get(name)
            if field is not None and field.on == "node":
                present = view.batch.present(name)[view.batch.owner("node")].numpy()
                result[present] = np.maximum(result[present], self._away(view, name)[0])
        return result

    def _away(self, view: GraphView, name: str) -> tuple[Float[Array, "items one"], Numbers]:
        """Return distances of a field's items outside its range, with the first of every graph."""

        def make() -> tuple[Array, Numbers]:
            values, offsets = field_values(view.batch, name)
            away = (np.abs(values - self.middle[name]) / self.half[name] - 1).max(axis=1, keepdims=True, initial=0.0)
            return away, offsets

        return view.once(f"{self.name}/{name}", make)

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
            values, _ = field_values(view.batch, name)
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


WIDEST = 8
"""Components of a field up to which its statistics are compared."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Statistics(Detector):
    """Mean and deviation of a field over the items of a graph, as Mahalanobis distance from those of training graphs."""

    name: ClassVar[str] = "statistics"

    mean: Mapping[str, Float[Array, " features"]]
    whitening: Mapping[str, Float[Array, "features features"]]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return one per field."""
        return tuple(Channel(slack=1.0) for _ in self.mean)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the distance of every graph, in standard deviations."""
        columns = [
            np.linalg.norm((graph_statistics(view, name) - mean) @ self.whitening[name].T, axis=1)
            for name, mean in self.mean.items()
        ]
        return np.stack(columns, axis=1)

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the field in words."""
        return f"mean and deviation of {list(self.mean)[channel]} over the graph are unlike those of training graphs"

    def settings(self) -> dict[str, Any]:
        """Return the fields in their order."""
        return {"fields": list(self.mean)}

    def tensors(self) -> dict[str, Array]:
        """Return means and matrices."""
        parts = {"mean": self.mean, "whitening": self.whitening}
        return {f"{name}/{what}": of[name] for name in self.mean for what, of in parts.items()}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Statistics":
        """Return the detector with these tensors."""
        sizes = {name: 2 * stored.field(name, classes=False).width for name in settings["fields"]}
        mean = {name: stored.numbers(f"{name}/mean", size) for name, size in sizes.items()}
        matrices = {name: stored.numbers(f"{name}/whitening", size, size) for name, size in sizes.items()}
        return cls(mean=mean, whitening=matrices)


def graph_statistics(view: GraphView, name: str) -> Float[Array, "graphs features"]:
    """Return mean and standard deviation of a field over the items of every graph."""
    values, offsets = field_values(view.batch, name)
    counts = np.maximum(np.diff(offsets), 1)[:, None]
    mean, square = (per_segment(np.add, of, offsets) / counts for of in (values, values**2))
    return np.concatenate([mean, np.sqrt(np.maximum(square - mean**2, 1e-14 * square))], axis=1)


class StatisticsFit:
    """Collects statistics of graphs."""

    def __init__(self, inputs: Sequence[Field]) -> None:
        """Take the fields of numbers on nodes and edges with few components."""
        names = [field.name for field in inputs if not field.classes and field.width <= WIDEST and field.on != "graph"]
        self._points: dict[str, list[Array]] = {name: [] for name in names}

    def show(self, view: GraphView) -> None:
        """Note some graphs."""
        for name, points in self._points.items():
            if name in view.batch.fields:
                points.append(graph_statistics(view, name))

    def detectors(self) -> list[Detector]:
        """Return means and matrices; what never varied counts in units of its size."""
        every = {name: np.concatenate(points) for name, points in self._points.items() if points}
        scales = {name: points.std(axis=0) for name, points in every.items()}
        scales = {name: np.maximum(one, 1e-6 * np.abs(every[name]).max(axis=0) + 1e-12) for name, one in scales.items()}
        means = {name: points.mean(axis=0) for name, points in every.items()}
        matrices = {
            name: _whitened((points - means[name]) / scales[name]) / scales[name] for name, points in every.items()
        }
        return [Statistics(mean=means, whitening=matrices)] if every else []


def _whitened(points: Float[Array, "graphs features"]) -> Float[Array, "features features"]:
    return whitening(points.T @ points / len(points))
