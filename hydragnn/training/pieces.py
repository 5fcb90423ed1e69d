"""Pieces of parameters: which rows of a whole weight a rank holds."""

from dataclasses import dataclass

import torch
from torch import Tensor

Rows = tuple[tuple[int, int], ...]
"""Half-open ranges, in the order in which they lie one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Rows of a parameter along one dimension, as a rank holds them.

    >>> piece = Piece(shape=(6, 2), dim=0, rows=((0, 1), (3, 5)))
    >>> piece.local_shape, piece.is_whole
    ((3, 2), False)
    """

    shape: tuple[int, ...]
    dim: int = 0
    rows: Rows
    """Rows of this rank; a whole parameter has one range."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Return the shape of the part that this rank holds."""
        if not self.shape:
            return ()
        count = sum(last - first for first, last in self.rows)
        return (*self.shape[: self.dim], count, *self.shape[self.dim + 1 :])

    @property
    def is_whole(self) -> bool:
        """Return True where this rank holds all rows."""
        return self.local_shape == self.shape

    def of(self, whole: Tensor) -> Tensor:
        """Return this rank's rows of a whole parameter.

        >>> Piece(shape=(4,), rows=((1, 2), (3, 4))).of(torch.arange(4))
        tensor([1, 3])
        """
        if self.is_whole:
            return whole
        return torch.cat([whole.narrow(self.dim, first, last - first) for first, last in self.rows], dim=self.dim)

    def put(self, local: Tensor, whole: Tensor) -> None:
        """Write this rank's rows, which may be flat, into a whole parameter.

        >>> piece, whole = Piece(shape=(4,), rows=((1, 2), (3, 4))), torch.zeros(4)
        >>> piece.put(torch.ones(2), whole)
        >>> whole
        tensor([0., 1., 0., 1.])
        """
        if self.is_whole:
            whole.copy_(local.view(self.shape))
            return
        parts = local.view(self.local_shape).split([last - first for first, last in self.rows], dim=self.dim)
        for (first, last), part in zip(self.rows, parts):
            whole.narrow(self.dim, first, last - first).copy_(part)


def whole_piece(shape: tuple[int, ...]) -> Piece:
    """Return the piece of a parameter that a rank holds whole.

    >>> whole_piece((3, 2)).rows
    ((0, 3),)
    """
    return Piece(shape=tuple(shape), rows=((0, shape[0] if shape else 1),))
