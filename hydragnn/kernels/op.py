"""Op as one value: reference, forms, cases and tolerance."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.family import Form

TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 0.006,
    torch.bfloat16: 0.05,
}
"""Some tens of roundings in a row."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Case:
    """Arguments of one call: differentiable tensors, then ``rest``.

    ``smooth`` is False where the op has a kink, so that differences of values say nothing about its derivative.
    """

    tensors: tuple[Tensor, ...]
    rest: tuple[Any, ...]
    smooth: bool = True

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Case":
        """Return the case on a device, its tensors in ``dtype``."""

        def move(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor | Topology) else value

        tensors = tuple(tensor.detach().to(device=device, dtype=dtype) for tensor in self.tensors)
        return replace(self, tensors=tensors, rest=tuple(move(value) for value in self.rest))


Make = Callable[[Topology, int, Callable[..., Tensor]], Case]
"""Makes a case from edges, a number of channels and a source of random numbers of a given shape."""


class OpErrors(NamedTuple):
    """Largest differences, relative to the reference where that exceeds 1."""

    forward: float
    backward: float = 0.0
    twice: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op:
    """Kernel that layers call, with its tests and benchmarks.

    ``call`` is differentiable as often as one likes and takes the form that belongs to the device. ``reference`` is the
    specification. ``forms`` are the ways to compute the value, by kind of device (``"any"``: plain torch).
    """

    name: str
    call: Callable[..., Any]
    reference: Callable[..., Any]
    forms: Mapping[str, Form]
    variants: Mapping[str, Make]
    tolerance: Mapping[torch.dtype, float]

    def cases(self, graphs: Mapping[str, Topology], channels: int = 3) -> Iterator[tuple[str, Case]]:
        """Yield every variant of the op on every graph, with a name."""
        for graph, topology in graphs.items():
            for variant, make in self.variants.items():
                yield f"{graph}, {variant}", make(topology, channels, numbers(len(graph)))

    def compare(
        self, case: Case, *, dtype: torch.dtype = torch.float64, device: str = "cpu", form: str | None = None
    ) -> OpErrors:
        """Return the differences from the reference, up to second derivatives.

        With ``form`` only the values of that form are compared. The reference is computed on the CPU in fp64 from the same
        rounded numbers.
        """
        inputs = case.to(dtype=dtype)
        exact, tried = inputs.to(dtype=torch.float64), inputs.to(device)
        if form is not None:
            value = self.forms[form](*tried.tensors, *tried.rest)
            return OpErrors(_difference(_together(value), _together(self.reference(*exact.tensors, *exact.rest))))
        actual, expected = _with_derivatives(self.call, tried), _with_derivatives(self.reference, exact)
        return OpErrors(*(_difference(ours, theirs) for ours, theirs in zip(actual, expected)))

    def within(self, errors: OpErrors, dtype: torch.dtype = torch.float64) -> bool:
        """Return True if the op is as exact as its tolerance."""
        return max(errors) <= self.tolerance[dtype]


def numbers(seed: int) -> Callable[..., Tensor]:
    """Return a source of normal random numbers in fp64, called with shapes."""
    random = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=random)


def _together(value: Tensor | tuple[Tensor, ...]) -> Tensor:
    values = value if isinstance(value, tuple) else (value,)
    return torch.cat([part.flatten() for part in values])


def _with_derivatives(function: Callable[..., Any], case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, directional gradient and its gradient, as rows."""
    recorded = replace(case, tensors=tuple(tensor.requires_grad_() for tensor in case.tensors))
    value = _together(function(*recorded.tensors, *recorded.rest))
    # a sum that is zero records every tensor, also where an op without edges does not
    nothing = sum((tensor.sum() for tensor in recorded.tensors), value.new_zeros(())) * 0
    direction = _direction(value).requires_grad_()
    first = torch.autograd.grad(
        (value * direction).sum() + nothing * nothing, recorded.tensors, create_graph=True, materialize_grads=True
    )
    gradient = _together(first)
    tensors = (*recorded.tensors, direction)
    second = torch.autograd.grad((gradient * _direction(gradient)).sum(), tensors, materialize_grads=True)
    return value, gradient, _together(second)


def _direction(like: Tensor) -> Tensor:
    """Return cosines of 1, 2, 3, ..., equal in every dtype."""
    steps = torch.arange(1, like.numel() + 1, dtype=torch.float64).cos().to(torch.bfloat16)
    return steps.to(device=like.device, dtype=like.dtype)


def _difference(actual: Tensor, expected: Tensor) -> float:
    if not expected.numel():
        return 0.0
    actual, expected = actual.detach().to("cpu", torch.float64), expected.detach()
    if not bool(actual.isfinite().all()):
        return float("inf")
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1.0))
