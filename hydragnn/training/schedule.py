"""Learning rate, plateaus and patience as functions of the curve."""

import math
from collections.abc import Sequence

from hydragnn.config import TrainSettings


def learning_rate(settings: TrainSettings, epoch: float, valid_losses: Sequence[float | None] = ()) -> float:
    """Return the learning rate of a step that ends at ``epoch``.

    A step halfway through the first epoch ends at 0.5. Warm-up rises linearly from zero; cosine then falls to zero at the last
    step, plateau halves whenever ``plateau_patience`` epochs of ``valid_losses`` brought nothing better. No state, so that a
    resumed run cannot differ.

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


LINEAR = ("sgd", "lars")
"""Optimizers whose rate grows with the batch, not with its square root."""


def batch_factor(settings: TrainSettings, graphs: float) -> float:
    """Return the factor of the learning rate for a batch.

    Linear for SGD (Goyal et al. 2017, arXiv:1706.02677); the square root for Adam and its like (Malladi et al. 2022, arXiv:2205.10287,
    whose moments change, too; these stay).

    >>> batch_factor(TrainSettings(base_batch=8), 512.0), batch_factor(TrainSettings(base_batch=8, optimizer="sgd"), 512.0)
    (8.0, 64.0)
    """
    ratio = graphs / settings.base_batch if settings.base_batch else 1.0
    return ratio if settings.optimizer in LINEAR else math.sqrt(ratio)


def plateaus(losses: Sequence[float | None], patience: int) -> int:
    """Return how often ``patience`` epochs brought nothing better.

    >>> plateaus([3.0, 2.0, 2.5, 2.5, 2.1, 2.2, 1.0], patience=2)
    2
    """
    best, waited, drops = math.inf, 0, 0
    for loss in losses:
        if loss is not None and loss < best:
            best, waited = loss, 0
        else:
            waited += 1
        if waited >= patience:
            drops, waited = drops + 1, 0
    return drops


def best_epoch(losses: Sequence[float | None]) -> int:
    """Return the first epoch of lowest loss; -1 without any.

    >>> best_epoch([3.0, 1.0, 1.0]), best_epoch([])
    (1, -1)
    """
    values = [(loss, position) for position, loss in enumerate(losses) if loss is not None]
    return min(values)[1] if values else -1


def out_of_patience(losses: Sequence[float | None], patience: int, start: int = 0) -> bool:
    """Return True after ``patience`` epochs without a better loss.

    The first ``start`` epochs do not count; 0 waits for ever.

    >>> out_of_patience([2.0, 1.0, 1.5, 1.2], patience=2)
    True
    """
    return 0 < patience <= len(losses) - max(start, 1 + best_epoch(losses))
