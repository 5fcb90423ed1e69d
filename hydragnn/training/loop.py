"""The training loop: epochs of steps, each epoch followed by validation."""

import math
from collections.abc import Callable
from contextlib import closing
from typing import Literal

import torch
from torch import Tensor

from hydragnn.base.clock import phase, steps_of
from hydragnn.base.errors import Interrupted
from hydragnn.training.context import Callback, Diverged, StepResult, TrainingContext
from hydragnn.training.data import RunData, Share
from hydragnn.training.evaluate import flat_metrics
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.metrics import Errors
from hydragnn.training.schedule import learning_rate, out_of_patience
from hydragnn.training.state import STOPPED, TrainState, seed_step
from hydragnn.training.uploading import ahead, download, tensors_of_parts

Ended = Literal["finished", "stopped", "paused"]


def train_epochs(state: TrainState, data: RunData, context: TrainingContext, callback: Callback, until: int) -> Ended:
    """Train to the end of epoch ``until``, or out of patience."""
    settings = context.settings

    def is_over() -> bool:
        is_stopped = bool(state.curves.get(STOPPED, [None])[-1])  # by a callback
        return is_stopped or out_of_patience(state.valid_losses, settings.patience, context.stage_two)

    while state.epoch < until and not is_over():
        train_loss = train_epoch(state, data, context, callback)
        values = {"train/loss": train_loss, **validate(state, data, context, callback)}
        values["learning_rate"] = learning_rate(settings, state.epoch + 1.0, state.valid_losses)
        values |= callback.on_validated(state, values)
        state.finish_epoch(values)
        callback.on_epoch_end(state)
    if state.epoch >= settings.epochs:
        return "finished"
    return "stopped" if is_over() else "paused"


def train_epoch(state: TrainState, data: RunData, context: TrainingContext, callback: Callback) -> float:
    """Train the rest of the epoch; return its mean loss.

    What a step gave is read while the device computes the next one, and before anything is saved.
    """
    steps = data.steps(state.epoch)
    queued, interrupted = None, False
    with closing(
        ahead(data.epoch(state.epoch, start=state.step), context.device, lambda share: tensors_of_parts(share.parts))
    ) as shares:
        for share in steps_of(shares):
            rate = learning_rate(context.settings, state.epoch + (state.step + 1) / steps, state.valid_losses)
            result = take_step(state, share, context, rate)
            flag = context.reduce_all(torch.full_like(result.loss, float(callback.interrupted)))
            previous, queued = queued, numbers_of(result, flag)
            interrupted, loss = read_step(previous, state.epoch)
            callback.on_step_end(state, steps, share.graphs, loss)
            if interrupted:
                break
    interrupted |= read_step(queued, state.epoch)[0]
    if interrupted:
        callback.save(state)
        raise Interrupted(f"stopped after step {state.step} of epoch {state.epoch + 1}; a checkpoint was written")
    return context.weighted_mean(context.weights_in(state.epoch), context.reduce(state.totals.clone()))


Queued = tuple[int, Callable[[], list[float]]]
"""Number of a step, and a function that waits for norm, loss and interruption."""


def numbers_of(result: StepResult, flag: Tensor) -> Queued:
    """Return norm, loss and interruption of a step, copied without waiting."""
    return result.step, download(torch.stack([result.norm.to(torch.float64), result.loss, flag]))


def read_step(queued: Queued | None, epoch: int) -> tuple[bool, float | None]:
    """Return a step's interruption and loss; Diverged where its gradient is infinite."""
    if queued is None:
        return False, None
    step, read = queued
    norm, loss, interrupted = read()
    if not math.isfinite(norm):
        raise Diverged(f"the gradient is {norm} in step {step} of epoch {epoch + 1}")
    return interrupted > 0, loss


def take_step(state: TrainState, share: Share, context: TrainingContext, rate: float) -> StepResult:
    """Update the weights once, without waiting for the device.

    The parts of this rank's ``share`` of the batch are computed one after the other, so that only one at a time needs memory;
    only the trunk and the heads of its branch are. Errors are summed and divided by the number of labels of all ranks, so gradients only have to be added
    up, over parts and over ranks.
    """
    with context.counting(share):
        loss = gradient_of_share(state, share, context)
        norm = update(state, rate)
    return StepResult(step=state.step, loss=loss, norm=norm)


@phase("optimizer")
def update(state: TrainState, rate: float) -> Tensor:
    """Move the weights along their gradient; return its norm."""
    norm = state.parameters.clip()
    state.parameters.step(rate)
    state.step += 1
    state.steps += 1
    state.parameters.average(state.steps)
    return norm


def gradient_of_share(state: TrainState, share: Share, context: TrainingContext) -> Tensor:
    """Compute the gradient over all ranks; return this rank's loss."""
    own = context.branches[share.branch]
    targets = context.targets[own]
    weights = context.weights_in(state.epoch)
    own_counts = torch.zeros_like(weights)
    for part in share.parts:
        own_counts[own].add_(label_counts(targets, part))
    counts = context.reduce(own_counts.clone())
    scale = weights / counts.clamp(min=1.0)

    state.parameters.zero_gradient()
    loss = torch.zeros_like(counts[0])
    seed_step(context.settings.seed, state.epoch, state.step, context.rank, context.device)
    parts = [*((part, scale[own]) for part in share.parts), *((one, 0 * scale[own]) for one in share.stand_ins)]
    for sums, part_loss in context.executors[share.branch].gradient(parts, len(share.parts)):
        loss += part_loss
        state.totals[0, own].add_(sums)
    state.totals[1].add_(own_counts)
    state.parameters.sum_gradient()
    return loss


@phase("validation")
def validate(state: TrainState, data: RunData, context: TrainingContext, callback: Callback) -> dict[str, float | None]:
    """Return ``valid/loss`` and errors by averaged weights and last loss weights."""
    totals = torch.zeros_like(state.totals)
    errors = Errors(context.targets, context.device)
    state.model.eval()
    with torch.no_grad(), state.parameters.swap_in_eval_parameters():
        for number, branch in enumerate(data.branches):
            own, executor, passes = context.branches[number], context.executors[number], 0
            for batch in branch.valid:
                callback.heartbeat()
                passes += 1
                predictions, _ = executor.predict(batch)
                held = [target for target in branch.targets if target.name in predictions]  # a peer has the others
                if not held:
                    continue
                sums = loss_sums(branch.targets, predictions, batch).to(torch.float64)
                share = sums.new_tensor([float(target in held) for target in branch.targets])
                totals[:, own] += torch.stack([sums, share * label_counts(branch.targets, batch)])
                for target in held:
                    errors.add(target, predictions[target.name], batch, branch.normalisation)
            for _ in range(branch.valid_passes - passes):
                executor.predict(branch.train.stand_in)
    state.model.train()
    context.reduce_predicted(errors.sums)
    loss = context.weighted_mean(context.stage_two_weights, context.reduce_predicted(totals))
    return {"valid/loss": loss, **flat_metrics(errors.values(data.valid_moments), "valid")}
