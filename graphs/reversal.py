"""Reverse edges."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.topology import Topology

STEPS = 1e5  # per largest shift; shifts that differ do so by a whole cell


def reverse_of(topology: Topology, shifts: Float[Tensor, "edges dim"]) -> Int[Tensor, " edges"]:
    """The reverse of every edge; InputError where an edge has none.

    Edges sorted by (sender, receiver, shift) meet their reverses sorted by (receiver, sender, minus shift).

    >>> both = Topology.square(torch.tensor([1, 2, 0, 0]), torch.tensor([0, 0, 1, 2]), 3)
    >>> reverse_of(both, torch.zeros(4, 2))
    tensor([2, 3, 0, 1])
    """
    senders, receivers = topology.senders, topology.receivers
    if not len(senders):
        return torch.zeros_like(senders)
    largest = shifts.abs().max() if shifts.numel() else shifts.new_ones(())
    steps = (shifts * (STEPS / torch.where(largest > 0, largest, 1.0))).round().to(torch.int64)
    forth = _order([senders, receivers, *steps.unbind(1)])
    back = _order([receivers, senders, *(-steps).unbind(1)])
    wrong = (senders[forth] != receivers[back]) | (receivers[forth] != senders[back])
    wrong = wrong | ((steps[forth] + steps[back]).abs() > 1).any(1)
    if bool(wrong.any()):
        edge = int(forth[wrong][0])
        raise InputError(
            f"the edge from node {int(senders[edge])} to {int(receivers[edge])} of the batch has none in the other direction, which a head "
            "with symmetry compares it with; give both directions of every edge, or leave symmetry out"
        )
    return torch.empty_like(forth).index_copy(0, forth, back)


def _order(keys: list[Tensor]) -> Int[Tensor, " edges"]:
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in reversed(keys):
        order = order[torch.argsort(key[order], stable=True)]
    return order
