"""Geometry of a whole graph, against the nearest training graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector
from hydragnn.ensemble.domain.neighbourhoods import whitening
from hydragnn.ensemble.domain.references import References
from hydragnn.ensemble.domain.stored import Stored
from hydragnn.ensemble.domain.view import Array, GraphView, per_segment


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Structure:
    """Means and standard deviations of nodes' features in training graphs."""

    name: ClassVar[str] = "structure"

    mean: Float[Array, " features"]
    whitening: Float[Array, "features features"]
    references: References
    """Whitened."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The distance."""
        return (Channel(slack=1.0),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the distance from the nearest training graph, in standard deviations."""
        return self.references.distances((graph_features(view) - self.mean) @ self.whitening.T)[:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the words for a distant graph."""
        return "numbers and distances of neighbours are, over the graph, unlike those of any training graph"

    def settings(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def tensors(self) -> dict[str, Array]:
        """Everything."""
        return {"mean": self.mean, "whitening": self.whitening, "references": self.references.points}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Structure":
        """Return the detector with these tensors.

        ValueError, KeyError or TypeError where they do not fit the graphs.

        ValueError, KeyError or TypeError where they do not fit the graphs.
        """
        features = 2 * stored.features
        return cls(
            mean=stored.numbers("mean", features),
            whitening=stored.numbers("whitening", features, features),
            references=References(stored.numbers("references", None, features), 2),
        )


def graph_features(view: GraphView) -> Float[Array, "graphs features"]:
    """Return mean and standard deviation over the nodes of every graph."""
    counts = np.maximum(np.diff(view.node_rows), 1)[:, None]
    mean = per_segment(np.add, view.neighbourhoods, view.node_rows) / counts
    away = view.neighbourhoods - np.repeat(mean, np.diff(view.node_rows), axis=0)
    return np.concatenate([mean, np.sqrt(per_segment(np.add, away**2, view.node_rows) / counts)], axis=1)


class StructureFit:
    """Collects graphs."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._points: list[Array] = []

    def show(self, view: GraphView) -> None:
        """Note some graphs."""
        self._points.append(graph_features(view))

    def detectors(self) -> list[Detector]:
        """The graphs, whitened."""
        if not self._points:
            return []
        points = np.concatenate(self._points)
        mean = points.mean(axis=0)
        matrix = whitening(np.cov(points.T, bias=True).reshape(len(mean), len(mean)))
        return [Structure(mean=mean, whitening=matrix, references=References((points - mean) @ matrix.T, 2))]
