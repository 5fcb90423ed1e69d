"""What an encoder sees of the edges of a batch."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydragnn.kernels import Topology


class States(NamedTuple):
    """What an encoder gives to the heads: invariant states and, from equivariant encoders, vectors."""

    scalars: Float[Tensor, "nodes channels"]
    vectors: Float[Tensor, "nodes dim channels"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edges:
    """Topology, geometry and features of all edges; geometry is None where graphs have none.

    ``lengths`` and ``directions`` of an edge of length zero (a node that is its own neighbour) are 1e-6 and zero, with
    zero derivatives of every order.
    """

    topology: Topology
    lengths: Float[Tensor, " edges"] | None = None
    directions: Float[Tensor, "edges dim"] | None = None
    features: Float[Tensor, "edges features"] | None = None
    relation: Int[Tensor, " edges"] | None = None
    level: Int[Tensor, " edges"] | None = None


def lengths_and_directions(
    vectors: Float[Tensor, "edges dim"],
) -> tuple[Float[Tensor, " edges"], Float[Tensor, "edges dim"]]:
    """Length and unit vector of every edge; a vector of length zero has direction zero and no derivatives.

    >>> lengths_and_directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))[1]
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    square = (vectors * vectors).sum(-1)
    zero = square == 0
    lengths = torch.where(zero, 1e-12, square).sqrt()
    directions = vectors / lengths.unsqueeze(-1)
    return lengths, directions.masked_fill(zero.unsqueeze(-1), 0.0)
