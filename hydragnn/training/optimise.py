"""How weights move: one flat vector of weights, its optimizer, the schedule, and the average of weights."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from hydragnn.config import TrainSettings

ALIGNMENT = 64
"""Bytes; every weight begins on such a boundary, so that matrix kernels give the same bits in every process."""


class FlatWeights:
    """All weights of a model as one vector, and their gradients as another; the model's parameters are views of them.

    One reduction over ranks, one norm, one optimizer kernel and one average then serve any number of layers. The vector has
    zeros between weights (for alignment); their gradient is zero, so they stay zero.
    """

    def __init__(self, model: nn.Module) -> None:
        """Move the model's parameters into the vector, in the order of ``named_parameters``; all have one dtype."""
        parameters = dict(model.named_parameters())
        first = next(iter(parameters.values()))
        unit = ALIGNMENT // first.element_size()
        self.layout: list[tuple[str, list[int], int]] = []
        total = 0
        for name, parameter in parameters.items():
            self.layout.append((name, list(parameter.shape), total))
            total += -(-parameter.numel() // unit) * unit
        self.vector = torch.zeros(total, dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros_like(self.vector)
        for parameter, (_, shape, start) in zip(parameters.values(), self.layout):
            here = slice(start, start + parameter.numel())
            self.vector[here] = parameter.detach().flatten()
            parameter.data = self.vector[here].view(shape)
            parameter.grad = self.gradient[here].view(shape)

    @property
    def count(self) -> int:
        """Number of weights, without the zeros between them."""
        return sum(math.prod(shape) for _, shape, _ in self.layout)

    @contextmanager
    def replaced_by(self, values: Tensor) -> Iterator[None]:
        """Let the model have other weights for the length of the block."""
        kept = self.vector.clone()
        self.vector.copy_(values)
        try:
            yield
        finally:
            self.vector.copy_(kept)


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101), by torch's fused kernel."""

    def __init__(self, weights: FlatWeights, decay: float) -> None:
        """No moments yet."""
        self.weights, self.decay = weights, decay
        self.moments = {
            "exp_avg": torch.zeros_like(weights.gradient),
            "exp_avg_sq": torch.zeros_like(weights.gradient),
            "step": torch.zeros((), dtype=torch.float32, device=weights.gradient.device),
        }

    def step(self, rate: float) -> None:
        """Move the weights once along their gradient."""
        adamw(
            [self.weights.vector],
            [self.weights.gradient],
            [self.moments["exp_avg"]],
            [self.moments["exp_avg_sq"]],
            [],
            [self.moments["step"]],
            foreach=False,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=self.decay,
            eps=1e-8,
            maximize=False,
        )


class SGD:
    """Gradient descent with Nesterov momentum 0.9 (Sutskever et al. 2013) and L2 decay, by torch's fused kernel."""

    def __init__(self, weights: FlatWeights, decay: float) -> None:
        """No momentum yet."""
        self.weights, self.decay = weights, decay
        self.moments = {"momentum_buffer": torch.zeros_like(weights.gradient)}

    def step(self, rate: float) -> None:
        """Move the weights once along their gradient."""
        sgd(
            [self.weights.vector],
            [self.weights.gradient],
            [self.moments["momentum_buffer"]],
            foreach=False,
            fused=True,
            weight_decay=self.decay,
            momentum=0.9,
            lr=rate,
            dampening=0.0,
            nesterov=True,
            maximize=False,
        )


# torch's functions rather than its classes: those import the compiler, a third of a second in every trial's process
OPTIMIZERS: dict[str, type[AdamW] | type[SGD]] = {"adamw": AdamW, "sgd": SGD}


def make_optimizer(weights: FlatWeights, settings: TrainSettings) -> AdamW | SGD:
    """The optimizer of the settings over the flat vector."""
    return OPTIMIZERS[settings.optimizer](weights, settings.weight_decay)


def learning_rate(settings: TrainSettings, epoch: float, valid_losses: Sequence[float | None] = ()) -> float:
    """The rate of a step that ends at ``epoch`` (a step halfway through the first epoch ends at 0.5).

    Warm-up rises linearly from zero; cosine then falls to zero at the last step, plateau halves whenever
    ``plateau_patience`` epochs of ``valid_losses`` brought nothing better. No state, so that a resumed run cannot differ.

    >>> learning_rate(TrainSettings(epochs=10, learning_rate=1.0, schedule="cosine"), 5.0)
    0.5
    >>> learning_rate(TrainSettings(epochs=10, learning_rate=1.0, warmup_epochs=2), 0.5)
    0.25
    """
    peak, warm_up = settings.learning_rate, settings.warmup_epochs
    if epoch < warm_up:
        return peak * epoch / warm_up
    if settings.schedule == "cosine":
        progress = min(1.0, (epoch - warm_up) / (settings.epochs - warm_up))
        return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
    if settings.schedule == "plateau":
        return peak * 0.5 ** plateaus(valid_losses, settings.plateau_patience)
    return peak


def plateaus(losses: Sequence[float | None], patience: int) -> int:
    """How often ``patience`` epochs in a row brought nothing better; each time the count begins anew.

    >>> plateaus([3.0, 2.0, 2.5, 2.5, 2.1, 2.2, 1.0], patience=2)
    2
    """
    best, waited, found = math.inf, 0, 0
    for loss in losses:
        if loss is not None and loss < best:
            best, waited = loss, 0
        else:
            waited += 1
        if waited >= patience:
            found, waited = found + 1, 0
    return found


def best_epoch(losses: Sequence[float | None]) -> int:
    """Position of the lowest loss, the first of equals; -1 where there is none.

    >>> best_epoch([3.0, 1.0, 1.0]), best_epoch([])
    (1, -1)
    """
    known = [(loss, position) for position, loss in enumerate(losses) if loss is not None]
    return min(known)[1] if known else -1


def out_of_patience(losses: Sequence[float | None], patience: int) -> bool:
    """Whether the last ``patience`` epochs brought no better loss; patience 0 waits for ever.

    >>> out_of_patience([2.0, 1.0, 1.5, 1.2], patience=2)
    True
    """
    return 0 < patience <= len(losses) - 1 - best_epoch(losses)


def clip_in_place(gradient: Float[Tensor, " weights"], largest: float) -> float:
    """Shorten the gradient to norm ``largest`` (0: leave it); gives the norm before. NaN and infinity stay visible."""
    norm = float(torch.linalg.vector_norm(gradient))
    if 0 < largest < norm < math.inf:
        gradient.mul_(largest / norm)
    return norm


def average_in_place(average: Tensor, weights: Tensor, decay: float, steps: int) -> None:
    """Move the average of weights towards the weights after ``steps`` steps.

    The decay grows with the steps, min(decay, (1 + steps) / (10 + steps)), so that the random start is forgotten soon.
    """
    average.lerp_(weights, 1.0 - min(decay, (1.0 + steps) / (10.0 + steps)))
