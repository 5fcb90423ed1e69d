"""Graphs as the public HydraGNN batches them."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class FrozenGraph:
    """Batch of graphs, nodes end to end."""

    x: Float[Tensor, "nodes _"]
    pos: Float[Tensor, "nodes 3"]
    edge_index: Int[Tensor, "2 edges"]
    """Row 0 the sender, row 1 the receiver."""
    batch: Int[Tensor, " nodes"]
    """Number of the graph of every node, ascending."""
    num_graphs: int
    edge_shifts: Float[Tensor, "edges 3"] | None = None
    """Cartesian; None is zero."""
    edge_attr: Float[Tensor, "edges _"] | None = None
    graph_attr: Float[Tensor, "graphs _"] | None = None
    pe: Float[Tensor, "nodes _"] | None = None
    rel_pe: Float[Tensor, "edges _"] | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    """Inputs of layers that a kind computes once for all of its layers."""

    def vectors(self) -> Float[Tensor, "edges 3"]:
        """Vectors from sender to receiver."""
        senders, receivers = self.edge_index
        vectors = self.pos.index_select(0, receivers) - self.pos.index_select(0, senders)
        return vectors if self.edge_shifts is None else vectors + self.edge_shifts

    def lengths(self) -> Float[Tensor, "edges 1"]:
        """Lengths of vectors."""
        return torch.linalg.vector_norm(self.vectors(), dim=1, keepdim=True)
