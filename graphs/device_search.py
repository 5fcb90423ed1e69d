"""Search of all pairs within a cutoff where positions lie, by vesin on a GPU."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Pairs = tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Int[Tensor, "pairs 3"]]


class DeviceSearch:
    """Searches of successive structures, whose memory on the device is kept.

    Vesin leaves out pairs at a distance of zero on a GPU: no two atoms may lie on each other.
    """

    def __init__(self, cutoff: float) -> None:
        from vesin import NeighborList

        self.cutoff = cutoff
        # its brute force takes a cell that is diagonal up to 1e-6 for a diagonal one
        self.engine = NeighborList(cutoff=cutoff, full_list=True, algorithm="cell_list", n_threads=1)

    def __call__(self, positions: Float[Tensor, "nodes 3"], cell: Float[np.ndarray, "3 3"], periodic: Any) -> Pairs:
        """Return senders, receivers and shifts in the order of ``neighbour_list``.

        RuntimeError where the device has no such search, or has too little memory for it.
        """
        device = positions.device
        box, axes = torch.from_numpy(cell).to(device), torch.from_numpy(np.asarray(periodic, dtype=bool)).to(device)
        _wait(device)  # vesin computes on a stream of its own
        pairs, images = self.engine.compute(positions, box, axes, "PS", copy=False)
        _wait(device)
        receivers, senders = pairs.view(torch.int64).unbind(1)
        shifts = images.long()
        order = _order(receivers, senders, shifts, len(positions))
        return senders[order], receivers[order], shifts[order]


def _order(receivers: Tensor, senders: Tensor, shifts: Tensor, nodes: int) -> Int[Tensor, " pairs"]:
    """Return the order of ``edge_order``."""
    least, most = torch.stack(shifts.aminmax()).tolist() if len(shifts) else (0, 0)
    width = most - least + 1
    if nodes**2 * width**3 >= 2**63:
        raise RuntimeError(f"{nodes} atoms and {width} images along an axis are too many to sort on the device")
    key = receivers * nodes + senders
    for axis in (2, 1, 0):
        key = key * width + (shifts[:, axis] - least)
    return torch.argsort(key)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
