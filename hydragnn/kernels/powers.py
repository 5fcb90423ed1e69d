"""Sums of squares and of one-sided fourth powers of deviations.

    f(x) = x^2, t^4 and t^-4, with t = x + sqrt(1 + x^2) = exp(asinh x)

t grows like 2 x above zero and falls like 1 / (2 |x|) below, so t^4 is led by the largest of several x and t^-4 by the least, at any
size of x without an exponential. f' = 2 x, 4 t^4 / r and -4 t^-4 / r with r = sqrt(1 + x^2).
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, Form, on_accelerators
from hydragnn.kernels.function_sums import FunctionSum
from hydragnn.kernels.outer import outer_sum
from hydragnn.kernels.triton import forms as triton_forms

POWER = 4


def power_sums(
    deviations: Float[Tensor, "edges channels"], weights: Float[Tensor, "edges 1"], topology: Topology
) -> Float[Tensor, "3 rows channels"]:
    """Return weighted sums of x^2, t^4 and t^-4.

    Here t = exp(asinh x). A node without edges receives zeros. Atomics: none.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 0]), 2)
    >>> power_sums(torch.tensor([[0.75], [0.0]]), torch.ones(2, 1), edges)[:, 0, 0]
    tensor([ 0.5625, 17.0000,  1.0625])
    """
    return SUMS(deviations, weights, topology)


def composed(deviations: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """Compose the sums of other ops."""
    squares = deviations.square()  # [edges, channels]
    roots = (1 + squares).sqrt()
    grown = squares, (roots + deviations) ** POWER, (roots - deviations) ** POWER
    return torch.stack([outer_sum(each, weights, topology).squeeze(1) for each in grown])


SUMS = FunctionSum(
    composed=composed,
    value=cpu.power_sums,
    gradient=cpu.power_gradient,
    second=cpu.power_second,
    function=triton_forms.POWERS,
)
FORMS: Mapping[str, Form] = {ANYWHERE: composed, "cpu": SUMS.compiled_or_composed, **on_accelerators(SUMS.in_triton)}
