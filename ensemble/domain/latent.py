"""Distance of a graph's final states from those of training."""

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
    """Final states of training graphs, per member."""

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
        """Return the words for the distance."""
        return f"members' final states of its nodes are unlike those of training graphs (distance {np.exp(value):.3g})"

    def settings(self) -> dict[str, Any]:
        """Return the number of members."""
        return {"members": len(self.spaces)}

    def tensors(self) -> dict[str, Array]:
        """A matrix per member."""
        return {str(number): space.whitening for number, space in enumerate(self.spaces)}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Latent":
        """Return the detector with these tensors.

        ValueError, KeyError or TypeError unless there is a square matrix of each member.

        ValueError, KeyError or TypeError unless there is a square matrix of each member.
        """
        matrices = [stored.numbers(str(number), None, None) for number in range(settings["members"])]
        if any(one.shape[0] != one.shape[1] for one in matrices):
            raise ValueError("second moments of states are no square")
        return cls(spaces=tuple(LatentSpace(whitening=one) for one in matrices))
