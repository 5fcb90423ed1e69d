"""Twice differentiable reductions of messages to their receivers.

Receivers may come in any order. On CUDA and ROCm the edges of a node are found by one sort per array of receivers
(``segment_order``): no atomics, and the same bits again. Without Triton there sums are ``index_add``, which adds atomically, so
that last bits differ from run to run unless ``torch.use_deterministic_algorithms(True)``.
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels.per_receiver import SUMS
from hydragnn.kernels.statistics import Segments, counts_of, extreme, scattered_extreme, statistics


def spread(values: Float[Tensor, "rows *features"], owners: Int[Tensor, " items"]) -> Float[Tensor, "items *features"]:
    """Return the row of each item's owner.

    The gradient of a row is the sum over its items. ``index_select``, whose own gradient adds atomically on a GPU. Atomics: none,
    and the same bits again. On CUDA and ROCm the order of items is kept as long as the tensor ``owners`` lives, so pass the same
    tensor again.

    >>> import torch
    >>> spread(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1, 0])).squeeze(1)
    tensor([3., 3., 1.])
    """
    return SUMS("spread", (values,), (owners, values.shape[0]))


def segment_sum(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Sum each node's incoming messages; a node without edges receives zeros.

    Atomics: none, and the same bits again.

    >>> import torch
    >>> segment_sum(torch.ones(3, 1), torch.tensor([0, 0, 2]), num_nodes=3).squeeze(1)
    tensor([2., 0., 1.])
    """
    return SUMS("sum", (messages,), (receivers, num_nodes))


def segment_mean(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Mean of each node's incoming messages; a node without edges receives zeros.

    Atomics: none, and the same bits again.

    >>> import torch
    >>> segment_mean(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), num_nodes=2).squeeze(1)
    tensor([0., 2.])
    """
    total = segment_sum(messages, receivers, num_nodes)
    return total / counts_of(receivers, num_nodes, total)


def segment_max(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "{num_nodes} *features"]:
    """Return the largest message per feature; zeros without edges.

    The gradient goes to the first of equal edges. Atomics: none, and the same bits again.

    >>> import torch
    >>> segment_max(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), num_nodes=2).squeeze(1)
    tensor([0., 3.])
    """
    return extreme(messages, receivers, num_nodes, "amax")


def segment_statistics(
    messages: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int, floor: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean, min, max and std of each node's messages.

    On a CPU it is one compiled pass if receivers ascend. Atomics: none, and the same bits again.
    """
    mean, variance, low, high = statistics(messages, receivers, num_nodes)
    return mean.to(messages.dtype), low, high, (variance + floor).sqrt().to(messages.dtype)


def segment_softmax(
    scores: Float[Tensor, "edges *features"], receivers: Int[Tensor, " edges"], num_nodes: int
) -> Float[Tensor, "edges *features"]:
    """Return exp(s_e) / sum of exp(s_f) per receiver.

    Shares are positive and sum to one per node; scores may have any size. Atomics: none, and the same bits again.

    >>> import torch
    >>> segment_softmax(torch.tensor([1e4, 1e4, -5.0]), torch.tensor([0, 0, 1]), num_nodes=2)
    tensor([0.5000, 0.5000, 1.0000])
    """
    shares: Tensor = _Softmax.apply(scores, (receivers, num_nodes))
    return shares


class _Softmax(Function):
    """Softmax over the edges of a receiver, with derivatives of every order.

    With row(a) the sum of a over the edges with the same receiver, y = exp(s) / row(exp(s)) and s' = y (u - row(y u)), made of ops.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, segments: Segments) -> Tensor:
        receivers, num_nodes = segments
        highest = scattered_extreme(scores, receivers, num_nodes, "amax")  # [nodes, *features]
        exponentials = (scores - highest.index_select(0, receivers)).exp()
        total = SUMS("sum", (exponentials,), segments)
        shares: Tensor = exponentials / total.index_select(0, receivers)
        ctx.save_for_backward(shares)
        ctx.segments = segments
        return shares

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        sums = SUMS("sum", (y * u,), ctx.segments)
        return y * (u - SUMS("spread", (sums,), ctx.segments)), None
