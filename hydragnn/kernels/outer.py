"""Messages along directions: sum of m_e (x) u_e at each receiver, in a second family closed under differentiation.

    S(m, u)_ia = sum over received edges of m_e u_ea     dS: m' = T(u, G), u' = R(m, G)
    T(u, G)_e  = sum over axes of u_ea G_receiver,a      dT: u' = R(v, G), G' = S(v, u)
    R(m, G)_ea = sum over channels of m_e G_receiver,a   dR: m' = T(v, G), G' = S(m, v)

No array of edges x axes x channels is ever made for S and T.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import triton_forms
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, Member, on_accelerators
from hydragnn.kernels.trilinear import segment_bag


def outer_sum(
    messages: Float[Tensor, "edges channels"], directions: Float[Tensor, "edges dim"], topology: Topology
) -> Float[Tensor, "rows dim channels"]:
    """Each node's sum of messages times directions: the vectors that its edges carry to it. Atomics: none.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
    >>> outer_sum(torch.ones(2, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), edges).squeeze(-1)
    tensor([[1., 2.],
            [3., 4.]])
    """
    return OUTER("S", (messages, directions), topology)


def along_directions(
    directions: Float[Tensor, "edges dim"], vectors: Float[Tensor, "rows dim channels"], topology: Topology
) -> Float[Tensor, "edges channels"]:
    """What each edge's receiver holds, along the direction of the edge. Atomics: none."""
    return OUTER("T", (directions, vectors), topology)


def along_channels(
    messages: Float[Tensor, "edges channels"], vectors: Float[Tensor, "rows dim channels"], topology: Topology
) -> Float[Tensor, "edges dim"]:
    """What each edge's receiver holds, times the edge's message and summed over channels. Atomics: none."""
    return OUTER("R", (messages, vectors), topology)


def sum_of_outer_products(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """S in plain torch, one axis at a time."""
    axes = directions.to(messages.dtype).unbind(-1)
    summed = [segment_bag(messages, topology.edge_numbers, topology.row_offsets, axis) for axis in axes]
    return torch.stack(summed, dim=1)  # [rows, dim, channels]


def sum_over_axes(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """T in plain torch, one axis at a time."""
    total: Tensor | None = None
    for axis in range(directions.shape[1]):
        part = vectors[:, axis].index_select(0, topology.receivers)  # [edges, channels]
        along = directions[:, axis : axis + 1].to(part.dtype)
        total = part.mul_(along) if total is None else total.addcmul_(part, along)
    assert total is not None
    return total


def sum_over_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """R in plain torch, one axis at a time."""
    axes = vectors.unbind(1)
    products = [(axis.index_select(0, topology.receivers) * messages).sum(-1) for axis in axes]
    return torch.stack(products, dim=-1)  # [edges, dim]


SUMS = {ANYWHERE: sum_of_outer_products, **on_accelerators(triton_forms.sum_of_outer_products)}
OVER_AXES = {ANYWHERE: sum_over_axes, **on_accelerators(triton_forms.sum_over_axes)}
OVER_CHANNELS = {ANYWHERE: sum_over_channels, **on_accelerators(triton_forms.sum_over_channels)}

OUTER = Family(
    {
        "S": Member(forms=SUMS, derivatives=(("T", (1, INCOMING)), ("R", (0, INCOMING)))),
        "T": Member(forms=OVER_AXES, derivatives=(("R", (INCOMING, 1)), ("S", (INCOMING, 0)))),
        "R": Member(forms=OVER_CHANNELS, derivatives=(("T", (INCOMING, 1)), ("S", (0, INCOMING)))),
    }
)
