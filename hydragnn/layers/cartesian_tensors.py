"""Tensors of rank 2 as matrices: X = I + A + S."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.layers.harmonics import coupling
from hydragnn.layers.message_graph import States

DEGREES = (0, 1, 2)
"""Of the parts I, A and S."""
SQUARES = (3.0, 2.0, 1.0)
"""Sum of squares of the entries of the matrix that belongs to one component of a part."""


class TensorParts(nn.Module):
    """Conversion between 3 x 3 matrices and their parts.

    X = i Id + [a] + sum_k s_k E_k: a number i, a vector a with [a] b = a x b, and five components s of what is symmetric and has no trace.

    With vectors a and b that change their sign with the positions, [a] [b] + [b] [a] has no part [c], and [a] E + E [a] has that part alone: A
    stays a vector and I and S stay even, through whatever products of this form (Simeon and De Fabritiis 2023, arXiv:2306.06482, section 3.1).
    E_k are orthonormal.

    >>> tensors = TensorParts()
    >>> vector = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> tensors.matrices({0: torch.ones(1, 1), 1: vector, 2: torch.zeros(1, 5, 1)})[0, :, :, 0]
    tensor([[ 1., -3.,  2.],
            [ 3.,  1., -1.],
            [-2.,  1.,  1.]])
    """

    rows: Tensor
    columns: Tensor
    symmetric: Tensor

    def __init__(self) -> None:
        super().__init__()
        identity = torch.eye(3, dtype=torch.float64).view(1, 9)
        axes = torch.eye(3, dtype=torch.float64)
        cross = torch.linalg.cross(axes.view(3, 1, 3), axes.view(1, 3, 3)).mT.reshape(3, 9)  # column b is e_k x e_b
        symmetric = torch.from_numpy(coupling(1, 1, 2)).reshape(9, 5)
        rows = torch.cat([identity, cross, symmetric.T])  # [components, entries]
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", rows / rows.square().sum(1, keepdim=True), persistent=False)
        self.register_buffer("symmetric", symmetric, persistent=False)

    def matrices(self, parts: States) -> Float[Tensor, "nodes 3 3 channels"]:
        """X of every node and channel."""
        components = torch.cat([parts[0].unsqueeze(1), parts[1], parts[2]], dim=1)  # [nodes, components, channels]
        entries = self.rows.T.to(components.dtype) @ components
        return entries.unflatten(1, (3, 3))

    def parts(self, matrices: Float[Tensor, "nodes 3 3 channels"]) -> States:
        """Number, vector and symmetric part of matrices: what ``matrices`` makes them of."""
        components = self.columns.to(matrices.dtype) @ matrices.flatten(1, 2)
        scalars, vectors, symmetric = components.split((1, 3, 5), dim=1)
        return {0: scalars.squeeze(1), 1: vectors, 2: symmetric}

    def of_directions(self, directions: Float[Tensor, "edges 3"]) -> Float[Tensor, "edges 5"]:
        """The symmetric part of u u^T; zeros of a direction without length."""
        outer = (directions.unsqueeze(2) * directions.unsqueeze(1)).flatten(1)  # [edges, entries]
        return outer @ self.symmetric.to(outer.dtype)


def squares(parts: States) -> dict[int, Float[Tensor, "nodes channels"]]:
    """Return the sums of squares of I, A and S.

    >>> squares({0: torch.ones(1, 1), 1: torch.ones(1, 3, 1), 2: torch.zeros(1, 5, 1)})[1]
    tensor([[6.]])
    """
    sums = [parts[0].square(), parts[1].square().sum(1), parts[2].square().sum(1)]
    return {degree: weight * one for degree, weight, one in zip(DEGREES, SQUARES, sums)}


def times(parts: States, factors: dict[int, Float[Tensor, "nodes channels"]]) -> States:
    """Every part times the factor of its degree."""
    return {degree: parts[degree] * (factors[degree].unsqueeze(1) if degree else factors[0]) for degree in DEGREES}


def product(
    first: Float[Tensor, "nodes 3 3 channels"], second: Float[Tensor, "nodes 3 3 channels"]
) -> Float[Tensor, "nodes 3 3 channels"]:
    """Return products of matrices, channel by channel."""
    terms = [first[:, :, k, None] * second[:, None, k] for k in range(3)]
    return terms[0] + terms[1] + terms[2]
