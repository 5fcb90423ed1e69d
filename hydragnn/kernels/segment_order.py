"""Order of edges by receiver, computed once per array."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hydragnn.graphs.topology import searched_offsets


class SegmentOrder(NamedTuple):
    """Edges by receiver: their numbers, their receivers and where each node's begin."""

    order: Tensor
    owners: Tensor
    offsets: Tensor


_orders: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Orders by array of receivers, for as long as it lives: all layers of a model share one sort."""


def segment_order(receivers: Tensor, num_nodes: int) -> SegmentOrder:
    """Return the stable order of edges by receiver, computed once."""
    cached: tuple[int, int, SegmentOrder] | None = _orders.get(receivers)
    if cached is not None and cached[:2] == (num_nodes, receivers._version):
        return cached[2]
    owners, order = torch.sort(receivers, stable=True)
    offsets = searched_offsets(owners, num_nodes)
    _orders[receivers] = (num_nodes, receivers._version, SegmentOrder(order, owners, offsets))
    return _orders[receivers][2]
