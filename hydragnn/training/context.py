"""What the loop is told, and whom it tells."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.config import TrainSettings
from hydragnn.distributed.ranks import Ranks
from hydragnn.models import Target
from hydragnn.training.state import TrainState


class Diverged(ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


@runtime_checkable
class Callback(Protocol):
    """Who is told what happens in the loop: writes checkpoints and records, shows progress, hears signals."""

    @property
    def interrupted(self) -> bool:
        """Whether this process was asked to stop."""

    def heartbeat(self) -> None:
        """The run gets on, though no step was taken."""

    def on_step_end(self, state: TrainState, steps: int, graphs: int, loss: float) -> None:
        """One of ``steps`` steps of the epoch was taken, with this rank's graphs and part of the loss."""

    def on_epoch_end(self, state: TrainState) -> None:
        """An epoch was judged and its values stand in the curves."""

    def save(self, state: TrainState) -> None:
        """Write a checkpoint now."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingContext:
    """What the loop is told to do; it never changes."""

    settings: TrainSettings
    targets: tuple[Target, ...]
    weights: Tensor
    """Loss weights of the targets, float64."""
    ranks: Ranks
    device: torch.device
    split: int = 1
    """Parts in which a batch is computed, one after the other, so that only one needs memory."""

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 runs under autocast; fp32 and fp64 are what the weights are."""
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def weighted_mean(self, totals: Float[Tensor, "2 fields"]) -> float:
        """The weighted sum over fields of summed loss over number of labels; raises Diverged where it is not finite."""
        value = float((self.weights * totals[0] / totals[1].clamp(min=1.0)).sum())
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value}")
        return value


def training_context(
    settings: TrainSettings, targets: tuple[Target, ...], ranks: Ranks, device: torch.device, split: int = 1
) -> TrainingContext:
    """The context with its loss weights on the device."""
    weights = torch.tensor([target.weight for target in targets], dtype=torch.float64, device=device)
    return TrainingContext(settings=settings, targets=targets, weights=weights, ranks=ranks, device=device, split=split)
