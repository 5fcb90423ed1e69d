"""Ops that are not linear, with differentiable gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from hydragnn.kernels.family import form_on

Tensors = tuple[Tensor | None, ...]


class CallRecord(NamedTuple):
    """Tensors, results and gradients of a call; None where absent."""

    tensors: Tensors
    results: Tensors
    incoming: Tensors


@dataclass(kw_only=True, eq=False)
class Nonlinear:
    """Op with one or more results and differentiable gradients.

    ``op(tensors, structure)`` returns the results.

    ``gradients`` says what its tensors receive; it calls ops, so that its own derivatives exist.
    """

    name: str
    forms: Mapping[str, Callable[..., Any]]
    """By kind of device, called with the tensors, then the structure; without derivatives."""
    gradients: Callable[[CallRecord, Any], Tensors]
    tensors: int = 1
    optional: int = 0
    """Number of the last tensors that may be None."""
    results: int = 1
    keeps_tensors: bool = True
    """False where gradients are made of the results alone."""

    def __call__(self, tensors: Sequence[Tensor | None], structure: Any) -> Any:
        """Return the result, or the tuple of results."""
        return self._shell.apply(structure, *tensors)

    def value(self, tensors: Sequence[Tensor | None], structure: Any) -> tuple[Tensor, ...]:
        """Return the results by the form of the device, without derivatives."""
        assert tensors[0] is not None
        value: Any = form_on(self.forms, tensors[0].device.type)(*tensors, structure)
        return value if isinstance(value, tuple) else (value,)

    @cached_property
    def _shell(self) -> type[Function]:
        """Autograd function of the op."""
        op = self

        class Shell(Function):
            @staticmethod
            def forward(ctx: Any, structure: Any, *tensors: Tensor | None) -> Any:
                results = op.value(tensors, structure)
                ctx.save_for_backward(*(tensors if op.keeps_tensors else ()), *results)
                ctx.structure = structure
                ctx.set_materialize_grads(False)
                return results if op.results > 1 else results[0]

            @staticmethod
            def backward(ctx: Any, *incoming: Tensor | None) -> Tensors:
                if all(one is None for one in incoming):
                    return (None,) * (op.tensors + 1)
                return None, *op.gradients(op.record(ctx.saved_tensors, incoming), ctx.structure)

        Shell.__name__ = Shell.__qualname__ = self.name  # what profilers and grad_fn show
        return Shell

    def record(self, saved: Tensors, incoming: Tensors) -> CallRecord:
        """Sort the tensors that an autograd function saved."""
        split = len(saved) - self.results
        return CallRecord(saved[:split] or (None,) * self.tensors, saved[split:], incoming)
