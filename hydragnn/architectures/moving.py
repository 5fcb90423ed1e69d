"""Nodes that move from layer to layer (arXiv:2102.09844, eq. 4)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, Use
from hydragnn.kernels import outer_sum, silu
from hydragnn.layers.message_graph import MessageGraph, States

MOVED = -1
"""Number under which states say how far nodes have moved from where they were, ``[nodes, dim]``."""


class Movement(nn.Module):
    """Displacement by the sum over neighbours.

    d_i <- d_i + sum_j u(r_ij) f(m_ij) r_ij: every neighbour draws or pushes a node along the edge between them.

    f begins small, so that graphs keep their shape at first. The envelope u is that of the lengths before anything moved.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, channels)
        self.last = nn.Linear(channels, 1, bias=False)
        with torch.no_grad():
            self.last.weight.mul_(0.01)

    def forward(
        self,
        states: States,
        messages: Float[Tensor, "edges channels"],
        envelope: Float[Tensor, "edges 1"] | None,
        shifted_graph: MessageGraph,
    ) -> Float[Tensor, "nodes dim"]:
        """Return the displacement of every node from its first position."""
        pull = self.last(silu(self.first(messages)))  # [edges, 1]
        pull = pull if envelope is None else pull * envelope
        step = outer_sum(pull, shifted_graph.known_vectors("vectors"), shifted_graph.topology).squeeze(
            -1
        )  # [nodes, dim]
        return states[MOVED] + step if MOVED in states else step


def where_moved(states: States, graph: MessageGraph) -> MessageGraph:
    """The graph as earlier layers left it."""
    return graph.moved(states[MOVED]) if MOVED in states else graph


def at_rest(states: States) -> States:
    """The states that heads read: without how far nodes moved."""
    return {degree: values for degree, values in states.items() if degree != MOVED}


class MovingSettings(GeometricSettings):
    """Nodes rest, or move after every layer but the last."""

    moving_coordinates: bool = False
    """Move the nodes after every layer but the last, along their edges, so that later layers see other lengths (equation 4 of arXiv:2102.09844)."""

    removed: ClassVar = {"movement": "sum"}


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
