"""Order of edges by receiver, computed once per array."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hydragnn.graphs.topology import ascending, searched_offsets


class SegmentOrder(NamedTuple):
    """Edges by receiver: their numbers, their receivers and where each node's begin."""

    order: Tensor | None
    """None where receivers ascend: the edges themselves."""
    owners: Tensor
    offsets: Tensor
    longest: int | None
    """Edges of the longest row, if a CPU has seen them."""


_orders: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Orders by array of receivers, for as long as it lives: all layers of a model share one sort."""


def segment_order(receivers: Tensor, num_nodes: int) -> SegmentOrder:
    """Return the stable order of edges by receiver, computed once."""
    noted = ascending(receivers, num_nodes)
    if noted is not None:
        return SegmentOrder(None, receivers, noted.offsets, noted.longest)
    cached: tuple[int, int, SegmentOrder] | None = _orders.get(receivers)
    if cached is not None and cached[:2] == (num_nodes, receivers._version):
        return cached[2]
    owners, numbers = torch.sort(receivers, stable=True)
    order = SegmentOrder(numbers, owners, searched_offsets(owners, num_nodes), None)
    remember_order(receivers, num_nodes, order)
    return order


def remember_order(receivers: Tensor, num_nodes: int, order: SegmentOrder) -> None:
    """Keep a known order as long as the receivers live."""
    _orders[receivers] = (num_nodes, receivers._version, order)
