"""Graphs farther from the origin than single precision can resolve."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

TURNS = 10
"""Nodes of a periodic graph are brought into its cell where one is so many times farther from the origin than the longest cell vector."""

if TYPE_CHECKING:
    from hydragnn.graphs.batch import GraphBatch

FAR = 10.0
"""A graph is far where its first node is so many times farther from the origin than from its other nodes and its edges' images."""


def into_cell(
    positions: Tensor, senders: Tensor, receivers: Tensor, shifts: Tensor, cell: Tensor, periodic: Tensor
) -> tuple[Tensor, Tensor]:
    """Return positions inside the cell, and shifts, where nodes are far away.

    Single precision has a place of 2e-4 at 4,000 Angstrom, where trajectories that were never wrapped put atoms.

    >>> places, ends, box = torch.tensor([[4000.0], [0.5]]), torch.tensor([0]), torch.eye(1) * 4
    >>> into_cell(places, ends, ends + 1, torch.tensor([[-4000.0]]), box, torch.tensor([True]))
    (tensor([[0.0000],
            [0.5000]]), tensor([[0.]]))
    """
    if not periodic.any() or float(positions.abs().max()) < TURNS * float(cell.abs().max()):
        return positions, shifts
    rows = cell * periodic[:, None]
    inverse = torch.linalg.pinv(rows)
    turns = torch.floor(positions @ inverse)  # [nodes, dim]
    images = torch.round(shifts @ inverse)
    across = shifts - images @ rows  # nothing, unless the shifts are wrong, which is said elsewhere
    return positions - turns @ rows, (images + turns[senders] - turns[receivers]) @ rows + across


def near_origin(batch: "GraphBatch", dtype: torch.dtype) -> "GraphBatch":
    """Return the batch with far graphs at the origin, before rounding.

    Edge vectors stay what they are. A mesh with the coordinates of a map (5.4e6 m north, 0.1 m between nodes) would lose them:
    there single precision has places half a metre apart. Positions that keep their digits stay where they are.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> near_origin(graph_from_arrays([[5.4e6, 0.0], [5.4e6, 0.1]], [], []), torch.float32).positions.tolist()
    [[0.0, 0.0], [0.0, 0.1]]
    """
    if not batch.num_nodes or not batch.dim or dtype.itemsize >= batch.positions.dtype.itemsize:
        return batch
    owner = batch.owner("node")
    first = batch.positions.index_select(0, batch.node_offsets[:-1].clamp_max(batch.num_nodes - 1))  # [graphs, dim]
    away = first.abs().amax(1)
    reach = torch.zeros_like(away).scatter_reduce(  # [graphs]
        0, owner, (batch.positions - first.index_select(0, owner)).abs().amax(1), "amax"
    )
    if not bool((away > FAR * reach).any()):
        return batch
    reach = reach.scatter_reduce(0, batch.owner("edge"), batch.edge_shifts.to(reach.dtype).abs().amax(1), "amax")
    far = (away > FAR * reach).unsqueeze(1)
    moved = replace(batch, positions=batch.positions - torch.where(far, first, 0.0).index_select(0, owner))
    moved._derived.update(batch._derived)  # nothing that follows from offsets and edges
    return moved
