"""Neighbour lists of moving atoms, searched anew only when necessary."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from hydragnn.graphs.atomic import CLOSEST, REACH, neighbour_list

SKIN = 0.5  # Angstrom beyond the cutoff: a third more pairs to look at, and dozens of steps between searches at 300 K
_UNSURE = 1e-9  # Angstrom; nearer to the cutoff than this, rounding decides, and the search itself is asked
_Edges = tuple[Int[ndarray, " edges"], Int[ndarray, " edges"], Int[ndarray, "edges 3"]]


class SkinList:
    """Neighbour lists of successive structures, equal to ``neighbour_list``.

    The list within cutoff + skin is kept while atoms moved less than half the skin since it was made, beyond what a changing cell
    moves all of them. A structure with other numbers of atoms, or other periodic axes, is searched anew, and so is one in which a pair
    is so near to the cutoff that rounding decides.
    """

    def __init__(self, skin: float = SKIN) -> None:
        self.skin = skin
        self.searches = 0
        """How often neighbours were searched."""
        self._made_for: tuple[float, ndarray, ndarray, ndarray] | None = None
        """Reach, positions, cell and periodic axes of the last search."""
        self._edges: _Edges
        self._offsets: Float[ndarray, "edges 3"]
        """Shifts of its edges in its cell, in Angstrom."""

    def __call__(
        self,
        positions: Float[ndarray, "nodes 3"],
        cell: Float[ndarray, "3 3"],
        periodic: Any,
        cutoff: float,
        max_neighbours: int | None = None,
        *,
        name: str = "structure",
    ) -> _Edges:
        """Return what ``neighbour_list`` gives."""
        if max_neighbours is not None:
            return neighbour_list(positions, cell, periodic, cutoff, max_neighbours, name=name)
        if not self._covers(positions, cell, periodic, cutoff):
            self.searches += 1
            self._edges = neighbour_list(positions, cell, periodic, cutoff + self.skin, name=name)
            self._offsets = self._edges[2] @ cell
            self._made_for = cutoff + self.skin, positions.copy(), cell.copy(), periodic.copy()
        assert self._made_for is not None
        senders, receivers, shifts = self._edges
        vectors = positions.take(senders, axis=0)
        vectors -= positions.take(receivers, axis=0)
        vectors += self._offsets if np.array_equal(cell, self._made_for[2]) else shifts @ cell
        lengths: Float[ndarray, " edges"] = np.sqrt(np.einsum("ed,ed->e", vectors, vectors))
        if len(lengths) and (lengths.min() < CLOSEST or np.abs(lengths - cutoff * REACH).min() < _UNSURE):
            return neighbour_list(positions, cell, periodic, cutoff, name=name)
        within = np.flatnonzero(lengths < cutoff * REACH)
        return senders.take(within, axis=0), receivers.take(within, axis=0), shifts.take(within, axis=0)

    def _covers(self, positions: ndarray, cell: ndarray, periodic: Any, cutoff: float) -> bool:
        """Return True where no unlisted pair can be within the cutoff.

        With F the deformation of the cell and u what atoms moved beyond it, a pair at v is at v F + u_j - u_i now, hence not
        nearer than the least singular value of F times its old length minus twice the largest |u|.
        """
        if self._made_for is None:
            return False
        reach, earlier, earlier_cell, earlier_periodic = self._made_for
        if positions.shape != earlier.shape or not np.array_equal(periodic, earlier_periodic):
            return False
        if np.array_equal(cell, earlier_cell):
            least, moved = 1.0, positions - earlier
        else:
            deformation = np.linalg.solve(earlier_cell, cell)
            least = float(np.linalg.svd(deformation, compute_uv=False).min())
            moved = positions - earlier @ deformation
        farthest = float(np.sqrt(np.square(moved).sum(axis=1).max()))
        return reach * least - 2 * farthest > cutoff * REACH + _UNSURE
