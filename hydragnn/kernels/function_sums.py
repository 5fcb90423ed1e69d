"""Weighted sums of functions of messages, with loops for two derivatives.

    sum(a, w)_i = sum over received edges of w_e f(a_e)
    gradient: a' = w_e g_i f'(a_e), w' = sum over channels of g_i f(a_e)
    its gradient, for u at a' and v at w', in one pass over a and u:
        a'' = w g u f''(a) + v g f'(a), w'' = sum over channels of g u f'(a), g'' = sum over edges of w u f'(a) + v f(a)

Derivatives of higher order are those of the composition, which also serves devices without loops of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu.compiled import serves
from hydragnn.kernels.family import ANYWHERE, check_items, form_on, on_accelerators
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

    def __call__(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by the form of the device."""
        forms = {ANYWHERE: self.composed, "cpu": self.compiled_or_composed, **on_accelerators(self.in_triton)}
        return form_on(forms, messages.device.type)(messages, weights, topology)

    def in_triton(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by Triton's kernels, which take messages and weights of one dtype."""
        if messages.dim() != 2 or messages.dtype != weights.dtype:
            return self.composed(messages, weights, topology)
        check_items(("edges", "edges"), (messages, weights), topology)
        value: Tensor = _Sum.apply(_InTriton(self.composed, self.function), topology, messages, weights)
        return value

    def compiled_or_composed(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by the compiled loop if it serves."""
        if not serves(messages, weights) or messages.dim() != 2:
            return self.composed(messages, weights, topology)
        check_items(("edges", "edges"), (messages, weights), topology)
        value: Tensor = _Sum.apply(self, topology, messages, weights)
        return value


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


class _Sum(Function):
    """The sum."""

    @staticmethod
    def forward(ctx: Any, op: FunctionSum | _InTriton, topology: Topology, a: Tensor, w: Tensor) -> Tensor:
        ctx.op, ctx.topology = op, topology
        ctx.save_for_backward(a, w)
        return op.value(a, w, topology)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Gradient.apply(ctx.op, ctx.topology, *ctx.saved_tensors, incoming)


class _Gradient(Function):
    """a' and w'."""

    @staticmethod
    def forward(
        ctx: Any, op: FunctionSum | _InTriton, topology: Topology, a: Tensor, w: Tensor, g: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.op, ctx.topology = op, topology
        ctx.save_for_backward(a, w, g)
        return op.gradient(a, w, g, topology)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Second.apply(ctx.op, ctx.topology, *ctx.saved_tensors, *incoming)


class _Second(Function):
    """a'', w'' and g''."""

    @staticmethod
    def forward(
        ctx: Any, op: FunctionSum | _InTriton, topology: Topology, a: Tensor, w: Tensor, g: Tensor, u: Tensor, v: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.op, ctx.topology = op, topology
        ctx.save_for_backward(a, w, g, u, v)
        return op.second(a, w, g, u, v, topology)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            operands = [
                tensor.view_as(tensor) if tensor.requires_grad else tensor.detach() for tensor in ctx.saved_tensors
            ]
            operands = [tensor if tensor.requires_grad else tensor.requires_grad_() for tensor in operands]
            values = _second(ctx.op, operands, ctx.topology)
            inputs = torch.autograd.grad(values, operands, incoming, create_graph=recorded, materialize_grads=True)
            return None, None, *inputs


def _second(op: FunctionSum | _InTriton, operands: Sequence[Tensor], topology: Topology) -> Sequence[Tensor]:
    """Return the derivative of the gradient of the composition."""
    a, w, g, u, v = operands
    first = torch.autograd.grad(op.composed(a, w, topology), (a, w), g, create_graph=True)
    return torch.autograd.grad(first, (a, w, g), (u, v), create_graph=True)
