"""What goes to the edge that holds a node's extreme, and what comes from it: a family of two, each the other's derivative."""

import torch
from torch import Tensor

from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, Member


def to_winner(u: Tensor, winners: tuple[Tensor, int]) -> Tensor:
    """Each node's number put on its winning edge; numbers of nodes without edges go nowhere."""
    winner, edges = winners
    return u.new_zeros(edges + 1, *u.shape[1:]).scatter_(0, winner, u)[:edges]


def from_winner(v: Tensor, winners: tuple[Tensor, int]) -> Tensor:
    """What each node's winning edge holds; zero for a node without edges."""
    padded = torch.cat([v, v.new_zeros(1, *v.shape[1:])])
    return padded.gather(0, winners[0])


WINNERS = Family(
    {
        "to winner": Member(forms={ANYWHERE: to_winner}, derivatives=(("from winner", (INCOMING,)),)),
        "from winner": Member(forms={ANYWHERE: from_winner}, derivatives=(("to winner", (INCOMING,)),)),
    }
)
