"""SiLU with derivatives of every order, in few passes.

torch takes the derivative of silu's derivative apart into sigmoids, products and differences, each an array that is kept. Here

    silu(x) = x s(x), s the sigmoid           x' = slope(x, u)
    slope(x, g) = g silu'(x)                  g' = slope(x, u), x' = curvature(x, g, u)
    curvature(x, g, u) = g u silu''(x)        g' = curvature(x, v, u), u' = curvature(x, g, v), x' = v g u silu'''(x)

Without a recorded gradient torch's own silu gives the same numbers with fewer calls (``first_derivatives``).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, Form, add, form_on, forms_of
from hydragnn.kernels.triton import forms as triton_forms


def silu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x times its sigmoid, element by element.

    >>> silu(torch.tensor([0.0, 20.0]))
    tensor([ 0., 20.])
    """
    return nn.functional.silu(x) if _first_only else _Value.apply(x)


_first_only: list[None] = []


@contextmanager
def first_derivatives() -> Iterator[None]:
    """Expect first derivatives only within the block.

    Higher ones work and take longer. Small models gain a tenth of a step.
    """
    _first_only.append(None)
    try:
        yield
    finally:
        _first_only.pop()


class SiLU(nn.Module):
    """``silu`` as a layer."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """x times its sigmoid."""
        return silu(x)


class _Value(Function):
    """silu(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return nn.functional.silu(x)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _Slope.apply(x, incoming)


class _Slope(Function):
    """slope(x, g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor) -> Tensor:
        ctx.save_for_backward(x, g)
        return torch.ops.aten.silu_backward(g, x)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        x, g = ctx.saved_tensors
        return _of_slope(x, g, incoming, ctx.needs_input_grad)


class _OfSlope(Function):
    """Both gradients of ``slope``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, g, u)
        return form_on(OF_SLOPE_FORMS, x.device.type)(x, g, u)

    @staticmethod
    def backward(ctx: Any, for_k: Tensor, for_d: Tensor) -> tuple[Tensor | None, ...]:
        x, g, u = ctx.saved_tensors
        for_x, for_g, for_u = ctx.needs_input_grad
        x_of_k, g_of_k, u_of_k = _of_curvature(x, g, u, for_k, (for_x, for_g, for_u))
        x_of_d, u_of_d = _of_slope(x, u, for_d, (for_x, for_u))
        return add(x_of_k, x_of_d), g_of_k, add(u_of_k, u_of_d)


class _Curvature(Function):
    """curvature(x, g, u)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, u: Tensor) -> Tensor:
        ctx.save_for_backward(x, g, u)
        return form_on(CURVATURE_FORMS, x.device.type)(x, g, u)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        x, g, u = ctx.saved_tensors
        return _of_curvature(x, g, u, incoming, ctx.needs_input_grad)


def _of_slope(x: Tensor, g: Tensor, incoming: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    for_x, for_g = needed
    if for_x and for_g:
        return _OfSlope.apply(x, g, incoming)
    return _Curvature.apply(x, g, incoming) if for_x else None, _Slope.apply(x, incoming) if for_g else None


def _of_curvature(
    x: Tensor, g: Tensor, u: Tensor, incoming: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    for_x, for_g, for_u = needed
    return (
        incoming * g * u * _third(x) if for_x else None,
        _Curvature.apply(x, incoming, u) if for_g else None,
        _Curvature.apply(x, g, incoming) if for_u else None,
    )


def slope_gradients(x: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients of ``slope``, one after the other."""
    return form_on(CURVATURE_FORMS, x.device.type)(x, g, u), torch.ops.aten.silu_backward(u, x)


def curvature(x: Tensor, g: Tensor, u: Tensor) -> Tensor:
    """Return g u silu''(x) in plain torch."""
    s = torch.sigmoid(x)
    bend = (s * -2).add_(1).mul_(x).add_(2)  # silu'' = s (1 - s) (2 + x (1 - 2 s))
    return bend.mul_(s.addcmul_(s, s, value=-1)).mul_(g).mul_(u)


def _third(x: Tensor) -> Tensor:
    """The third derivative, in operations that torch differentiates."""
    s = torch.sigmoid(x)
    p, odd = s * (1 - s), 1 - 2 * s  # s' and s'' / s'
    return p * (odd * (3 + x * odd) - 2 * x * p)


CURVATURE_FORMS = forms_of(curvature, cpu.silu_curvature)
OF_SLOPE_FORMS = forms_of(slope_gradients, cpu.silu_slope_gradient, triton_forms.silu_slope_gradients)
SILU_FORMS: Mapping[str, Form] = {ANYWHERE: _Value.apply}
