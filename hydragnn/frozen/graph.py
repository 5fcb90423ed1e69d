"""Graphs as the public HydraGNN batches them."""

from dataclasses import dataclass, field, replace
from typing import Any

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
    branch: Int[Tensor, " graphs"] | None = None
    """Branch of every graph; None is 0."""
    pe: Float[Tensor, "nodes _"] | None = None
    rel_pe: Float[Tensor, "edges _"] | None = None
    fixed_vectors: Float[Tensor, "edges 3"] | None = None
    """Taken for all edges in the place of positions, for derivatives by them."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """Inputs of layers that a kind computes once for all of its layers."""

    def vectors(self, pos: Float[Tensor, "nodes 3"] | None = None) -> Float[Tensor, "edges 3"]:
        """Vectors from sender to receiver, at these positions or its own."""
        if self.fixed_vectors is not None and pos is None:
            return self.fixed_vectors
        at = self.pos if pos is None else pos
        vectors = at.index_select(0, self.edge_index[1]) - at.index_select(0, self.edge_index[0])
        return vectors if self.edge_shifts is None else vectors + self.edge_shifts

    def lengths(self) -> Float[Tensor, "edges 1"]:
        """Lengths of vectors."""
        return torch.linalg.vector_norm(self.vectors(), dim=1, keepdim=True)

    def to(self, dtype: torch.dtype) -> "FrozenGraph":
        """Return the graphs with all real numbers in one precision."""
        values = vars(self).items()
        reals: dict[str, Any] = {
            name: v.to(dtype) for name, v in values if isinstance(v, Tensor) and v.is_floating_point()
        }
        return replace(self, **reals)
