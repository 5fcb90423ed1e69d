"""Architectures whose nodes may move between layers."""

from typing import Literal

from pydantic import model_validator

from hydragnn.architectures.base import Architecture, GeometricSettings, Use
from hydragnn.layers import MessageGraph, States, at_rest


class MovingSettings(GeometricSettings):
    """Nodes rest, or move after every layer but the last."""

    moving_coordinates: bool = False
    """Move the nodes after every layer but the last, along their edges, so that later layers see other lengths (equation 4 of arXiv:2102.09844)."""

    movement: Literal["sum", "mean"] = "sum"
    """Movement of nodes: sum adds up f(m_ij) r_ij over neighbours, ended by the envelope; mean is the public HydraGNN's form, the mean of
    f(m_ij) r_ij / (|r_ij| + 1), with tanh of f in egnn, which jumps where a neighbour comes or goes."""

    @model_validator(mode="after")
    def _check_movement(self) -> "MovingSettings":
        if self.movement != "sum" and not self.moving_coordinates:
            raise ValueError(
                "movement is how nodes move, and they rest; set moving_coordinates = true, or leave it out"
            )
        return self

    @property
    def kinks(self) -> str:
        """Description of the kinks of a mean."""
        if self.movement == "sum":
            return ""
        return (
            'with movement = "mean" energies jump where a neighbour crosses the cutoff, because a mean over neighbours counts it at '
            'once; movement = "sum" has no such steps'
        )


class MovingArchitecture(Architecture):
    """Architecture with these settings; nodes that move belong to one level."""

    @classmethod
    def limit(cls, settings: MovingSettings, use: Use) -> str:
        """Return the reason against a use: nodes that move belong to one level."""
        moves = use == "pooling" and settings.moving_coordinates
        return "moves its nodes (moving_coordinates)" if moves else super().limit(settings, use)

    def finish(self, states: States, graph: MessageGraph) -> States:
        """The states without what only layers need."""
        return at_rest(states)
