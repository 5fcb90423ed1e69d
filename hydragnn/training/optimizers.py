"""Optimizers of a vector of weights, or of some ranges of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd


class Rows(NamedTuple):
    """Consecutive weights that this rank updates."""

    at: slice
    """Their positions in the vectors of weights and gradient."""
    own: slice
    """Their positions in the vectors of states, which hold the weights that this rank updates and no others."""
    factor: float = 1.0
    """Factor of the learning rate."""


Groups = Sequence[Rows]


class AdamW:
    """AdamW by torch's fused kernel (arXiv:1711.05101)."""

    def __init__(self, weights: Tensor, gradient: Tensor, decay: float, own: int) -> None:
        """No moments yet, of the ``own`` weights that this rank updates."""
        self.weights, self.gradient, self.decay = weights, gradient, decay
        self.moments: Mapping[str, Tensor] = {
            "exp_avg": gradient.new_zeros(own),
            "exp_avg_sq": gradient.new_zeros(own),
            "step": torch.zeros((), dtype=torch.float32, device=gradient.device),
        }

    def step(self, rate: float, groups: Groups) -> None:
        """Move the weights once along their gradient."""
        step = self.moments["step"]
        if not groups:
            step.add_(1)  # ranks of a model all count the same steps
        counts = [*(step.clone() for _ in groups[1:]), step]  # each call counts one
        for (rows, own, factor), count in zip(groups, counts):
            adamw(
                [self.weights[rows]],
                [self.gradient[rows]],
                [self.moments["exp_avg"][own]],
                [self.moments["exp_avg_sq"][own]],
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

    def __init__(self, weights: Tensor, gradient: Tensor, decay: float, own: int) -> None:
        """No momentum yet, of the ``own`` weights that this rank updates."""
        self.weights, self.gradient, self.decay = weights, gradient, decay
        self.moments: Mapping[str, Tensor] = {"momentum_buffer": gradient.new_zeros(own)}

    def step(self, rate: float, groups: Groups) -> None:
        """Move the weights once along their gradient."""
        for rows, own, factor in groups:
            sgd(
                [self.weights[rows]],
                [self.gradient[rows]],
                [self.moments["momentum_buffer"][own]],
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
