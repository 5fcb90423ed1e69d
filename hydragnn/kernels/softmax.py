"""Softmax over the edges of a receiver, with derivatives of every order.

With row(a) the sum of a over the edges with the same receiver,

    shares y = exp(s) / row(exp(s))    s' = y (u - row(y u)), made of ops
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels.family import form_on
from hydragnn.kernels.per_receiver import SUM_FORMS, SUMS
from hydragnn.kernels.statistics import Segments, scattered_extreme


class Softmax(Function):
    """Shares, with sums as the device has them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, segments: Segments) -> Tensor:
        """Return the shares."""
        receivers, num_nodes = segments
        highest = scattered_extreme(scores, receivers, num_nodes, "amax")  # [nodes, *features]
        exponentials = (scores - highest.index_select(0, receivers)).exp()
        total = form_on(SUM_FORMS, scores.device.type)(exponentials, segments)
        shares: Tensor = exponentials / total.index_select(0, receivers)
        ctx.save_for_backward(shares)
        ctx.segments = segments
        return shares

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the scores."""
        (y,) = ctx.saved_tensors
        sums = SUMS("sum", (y * u,), ctx.segments)
        return y * (u - SUMS("spread", (sums,), ctx.segments)), None
