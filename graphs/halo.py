"""Halo of a part: nodes that other ranks own."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hydragnn.graphs.field import Location
from hydragnn.graphs.topology import HasTensors


@runtime_checkable
class Peers(Protocol):
    """Ranks that share graphs, with sums and exchanges that have no derivatives."""

    @property
    def rank(self) -> int:
        """Return the number of this rank among its peers."""

    @property
    def size(self) -> int:
        """Return the number of peers."""

    def swap(self, rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
        """Send ``sent[r]`` consecutive rows to every peer r; return ``received[r]`` of each."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all peers, the same bits on each."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Halo(HasTensors):
    """Nodes of a batch that this rank owns, and rows to exchange.

    A batch with a halo is one rank's part of a batch. Its graphs have the nodes that the rank owns, and behind them copies of the
    nodes of other ranks that send to these. An edge is where its receiver is owned.
    """

    peers: Peers
    rows: Int[Tensor, " copies"]
    """Rows of the copies, in the order in which their states arrive."""
    sent: Int[Tensor, " sent"]
    """Rows whose states are sent, in the order of peers; a row may stand there for several."""
    copies_from: tuple[int, ...]
    """Number of copies of nodes of each peer."""
    sent_to: tuple[int, ...]
    """Number of rows sent to each peer."""
    owned: Bool[Tensor, " nodes"]
    """Nodes that this rank owns."""
    numbers: Int[Tensor, " nodes"]
    """Number of every node in the whole batch."""
    nodes_per_graph: Int[Tensor, " graphs"]
    """Nodes of every graph, on all ranks."""
    crosses: bool
    """Some edge of the whole batch joins nodes of two ranks."""

    def counted(self, location: Location, items: int) -> Bool[Tensor, " items"]:
        """Return a bool per item: its label counts on this rank.

        Labels of nodes count where they are owned, of edges where they are, and of graphs on the first rank.
        """
        if location == "node":
            return self.owned
        return torch.full((items,), location == "edge" or self.peers.rank == 0, device=self.owned.device)
