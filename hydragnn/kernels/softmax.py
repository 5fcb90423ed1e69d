"""Shares of exponentials among the edges that a node receives, closed under differentiation: values, gradient and its gradient
each in one pass over the rows. With S(a) the sum of a over the edges with the same receiver,

    y = exp(s) / S(exp(s))               dy: s' = G(y, u)
    G(y, u) = y (u - S(y u))             dG: u' = G(y, v), y' = H(y, u, v)
    H(y, u, v) = u v - v S(y u) - u S(y v)    dH: made of sums
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, Form, form_on, on_accelerators
from hydragnn.kernels.nonlinear import Known, Nonlinear, Tensors
from hydragnn.kernels.per_receiver import SUM_FORMS, SUMS
from hydragnn.kernels.segment_order import segment_order
from hydragnn.kernels.statistics import Segments, scattered_extreme
from hydragnn.kernels.triton import reductions as triton_reductions


def shares(scores: Tensor, segments: Segments) -> Tensor:
    """y in plain torch."""
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
    """S, without derivatives."""
    total = form_on(SUM_FORMS, values.device.type)(values, segments)
    return total.index_select(0, segments[0])


def _in_triton(scores: Tensor, segments: Segments) -> Tensor:
    return triton_reductions.softmax(scores, *segment_order(*segments))


def _forms(plain: Form, compiled: Callable[..., Tensor | None]) -> Mapping[str, Form]:
    return {ANYWHERE: plain, "cpu": cpu.or_plain(compiled, plain)}


def _of_scores(known: Known, segments: Segments) -> Tensors:
    return (GRADIENT((known.results[0], known.incoming[0]), segments),)


def _of_gradient(known: Known, segments: Segments) -> Tensors:
    (y, u), v = known.tensors, known.incoming[0]
    return CURVATURE((y, u, v), segments), GRADIENT((y, v), segments)


def _of_curvature(known: Known, segments: Segments) -> Tensors:
    y, u, v = (tensor for tensor in known.tensors if tensor is not None)
    w = known.incoming[0]
    assert w is not None

    def sums(values: Tensor) -> Tensor:
        return SUMS("spread", (SUMS("sum", (values,), segments),), segments)

    of_u, of_v = sums(u * w), sums(v * w)
    return -u * of_v - v * of_u, w * v - w * sums(y * v) - y * of_v, w * u - w * sums(y * u) - y * of_u


SOFTMAX_FORMS: Mapping[str, Any] = {**_forms(shares, cpu.softmax), **on_accelerators(_in_triton)}
SOFTMAX = Nonlinear(name="softmax", forms=SOFTMAX_FORMS, gradients=_of_scores, keeps_tensors=False)
GRADIENT = Nonlinear(
    name="softmax_gradient", forms=_forms(gradient, cpu.softmax_gradient), gradients=_of_gradient, tensors=2
)
CURVATURE = Nonlinear(
    name="softmax_curvature", forms=_forms(curvature, cpu.softmax_curvature), gradients=_of_curvature, tensors=3
)
