"""Weighted sums of functions of messages, with loops for two derivatives.

    sum(a, w)_i = sum over received edges of w_e f(a_e)
    gradient: a' = w_e g_i f'(a_e), w' = sum over channels of g_i f(a_e)
    its gradient, for u at a' and v at w', in one pass over a and u:
        a'' = w g u f''(a) + v g f'(a), w'' = sum over channels of g u f'(a), g'' = sum over edges of w u f'(a) + v f(a)

Derivatives of higher order are those of the composition, which also serves devices without loops of their own. f is SiLU, or

    f(x) = x^2, t^4 and t^-4, with t = x + sqrt(1 + x^2) = exp(asinh x)

t grows like 2 x above zero and falls like 1 / (2 |x|) below, so t^4 is led by the largest of several x and t^-4 by the least, at any
size of x without an exponential. f' = 2 x, 4 t^4 / r and -4 t^-4 / r with r = sqrt(1 + x^2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.activation import silu
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.cpu.compiled import serves
from hydragnn.kernels.family import ANYWHERE, Form, check_items, form_on, is_accelerated, on_accelerators
from hydragnn.kernels.orders import Options, Tensors, in_orders
from hydragnn.kernels.outer import outer_sum
from hydragnn.kernels.triton import forms as triton_forms


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FunctionSum:
    """Weighted sum of one or more functions. Atomics: none."""

    composed: Callable[[Tensor, Tensor, Topology], Tensor]
    """The sum as a composition of ops."""
    name: str
    """Beginning of the names of the compiled loops."""
    function: int
    """Number of the function in Triton's kernels, which take the place of the loops on ROCm and CUDA."""
    orders: int = 3

    @property
    def forms(self) -> Mapping[str, Form]:
        """Return the forms by kind of device."""
        return {ANYWHERE: self.composed, "cpu": self.on_cpu, **on_accelerators(self.in_triton)}

    def __call__(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by the form of the device."""
        result: Tensor = form_on(self.forms, messages.device.type)(messages, weights, topology)
        return result

    def in_triton(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by Triton's kernels, which take messages and weights of one dtype."""
        return self._in_orders(messages.dtype == weights.dtype, messages, weights, topology)

    def on_cpu(self, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        """Return the sum by the compiled loop if it serves."""
        return self._in_orders(serves(messages, weights), messages, weights, topology)

    def _in_orders(self, is_served: bool, messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
        if not is_served or messages.dim() != 2:
            return self.composed(messages, weights, topology)
        check_items(("edges", "edges"), (messages, weights), topology)
        result: Tensor = in_orders(self, (messages, weights), {"topology": topology})[0]
        return result

    def plain(self, *tensors: Tensor | None, **options: Topology) -> Tensors:
        """Return the composition."""
        messages, weights = (tensor for tensor in tensors if tensor is not None)
        return (self.composed(messages, weights, options["topology"]),)

    def computed(self, order: int, count: int, operands: Tensors, options: Options) -> Tensors:
        """Return the sum, its gradients, or theirs, by loops or kernels."""
        a, w, *incoming = (operand for operand in operands if operand is not None)
        topology = options["topology"]
        if not is_accelerated(a.device.type):
            return cpu.function_orders(self.name, triton_forms.FUNCTIONS[self.function], a, w, incoming, topology)
        along = (incoming[1], incoming[2], None) if order == 2 else triton_forms.NONE
        gradients: Tensors = ()
        if order:
            gradients = triton_forms.function_gradient(a, w, incoming[0], topology, self.function, along)
        if order == 1:
            return gradients
        return *gradients, triton_forms.function_sum(a, w, topology, self.function, along)


def activated_sum(
    messages: Float[Tensor, "edges channels"], weights: Float[Tensor, "edges 1"], topology: Topology
) -> Float[Tensor, "rows channels"]:
    """Return each node's sum of weights times SiLU of messages.

    A node without edges receives zeros. Atomics: none.

    >>> edges = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 0]), 2)
    >>> activated_sum(torch.tensor([[20.0], [0.0]]), torch.ones(2, 1), edges).squeeze(-1)
    tensor([20.,  0.])
    """
    return ACTIVATED(messages, weights, topology)


ACTIVATED = FunctionSum(
    composed=lambda messages, weights, topology: outer_sum(silu(messages), weights, topology).squeeze(1),
    name="activated",
    function=triton_forms.SILU,
)

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
    return POWER_SUMS(deviations, weights, topology)


def composed_powers(deviations: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """Compose the sums of other ops."""
    squares = deviations.square()  # [edges, channels]
    roots = (1 + squares).sqrt()
    grown = squares, (roots + deviations) ** POWER, (roots - deviations) ** POWER
    return torch.stack([outer_sum(each, weights, topology).squeeze(1) for each in grown])


POWER_SUMS = FunctionSum(composed=composed_powers, name="power", function=triton_forms.POWERS)
