"""Families of sums per receiver and of winning edges."""

import torch
from torch import Tensor

from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, FamilyMember, forms_of, on_accelerators
from hydragnn.kernels.segment_order import segment_order
from hydragnn.kernels.triton import forms as triton_forms


def sum_to_receivers(messages: Tensor, segments: tuple[Tensor, int]) -> Tensor:
    """Sum messages at receivers by ``index_add``."""
    receivers, num_nodes = segments
    return messages.new_zeros(num_nodes, *messages.shape[1:]).index_add(0, receivers, messages)


SPREAD_FORMS = {
    ANYWHERE: lambda received, segments: received.index_select(0, segments[0]),
    **on_accelerators(lambda received, segments: triton_forms.gather(received, segments[0])),
}
SUM_FORMS = forms_of(
    sum_to_receivers,
    cpu.sum_to_receivers,
    lambda messages, segments: triton_forms.sum_in_order(messages, segment_order(*segments)),
)
SUMS = Family(
    {
        "sum": FamilyMember(forms=SUM_FORMS, derivatives=(("spread", (INCOMING,)),)),
        "spread": FamilyMember(forms=SPREAD_FORMS, derivatives=(("sum", (INCOMING,)),)),
    }
)


TO_WINNER = {ANYWHERE: lambda u, to: u.new_zeros(to[1] + 1, *u.shape[1:]).scatter_(0, to[0], u)[: to[1]]}
FROM_WINNER = {ANYWHERE: lambda v, to: torch.cat([v, v.new_zeros(1, *v.shape[1:])]).gather(0, to[0])}
WINNERS = Family(
    {
        "to winner": FamilyMember(forms=TO_WINNER, derivatives=(("from winner", (INCOMING,)),)),
        "from winner": FamilyMember(forms=FROM_WINNER, derivatives=(("to winner", (INCOMING,)),)),
    }
)
"""Each node's number on its winning edge, of so many edges; and the number of this edge, or zero."""
