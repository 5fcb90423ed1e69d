"""The training loop: epochs of steps, each epoch judged on the validation part."""

import math
from typing import Literal

import torch

from hydragnn.errors import Interrupted
from hydragnn.graphs.batch import GraphBatch
from hydragnn.training.context import Callback, Diverged, TrainingContext
from hydragnn.training.data import RunData
from hydragnn.training.evaluate import flattened
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.metrics import Errors
from hydragnn.training.micro_batches import micro_batches
from hydragnn.training.optimise import average_in_place, clip_in_place, learning_rate, out_of_patience
from hydragnn.training.state import TrainState, seed_step

Ended = Literal["finished", "stopped", "paused"]


def train_epochs(state: TrainState, data: RunData, context: TrainingContext, callback: Callback, until: int) -> Ended:
    """Train from where the state stands to the end of epoch ``until``, or until validation stops improving.

    Raises Diverged, and Interrupted after saving when a signal asked this or another rank to stop.
    """
    settings = context.settings
    while state.epoch < until and not out_of_patience(state.valid_losses, settings.patience):
        train_loss = train_epoch(state, data, context, callback)
        values = {"train/loss": train_loss, **validate(state, data, context, callback)}
        values["learning_rate"] = learning_rate(settings, state.epoch + 1.0, state.valid_losses)
        state.finish_epoch(values)
        callback.on_epoch_end(state)
    if state.epoch >= settings.epochs:
        return "finished"
    return "stopped" if out_of_patience(state.valid_losses, settings.patience) else "paused"


def train_epoch(state: TrainState, data: RunData, context: TrainingContext, callback: Callback) -> float:
    """The rest of the epoch that is under way; gives its mean weighted loss over all ranks."""
    steps = data.train.steps(state.epoch)
    for batch in data.train.epoch(state.epoch, start=state.step):
        rate = learning_rate(context.settings, state.epoch + (state.step + 1) / steps, state.valid_losses)
        interrupted, loss = take_step(state, batch, context, rate, callback.interrupted)
        callback.on_step_end(state, steps, batch.num_graphs, loss)
        if interrupted:
            callback.save(state)
            raise Interrupted(f"stopped after step {state.step} of epoch {state.epoch + 1}; a checkpoint was written")
    return context.weighted_mean(context.ranks.sum_in_place(state.totals.clone()))


def take_step(
    state: TrainState, batch: GraphBatch, context: TrainingContext, rate: float, interrupted: bool
) -> tuple[bool, float]:
    """Move the weights once, as one rank would with the shares of all; gives whether any rank was interrupted, and the loss.

    Errors are summed here and divided by the number of labels of all ranks, so gradients only have to be added up: over
    ranks, and over the parts that a batch is computed in to save memory.
    """
    settings, ranks = context.settings, context.ranks
    counted = [*label_counts(context.targets, batch), float(interrupted)]
    counts = torch.tensor(counted, dtype=torch.float64, device=context.device)
    here = counts[:-1].clone()
    ranks.sum_in_place(counts)

    state.weights.gradient.zero_()
    loss = 0.0
    seed_step(settings.seed, state.epoch, state.step, ranks.rank, context.device)
    for part in micro_batches(batch, context.split):
        with context.autocast():
            predictions = state.model(part)
        sums = loss_sums(context.targets, predictions, part)
        total = (sums * (context.weights / counts[:-1].clamp(min=1.0)).to(sums.dtype)).sum()
        total.backward(inputs=list(state.model.parameters()))  # not edge vectors, whose gradient nobody reads
        loss += float(total.detach())
        state.totals[0] += sums.detach().to(torch.float64)
    state.totals[1] += here
    ranks.sum_in_place(state.weights.gradient)

    norm = clip_in_place(state.weights.gradient, settings.clip_norm)
    if not math.isfinite(norm):
        raise Diverged(f"the gradient is {norm} in step {state.step + 1} of epoch {state.epoch + 1}")
    state.optimizer.step(rate)
    state.step += 1
    state.steps += 1
    if state.average is not None:
        average_in_place(state.average, state.weights.vector, settings.ema_decay, state.steps)
    return bool(counts[-1] > 0), loss


def validate(state: TrainState, data: RunData, context: TrainingContext, callback: Callback) -> dict[str, float | None]:
    """``valid/loss`` and the errors of every field on the validation part, with the averaged weights where there are any."""
    totals = torch.zeros_like(state.totals)
    errors = Errors(data.targets, context.device)
    state.model.eval()
    with torch.no_grad(), state.weights.replaced_by(state.eval_parameters):
        for batch in (part for share in data.valid for part in micro_batches(share, context.split)):
            callback.heartbeat()
            with context.autocast():
                predictions = state.model(batch)
            sums = loss_sums(context.targets, predictions, batch).to(torch.float64)
            totals += torch.stack([sums, sums.new_tensor(label_counts(context.targets, batch))])
            for target in data.targets:
                errors.add(target, predictions[target.name], batch, data.normalisation)
    state.model.train()
    context.ranks.sum_in_place(errors.sums)
    loss = context.weighted_mean(context.ranks.sum_in_place(totals))
    return {"valid/loss": loss, **flattened(errors.values(data.valid_moments), "valid")}
