"""Weighted sums of SiLU of messages, without an array of the activations."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.activation import silu
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, Form, on_accelerators
from hydragnn.kernels.function_sums import FunctionSum
from hydragnn.kernels.outer import outer_sum
from hydragnn.kernels.triton import forms as triton_forms


def activated_sum(
    messages: Float[Tensor, "edges channels"], weights: Float[Tensor, "edges 1"], topology: Topology
) -> Float[Tensor, "rows channels"]:
    """Return each node's sum of weights times SiLU of messages.

    A node without edges receives zeros. Atomics: none.

    >>> import torch
    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 0]), 2)
    >>> activated_sum(torch.tensor([[20.0], [0.0]]), torch.ones(2, 1), edges).squeeze(-1)
    tensor([20.,  0.])
    """
    return SUM(messages, weights, topology)


def composed(messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """Compose the sum of two ops."""
    return outer_sum(silu(messages), weights, topology).squeeze(1)


SUM = FunctionSum(
    composed=composed,
    value=cpu.activated_sum,
    gradient=cpu.activated_gradient,
    second=cpu.activated_second,
    function=triton_forms.SILU,
)
FORMS: Mapping[str, Form] = {ANYWHERE: composed, "cpu": SUM.compiled_or_composed, **on_accelerators(SUM.in_triton)}
