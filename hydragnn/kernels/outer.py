"""Messages along directions: sum of m_e (x) u_e at each receiver, in a second family closed under differentiation.

    S(m, u)_ia = sum over received edges of m_e u_ea     dS: m' = T(u, G), u' = R(m, G)
    T(u, G)_e  = sum over axes of u_ea G_receiver,a      dT: u' = R(v, G), G' = S(v, u)
    R(m, G)_ea = sum over channels of m_e G_receiver,a   dR: m' = T(v, G), G' = S(m, v)

No array of edges x axes x channels is ever made for S and T.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.trilinear import segment_bag


def outer_sum(
    messages: Float[Tensor, "edges channels"], directions: Float[Tensor, "edges dim"], topology: Topology
) -> Float[Tensor, "rows dim channels"]:
    """Each node's sum of messages times directions: the vectors that its edges carry to it.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
    >>> outer_sum(torch.ones(2, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), edges).squeeze(-1)
    tensor([[1., 2.],
            [3., 4.]])
    """
    return _S.apply(messages, directions, topology)


class _S(Function):
    @staticmethod
    def forward(ctx: Any, messages: Tensor, directions: Tensor, topology: Topology) -> Tensor:
        ctx.save_for_backward(messages, directions)
        ctx.topology = topology
        axes = directions.to(messages.dtype).unbind(-1)
        summed = [segment_bag(messages, topology.edge_numbers, topology.row_offsets, axis) for axis in axes]
        return torch.stack(summed, dim=1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        messages, directions = ctx.saved_tensors
        needs_messages, needs_directions, _ = ctx.needs_input_grad
        return (
            _T.apply(directions, g, ctx.topology).to(messages.dtype) if needs_messages else None,
            _R.apply(messages, g, ctx.topology).to(directions.dtype) if needs_directions else None,
            None,
        )


class _T(Function):
    @staticmethod
    def forward(ctx: Any, directions: Tensor, states: Tensor, topology: Topology) -> Tensor:
        ctx.save_for_backward(directions, states)
        ctx.topology = topology
        total: Tensor | None = None
        for axis in range(directions.shape[1]):
            part = states[:, axis].index_select(0, topology.receivers)
            along = directions[:, axis : axis + 1].to(part.dtype)
            total = part.mul_(along) if total is None else total.addcmul_(part, along)
        assert total is not None
        return total

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        directions, states = ctx.saved_tensors
        needs_directions, needs_states, _ = ctx.needs_input_grad
        return (
            _R.apply(v, states, ctx.topology).to(directions.dtype) if needs_directions else None,
            _S.apply(v, directions, ctx.topology).to(states.dtype) if needs_states else None,
            None,
        )


class _R(Function):
    @staticmethod
    def forward(ctx: Any, messages: Tensor, states: Tensor, topology: Topology) -> Tensor:
        ctx.save_for_backward(messages, states)
        ctx.topology = topology
        axes = states.unbind(1)
        products = [(axis.index_select(0, topology.receivers) * messages).sum(-1) for axis in axes]
        return torch.stack(products, dim=-1)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        messages, states = ctx.saved_tensors
        needs_messages, needs_states, _ = ctx.needs_input_grad
        return (
            _T.apply(v, states, ctx.topology).to(messages.dtype) if needs_messages else None,
            _S.apply(messages, v, ctx.topology).to(states.dtype) if needs_states else None,
            None,
        )
