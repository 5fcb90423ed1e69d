"""One full matrix per kind of edge: relational convolution (Schlichtkrull et al. 2017, arXiv:1703.06103, equation 2)."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hydragnn.kernels import Topology, gather_multiply_sum, relation_topology

Reduce = Literal["sum", "mean", "sqrt"]


class Level(NamedTuple):
    """The nodes that a layer changes (None: all), their edges keyed by (receiver, relation), and weights of the edges."""

    nodes: Int[Tensor, " level_nodes"] | None
    keyed: Topology
    weight: Float[Tensor, " level_edges"] | None


def level_of(
    topology: Topology,
    relation: Int[Tensor, " edges"],
    relations: int,
    reduce: Reduce,
    dtype: torch.dtype,
    chosen: Int[Tensor, " level_edges"] | None = None,
) -> Level:
    """The chosen edges and the nodes at their ends, renumbered; without a choice all edges and all nodes.

    >>> edges = Topology(senders=torch.tensor([2, 0]), receivers=torch.tensor([0, 2]), num_columns=3, num_rows=3)
    >>> level = level_of(edges, torch.tensor([0, 0]), 1, "sum", torch.float32, torch.tensor([0, 1]))
    >>> level.nodes.tolist(), level.keyed.senders.tolist()
    ([0, 2], [1, 0])
    """
    nodes = None
    if chosen is not None:
        topology, nodes = _part_of(topology, chosen)
        relation = relation.index_select(0, chosen)
    keyed = relation_topology(topology, relation, relations)
    if reduce == "sum":
        return Level(nodes, keyed, None)
    shares = keyed.degrees.clamp_min(1).double().reciprocal()
    weight = (shares if reduce == "mean" else shares.sqrt()).to(dtype).index_select(0, keyed.receivers)
    return Level(nodes, keyed, weight)


def _part_of(topology: Topology, chosen: Tensor) -> tuple[Topology, Tensor]:
    """The chosen edges between the nodes that they touch, and the numbers of these nodes."""
    senders = topology.senders.index_select(0, chosen)
    receivers = topology.receivers.index_select(0, chosen)
    touched = torch.zeros(topology.num_rows, dtype=torch.bool, device=senders.device)
    touched[senders] = True
    touched[receivers] = True
    nodes = touched.nonzero().squeeze(1)
    place = touched.cumsum(0) - 1
    part = Topology(
        senders=place.index_select(0, senders),
        receivers=place.index_select(0, receivers),
        num_columns=nodes.shape[0],
        num_rows=nodes.shape[0],
    )
    return part, nodes


class RelationalLayer(nn.Module):
    """Sums (or means) over the neighbours of each kind, a matrix for every kind, and a network per node.

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
        self, states: Float[Tensor, "level_nodes channels"], level: Level
    ) -> Float[Tensor, "level_nodes channels"]:
        """Increment of the states of a level's nodes."""
        states = self.norm(states)
        sums = gather_multiply_sum(states, level.weight, level.keyed).reshape(states.shape[0], self.told.in_features)
        return self.out(nn.functional.silu(self.own(states) + self.told(sums)))
