"""Uncertainty of members about whole graphs, and its detectors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from hydragnn.ensemble.domain.detector import Channel, Detector, Stored
from hydragnn.ensemble.domain.view import Array, GraphView, Numbers
from hydragnn.ensemble.estimates import Estimate
from hydragnn.ensemble.latent import LatentSpace
from hydragnn.ensemble.members import Outcome

STATES = "final states"
"""Name among doubts, which no field can have: the distance of states from those of training."""


def graph_doubts(
    estimates: Mapping[str, Estimate], owners: Mapping[str, Int[Numbers, " items"]], graphs: int
) -> dict[str, Float[Array, " graphs"]]:
    """Return the largest uncertainty within every graph, by target; NaN without values."""
    doubts = {}
    for name, one in estimates.items():
        doubt, result = one.doubt, np.full(graphs, -np.inf)
        largest = doubt.reshape(len(doubt), math.prod(doubt.shape[1:])).max(axis=1, initial=-np.inf)
        np.maximum.at(result, owners[name], np.nan_to_num(largest, nan=-np.inf))
        doubts[name] = np.where(np.isfinite(result), result, np.nan)
    return doubts


def state_doubts(outcomes: Sequence[Outcome], weights: Float[Array, " members"]) -> dict[str, Float[Array, " graphs"]]:
    """Return the mean distance of final states from those of training."""
    distances = np.stack([one.distances for one, weight in zip(outcomes, weights, strict=True) if weight > 0])
    return {STATES: np.average(distances, axis=0, weights=weights[weights > 0])}


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread(Detector):
    """Targets whose uncertainty differs from item to item."""

    name: ClassVar[str] = "spread"

    targets: Mapping[str, str]
    """The kind of doubt about each: std, entropy."""
    per_node: tuple[str, ...]
    """Targets that grow with the number of nodes, whose doubts are divided by it."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return one per target."""
        return tuple(Channel(slack=0.1) for _ in self.targets)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the logarithm of the largest doubt within every graph."""
        nodes = np.maximum(np.diff(view.node_rows), 1)
        columns = [view.doubts[name] / (nodes if name in self.per_node else 1) for name in self.targets]
        return np.log(np.maximum(np.stack(columns, axis=1), 1e-30))

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return target and doubt in words."""
        name = list(self.targets)[channel]
        return f"members are unsure about {name} ({self.targets[name]} {view.doubts[name][graph]:.3g})"

    def settings(self) -> dict[str, Any]:
        """Return everything."""
        return {"targets": dict(self.targets), "per_node": list(self.per_node)}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Spread":
        """Return the detector; ValueError where there is no such target."""
        unknown = [name for name in settings["targets"] if name not in stored.fields]
        if unknown:
            raise ValueError(f"there is no target {unknown[0]}")
        return cls(targets=dict(settings["targets"]), per_node=tuple(settings["per_node"]))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Latent(Detector):
    """Final states of training graphs, per member."""

    name: ClassVar[str] = "latent"

    spaces: tuple[LatentSpace, ...]
    """One per member."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return the distance."""
        return (Channel(slack=0.1),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the logarithm of the mean distance over nodes, mean of members."""
        return view.doubts[STATES][:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the distance in words."""
        return f"members' final states of its nodes are unlike those of training graphs (distance {np.exp(value):.3g})"

    def settings(self) -> dict[str, Any]:
        """Return the number of members."""
        return {"members": len(self.spaces)}

    def tensors(self) -> dict[str, Array]:
        """Return a matrix per member."""
        return {str(number): space.whitening for number, space in enumerate(self.spaces)}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Latent":
        """Return the detector; ValueError unless every member has a square matrix."""
        matrices = [stored.numbers(str(number), None, None) for number in range(settings["members"])]
        if any(one.shape[0] != one.shape[1] for one in matrices):
            raise ValueError("second moments of states are no square")
        return cls(spaces=tuple(LatentSpace(whitening=one) for one in matrices))
