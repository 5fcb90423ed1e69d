"""Weighted sums of functions of messages, with loops for two derivatives.

    sum(a, w)_i = sum over received edges of w_e f(a_e)
    gradient: a' = w_e g_i f'(a_e), w' = sum over channels of g_i f(a_e)
    its gradient, for u at a' and v at w', in one pass over a and u:
        a'' = w g u f''(a) + v g f'(a), w'' = sum over channels of g u f'(a), g'' = sum over edges of w u f'(a) + v f(a)

Derivatives of higher order are those of the composition, which also serves devices without loops of their own. f is SiLU, or

    f(x) = x^2, t^4 and t^-4, with t = x + sqrt(1 + x^2) = exp(asinh x)

t grows like 2 x above zero and falls like 1 / (2 |x|) below, so t^4 is led by the largest of several x and t^-4 by the least, at any
size of x without an exponential. f' = 2 x, 4 t^4 / r and -4 t^-4 / r with r = sqrt(1 + x^2).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.activation import silu
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.cpu.compiled import serves
from hydragnn.kernels.family import ANYWHERE, Form, check_items, form_on, on_accelerators
from hydragnn.kernels.outer import outer_sum
from hydragnn.kernels.triton import forms as triton_forms


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FunctionSum:
    """Weighted sum of one or more functions. Atomics: none."""

    composed: Callable[[Tensor, Tensor, Topology], Tensor]
    """The sum as a composition of ops."""
    value: Callable[..., Tensor]
    """Compiled loop of (a, w, topology), without derivatives, like the others."""
    gradient: Callable[..., tuple[Tensor, ...]]
    """Both gradients, of (a, w, g, topology)."""
    second: Callable[..., tuple[Tensor, ...]]
    """The gradients of ``gradient``, of (a, w, g, u, v, topology)."""
    function: int
    """Number of the function in Triton's kernels, which take the place of the loops on ROCm and CUDA."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Return the forms by kind of device."""
        return {ANYWHERE: self.composed, "cpu": self.compiled_or_composed, **on_accelerators(self.in_triton)}

    def __call__(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by the form of the device."""
        return form_on(self.forms, messages.device.type)(messages, weights, topology)

    def in_triton(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by Triton's kernels, which take messages and weights of one dtype."""
        if messages.dim() != 2 or messages.dtype != weights.dtype:
            return self.composed(messages, weights, topology)
        check_items(("edges", "edges"), (messages, weights), topology)
        return _SumOrder.apply(_InTriton(self.composed, self.function), 0, topology, messages, weights)

    def compiled_or_composed(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by the compiled loop if it serves."""
        if not serves(messages, weights) or messages.dim() != 2:
            return self.composed(messages, weights, topology)
        check_items(("edges", "edges"), (messages, weights), topology)
        return _SumOrder.apply(self, 0, topology, messages, weights)


@dataclass(frozen=True, slots=True)
class _InTriton:
    """The loops of a function as Triton's kernels."""

    composed: Callable[[Tensor, Tensor, Topology], Tensor]
    function: int

    def value(self, a: Tensor, w: Tensor, topology: Topology) -> Tensor:
        return triton_forms.function_sum(a, w, topology, self.function)

    def gradient(self, a: Tensor, w: Tensor, g: Tensor, topology: Topology) -> tuple[Tensor, ...]:
        return triton_forms.function_gradient(a, w, g, topology, self.function)

    def second(self, a: Tensor, w: Tensor, g: Tensor, u: Tensor, v: Tensor, topology: Topology) -> tuple[Tensor, ...]:
        of_edges = triton_forms.function_gradient(a, w, g, topology, self.function, along=(u, v))
        return *of_edges, triton_forms.function_sum(a, w, topology, self.function, along=(u, v))


class _SumOrder(Function):
    """Value, gradient, or gradient of the gradient of a sum."""

    @staticmethod
    def forward(ctx: Any, op: Any, order: int, topology: Topology, *operands: Tensor) -> Any:
        ctx.call = op, order, topology
        ctx.save_for_backward(*operands)
        return (op.value, op.gradient, op.second)[order](*operands, topology)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        op, order, topology = ctx.call
        if order < 2:
            return None, None, None, *_SumOrder.apply(op, order + 1, topology, *ctx.saved_tensors, *incoming)
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            operands = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in ctx.saved_tensors]
            values = _second(op, operands, topology)
            inputs = torch.autograd.grad(values, operands, incoming, create_graph=recorded, materialize_grads=True)
            return None, None, None, *inputs


def _second(op: FunctionSum | _InTriton, operands: Sequence[Tensor], topology: Topology) -> Sequence[Tensor]:
    """Return the derivative of the gradient of the composition."""
    a, w, g, u, v = operands
    first = torch.autograd.grad(op.composed(a, w, topology), (a, w), g, create_graph=True)
    return torch.autograd.grad(first, (a, w, g), (u, v), create_graph=True)


def activated_sum(
    messages: Float[Tensor, "edges channels"], weights: Float[Tensor, "edges 1"], topology: Topology
) -> Float[Tensor, "rows channels"]:
    """Return each node's sum of weights times SiLU of messages.

    A node without edges receives zeros. Atomics: none.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 0]), 2)
    >>> activated_sum(torch.tensor([[20.0], [0.0]]), torch.ones(2, 1), edges).squeeze(-1)
    tensor([20.,  0.])
    """
    return ACTIVATED(messages, weights, topology)


def composed_activation(messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """Compose the sum of two ops."""
    return outer_sum(silu(messages), weights, topology).squeeze(1)


ACTIVATED = FunctionSum(
    composed=composed_activation,
    value=partial(cpu.function_sum, "activated_sum", 1),
    gradient=partial(cpu.function_gradient, "activated_gradient"),
    second=partial(cpu.function_second, "activated_second"),
    function=triton_forms.SILU,
)


POWER = 4


def power_sums(
    deviations: Float[Tensor, "edges channels"], weights: Float[Tensor, "edges 1"], topology: Topology
) -> Float[Tensor, "3 rows channels"]:
    """Return weighted sums of x^2, t^4 and t^-4.

    Here t = exp(asinh x). A node without edges receives zeros. Atomics: none.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 0]), 2)
    >>> power_sums(torch.tensor([[0.75], [0.0]]), torch.ones(2, 1), edges)[:, 0, 0]
    tensor([ 0.5625, 17.0000,  1.0625])
    """
    return POWER_SUMS(deviations, weights, topology)


def composed_powers(deviations: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """Compose the sums of other ops."""
    squares = deviations.square()  # [edges, channels]
    roots = (1 + squares).sqrt()
    grown = squares, (roots + deviations) ** POWER, (roots - deviations) ** POWER
    return torch.stack([outer_sum(each, weights, topology).squeeze(1) for each in grown])


POWER_SUMS = FunctionSum(
    composed=composed_powers,
    value=partial(cpu.function_sum, "power_sums", 3),
    gradient=partial(cpu.function_gradient, "power_gradient"),
    second=partial(cpu.function_second, "power_second"),
    function=triton_forms.POWERS,
)
