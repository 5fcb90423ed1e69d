"""Detectors of foreign graphs, their files, and batches as they see them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from dataclasses import field as member
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from hydragnn.ensemble.estimates.moments import Array
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field

Numbers = np.ndarray

LARGEST_TABLE = 128
"""Kinds of nodes that have statistics of their own; where a field has more, all nodes are of one kind."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Doubts:
    """Uncertainty of members about some graphs and their nodes."""

    of_graphs: Mapping[str, Float[Array, "graphs _"]] = member(default_factory=dict)
    """By target, the largest doubt within every graph and its root mean square, and how far its ``STATES`` are; NaN where it has none."""
    of_nodes: Mapping[str, Float[Array, " nodes"]] = member(default_factory=dict)
    """By target on nodes, the doubt about each, and how far its ``STATES`` are; NaN where it has none."""

    def select(self, graphs: Numbers, nodes: Numbers) -> "Doubts":
        """Return the doubts about these graphs, which have these nodes."""
        return Doubts(
            of_graphs={name: values[graphs] for name, values in self.of_graphs.items()},
            of_nodes={name: values[nodes] for name, values in self.of_nodes.items()},
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphView:
    """A batch, and how unsure the ensemble is about its graphs."""

    batch: GraphBatch
    scale: float
    """The length that lengths are measured in; 1 for graphs without geometry."""
    doubts: Doubts = member(default_factory=Doubts)
    items: Callable[[str, int], str] | None = None
    """Returns words for the items of a target that members doubt most in a graph."""

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def lengths(self) -> Float[Array, " edges"]:
        """Return lengths of all edges over the scale; none without geometry."""
        if not self.batch.dim:
            return np.zeros(0)
        return np.maximum(edge_vectors(self.batch).norm(dim=1).numpy() / self.scale, 1e-9)

    @cached_property
    def edge_rows(self) -> Int[Numbers, " nodes_plus_one"]:
        """Return the first incoming edge of every node."""
        return self.batch.topology.row_offsets.numpy()

    @cached_property
    def node_rows(self) -> Int[Numbers, " graphs_plus_one"]:
        """Return the first node of every graph."""
        return self.batch.node_offsets.numpy()

    def kinds(self, field: str) -> Int[Numbers, " nodes"]:
        """Return the class of every node; zeros without such a field."""
        if field not in self.batch.fields:
            return np.zeros(self.batch.num_nodes, dtype=np.int64)
        return self.batch[field].reshape(-1).numpy()

    def most(self, graph: int, of_nodes: Float[Array, " nodes"]) -> int:
        """Return the position in its graph of the largest node."""
        return int(np.nan_to_num(of_nodes[self.node_rows[graph] : self.node_rows[graph + 1]]).argmax())

    def largest(self, of_nodes: Float[Array, "nodes channels"]) -> Float[Array, "graphs channels"]:
        """Return the largest of every graph's nodes; zero without nodes."""
        return per_segment(np.maximum, of_nodes, self.node_rows)


def per_segment(
    ufunc: np.ufunc, values: Float[Array, "items channels"], offsets: Int[Numbers, " segments_plus_one"]
) -> Float[Array, "segments channels"]:
    """Return every segment's values reduced by a ufunc; zeros if empty.

    >>> per_segment(np.add, np.array([[1.0], [2.0], [4.0]]), np.array([0, 2, 2, 3])).ravel()
    array([3., 0., 4.])
    """
    result = np.zeros((len(offsets) - 1, values.shape[1]))
    is_filled = np.diff(offsets) > 0
    if is_filled.any():
        result[is_filled] = ufunc.reduceat(values, offsets[:-1][is_filled], axis=0)
    return result


def species_field(inputs: Mapping[str, Field]) -> str:
    """Return the field of classes that distinguishes nodes; "" without one."""
    candidates = [
        field.name
        for field in inputs.values()
        if field.on == "node" and field.width == 1 and 0 < field.classes <= LARGEST_TABLE
    ]
    return ATOMIC_NUMBERS if ATOMIC_NUMBERS in candidates else candidates[0] if candidates else ""


def length_scale(batch: GraphBatch) -> float:
    """Return the longest edge of a batch; 1 without lengths."""
    longest = float(edge_vectors(batch).norm(dim=1).max()) if batch.dim and batch.num_edges else 0.0
    return longest if longest > 0 and math.isfinite(longest) else 1.0


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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Detector(ABC):
    """One way of being foreign, fitted on the training part."""

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
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {name: value for name, value in plain.items() if not isinstance(value, np.ndarray)}

    def tensors(self) -> dict[str, Array]:
        """Return the numbers by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value.astype(np.float64) for name, value in values.items() if isinstance(value, np.ndarray)}

    @classmethod
    @abstractmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Detector":
        """Return the detector with these settings and tensors.

        ValueError, KeyError or TypeError where they do not fit the graphs.
        """
