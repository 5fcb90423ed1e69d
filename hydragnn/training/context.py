"""Context of the training loop and its callback protocol."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from hydragnn.config import TrainSettings
from hydragnn.models import Target
from hydragnn.training.executor import EagerSteps
from hydragnn.training.parameters import alone
from hydragnn.training.state import TrainState

Values = dict[str, float | None]
"""Values of an epoch by name."""


class Diverged(ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepResult:
    """Result of one step, as tensors that the host reads later."""

    step: int
    """Its number in the epoch, from 1."""
    loss: Float64[Tensor, ""]
    """This rank's part of the weighted mean loss."""
    norm: Float[Tensor, ""]
    """The norm of the whole gradient before it was clipped."""


@runtime_checkable
class Callback(Protocol):
    """Receives the loop's events: checkpoints, records, progress, interruption."""

    @property
    def interrupted(self) -> bool:
        """Return True once this process was asked to stop."""

    def heartbeat(self) -> None:
        """The run gets on, though no step was taken."""

    def on_step_end(self, state: TrainState, steps: int, graphs: int, loss: float | None) -> None:
        """Note a queued step of ``steps``, its graphs and the newest loss."""

    def on_validated(self, state: TrainState, values: Values) -> Values:
        """Return more values of the epoch; called by all ranks."""

    def on_epoch_end(self, state: TrainState) -> None:
        """An epoch was validated and its values stand in the curves."""

    def save(self, state: TrainState) -> None:
        """Write a checkpoint now."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingContext:
    """Constants of the loop beside state and data."""

    settings: TrainSettings
    targets: tuple[Target, ...]
    branches: tuple[slice, ...]
    """Range of the targets of each branch."""
    loss_weights: Float64[Tensor, " fields"]
    stage_two_weights: Float64[Tensor, " fields"]
    """Weights of the second stage, and of the validation loss in both, so that all epochs can be compared."""
    stage_two: int
    """Epochs before the second stage; 0 where weights never change."""
    rank: int = 0
    """Tells the random numbers of this process from those of its peers."""
    reduce: Callable[[Tensor], Tensor] = alone
    """Sums a tensor over the processes that have different graphs or nodes, in place, and gives it back; the same bits on each."""
    reduce_all: Callable[[Tensor], Tensor] = alone
    """Sums a tensor over all processes of the run, also those that compute the same."""
    reduce_predicted: Callable[[Tensor], Tensor] = alone
    """Sums a tensor over the processes with predictions of different graphs or nodes, in place; all get the same bits."""
    executors: tuple[EagerSteps, ...] = ()
    counting: Callable[[Any], AbstractContextManager[object]] = nullcontext
    """Counts the work of the step of a share in its block."""

    @property
    def device(self) -> torch.device:
        """Return where steps are computed."""
        return self.loss_weights.device

    def weights_in(self, epoch: int) -> Float64[Tensor, " fields"]:
        """Return the loss weights of the epoch after so many finished ones."""
        return self.loss_weights if epoch < self.stage_two else self.stage_two_weights

    @staticmethod
    def weighted_mean(weights: Float[Tensor, " fields"], totals: Float[Tensor, "2 fields"]) -> float:
        """Return the weighted mean loss; Diverged where not finite."""
        value = float((weights * totals[0] / totals[1].clamp(min=1.0)).sum())
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value}")
        return value


def training_context(
    settings: TrainSettings,
    branches: Sequence[Sequence[Target]],
    state: TrainState,
    *,
    replayed: bool = False,
    unrecorded: str = "",
) -> TrainingContext:
    """Return the context of one rank without peers, with eager executors."""
    device, targets = state.totals.device, tuple(target for branch in branches for target in branch)
    weights = partial(torch.tensor, dtype=torch.float64, device=device)
    changes = any(target.stage_two_factor != 1.0 for target in targets)
    ends = [0, *accumulate(len(branch) for branch in branches)]
    slices = [slice(first, last) for first, last in pairwise(ends)]
    slices += slices[:1] if replayed else []
    return TrainingContext(
        settings=settings,
        targets=targets,
        branches=tuple(slices),
        loss_weights=weights([target.weight for target in targets]),
        stage_two_weights=weights([target.weight * target.stage_two_factor for target in targets]),
        stage_two=int(settings.stage_two * settings.epochs) if changes else 0,
        executors=tuple(
            EagerSteps(
                model=state.of_branch(number),
                parameters=state.parameters,
                targets=targets[own],
                branch=number,
                precision=settings.precision,
                unrecorded=unrecorded,
            )
            for number, own in enumerate(slices)
        ),
    )
