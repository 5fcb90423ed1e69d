"""Detectors: values per graph that grow with foreignness, and their files."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from hydragnn.ensemble.domain.view import FEATURES, Array, GraphView, Numbers
from hydragnn.graphs.field import Field

FLOOR = 0.03
"""Standard deviation that every feature has at least; features are logarithms, or in units of their deviation, so that it is a relative one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """One number that a detector has for every graph or node."""

    slack: float
    """The least unit of its excess over the usual value, whatever held-out graphs showed."""
    exact: bool = False
    """The number is 0, or above 0 for what training never showed: a graph with it is flagged whatever its score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Tensors of a detector in a file, checked before use; the file may come from anyone."""

    tensors: Mapping[str, Array]
    fields: Mapping[str, Field]
    """Inputs of members by name, and their predictions by target."""
    dim: int

    @property
    def features(self) -> int:
        """Return the number of features of the geometry around a node."""
        return len(FEATURES) if self.dim else 1

    def numbers(self, name: str, *shape: int | None, largest: float = np.finfo(np.float64).max) -> Array:
        """Return the tensor of that name and shape; ValueError otherwise."""
        values = self.tensors[name]
        fits = len(shape) == values.ndim and all(
            size is None or size == actual for size, actual in zip(shape, values.shape)
        )
        if values.dtype != np.float64 or not fits or not (np.abs(values) <= largest).all():
            raise ValueError(
                f"the tensor {name} is {values.dtype} {list(values.shape)}, not float64 {list(shape)}, or not finite"
            )
        return values

    def kinds(self, name: str, field: str) -> Numbers:
        """Return the tensor of that name as ascending classes; ValueError otherwise."""
        values = self.numbers(name, None)
        declared = self.field(field, classes=True)
        ascend = len(values) > 0 and bool((np.diff(values) > 0).all())
        # the ends decide for all: the number of classes comes from a file, and may be huge
        if not ascend or (values % 1 != 0).any() or values[0] < 0 or values[-1] >= declared.classes:
            raise ValueError(f"the tensor {name} does not hold classes of {field}")
        return values.astype(np.int64)

    def field(self, name: str, *, classes: bool) -> Field:
        """Return the field of that name; ValueError unless it exists."""
        if name not in self.fields or bool(self.fields[name].classes) != classes:
            raise ValueError(f"there is no field {name} of {'classes' if classes else 'numbers'}")
        return self.fields[name]


class Detector(ABC):
    """One way of being foreign, fitted on the training part."""

    __slots__ = ()

    name: ClassVar[str]

    @property
    @abstractmethod
    def channels(self) -> tuple[Channel, ...]:
        """Return the columns of ``values``."""

    @abstractmethod
    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return how foreign every graph is; NaN where unknown."""

    @property
    def node_channels(self) -> tuple[Channel, ...]:
        """Return the columns of ``node_values``; none of a detector of whole graphs."""
        return ()

    def node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        """Return how foreign every node is; NaN where unknown."""
        return np.zeros((view.batch.num_nodes, 0))

    @abstractmethod
    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the words for what is foreign about a graph."""

    def settings(self) -> dict[str, Any]:
        """Return all that is no tensor, as plain JSON."""
        return {}

    def tensors(self) -> dict[str, Array]:
        """Return the numbers by name."""
        return {}

    @classmethod
    @abstractmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Detector":
        """Return the detector with these settings and tensors.

        ValueError, KeyError or TypeError where they do not fit the graphs.
        """


@runtime_checkable
class Fit(Protocol):
    """A detector in the making, shown one training batch after the other."""

    def show(self, view: GraphView) -> None:
        """Note some graphs of the training part."""

    def detectors(self) -> list[Detector]:
        """Return the fitted detectors; none where nothing applies."""


class References:
    """Points of training graphs, and distances from the nearest of them."""

    def __init__(self, points: Float[Array, "references features"], power: int) -> None:
        """Take sums of differences (``power`` 1) or Euclidean distances (2)."""
        self.points, self.power = points, power

    @cached_property
    def _tree(self) -> KDTree:
        return KDTree(self.points)

    def distances(self, points: Float[Array, "graphs features"]) -> Float[Array, " graphs"]:
        """Return the distance of every point from the nearest training graph."""
        result = np.full(len(points), np.nan)
        finite = np.isfinite(points).all(axis=1)
        if finite.any() and len(self.points):
            distinct, which = np.unique(points[finite], axis=0, return_inverse=True)
            result[finite] = self._tree.query(distinct, p=self.power)[0][which.reshape(-1)]
        return result


def whitening(covariance: Float[Array, "features features"]) -> Float[Array, "features features"]:
    """Return the matrix that makes features uncorrelated with variance 1."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors.T / np.sqrt(np.maximum(values, 0.0) + FLOOR**2)[:, None]
