"""SiLU with derivatives of every order, in few passes.

torch takes the derivative of silu's derivative apart into sigmoids, products and differences, each an array that is kept. Here

    silu(x) = x s(x), s the sigmoid           x' = slope(x, u)
    slope(x, g) = g silu'(x)                  g' = slope(x, u), x' = g u silu''(x), both in one pass

Without a recorded gradient torch's own silu gives the same numbers with fewer calls (``first_derivatives``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import form_on, forms_of
from hydragnn.kernels.orders import Options, Tensors, in_orders
from hydragnn.kernels.triton import forms as triton_forms


def silu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x times its sigmoid, element by element.

    >>> silu(torch.tensor([0.0, 20.0]))
    tensor([ 0., 20.])
    """
    return nn.functional.silu(x) if _first_only else in_orders(SILU, (x,), {})[0]


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


class _SiluOrders:
    """silu(x), slope(x, g) and both gradients of the slope."""

    orders = 3

    def plain(self, *tensors: Tensor | None, **options: Any) -> Tensors:
        (x,) = tensors
        assert x is not None
        return (x * torch.sigmoid(x),)

    def computed(self, order: int, count: int, operands: tuple[Any, ...], options: Options) -> Tensors:
        if order == 0:
            return (nn.functional.silu(operands[0]),)
        if order == 1:
            return (torch.ops.aten.silu_backward(operands[1], operands[0]),)
        return form_on(SLOPE_GRADIENTS, operands[0].device.type)(*operands)


def slope_gradients(x: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients of ``slope`` in plain torch."""
    s = torch.sigmoid(x)
    bend = (s * -2).add_(1).mul_(x).add_(2)  # silu'' = s (1 - s) (2 + x (1 - 2 s))
    return bend.mul_(s.addcmul_(s, s, value=-1)).mul_(g).mul_(u), torch.ops.aten.silu_backward(u, x)


SLOPE_GRADIENTS = forms_of(slope_gradients, cpu.silu_slope_gradient, triton_forms.silu_slope_gradients)
SILU = _SiluOrders()
