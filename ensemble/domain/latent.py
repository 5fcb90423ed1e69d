"""How unlike those of training the final states of a graph are, which the heads of members read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel
from hydragnn.ensemble.domain.doubts import STATES
from hydragnn.ensemble.domain.stored import Stored
from hydragnn.ensemble.domain.view import Array, GraphView
from hydragnn.ensemble.latent import LatentSpace


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Latent:
    """What every member knows of the states of its training graphs; members look at graphs, the detector at what they find."""

    name: ClassVar[str] = "latent"

    spaces: tuple[LatentSpace, ...]
    """One per member."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The distance."""
        return (Channel(slack=0.1),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """The logarithm of the mean distance over nodes, mean of members."""
        return view.doubts[STATES][:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """How far away."""
        return f"members' final states of its nodes are unlike those of training graphs (distance {np.exp(value):.3g})"

    def settings(self) -> dict[str, Any]:
        """How many members there are."""
        return {"members": len(self.spaces)}

    def tensors(self) -> dict[str, Array]:
        """A matrix per member."""
        return {str(number): space.whitening for number, space in enumerate(self.spaces)}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Latent":
        """The detector that these are of; ValueError, KeyError or TypeError where there is no square matrix of each member."""
        matrices = [stored.numbers(str(number), None, None) for number in range(settings["members"])]
        if any(one.shape[0] != one.shape[1] for one in matrices):
            raise ValueError("second moments of states are no square")
        return cls(spaces=tuple(LatentSpace(whitening=one) for one in matrices))
