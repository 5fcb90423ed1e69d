"""Tables of functions of one number, by cubic Hermite interpolation.

With fixed weights, a network of a length is a smooth function of that length. A table of values and slopes replaces it (Lu et al.
2022, arXiv:2107.02103). The error falls with the fourth power of the knots' distance; derivatives are exactly those of the table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import form_on, forms_of
from hydragnn.kernels.orders import Options, Tensors, in_orders

Functions = Callable[[Tensor], Sequence[Tensor]]
"""From x ``[items]`` to the values of several functions, ``[items, channels]`` each."""
FEWEST, MOST = 512, 8192
"""Intervals of a table: those of the first try, and those of the largest."""
NEAR_ZERO = 1e-9
"""Position of the first knot as a share of the end: some functions are quotients without a value at zero."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FunctionTable:
    """Functions on [0, end], constant beyond the end."""

    end: float
    knots: Float[Tensor, "knots 3 channels"]
    """Values, what they rise by to the next knot (the last: 0), and slopes times the distance of two knots."""

    @property
    def step(self) -> float:
        """The distance of two knots."""
        return self.end / (self.knots.shape[0] - 1)


def interpolated(x: Float[Tensor, " items"], table: FunctionTable) -> Float[Tensor, "items channels"]:
    """Return the functions of a table at every x.

    NaN gives NaN.

    >>> square = FunctionTable(end=2.0, knots=torch.tensor([[[0.0], [1.0], [0.0]], [[1.0], [3.0], [2.0]], [[4.0], [0.0], [4.0]]]))
    >>> interpolated(torch.tensor([0.5, 1.5, 3.0]), square).squeeze(1)
    tensor([0.2500, 2.2500, 4.0000])
    """
    result: Tensor = in_orders(_TableOrders(), (x,), {"table": table})[0]
    return result


class _TableOrders:
    """Functions at x, and the sum over channels of g times their derivative."""

    orders = 2

    def plain(self, *tensors: Tensor | None, **options: FunctionTable) -> Tensors:
        (x,) = tensors
        assert x is not None
        return (value(x, options["table"]),)

    def computed(self, order: int, count: int, operands: Tensors, options: Options) -> Tensors:
        x = operands[0]
        assert x is not None
        return (form_on((VALUE_FORMS, SLOPE_FORMS)[order], x.device.type)(*operands, options["table"]),)


def value(x: Tensor, table: FunctionTable) -> Tensor:
    """Return the functions at x in plain torch."""
    t, low, high = _between(x, table)
    u = 1 - t
    # the cubic that has the values and slopes of both knots; a value is added last, so that little is lost
    return low[:, 0] + (t * t * (3 - 2 * t) * low[:, 1] + t * u * (u * low[:, 2] - t * high[:, 2]))


def slope(x: Tensor, g: Tensor, table: FunctionTable) -> Tensor:
    """Return the sum over channels of g times the derivative at x."""
    t, low, high = _between(x, table)
    u = 1 - t
    slopes = 6 * t * u * low[:, 1] + (u * (1 - 3 * t) * low[:, 2] + t * (3 * t - 2) * high[:, 2])
    outside = (x < 0) | (x > table.end)
    return torch.where(outside, 0.0, (slopes * g).sum(-1) / table.step)


def _between(x: Tensor, table: FunctionTable) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions ``[items, 1]`` and values ``[items, 3, channels]`` of both knots."""
    place = (x / table.step).clamp(0, table.knots.shape[0] - 1)
    number = place.detach().nan_to_num(0.0).long().clamp_max(table.knots.shape[0] - 2)
    t = (place - number).unsqueeze(-1)
    return t, table.knots.index_select(0, number), table.knots.index_select(0, number + 1)


def tables_of_functions(functions: Functions, end: float, dtype: torch.dtype) -> tuple[FunctionTable, ...]:
    """Return tables of functions on [0, end], exact to the precision.

    Returns None if they would be too large. ``functions`` maps float64 ``[items]`` to several ``[items, channels]`` and is
    differentiated twice by torch. Values and slopes are compared with it between every two knots.
    """
    precision = torch.finfo(dtype).eps
    intervals = FEWEST
    while intervals <= MOST:
        knots, error, tilt = _tried(functions, end, intervals)
        excess = max(8 * error / precision, 2 * tilt / precision)
        if excess <= 1:
            return tuple(FunctionTable(end=end, knots=one.to(dtype).contiguous()) for one in knots)
        if not math.isfinite(excess):
            return ()
        # an error of values falls with the fourth power of the distance of knots, one of slopes with the third
        intervals *= 2 ** max(1, math.ceil(math.log2(excess) / 4))
    return ()


def _tried(functions: Functions, end: float, intervals: int) -> tuple[list[Tensor], float, float]:
    """Return the knots of each function and the errors between them."""
    grid = torch.linspace(0, end, 2 * intervals + 1, dtype=torch.float64)
    grid[0] = NEAR_ZERO * end
    step, between = end / intervals, grid[1::2]
    knots, errors, tilts = [], [0.0], [0.0]
    for values, slopes in _with_slopes(functions, grid):
        values[0] -= slopes[0] * grid[0]  # the tangent's way back to zero
        rises = torch.diff(values[::2], dim=0, append=values[-1:])  # before they are rounded
        table = FunctionTable(end=end, knots=torch.stack([values[::2], rises, slopes[::2] * step], dim=1))
        ((guessed, tilted),) = _with_slopes(partial(_values, table=table), between)
        knots.append(table.knots)
        errors.append(_share(guessed, values[1::2], values))
        tilts.append(_share(tilted, slopes[1::2], slopes))
    return knots, max(errors), max(tilts)


def _values(x: Tensor, table: FunctionTable) -> list[Tensor]:
    return [value(x, table)]


def _share(ours: Tensor, exact: Tensor, all_exact: Tensor) -> float:
    share = (ours - exact).abs().max() / all_exact.abs().max().clamp_min(1e-300)
    return float(share.nan_to_num(nan=math.inf))


def _with_slopes(functions: Functions, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        values = list(functions(at))
        weights = [torch.ones_like(one, requires_grad=True) for one in values]
        # a sum rather than grad_outputs, with which torch loads half a second of sympy
        weighted = torch.stack([(one * weight).sum() for one, weight in zip(values, weights)]).sum()
        (total,) = torch.autograd.grad(weighted, at, create_graph=True)
        slopes = torch.autograd.grad(total.sum(), weights)
    return [(one.detach(), slope) for one, slope in zip(values, slopes)]


VALUE_FORMS = forms_of(value, cpu.table_value)
SLOPE_FORMS = forms_of(slope, cpu.table_slope)
