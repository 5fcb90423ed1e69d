"""Graphs farther from the origin than single precision can resolve."""

import torch
from torch import Tensor

TURNS = 10
"""Nodes of a periodic graph are brought into its cell where one is so many times farther from the origin than the longest cell vector."""

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
