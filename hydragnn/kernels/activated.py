"""Sums of messages that end in a SiLU, of which no array of edges x channels is made but that of their first derivative.

    F(a, w)_i = sum over received edges of w_e silu(a_e)
    dF: a' = w_e g_i silu'(a_e), w' = sum over channels of g_i silu(a_e)
    dF's own derivative, for u that arrives at a' and v at w': one pass over a and u
        a'' = w g u silu''(a) + v g silu'(a), w'' = sum over channels of g u silu'(a), g'' = sum over edges of w u silu'(a) + v silu(a)

Derivatives of higher order are those of the composition of ``silu`` and ``outer_sum``, which also serves devices without loops of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import cpu
from hydragnn.kernels.activation import silu
from hydragnn.kernels.compiled import serves
from hydragnn.kernels.family import ANYWHERE, Form, as_operators, check_items, form_on
from hydragnn.kernels.outer import outer_sum


def activated_sum(
    messages: Float[Tensor, "edges channels"], weights: Float[Tensor, "edges 1"], topology: Topology
) -> Float[Tensor, "rows channels"]:
    """Each node's sum of weights times SiLU of messages; a node without edges receives zeros. Atomics: none.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 0]), 2)
    >>> activated_sum(torch.tensor([[20.0], [0.0]]), torch.ones(2, 1), edges).squeeze(-1)
    tensor([20.,  0.])
    """
    form = FORMS[ANYWHERE] if as_operators() else form_on(FORMS, messages.device.type)
    return form(messages, weights, topology)


def composed(messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """F of two ops."""
    return outer_sum(silu(messages), weights, topology).squeeze(1)


def compiled_or_composed(messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """F by the compiled loop, where it serves."""
    if not serves(messages, weights) or messages.dim() != 2:
        return composed(messages, weights, topology)
    check_items(("edges", "edges"), (messages, weights), topology)
    value: Tensor = _Sum.apply(topology, messages, weights)
    return value


class _Sum(Function):
    """F."""

    @staticmethod
    def forward(ctx: Any, topology: Topology, a: Tensor, w: Tensor) -> Tensor:
        ctx.topology = topology
        ctx.save_for_backward(a, w)
        return cpu.activated_sum(a, w, topology)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Gradient.apply(ctx.topology, *ctx.saved_tensors, incoming)


class _Gradient(Function):
    """a' and w'."""

    @staticmethod
    def forward(ctx: Any, topology: Topology, a: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        ctx.topology = topology
        ctx.save_for_backward(a, w, g)
        return cpu.activated_gradient(a, w, g, topology)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Second.apply(ctx.topology, *ctx.saved_tensors, *incoming)


class _Second(Function):
    """a'', w'' and g''."""

    @staticmethod
    def forward(
        ctx: Any, topology: Topology, a: Tensor, w: Tensor, g: Tensor, u: Tensor, v: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.topology = topology
        ctx.save_for_backward(a, w, g, u, v)
        return cpu.activated_second(a, w, g, u, v, topology)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            known = [
                tensor.view_as(tensor) if tensor.requires_grad else tensor.detach() for tensor in ctx.saved_tensors
            ]
            known = [tensor if tensor.requires_grad else tensor.requires_grad_() for tensor in known]
            values = _second(known, ctx.topology)
            return None, *torch.autograd.grad(values, known, incoming, create_graph=recorded, materialize_grads=True)


def _second(known: Sequence[Tensor], topology: Topology) -> Sequence[Tensor]:
    """The derivative of the gradient, by what is composed."""
    a, w, g, u, v = known
    first = torch.autograd.grad(composed(a, w, topology), (a, w), g, create_graph=True)
    return torch.autograd.grad(first, (a, w, g), (u, v), create_graph=True)


FORMS: Mapping[str, Form] = {ANYWHERE: composed, "cpu": compiled_or_composed}
