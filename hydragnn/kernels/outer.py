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
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, FUSABLE, INCOMING, Family, Member, on_accelerators
from hydragnn.kernels.trilinear import segment_bag
from hydragnn.kernels.triton import forms as triton_forms


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


def add_outer_products(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """S as a compiler fuses it: one loop over the edges, in which no array of their outer products is made."""
    products = messages.unsqueeze(1) * directions.to(messages.dtype).unsqueeze(2)  # [edges, dim, channels]
    return products.new_zeros(topology.num_rows, *products.shape[1:]).index_add(0, topology.receivers, products)


def multiply_along_directions(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """T as a compiler fuses it."""
    gathered = vectors.index_select(0, topology.receivers)  # [edges, dim, channels]
    return (gathered * directions.to(gathered.dtype).unsqueeze(2)).sum(1)


def multiply_along_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """R as a compiler fuses it."""
    return (vectors.index_select(0, topology.receivers) * messages.unsqueeze(1)).sum(2)


S_FORMS = {
    ANYWHERE: sum_of_outer_products,
    FUSABLE: add_outer_products,
    "cpu": cpu.or_plain(cpu.sum_of_outer_products, sum_of_outer_products),
    **on_accelerators(triton_forms.sum_of_outer_products),
}
T_FORMS = {
    ANYWHERE: sum_over_axes,
    FUSABLE: multiply_along_directions,
    "cpu": cpu.or_plain(cpu.sum_over_axes, sum_over_axes),
    **on_accelerators(triton_forms.sum_over_axes),
}
R_FORMS = {
    ANYWHERE: sum_over_channels,
    FUSABLE: multiply_along_channels,
    "cpu": cpu.or_plain(cpu.sum_over_channels, sum_over_channels),
    **on_accelerators(triton_forms.sum_over_channels),
}
OUTER = Family(
    {
        "S": Member(forms=S_FORMS, derivatives=(("T", (1, INCOMING)), ("R", (0, INCOMING))), items=("edges", "edges")),
        "T": Member(forms=T_FORMS, derivatives=(("R", (INCOMING, 1)), ("S", (INCOMING, 0))), items=("edges", "rows")),
        "R": Member(forms=R_FORMS, derivatives=(("T", (INCOMING, 1)), ("S", (0, INCOMING))), items=("edges", "rows")),
    }
)
