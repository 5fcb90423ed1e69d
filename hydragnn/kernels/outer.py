"""Sums of messages times directions of edges.

    outer_sum(m, u)_ia       = sum over received edges of m_e u_ea    m' = along_directions(u, G), u' = along_channels(m, G)
    along_directions(u, G)_e = sum over axes of u_ea G_receiver,a     u' = along_channels(v, G), G' = outer_sum(v, u)
    along_channels(m, G)_ea  = sum over channels of m_e G_receiver,a  m' = along_directions(v, G), G' = outer_sum(m, v)

The first two make no array of edges x axes x channels.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import Partial, forms_of, multilinear
from hydragnn.kernels.trilinear import segment_bag
from hydragnn.kernels.triton import forms as triton_forms


def outer_sum(
    messages: Float[Tensor, "edges channels"], directions: Float[Tensor, "edges dim"], topology: Topology
) -> Float[Tensor, "rows dim channels"]:
    """Return each node's sum of messages times directions. Atomics: none.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
    >>> outer_sum(torch.ones(2, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), edges).squeeze(-1)
    tensor([[1., 2.],
            [3., 4.]])
    """
    return OUTER("outer_sum", (messages, directions), topology)


def along_directions(
    directions: Float[Tensor, "edges dim"], vectors: Float[Tensor, "rows dim channels"], topology: Topology
) -> Float[Tensor, "edges channels"]:
    """Return each receiver's vectors along the edge. Atomics: none."""
    return OUTER("along_directions", (directions, vectors), topology)


def along_channels(
    messages: Float[Tensor, "edges channels"], vectors: Float[Tensor, "rows dim channels"], topology: Topology
) -> Float[Tensor, "edges dim"]:
    """Return each receiver's vectors contracted with the message. Atomics: none."""
    return OUTER("along_channels", (messages, vectors), topology)


def plain_outer_sum(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """Sum messages times directions, one axis at a time."""
    axes = directions.to(messages.dtype).unbind(-1)
    summed = [segment_bag(messages, topology.edge_numbers, topology.row_offsets, axis) for axis in axes]
    return torch.stack(summed, dim=1)  # [rows, dim, channels]


def plain_along_directions(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Project vectors on directions, one axis at a time."""
    total: Tensor | None = None
    for axis in range(directions.shape[1]):
        part = vectors[:, axis].index_select(0, topology.receivers)  # [edges, channels]
        along = directions[:, axis : axis + 1].to(part.dtype)
        total = part.mul_(along) if total is None else total.addcmul_(part, along)
    assert total is not None
    return total


def plain_along_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Contract vectors with messages, one axis at a time."""
    products = [(axis.index_select(0, topology.receivers) * messages).sum(-1) for axis in vectors.unbind(1)]
    return torch.stack(products, dim=-1)  # [edges, dim]


OUTER_SUM_FORMS = forms_of(plain_outer_sum, cpu.outer_sum, triton_forms.outer_sum)
ALONG_DIRECTIONS_FORMS = forms_of(plain_along_directions, cpu.along_directions, triton_forms.along_directions)
ALONG_CHANNELS_FORMS = forms_of(plain_along_channels, cpu.along_channels, triton_forms.along_channels)
OUTER = multilinear(
    {"messages": "edges", "directions": "edges", "vectors": "rows"},
    {
        "vectors": Partial("outer_sum", OUTER_SUM_FORMS, triton_forms.outer_sum),
        "messages": Partial("along_directions", ALONG_DIRECTIONS_FORMS, triton_forms.along_directions),
        "directions": Partial("along_channels", ALONG_CHANNELS_FORMS, triton_forms.along_channels),
    },
)
