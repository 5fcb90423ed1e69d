"""Weights with gradient, optimizer and average, as ranks hold them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from hydragnn.config import TrainSettings
from hydragnn.training.buckets import Begin, Buckets

ALIGNMENT = 64
"""Bytes; every weight begins on such a boundary, so that matrix kernels give the same bits in every process."""

Layout = list[tuple[str, list[int], int]]
"""Name, shape and first position of every weight."""


@runtime_checkable
class Parameters(Protocol):
    """Weights of a model on one rank, and their updates.

    The loop sees no more than this, so that weights may be one vector, or shards of tensors that backward reduces itself.
    Nothing here but ``state`` and the context managers makes the host wait for the device.
    """

    @property
    def count(self) -> int:
        """Return the number of weights of the model."""

    @property
    def layout(self) -> Layout:
        """Return the weights' positions in ``state``'s tensors.

        A checkpoint of another layout is refused.
        """

    def zero_gradient(self) -> None:
        """Forget the gradient of the step before."""

    def expect_sum(self) -> None:
        """Let the next backward pass begin the sum over ranks, being the last of the step."""

    def add_gradient(self, loss: Float[Tensor, ""]) -> None:
        """Add the gradient of a loss."""

    def sum_gradient(self) -> None:
        """Sum the gradients of all ranks."""

    def clip(self) -> Float[Tensor, ""]:
        """Clip the gradient; return the norm before."""

    def step(self, rate: float) -> None:
        """Move the weights once along their gradient."""

    def average(self, steps: int) -> None:
        """Update the average of weights after ``steps`` steps."""

    def swap_in_eval_parameters(self) -> AbstractContextManager[None]:
        """Use the validated weights for the length of the block."""

    def keep_best(self) -> None:
        """Remember the weights that are validated now as the best so far."""

    def best(self) -> AbstractContextManager[None]:
        """Use the best weights so far in the block."""

    def state(self) -> dict[str, Tensor]:
        """Return all tensors by name, for checkpoints."""


class FlatParameters:
    """All weights as one vector, which the parameters are views of.

    Every rank holds all weights. One norm, one optimizer kernel and one average serve any number of layers. The vector has zeros between weights (for alignment); their gradient is zero, so they stay zero.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainSettings,
        begin_sum: Begin | None = None,
        rate_factors: Sequence[float] = (),
    ) -> None:
        """Move the parameters into the vector; all have one dtype.

        ``begin_sum`` starts a sum over ranks in place; without it there is one rank. ``rate_factors`` of the learning rate belong to each
        parameter; those with 0 are frozen.
        """
        self.clip_norm, self.decay = settings.clip_norm, settings.ema_decay
        self.layout, total = aligned_layout(model)
        first = next(model.parameters())
        self.vector = torch.zeros(total, dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros_like(self.vector)
        self.parameters = list(model.parameters())
        for parameter, factor in zip(self.parameters, rate_factors):
            parameter.requires_grad_(factor > 0)
        self.trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        for parameter, (_, _, start) in zip(self.parameters, self.layout):
            self.vector[start : start + parameter.numel()] = parameter.detach().flatten()
        self._make_views()
        starts = [start for _, _, start in self.layout]
        self.buckets = Buckets(self.parameters, starts, total, begin_sum) if begin_sum else None
        self.optimizer = OPTIMIZERS[settings.optimizer](self.vector, self.gradient, settings.weight_decay)
        self.groups = groups_of_rates(starts, total, rate_factors)
        self.average_vector = self.vector.clone() if settings.ema_decay else None
        self.best_vector = self.vector.clone()

    @property
    def count(self) -> int:
        """Return the number of weights, without the zeros between them."""
        return sum(math.prod(shape) for _, shape, _ in self.layout)

    def zero_gradient(self) -> None:
        """Forget the gradient of the step before."""
        self.gradient.zero_()

    def expect_sum(self) -> None:
        """Let the next backward pass begin the sum over ranks."""
        if self.buckets:
            self.buckets.expect(self.gradient)

    def add_gradient(self, loss: Float[Tensor, ""]) -> None:
        """Add the gradient of a loss: all weights in one operation, or one by one where buckets are summed meanwhile."""
        if self.buckets:
            loss.backward(inputs=self.trained)
            return
        found = torch.autograd.grad(loss, self.trained, allow_unused=True)
        pairs = [(one.grad, new) for one, new in zip(self.trained, found) if new is not None]
        torch._foreach_add_([old for old, _ in pairs if old is not None], [new for _, new in pairs])

    def sum_gradient(self) -> None:
        """Add up the gradients of all ranks."""
        if self.buckets:
            self.buckets.finish(self.gradient)

    def clip(self) -> Float[Tensor, ""]:
        """Shorten the gradient to the largest norm allowed; give the norm before."""
        return clip_in_place(self.gradient, self.clip_norm)

    def step(self, rate: float) -> None:
        """Move the weights once along their gradient."""
        self.optimizer.step(rate, self.groups)

    def average(self, steps: int) -> None:
        """Update the average of weights after ``steps`` steps."""
        if self.average_vector is not None:
            average_in_place(self.average_vector, self.vector, self.decay, steps)

    @property
    def eval_parameters(self) -> Float[Tensor, " weights"]:
        """Return the parameters used for validation: average or raw."""
        return self.vector if self.average_vector is None else self.average_vector

    def swap_in_eval_parameters(self) -> AbstractContextManager[None]:
        """Use the validated weights for the length of the block."""
        return self._swap_in(self.eval_parameters)

    def keep_best(self) -> None:
        """Remember the weights that are validated now as the best so far."""
        self.best_vector.copy_(self.eval_parameters)

    def best(self) -> AbstractContextManager[None]:
        """Use the best weights so far in the block."""
        return self._swap_in(self.best_vector)

    def move_to(self, vector: Float[Tensor, " weights"], gradient: Float[Tensor, " weights"]) -> None:
        """Move weights and gradient into this shared memory."""
        self.vector, self.gradient = vector.copy_(self.vector), gradient.copy_(self.gradient)
        self.optimizer.weights, self.optimizer.gradient = self.vector, self.gradient
        self._make_views()

    def _make_views(self) -> None:
        for parameter, (_, shape, start) in zip(self.parameters, self.layout):
            rows = slice(start, start + parameter.numel())
            parameter.data = self.vector[rows].view(shape)
            parameter.grad = self.gradient[rows].view(shape)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        named = {"weights": self.vector, "best": self.best_vector}
        if self.average_vector is not None:
            named["average"] = self.average_vector
        return named | {f"optimizer/{name}": value for name, value in self.optimizer.moments.items()}

    @contextmanager
    def _swap_in(self, values: Tensor) -> Iterator[None]:
        previous = self.vector.clone()
        self.vector.copy_(values)
        try:
            yield
        finally:
            self.vector.copy_(previous)


def aligned_layout(model: nn.Module) -> tuple[Layout, int]:
    """Return aligned positions of parameters in a vector, and its length."""
    layout: Layout = []
    total = 0
    for name, parameter in model.named_parameters():
        layout.append((name, list(parameter.shape), total))
        unit = ALIGNMENT // parameter.element_size()
        total += -(-parameter.numel() // unit) * unit
    return layout, total


def groups_of_rates(starts: Sequence[int], total: int, factors: Sequence[float]) -> list[tuple[slice, float]]:
    """Return consecutive rows of one rate factor, without those of 0.

    >>> groups_of_rates([0, 16, 32, 48], 64, [0.0, 0.5, 0.5, 1.0])
    [(slice(16, 48, None), 0.5), (slice(48, 64, None), 1.0)]
    """
    if not factors:
        return [(slice(0, total), 1.0)]
    ends = [*starts[1:], total]
    groups: list[tuple[slice, float]] = []
    for start, end, factor in zip(starts, ends, factors, strict=True):
        if groups and groups[-1][1] == factor and groups[-1][0].stop == start:
            start = groups.pop()[0].start
        if factor:
            groups.append((slice(start, end), factor))
    return groups


Groups = Sequence[tuple[slice, float]]
"""Rows of the vector, and the factor of their learning rate."""


class AdamW:
    """AdamW by torch's fused kernel (arXiv:1711.05101)."""

    def __init__(self, weights: Tensor, gradient: Tensor, decay: float) -> None:
        """No moments yet."""
        self.weights, self.gradient, self.decay = weights, gradient, decay
        self.moments: Mapping[str, Tensor] = {
            "exp_avg": torch.zeros_like(gradient),
            "exp_avg_sq": torch.zeros_like(gradient),
            "step": torch.zeros((), dtype=torch.float32, device=gradient.device),
        }

    def step(self, rate: float, groups: Groups) -> None:
        """Move the weights once along their gradient."""
        step = self.moments["step"]
        counts = [*(step.clone() for _ in groups[1:]), step]  # each call counts one
        for (rows, factor), count in zip(groups, counts):
            adamw(
                [self.weights[rows]],
                [self.gradient[rows]],
                [self.moments["exp_avg"][rows]],
                [self.moments["exp_avg_sq"][rows]],
                [],
                [count],
                foreach=False,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate * factor,
                weight_decay=self.decay,
                eps=1e-8,
                maximize=False,
            )


class SGD:
    """SGD with Nesterov momentum 0.9, by torch's fused kernel.

    Sutskever et al. 2013; L2 decay.
    """

    def __init__(self, weights: Tensor, gradient: Tensor, decay: float) -> None:
        """No momentum yet."""
        self.weights, self.gradient, self.decay = weights, gradient, decay
        self.moments: Mapping[str, Tensor] = {"momentum_buffer": torch.zeros_like(gradient)}

    def step(self, rate: float, groups: Groups) -> None:
        """Move the weights once along their gradient."""
        for rows, factor in groups:
            sgd(
                [self.weights[rows]],
                [self.gradient[rows]],
                [self.moments["momentum_buffer"][rows]],
                foreach=False,
                fused=True,
                weight_decay=self.decay,
                momentum=0.9,
                lr=rate * factor,
                dampening=0.0,
                nesterov=True,
                maximize=False,
            )


# torch's functions rather than its classes: those import the compiler, a third of a second in every trial's process
OPTIMIZERS: dict[str, type[AdamW] | type[SGD]] = {"adamw": AdamW, "sgd": SGD}


def clip_in_place(gradient: Float[Tensor, " weights"], largest: float) -> Float[Tensor, ""]:
    """Clip the gradient to norm ``largest``; return the norm before.

    A gradient that is not finite stays as far from finite as it was, or farther: its norm tells.
    """
    norm = torch.linalg.vector_norm(gradient)
    if largest > 0:
        # the quotient of two tensors, since torch takes number / tensor as a product with the reciprocal
        exact = norm.to(torch.float64)
        gradient.mul_((torch.full_like(exact, largest) / exact).clamp(max=1.0).to(gradient.dtype))
    return norm


def average_in_place(average: Tensor, weights: Tensor, decay: float, steps: int) -> None:
    """Move the average of weights towards the weights after ``steps`` steps.

    The decay grows with the steps, min(decay, (1 + steps) / (10 + steps)), so that the random start is forgotten soon.
    """
    average.lerp_(weights, 1.0 - min(decay, (1.0 + steps) / (10.0 + steps)))
