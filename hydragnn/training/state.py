"""State of training: parameters, position and curves."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hydragnn.models import BranchedModel, GraphModel
from hydragnn.training.parameters import FlatParameters
from hydragnn.training.schedule import best_epoch

STOPPED = "stopped"
"""Curve that ends with 1 where a callback stopped the run."""

Curves = dict[str, list[float | None]]


@dataclass(kw_only=True, slots=True, eq=False)
class TrainState:
    """One run at one moment; a checkpoint holds exactly this.

    Random numbers are functions of (seed, epoch, step, rank), see ``seed_step``, and the order of data of (seed, epoch), so
    the position says all that there is to know about them.
    """

    model: nn.Module
    parameters: FlatParameters
    totals: Tensor
    """Summed loss and number of labels of each field in the epoch so far ``[2, fields]``; this rank's part."""
    epoch: int = 0
    step: int = 0
    """Finished steps of the epoch that is under way."""
    steps: int = 0
    """Finished steps of the run."""
    curves: Curves = field(default_factory=dict)
    """One value per finished epoch, by name."""

    @property
    def valid_losses(self) -> list[float | None]:
        """The curve that schedules, early stopping and searches go by."""
        return self.curves.get("valid/loss", [])

    @property
    def best_epoch(self) -> int:
        """Return the best epoch so far; -1 before the first."""
        return best_epoch(self.valid_losses)

    def finish_epoch(self, values: dict[str, float | None]) -> None:
        """Finish the epoch with its values; keep better weights."""
        for name, value in values.items():
            self.curves.setdefault(name, [None] * self.epoch).append(value)
        for curve in self.curves.values():
            curve.extend([None] * (self.epoch + 1 - len(curve)))
        if self.best_epoch == self.epoch:
            self.parameters.keep_best()
        self.epoch += 1
        self.step = 0
        self.totals.zero_()

    def of_branch(self, number: int) -> GraphModel:
        """Return the model of a branch, or the whole."""
        model = self.model.views[number] if isinstance(self.model, BranchedModel) else self.model
        assert isinstance(model, GraphModel)
        return model

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that ranks share, for checkpoints."""
        return self.parameters.state()


def seed_step(seed: int, epoch: int, step: int, rank: int, device: torch.device) -> None:
    """Seed torch for a rank's step (Steele et al. 2014, splitmix)."""
    mixed = 0
    for number in (seed, epoch, step, rank):
        mixed = ((mixed ^ number) + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    torch.default_generator.manual_seed(mixed >> 1)  # torch.manual_seed is a hundred times slower
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed >> 1)
