"""Neighbour lists of many structures that move at once."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.atomic import CLOSEST, REACH, neighbour_list
from hydragnn.graphs.search import completed_cell
from hydragnn.graphs.skin import SKIN, UNSURE
from hydragnn.graphs.topology import Topology
from hydragnn.graphs.validate import TURNS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ManyEdges:
    """Edges of structures laid end to end, as a batch needs them."""

    positions: Float[Tensor, "nodes 3"]
    """By whole cell vectors nearer to the cell, where atoms were many of them away."""
    topology: Topology
    shifts: Float[Tensor, "edges 3"]
    edges_per_graph: Int[Tensor, " graphs"]


class ManySkins:
    """Neighbour lists of successive states of several structures, equal to ``neighbour_list``.

    Pairs within cutoff + skin are kept for each structure, until its atoms or its cell moved so far that one more pair could be
    near; then it is searched anew, and the others are not. All are searched where their numbers of atoms or periodic axes change.
    """

    def __init__(self, cutoff: float, max_neighbours: int | None = None, skin: float = SKIN) -> None:
        self.cutoff, self.most, self.skin = cutoff, max_neighbours, skin
        self.searches = 0
        """Number of structures searched so far."""
        self._counts, self._periodic = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.bool)
        self._lists: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(
        self,
        positions: Float[Tensor, "nodes 3"],
        cells: Float[Tensor, "graphs 3 3"],
        periodic: Bool[Tensor, "graphs 3"],
        counts: Int[Tensor, " graphs"],
    ) -> ManyEdges:
        """Return the edges of all structures; InputError names an impossible one."""
        owner = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        wrong = ~positions.isfinite().all(1)
        if bool(wrong.any()):
            raise InputError(f"structure {int(owner[wrong][0])} has positions that are not finite; remove it")
        boxes = torch.from_numpy(
            np.stack(
                [
                    completed_cell(cell, axes, f"structure {number}")
                    for number, (cell, axes) in enumerate(zip(cells.cpu().numpy(), periodic.cpu().numpy()))
                ]
            )
        ).to(positions)
        for graph in self._stale(positions, boxes, periodic, counts, owner).tolist():
            self._search(graph, positions, boxes, periodic)
        near = positions - torch.einsum("ni,nij->nj", self._turns, boxes[owner])
        lists = [torch.cat(parts) for parts in zip(*self._lists)]
        senders, receivers, images = lists
        of_pair = owner[receivers]
        shifts = torch.einsum("ei,eij->ej", images, boxes[of_pair])
        lengths = (near[senders] + shifts - near[receivers]).norm(dim=1)
        limit = self.cutoff * REACH
        if self.most is not None or bool(((lengths < CLOSEST) | ((lengths - limit).abs() < UNSURE)).any()):
            return self._exact(near, boxes, periodic, owner)
        within = (lengths < limit).nonzero().squeeze(1)
        topology = Topology.square(senders[within], receivers[within], len(positions))
        edges = torch.bincount(of_pair[within], minlength=len(counts))
        return ManyEdges(positions=near, topology=topology, shifts=shifts[within], edges_per_graph=edges)

    def _stale(
        self, positions: Tensor, boxes: Tensor, periodic: Tensor, counts: Tensor, owner: Tensor
    ) -> Int[Tensor, " stale"]:
        """Return the structures whose list may lack a pair."""
        if not (torch.equal(counts, self._counts) and torch.equal(periodic, self._periodic)):
            self._counts, self._periodic = counts.clone(), periodic.clone()
            self._starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).tolist()
            self._lists = [(owner[:0], owner[:0], positions[:0])] * len(counts)
            self._places, self._boxes, self._turns = positions.clone(), boxes.clone(), torch.zeros_like(positions)
            return torch.arange(len(counts))
        # a pair at v is at v F + u_j - u_i now, hence not nearer than the least singular value of F times its length - 2 |u|
        deformation = torch.linalg.solve(self._boxes, boxes)  # [graphs, 3, 3]
        least = torch.linalg.svdvals(deformation)[:, -1]
        moved = (positions - torch.einsum("ni,nij->nj", self._places, deformation[owner])).norm(dim=1)
        farthest = torch.zeros_like(least).scatter_reduce(0, owner, moved, "amax")
        covered = (self.cutoff + self.skin) * least - 2 * farthest > self.cutoff * REACH + UNSURE
        return (~covered).nonzero().squeeze(1)

    def _search(self, graph: int, positions: Tensor, boxes: Tensor, periodic: Tensor) -> None:
        """List the pairs of one structure within cutoff + skin."""
        self.searches += 1
        own = slice(self._starts[graph], self._starts[graph + 1])
        box, places = boxes[graph], positions[own]
        turns = torch.linalg.solve(box.T, places.T).T.floor() * periodic[graph]
        far = turns.abs().amax() >= TURNS if len(turns) else False
        self._turns[own] = turns if far else 0.0
        self._places[own], self._boxes[graph] = places, box
        reach = self.cutoff + self.skin
        self._lists[graph] = self._listed(graph, places - self._turns[own] @ box, box, periodic[graph], reach)

    def _listed(
        self, graph: int, places: Tensor, box: Tensor, axes: Tensor, reach: float, most: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return senders, receivers and images of one structure's pairs within ``reach``."""
        arrays = (places.cpu().numpy(), box.cpu().numpy(), axes.cpu().numpy())
        pairs = neighbour_list(*arrays, reach, most, name=f"structure {graph}")
        senders, receivers, images = (torch.from_numpy(one).to(places.device) for one in pairs)
        start = self._starts[graph]
        return senders + start, receivers + start, images.to(places)

    def _exact(self, near: Tensor, boxes: Tensor, periodic: Tensor, owner: Tensor) -> ManyEdges:
        """Return edges from new searches at the cutoff itself."""
        own = [slice(*ends) for ends in zip(self._starts, self._starts[1:])]
        pairs = [
            self._listed(graph, near[rows], boxes[graph], periodic[graph], self.cutoff, self.most)
            for graph, rows in enumerate(own)
        ]
        senders, receivers, images = (torch.cat(parts) for parts in zip(*pairs))
        return ManyEdges(
            positions=near,
            topology=Topology.square(senders, receivers, len(near)),
            shifts=torch.einsum("ei,eij->ej", images, boxes[owner[receivers]]),
            edges_per_graph=torch.tensor([len(one[0]) for one in pairs], device=near.device),
        )
