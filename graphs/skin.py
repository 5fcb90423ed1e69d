"""Neighbour lists of moving atoms, searched anew only when necessary."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from hydragnn.graphs.atomic import CLOSEST, REACH, neighbour_list
from hydragnn.graphs.topology import Topology

SKIN = 0.5  # Angstrom beyond the cutoff: a third more pairs to look at, and dozens of steps between searches at 300 K
UNSURE = 1e-9  # Angstrom; nearer to the cutoff than this, rounding decides, and the search itself is asked


class SkinList:
    """Neighbour lists of successive structures, equal to ``neighbour_list``.

    The list within cutoff + skin is kept while atoms moved less than half the skin since it was made, beyond what a changing cell
    moves all of them. A structure with other numbers of atoms, or other periodic axes, is searched anew, and so is one in which a
    pair is so near to the cutoff that rounding decides. Pairs lie on ``device``, and are searched on the host.
    """

    _reach: float  # cutoff and skin of the search; its structure and pairs follow
    _positions: Float[ndarray, "nodes 3"]
    _cell: Float[ndarray, "3 3"]
    _periodic: ndarray
    _senders: Int[Tensor, " pairs"]
    _receivers: Int[Tensor, " pairs"]
    _images: Int[Tensor, "pairs 3"]
    _shifts: Float[Tensor, "pairs 3"]  # Angstrom, in the present cell
    _present: Float[ndarray, "3 3"]
    _within: Tensor  # True for pairs that are edges now
    _edges: tuple[Topology, Tensor] | None  # topology and shifts of these

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.searches = 0
        """Number of searches so far."""

    def edges(
        self,
        positions: Float[ndarray, "nodes 3"],
        cell: Float[ndarray, "3 3"],
        periodic: Any,
        cutoff: float,
        *,
        name: str = "structure",
        places: Float[Tensor, "nodes 3"] | None = None,
    ) -> tuple[Topology, Float[Tensor, "edges 3"]]:
        """Return edges and their shifts on the device.

        They are the same objects while no pair comes or goes. ``places`` are the positions on the device, where they are known.
        """
        limit = cutoff * REACH
        if not self._covers(positions, cell, periodic, cutoff):
            pairs = neighbour_list(positions, cell, periodic, cutoff + SKIN, name=name)
            self.searches += 1
            self._senders, self._receivers, self._images = (torch.from_numpy(one).to(self.device) for one in pairs)
            self._reach, self._positions, self._periodic = cutoff + SKIN, positions.copy(), periodic.copy()
            self._cell = self._present = cell.copy()
            self._shifts = torch.from_numpy(pairs[2] @ cell).to(self.device)  # the bits of a graph from atoms
            self._within, self._edges = torch.zeros_like(self._senders, dtype=torch.bool), None
        if not np.array_equal(cell, self._present):
            self._shifts = self._images.double() @ torch.from_numpy(cell).to(self.device)
            self._present, self._edges = cell.copy(), None
        places = torch.from_numpy(positions).to(self.device) if places is None else places
        vectors = places.index_select(0, self._senders) - places.index_select(0, self._receivers) + self._shifts
        lengths = torch.mv(vectors.square_(), vectors.new_ones(3)).sqrt()
        within = lengths < limit
        unsure = ((lengths < CLOSEST) | ((lengths - limit).abs() < UNSURE)).any()
        asks, differs = torch.stack([unsure, (within != self._within).any()]).tolist()
        self._within, self._edges = within, None if asks or differs else self._edges
        if asks:
            first, second, images = neighbour_list(positions, cell, periodic, cutoff, name=name)
            senders, receivers = (torch.from_numpy(one).to(self.device) for one in (first, second))
            return Topology.square(senders, receivers, len(positions)), torch.from_numpy(images @ cell).to(self.device)
        if self._edges is None:
            rows = within.nonzero().squeeze(1)
            every = (self._senders, self._receivers, self._shifts)
            senders, receivers, shifts = (one.index_select(0, rows) for one in every)
            self._edges = Topology.square(senders, receivers, len(positions)), shifts
        return self._edges

    def _covers(self, positions: ndarray, cell: ndarray, periodic: Any, cutoff: float) -> bool:
        """Return True while no unlisted pair can be within the cutoff.

        With F the deformation of the cell and u what atoms moved beyond it, a pair at v is at v F + u_j - u_i now, hence not
        nearer than the least singular value of F times its old length minus twice the largest |u|.
        """
        if not self.searches or positions.shape != self._positions.shape or self._reach != cutoff + SKIN:
            return False
        if not np.array_equal(periodic, self._periodic):
            return False
        deformation = np.linalg.solve(self._cell, cell)
        least = float(np.linalg.svd(deformation, compute_uv=False).min())
        farthest = 2 * float(np.sqrt(np.square(positions - self._positions @ deformation).sum(axis=1).max()))
        return self._reach * least - farthest > cutoff * REACH + UNSURE
