"""Softmax over the edges of a receiver, with derivatives of every order.

With row(a) the sum of a over the edges with the same receiver,

    shares y = exp(s) / row(exp(s))    s' = y (u - row(y u)), made of ops
"""

from torch import Tensor

from hydragnn.kernels.family import ANYWHERE, CallRecord, Nonlinear, Tensors, form_on
from hydragnn.kernels.per_receiver import SUM_FORMS, SUMS
from hydragnn.kernels.statistics import Segments, scattered_extreme


def shares(scores: Tensor, segments: Segments) -> Tensor:
    """Return the shares, with sums as the device has them."""
    receivers, num_nodes = segments
    highest = scattered_extreme(scores, receivers, num_nodes, "amax")  # [nodes, *features]
    exponentials = (scores - highest.index_select(0, receivers)).exp()
    total = form_on(SUM_FORMS, scores.device.type)(exponentials, segments)
    return exponentials / total.index_select(0, receivers)


def _gradients(record: CallRecord, segments: Segments) -> Tensors:
    y, u = record.results[0], record.incoming[0]
    assert y is not None and u is not None
    sums = SUMS("sum", (y * u,), segments)
    return (y * (u - SUMS("spread", (sums,), segments)),)


SOFTMAX = Nonlinear(name="softmax", forms={ANYWHERE: shares}, gradients=_gradients, keeps_tensors=False)
