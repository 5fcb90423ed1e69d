"""Detectors: values per graph that grow with foreignness, and their files."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.view import Array, GraphView, Numbers
from hydragnn.graphs.field import Field


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """One number that a detector has for every graph or node."""

    slack: float
    """The least unit of its excess over the usual value, whatever held-out graphs showed."""
    exact: bool = False
    """The number is 0, or above 0 for what training never showed: a graph with it is flagged whatever its score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Tensors of a detector in a file, checked before use."""

    tensors: Mapping[str, Array]
    fields: Mapping[str, Field]
    """Inputs of members by name, and their predictions by target."""

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
        if field not in self.fields or not self.fields[field].classes:
            raise ValueError(f"there is no field {field} of classes")
        ascend = len(values) > 0 and bool((np.diff(values) > 0).all())
        # the ends decide for all: the number of classes comes from a file, and may be huge
        if not ascend or (values % 1 != 0).any() or values[0] < 0 or values[-1] >= self.fields[field].classes:
            raise ValueError(f"the tensor {name} does not hold classes of {field}")
        return values.astype(np.int64)


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
