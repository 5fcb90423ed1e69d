"""Neighbour lists of moving atoms, searched anew only when necessary."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from hydragnn.graphs.atomic import CLOSEST, REACH, neighbour_list
from hydragnn.graphs.topology import Topology

SKIN = 0.5  # Angstrom beyond the cutoff: a third more pairs to look at, and dozens of steps between searches at 300 K
UNSURE = 1e-9  # Angstrom; nearer to the cutoff than this, rounding decides, and the search itself is asked
_Edges = tuple[Int[ndarray, " edges"], Int[ndarray, " edges"], Int[ndarray, "edges 3"]]


@dataclass(kw_only=True, slots=True, eq=False)
class _Listed:
    """All pairs within cutoff + skin of the structure that was searched."""

    reach: float
    positions: Float[ndarray, "nodes 3"]
    cell: Float[ndarray, "3 3"]
    periodic: ndarray
    senders: Int[Tensor, " pairs"]
    receivers: Int[Tensor, " pairs"]
    shifts: Int[Tensor, "pairs 3"]
    sorted_senders: Int[Tensor, " pairs"]
    by_sender: Int[Tensor, " pairs"]
    shortest: float
    sure: Bool[Tensor, " pairs"]
    """True for pairs nearer than the cutoff by more than the skin."""
    others: Int[Tensor, " others"]
    """Numbers of the pairs that may cross the cutoff."""
    offsets: Float[Tensor, "pairs 3"]
    """Shifts in the present cell, in Angstrom."""
    present: Float[ndarray, "3 3"]
    """The present cell."""
    within: Tensor
    """True for pairs that are edges now."""
    edges: tuple[Topology, Tensor] | None = None
    """Topology and shifts of these, where they were asked for."""


class SkinList:
    """Neighbour lists of successive structures, equal to ``neighbour_list``.

    The list within cutoff + skin is kept while atoms moved less than half the skin since it was made, beyond what a changing cell
    moves all of them. Only pairs that were not nearer than the cutoff by more than the skin are measured. A structure with other numbers
    of atoms, or other periodic axes, is searched anew, and so is one in which a pair is so near to the cutoff that rounding decides.
    Pairs lie on ``device``, and are searched on the host; each structure costs one upload of positions and one read of three numbers.
    """

    def __init__(self, skin: float = SKIN, device: torch.device | str = "cpu") -> None:
        self.skin, self.device = skin, torch.device(device)
        self.searches = 0
        """Number of searches so far."""
        self._list: _Listed | None = None

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
        count, _ = self._measured(positions, cell, periodic, cutoff, name)
        if count is None:
            return neighbour_list(positions, cell, periodic, cutoff, name=name)
        assert self._list is not None
        rows = _numbers_of(self._list.within, count)
        senders, receivers, shifts = (
            tensor.index_select(0, rows).cpu().numpy()
            for tensor in (self._list.senders, self._list.receivers, self._list.shifts)
        )
        return senders, receivers, shifts

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
        count, same = self._measured(positions, cell, periodic, cutoff, name, places)
        if count is None:
            senders, receivers, shifts = neighbour_list(positions, cell, periodic, cutoff, name=name)
            sender, receiver = (torch.from_numpy(one).to(self.device) for one in (senders, receivers))
            return Topology.square(sender, receiver, len(positions)), torch.from_numpy(shifts @ cell).to(self.device)
        listed = self._list
        assert listed is not None
        if listed.edges is None or not same:
            listed.edges = _edges_of(listed, count)
        return listed.edges

    def _measured(
        self, positions: ndarray, cell: ndarray, periodic: Any, cutoff: float, name: str, places: Tensor | None = None
    ) -> tuple[int | None, bool]:
        """Mark pairs within the cutoff; return their number, True if unchanged.

        None where the search itself has to be asked.
        """
        places = torch.from_numpy(positions).to(self.device) if places is None else places
        if not self._covers(positions, cell, periodic, cutoff):
            self.searches += 1
            self._list = self._searched(positions, places, cell, periodic, cutoff, name)
        listed, limit = self._list, cutoff * REACH
        assert listed is not None
        same = np.array_equal(cell, listed.present)
        if not same:
            listed.offsets = listed.shifts.double() @ torch.from_numpy(cell).to(self.device)
            listed.present = cell.copy()
        pairs = listed.others
        vectors = places.index_select(0, listed.senders.index_select(0, pairs))
        vectors -= places.index_select(0, listed.receivers.index_select(0, pairs))
        vectors += listed.offsets.index_select(0, pairs)
        lengths = torch.mv(vectors.square_(), vectors.new_ones(3)).sqrt()
        within = listed.sure.index_copy(0, pairs, lengths < limit)
        unsure = ((lengths < CLOSEST) | ((lengths - limit).abs() < UNSURE)).any()
        facts = torch.stack([within.count_nonzero(), (within != listed.within).any().long(), unsure.long()])
        count, changed, asks = facts.tolist()  # the only number that the host waits for
        listed.within = within
        same = same and not changed
        listed.edges = listed.edges if same else None
        return (None if asks else int(count)), same

    def _searched(
        self, positions: ndarray, places: Tensor, cell: ndarray, periodic: Any, cutoff: float, name: str
    ) -> _Listed:
        """Search all pairs within cutoff + skin."""
        reach = cutoff + self.skin
        pairs = neighbour_list(positions, cell, periodic, reach, name=name)
        senders, receivers, shifts = (torch.from_numpy(one).to(self.device) for one in pairs)
        offsets = torch.from_numpy(pairs[2] @ cell).to(self.device)  # the bits of a graph from atoms
        vectors = places.index_select(0, senders) - places.index_select(0, receivers) + offsets
        lengths = torch.mv(vectors.square_(), vectors.new_ones(3)).sqrt()
        sure = lengths < cutoff * REACH - self.skin
        sorted_senders, by_sender = torch.sort(senders, stable=True)
        return _Listed(
            reach=reach,
            positions=positions.copy(),
            cell=cell.copy(),
            periodic=periodic.copy(),
            senders=senders,
            receivers=receivers,
            shifts=shifts,
            sorted_senders=sorted_senders,
            by_sender=by_sender,
            shortest=float(lengths.min()) if len(lengths) else reach,
            sure=sure,
            others=(~sure).nonzero().squeeze(1),
            offsets=offsets,
            present=cell.copy(),
            within=torch.zeros_like(sure),
        )

    def _covers(self, positions: ndarray, cell: ndarray, periodic: Any, cutoff: float) -> bool:
        """Return True while the list holds.

        No atoms can meet, no unlisted pair can be within the cutoff, and no sure one beyond it.
        With F the deformation of the cell and u what atoms moved beyond it, a pair at v is at v F + u_j - u_i now, hence not
        nearer than the least singular value of F times its old length minus twice the largest |u|, nor farther than the largest
        one times it plus the same.
        """
        listed = self._list
        if listed is None or positions.shape != listed.positions.shape or listed.reach != cutoff + self.skin:
            return False
        if not np.array_equal(periodic, listed.periodic):
            return False
        least = most = 1.0
        if np.array_equal(cell, listed.cell):
            moved = positions - listed.positions
        else:
            deformation = np.linalg.solve(listed.cell, cell)
            values = np.linalg.svd(deformation, compute_uv=False)
            least, most = float(values.min()), float(values.max())
            moved = positions - listed.positions @ deformation
        farthest = 2 * float(np.sqrt(np.square(moved).sum(axis=1).max()))
        limit = cutoff * REACH
        separate = least * listed.shortest - farthest > CLOSEST
        sure = most * (limit - self.skin) + farthest < limit - UNSURE
        return separate and sure and listed.reach * least - farthest > limit + UNSURE


def _numbers_of(mask: Tensor, count: int) -> Int[Tensor, " {count}"]:
    """Return the places of a mask's marks, without a wait."""
    if mask.is_cpu:
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # a fifth of the time of ``nonzero``
    return torch.searchsorted(mask.cumsum(0), torch.arange(1, count + 1, device=mask.device))


def _edges_of(listed: _Listed, count: int) -> tuple[Topology, Tensor]:
    """Return the marked pairs as edges, with their order by sender."""
    rows = _numbers_of(listed.within, count)
    topology = Topology.square(
        listed.senders.index_select(0, rows), listed.receivers.index_select(0, rows), len(listed.positions)
    )
    # what a stable sort gives, from that of all pairs
    own = _numbers_of(listed.within.index_select(0, listed.by_sender), count)
    number = listed.within.cumsum(0) - 1
    topology.index_arrays["sorted_senders"] = listed.sorted_senders.index_select(0, own)
    topology.index_arrays["by_sender"] = number.index_select(0, listed.by_sender.index_select(0, own))
    return topology, listed.offsets.index_select(0, rows)
