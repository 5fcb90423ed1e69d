"""Ops with forms for their value and derivatives of low order.

Derivatives of higher order are those of plain torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.autograd import Function

Tensors = tuple[Tensor | None, ...]
Options = Mapping[str, Any]


@runtime_checkable
class Ordered(Protocol):
    """Function of tensors; these and the results may be None."""

    @property
    def orders(self) -> int:
        """Number of forms: value, gradient, gradient of the gradient."""

    def plain(self, *tensors: Tensor | None, **options: Any) -> Tensors:
        """Return the results in plain torch."""

    def computed(self, order: int, count: int, operands: Tensors, options: Options) -> Tensors:
        """Return the value (``order`` 0), the gradients of tensors (1), or those of tensors and of incoming gradients (2).

        Operands are ``count`` tensors, then incoming gradients of results, then those of tensors.
        """


def in_orders(op: Ordered, tensors: Sequence[Tensor | None], options: Options) -> tuple[Any, ...]:
    """Return the results of an op, with derivatives of every order."""
    results: tuple[Any, ...] = _Order.apply(op, options, 0, len(tensors), *tensors)
    return results


class _Order(Function):
    """Value, gradient, or gradient of the gradient."""

    @staticmethod
    def forward(ctx: Any, op: Ordered, options: Options, order: int, count: int, *operands: Tensor | None) -> Tensors:
        ctx.call = op, options, order, count
        ctx.save_for_backward(*operands)
        return op.computed(order, count, operands, options)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> Tensors:
        op, options, order, count = ctx.call
        if order + 1 < op.orders:
            return None, None, None, None, *_Order.apply(op, options, order + 1, count, *ctx.saved_tensors, *incoming)
        return None, None, None, None, *_in_plain_torch(op, options, order, count, ctx.saved_tensors, incoming)


def _in_plain_torch(
    op: Ordered, options: Options, order: int, count: int, operands: Tensors, incoming: Tensors
) -> Tensors:
    """Return the derivatives of what ``computed`` gives of the last order."""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        own = [
            None if x is None else x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in operands
        ]
        values = op.plain(*own[:count], **options)
        for _ in range(order):
            outer = own[count : count + len(values)]
            inputs, count = own[:count], count + len(values)
            values = _gradients(values, outer, inputs, recorded=True)
        return _gradients(values, incoming, own, recorded=recorded)


def _gradients(values: Tensors, incoming: Sequence[Tensor | None], inputs: Sequence[Any], *, recorded: bool) -> Tensors:
    """Return the gradients of the inputs that are tensors, of values that arrive and depend on any."""
    pairs = [
        (value, u) for value, u in zip(values, incoming) if value is not None and u is not None and value.requires_grad
    ]
    of_values, arrived = zip(*pairs)
    present = [x for x in inputs if x is not None]
    found = iter(torch.autograd.grad(of_values, present, arrived, create_graph=recorded, materialize_grads=True))
    return tuple(None if x is None else next(found) for x in inputs)
