"""Sums of messages per receiver and their transpose, a family closed under differentiation; and counts of edges."""

from torch import Tensor

from hydragnn.kernels import cpu
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, Member


def sum_to_receivers(messages: Tensor, segments: tuple[Tensor, int]) -> Tensor:
    """``index_add``."""
    receivers, num_nodes = segments
    return messages.new_zeros(num_nodes, *messages.shape[1:]).index_add(0, receivers, messages)


def spread_to_edges(received: Tensor, segments: tuple[Tensor, int]) -> Tensor:
    """What each edge's receiver holds."""
    return received.index_select(0, segments[0])


SUM_FORMS = {ANYWHERE: sum_to_receivers, "cpu": cpu.or_plain(cpu.sum_to_receivers, sum_to_receivers)}
SUMS = Family(
    {
        "sum": Member(forms=SUM_FORMS, derivatives=(("spread", (INCOMING,)),)),
        "spread": Member(forms={ANYWHERE: spread_to_edges}, derivatives=(("sum", (INCOMING,)),)),
    }
)
"""Of (receivers, number of nodes); receivers may come in any order."""


def counts_of(receivers: Tensor, num_nodes: int, like: Tensor) -> Tensor:
    """Incoming edges per node, at least 1, shaped to divide ``like``."""
    ones = receivers.new_ones(1).expand(receivers.shape[0])
    # integers: float32 stops counting at 2^24
    counts = receivers.new_zeros(num_nodes).index_add_(0, receivers, ones).clamp_min(1).to(like.dtype)
    return counts.view(-1, *[1] * (like.dim() - 1))
