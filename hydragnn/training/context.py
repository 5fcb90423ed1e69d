"""Context of the training loop and its callback protocol."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from hydragnn.config import TrainSettings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import Distribution, Target
from hydragnn.models.replay import Replays
from hydragnn.training.state import TrainState


class Diverged(ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepResult:
    """Result of one step, as tensors on the device.

    So the host can queue the next step before it reads them.
    """

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
        """Note that one of ``steps`` steps was queued.

        Its batch had ``graphs`` graphs, over all ranks.

        ``loss`` is this rank's part of the newest loss that is known, None in the first step.
        """

    def on_epoch_end(self, state: TrainState) -> None:
        """An epoch was validated and its values stand in the curves."""

    def save(self, state: TrainState) -> None:
        """Write a checkpoint now."""


@runtime_checkable
class Stages(Protocol):
    """Ranks with consecutive layers; the last has the heads."""

    def train(
        self,
        model: nn.Module,
        parts: Sequence[GraphBatch],
        loss_of: Callable[[dict[str, Distribution], int], Tensor],
        autocast: Callable[[], AbstractContextManager[object]],
        expect_sum: Callable[[], None],
    ) -> None:
        """Add the gradients of all parts of this rank's model.

        ``loss_of`` is called on the last stage with predictions and number of a part, ``expect_sum`` before the last backward pass.
        """

    def predict(self, model: nn.Module, batch: GraphBatch) -> dict[str, Distribution]:
        """Return predictions on the last stage, nothing on others."""

    def share(self, values: Tensor) -> Tensor:
        """Add up values of all stages in place."""


def alone(values: Tensor) -> Tensor:
    """Return the values: the sum over ranks where there is one."""
    return values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingContext:
    """Constants of the loop beside state and data."""

    settings: TrainSettings
    targets: tuple[Target, ...]
    """Of all branches, one after the other."""
    branches: tuple[slice, ...]
    """Which of the targets belong to each branch."""
    loss_weights: Float64[Tensor, " fields"]
    """Of the first stage."""
    stage_two_weights: Float64[Tensor, " fields"]
    """Of the second stage, and of the validation loss in both, so that all epochs can be compared."""
    stage_two: int
    """Epochs before the second stage; 0 where weights never change."""
    rank: int = 0
    """Tells the random numbers of this process from those of its peers."""
    reduce: Callable[[Tensor], Tensor] = alone
    """Sums a tensor over the processes that have different graphs or nodes, in place, and gives it back; the same bits on each."""
    reduce_all: Callable[[Tensor], Tensor] = alone
    """Sums a tensor over all processes of the run, also those that compute the same."""
    replays: tuple[Replays, ...] = ()
    """The recorded steps of each branch; empty where every step is computed anew."""

    stages: Stages | None = None
    """Where this rank has some layers only."""
    plain_steps: bool = False
    """Steps are computed one by one, and not recorded."""

    @property
    def device(self) -> torch.device:
        """Return where steps are computed."""
        return self.loss_weights.device

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 runs under autocast; fp32 and fp64 are what the weights are."""
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute products of matrices in TF32, where requested."""
        before = torch.get_float32_matmul_precision()
        if self.settings.precision == "tf32" and self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def share(self, values: Tensor) -> Tensor:
        """Return values that the last stage has, the same on all."""
        return values if self.stages is None else self.stages.share(values)

    def predictor(self, state: TrainState, branch: int) -> Callable[[GraphBatch], dict[str, Distribution]]:
        """Return the function that predicts a branch with the state's weights."""
        if self.stages is not None:
            return partial(self.stages.predict, state.of_branch(branch))
        return state.of_branch(branch)

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
    device: torch.device,
    rank: int = 0,
    reduce: Callable[[Tensor], Tensor] = alone,
    reduce_all: Callable[[Tensor], Tensor] = alone,
) -> TrainingContext:
    """Return the context of the targets of all branches."""
    targets = tuple(target for branch in branches for target in branch)
    changes = any(target.stage_two_factor != 1.0 for target in targets)
    ends = [0, *accumulate(len(branch) for branch in branches)]
    return TrainingContext(
        settings=settings,
        targets=targets,
        branches=tuple(slice(first, last) for first, last in pairwise(ends)),
        loss_weights=torch.tensor([target.weight for target in targets], dtype=torch.float64, device=device),
        stage_two_weights=torch.tensor(
            [target.weight * target.stage_two_factor for target in targets], dtype=torch.float64, device=device
        ),
        stage_two=int(settings.stage_two * settings.epochs) if changes else 0,
        rank=rank,
        reduce=reduce,
        reduce_all=reduce_all,
    )
