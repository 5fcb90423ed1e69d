"""One full matrix per kind of edge: relational convolution (Schlichtkrull et al. 2017, arXiv:1703.06103, equation 2)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hydragnn.kernels import Topology, gather_multiply_sum, relation_topology


class Level(NamedTuple):
    """The nodes that a layer changes (None: all), and their edges keyed by (receiver, relation)."""

    nodes: Int[Tensor, " level_nodes"] | None
    keyed: Topology


def whole_level(topology: Topology, relation: Int[Tensor, " edges"], relations: int) -> Level:
    """All nodes and all edges."""
    return Level(None, relation_topology(topology, relation, relations))


def level_of(
    topology: Topology, relation: Int[Tensor, " edges"], relations: int, chosen: Int[Tensor, " level_edges"]
) -> Level:
    """The chosen edges and the nodes at their ends, renumbered.

    >>> edges = Topology(senders=torch.tensor([2, 0]), receivers=torch.tensor([0, 2]), num_columns=3, num_rows=3)
    >>> level = level_of(edges, torch.tensor([0, 0]), 1, torch.tensor([0, 1]))
    >>> level.nodes.tolist(), level.keyed.senders.tolist()
    ([0, 2], [1, 0])
    """
    senders = topology.senders.index_select(0, chosen)
    receivers = topology.receivers.index_select(0, chosen)
    touched = torch.zeros(topology.num_rows, dtype=torch.bool, device=senders.device)
    touched[senders] = True
    touched[receivers] = True
    nodes = touched.nonzero().squeeze(1)
    place = touched.cumsum(0) - 1
    local = Topology(
        senders=place.index_select(0, senders),
        receivers=place.index_select(0, receivers),
        num_columns=nodes.shape[0],
        num_rows=nodes.shape[0],
    )
    return Level(nodes, relation_topology(local, relation.index_select(0, chosen), relations))


class RelationalLayer(nn.Module):
    """Sums over the neighbours of each kind, a matrix for every kind, and a network per node.

    The last matrix starts small, so that many layers in a row start near the identity.
    """

    def __init__(self, channels: int, relations: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.own = nn.Linear(channels, channels)
        self.told = nn.Linear(relations * channels, channels, bias=False)
        self.out = nn.Linear(channels, channels)
        nn.init.normal_(self.out.weight, std=0.3 * channels**-0.5)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, states: Float[Tensor, "level_nodes channels"], keyed: Topology
    ) -> Float[Tensor, "level_nodes channels"]:
        """Increment of the states; ``keyed`` has one row per (receiver, relation)."""
        states = self.norm(states)
        sums = gather_multiply_sum(states, None, keyed).reshape(states.shape[0], self.told.in_features)
        return self.out(nn.functional.silu(self.own(states) + self.told(sums)))
