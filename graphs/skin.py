"""Neighbour lists of moving atoms, searched anew only when necessary."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from hydragnn.graphs.atomic import CLOSEST, REACH, neighbour_list

SKIN = 0.5  # Angstrom beyond the cutoff: a third more pairs to look at, and dozens of steps between searches at 300 K
_UNSURE = 1e-9  # Angstrom; nearer to the cutoff than this, rounding decides, and the search itself is asked
_Edges = tuple[Int[ndarray, " edges"], Int[ndarray, " edges"], Int[ndarray, "edges 3"]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Search:
    """All pairs within ``reach`` of atoms that were there."""

    reach: float
    positions: Float[ndarray, "nodes 3"]
    cell: Float[ndarray, "3 3"]
    periodic: Any
    edges: _Edges
    offsets: Float[ndarray, "edges 3"]
    """Shifts in that cell, in Angstrom."""

    def lengths(self, positions: Float[ndarray, "nodes 3"], cell: Float[ndarray, "3 3"]) -> Float[ndarray, " edges"]:
        """Lengths of the edges that were found, where atoms are now."""
        senders, receivers, shifts = self.edges
        vectors = positions.take(senders, axis=0)
        vectors -= positions.take(receivers, axis=0)
        vectors += self.offsets if np.array_equal(cell, self.cell) else shifts @ cell
        lengths: Float[ndarray, " edges"] = np.sqrt(np.einsum("ed,ed->e", vectors, vectors))
        return lengths

    def covers(
        self, positions: Float[ndarray, "nodes 3"], cell: Float[ndarray, "3 3"], periodic: Any, cutoff: float
    ) -> bool:
        """Return True where no unlisted pair can be within the cutoff.

        With F the deformation of the cell and u what atoms moved beyond it, a pair at v is at v F + u_j - u_i now, hence not
        nearer than the least singular value of F times its old length minus twice the largest |u|.
        """
        if positions.shape != self.positions.shape or not np.array_equal(periodic, self.periodic):
            return False
        if np.array_equal(cell, self.cell):
            least, moved = 1.0, positions - self.positions
        else:
            deformation = np.linalg.solve(self.cell, cell)
            least = float(np.linalg.svd(deformation, compute_uv=False).min())
            moved = positions - self.positions @ deformation
        farthest = float(np.sqrt(np.square(moved).sum(axis=1).max()))
        return self.reach * least - 2 * farthest > cutoff * REACH + _UNSURE


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
        self._last: _Search | None = None

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
        if self._last is None or not self._last.covers(positions, cell, periodic, cutoff):
            reach = cutoff + self.skin
            self.searches += 1
            edges = neighbour_list(positions, cell, periodic, reach, name=name)
            self._last = _Search(
                reach=reach,
                positions=positions.copy(),
                cell=cell.copy(),
                periodic=periodic.copy(),
                edges=edges,
                offsets=edges[2] @ cell,
            )
        lengths = self._last.lengths(positions, cell)
        if len(lengths) and (lengths.min() < CLOSEST or np.abs(lengths - cutoff * REACH).min() < _UNSURE):
            return neighbour_list(positions, cell, periodic, cutoff, name=name)
        within = np.flatnonzero(lengths < cutoff * REACH)
        senders, receivers, shifts = (of_edges.take(within, axis=0) for of_edges in self._last.edges)
        return senders, receivers, shifts
