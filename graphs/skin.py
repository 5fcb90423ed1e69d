"""Neighbour lists of moving atoms, searched anew only when necessary."""

from dataclasses import dataclass
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


@dataclass(kw_only=True, slots=True, eq=False)
class _Listed:
    """All pairs within cutoff + skin of the structure that was searched."""

    reach: float
    positions: Float[ndarray, "nodes 3"]
    cell: Float[ndarray, "3 3"]
    periodic: ndarray
    senders: Int[Tensor, " pairs"]
    receivers: Int[Tensor, " pairs"]
    images: Int[Tensor, "pairs 3"]
    shifts: Float[Tensor, "pairs 3"]
    """In the present cell, in Angstrom."""
    present: Float[ndarray, "3 3"]
    """The present cell."""
    within: Tensor
    """True for pairs that are edges now."""
    edges: tuple[Topology, Tensor] | None = None
    """Topology and shifts of these."""


class SkinList:
    """Neighbour lists of successive structures, equal to ``neighbour_list``.

    The list within cutoff + skin is kept while atoms moved less than half the skin since it was made, beyond what a changing cell
    moves all of them. A structure with other numbers of atoms, or other periodic axes, is searched anew, and so is one in which a
    pair is so near to the cutoff that rounding decides. Pairs lie on ``device``, and are searched on the host.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.searches = 0
        """Number of searches so far."""
        self._list: _Listed | None = None

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
        listed, limit = self._list, cutoff * REACH
        if listed is None or not _covers(listed, positions, cell, periodic, cutoff):
            self.searches += 1
            pairs = neighbour_list(positions, cell, periodic, cutoff + SKIN, name=name)
            listed = self._list = self._listed(pairs, positions, cell, periodic, cutoff)
        if not np.array_equal(cell, listed.present):
            listed.shifts = listed.images.double() @ torch.from_numpy(cell).to(self.device)
            listed.present, listed.edges = cell.copy(), None
        places = torch.from_numpy(positions).to(self.device) if places is None else places
        vectors = places.index_select(0, listed.senders) - places.index_select(0, listed.receivers) + listed.shifts
        lengths = torch.mv(vectors.square_(), vectors.new_ones(3)).sqrt()
        within = lengths < limit
        unsure = ((lengths < CLOSEST) | ((lengths - limit).abs() < UNSURE)).any()
        asks, differs = torch.stack([unsure, (within != listed.within).any()]).tolist()
        listed.within, listed.edges = within, None if asks or differs else listed.edges
        if asks:
            first, second, images = neighbour_list(positions, cell, periodic, cutoff, name=name)
            senders, receivers = (torch.from_numpy(one).to(self.device) for one in (first, second))
            return Topology.square(senders, receivers, len(positions)), torch.from_numpy(images @ cell).to(self.device)
        if listed.edges is None:
            rows = within.nonzero().squeeze(1)
            senders, receivers, shifts = (
                one.index_select(0, rows) for one in (listed.senders, listed.receivers, listed.shifts)
            )
            listed.edges = Topology.square(senders, receivers, len(positions)), shifts
        return listed.edges

    def _listed(
        self, pairs: tuple[ndarray, ndarray, ndarray], positions: ndarray, cell: ndarray, periodic: Any, cutoff: float
    ) -> _Listed:
        """Return a list of pairs, of which none is an edge yet."""
        senders, receivers, images = (torch.from_numpy(one).to(self.device) for one in pairs)
        return _Listed(
            reach=cutoff + SKIN,
            positions=positions.copy(),
            cell=cell.copy(),
            periodic=periodic.copy(),
            senders=senders,
            receivers=receivers,
            images=images,
            shifts=torch.from_numpy(pairs[2] @ cell).to(self.device),  # the bits of a graph from atoms
            present=cell.copy(),
            within=torch.zeros_like(senders, dtype=torch.bool),
        )


def _covers(listed: _Listed, positions: ndarray, cell: ndarray, periodic: Any, cutoff: float) -> bool:
    """Return True while no unlisted pair can be within the cutoff.

    With F the deformation of the cell and u what atoms moved beyond it, a pair at v is at v F + u_j - u_i now, hence not
    nearer than the least singular value of F times its old length minus twice the largest |u|.
    """
    if positions.shape != listed.positions.shape or listed.reach != cutoff + SKIN:
        return False
    if not np.array_equal(periodic, listed.periodic):
        return False
    deformation = np.linalg.solve(listed.cell, cell)
    least = float(np.linalg.svd(deformation, compute_uv=False).min())
    farthest = 2 * float(np.sqrt(np.square(positions - listed.positions @ deformation).sum(axis=1).max()))
    return listed.reach * least - farthest > cutoff * REACH + UNSURE
