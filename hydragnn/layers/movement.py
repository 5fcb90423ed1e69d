"""Nodes that move from layer to layer (arXiv:2102.09844, eq. 4)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import outer_sum, silu
from hydragnn.layers.message_graph import MessageGraph, States

MOVED = -1
"""Under this number states say how far nodes have moved from where they were, ``[nodes, dim]``."""


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
        vectors = shifted_graph.known_vectors("vectors")
        pull = self.last(silu(self.first(messages)))  # [edges, 1]
        pull = pull if envelope is None else pull * envelope
        step = outer_sum(pull, vectors, shifted_graph.topology).squeeze(-1)  # [nodes, dim]
        return states[MOVED] + step if MOVED in states else step


class MeanMovement(Movement):
    """Displacement by the mean over neighbours.

    d_i <- d_i + mean_j g(f(m_ij)) r_ij / (|r_ij| + 1), the form of the public HydraGNN: g is tanh in its EGNN (``bounded``), nothing in its SchNet.

    The 1 is one unit of length. No envelope ends what a neighbour does, since the mean counts it anyhow. Deviates from HydraGNN in that no step is
    clamped at 100 along each axis, which would not turn with the graph.
    """

    def __init__(self, channels: int, *, bounded: bool) -> None:
        super().__init__(channels)
        self.bounded = bounded

    def forward(
        self,
        states: States,
        messages: Float[Tensor, "edges channels"],
        envelope: Float[Tensor, "edges 1"] | None,
        shifted_graph: MessageGraph,
    ) -> Float[Tensor, "nodes dim"]:
        """Return the displacement of every node from its first position."""
        topology, vectors = shifted_graph.topology, shifted_graph.known_vectors("vectors")
        pull = self.last(silu(self.first(messages)))  # [edges, 1]
        pull = (torch.tanh(pull) if self.bounded else pull) / (shifted_graph.lengths.unsqueeze(-1) + 1)
        total = outer_sum(pull, vectors, topology).squeeze(-1)  # [nodes, dim]
        step = total / topology.degrees.clamp_min(1).to(total.dtype).unsqueeze(-1)
        return states[MOVED] + step if MOVED in states else step


def where_moved(states: States, graph: MessageGraph) -> MessageGraph:
    """The graph as earlier layers left it."""
    return graph.moved(states[MOVED]) if MOVED in states else graph


def at_rest(states: States) -> States:
    """The states that heads read: without how far nodes moved."""
    return {degree: values for degree, values in states.items() if degree != MOVED}
