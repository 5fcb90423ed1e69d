"""Softmax over the edges of a receiver, with derivatives of every order.

Each op takes one pass over the rows. With row(a) the sum of a over the edges with the same receiver,

    shares y = exp(s) / row(exp(s))                       s' = gradient(y, u)
    gradient(y, u) = y (u - row(y u))                     u' = gradient(y, v), y' = curvature(y, u, v)
    curvature(y, u, v) = u v - v row(y u) - u row(y v)    made of sums
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import CallRecord, Nonlinear, Tensors, form_on, forms_of
from hydragnn.kernels.per_receiver import SUM_FORMS, SUMS
from hydragnn.kernels.segment_order import segment_order
from hydragnn.kernels.statistics import Segments, scattered_extreme
from hydragnn.kernels.triton import reductions as triton_reductions
from hydragnn.kernels.triton.forms import may_be_long


def shares(scores: Tensor, segments: Segments) -> Tensor:
    """Return the shares in plain torch."""
    receivers, num_nodes = segments
    highest = scattered_extreme(scores, receivers, num_nodes, "amax")  # [nodes, *features]
    exponentials = (scores - highest.index_select(0, receivers)).exp()
    return exponentials / _row_sums(exponentials, segments)


def gradient(y: Tensor, u: Tensor, segments: Segments) -> Tensor:
    """G in plain torch, with sums as the device has them."""
    return y * (u - _row_sums(y * u, segments))


def curvature(y: Tensor, u: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """H in plain torch, with sums as the device has them."""
    return u * v - v * _row_sums(y * u, segments) - u * _row_sums(y * v, segments)


def _row_sums(values: Tensor, segments: Segments) -> Tensor:
    total = form_on(SUM_FORMS, values.device.type)(values, segments)
    return total.index_select(0, segments[0])


def _unless_long(plain: Callable[..., Tensor], launched: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the Triton form, with the plain one for long rows."""

    def form(*inputs: Any) -> Tensor:
        order = segment_order(*inputs[-1])
        return plain(*inputs) if may_be_long(order) else launched(*inputs[:-1], order)

    return form


def _of_scores(record: CallRecord, segments: Segments) -> Tensors:
    return (GRADIENT((record.results[0], record.incoming[0]), segments),)


def _of_gradient(record: CallRecord, segments: Segments) -> Tensors:
    (y, u), v = record.tensors, record.incoming[0]
    return CURVATURE((y, u, v), segments), GRADIENT((y, v), segments)


def _of_curvature(record: CallRecord, segments: Segments) -> Tensors:
    y, u, v = (tensor for tensor in record.tensors if tensor is not None)
    w = record.incoming[0]
    assert w is not None

    def sums(values: Tensor) -> Tensor:
        return SUMS("spread", (SUMS("sum", (values,), segments),), segments)

    of_u, of_v = sums(u * w), sums(v * w)
    return -u * of_v - v * of_u, w * v - w * sums(y * v) - y * of_v, w * u - w * sums(y * u) - y * of_u


SOFTMAX_FORMS = forms_of(shares, cpu.softmax, _unless_long(shares, triton_reductions.softmax))
SOFTMAX = Nonlinear(name="softmax", forms=SOFTMAX_FORMS, gradients=_of_scores, keeps_tensors=False)
GRADIENT = Nonlinear(
    name="softmax_gradient",
    forms=forms_of(gradient, cpu.softmax_gradient, _unless_long(gradient, triton_reductions.softmax_gradient)),
    gradients=_of_gradient,
    tensors=2,
)
CURVATURE = Nonlinear(
    name="softmax_curvature",
    forms=forms_of(curvature, cpu.softmax_curvature, _unless_long(curvature, triton_reductions.softmax_gradient)),
    gradients=_of_curvature,
    tensors=3,
)
