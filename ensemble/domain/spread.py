"""Uncertainty of the ensemble about a graph, by its members."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel
from hydragnn.ensemble.domain.stored import Stored
from hydragnn.ensemble.domain.view import Array, GraphView


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Targets whose uncertainty differs from item to item."""

    name: ClassVar[str] = "spread"

    targets: Mapping[str, str]
    """What doubts about each are called: std, entropy."""
    per_node: tuple[str, ...]
    """Those that grow with the number of nodes, whose doubts are divided by it."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """One per target."""
        return tuple(Channel(slack=0.1) for _ in self.targets)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """The logarithm of the largest doubt within every graph."""
        nodes = np.maximum(np.diff(view.node_rows), 1)
        columns = [view.doubts[name] / (nodes if name in self.per_node else 1) for name in self.targets]
        return np.log(np.maximum(np.stack(columns, axis=1), 1e-30))

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """The target and the doubt."""
        name = list(self.targets)[channel]
        return f"members are unsure about {name} ({self.targets[name]} {view.doubts[name][graph]:.3g})"

    def settings(self) -> dict[str, Any]:
        """Everything."""
        return {"targets": dict(self.targets), "per_node": list(self.per_node)}

    def tensors(self) -> dict[str, Array]:
        """Nothing."""
        return {}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Spread":
        """Return the detector with these settings.

        ValueError, KeyError or TypeError where there are no such targets.

        ValueError, KeyError or TypeError where there are no such targets.
        """
        unknown = [name for name in settings["targets"] if name not in stored.fields]
        if unknown:
            raise ValueError(f"there is no target {unknown[0]}")
        return cls(targets=dict(settings["targets"]), per_node=tuple(settings["per_node"]))
