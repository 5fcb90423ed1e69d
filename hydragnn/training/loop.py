"""The training loop: epochs of steps, each epoch judged on the validation part."""

import math
from typing import Literal

import torch

from hydragnn.errors import Interrupted
from hydragnn.graphs.batch import GraphBatch
from hydragnn.training.data import RunData
from hydragnn.training.evaluate import flattened
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.metrics import Errors
from hydragnn.training.optimise import average_in_place, clip_in_place, learning_rate, out_of_patience
from hydragnn.training.parts import parts_of
from hydragnn.training.recipe import Diverged, Recipe, Watcher
from hydragnn.training.state import TrainState, seed_step

Ended = Literal["finished", "stopped", "paused"]


def train_epochs(state: TrainState, data: RunData, recipe: Recipe, watcher: Watcher, until: int) -> Ended:
    """Train from where the state stands to the end of epoch ``until``, or until validation stops improving.

    Raises Diverged, and Interrupted after saving when a signal asked this or another rank to stop.
    """
    settings = recipe.settings
    while state.epoch < until and not out_of_patience(state.valid_losses, settings.patience):
        train_loss = train_epoch(state, data, recipe, watcher)
        values = {"train/loss": train_loss, **validate(state, data, recipe, watcher)}
        values["learning_rate"] = learning_rate(settings, state.epoch + 1.0, state.valid_losses)
        state.finish_epoch(values)
        watcher.epoch_finished(state)
    if state.epoch >= settings.epochs:
        return "finished"
    return "stopped" if out_of_patience(state.valid_losses, settings.patience) else "paused"


def train_epoch(state: TrainState, data: RunData, recipe: Recipe, watcher: Watcher) -> float:
    """The rest of the epoch that is under way; gives its mean weighted loss over all ranks."""
    steps = data.train.steps(state.epoch)
    for batch in data.train.epoch(state.epoch, start=state.step):
        rate = learning_rate(recipe.settings, state.epoch + (state.step + 1) / steps, state.valid_losses)
        interrupted, loss = take_step(state, batch, recipe, rate, watcher.interrupted)
        watcher.step_taken(state, steps, batch.num_graphs, loss)
        if interrupted:
            watcher.save(state)
            raise Interrupted(f"stopped after step {state.step} of epoch {state.epoch + 1}; a checkpoint was written")
    return recipe.weighted_mean(recipe.ranks.sum_in_place(state.totals.clone()))


def take_step(
    state: TrainState, batch: GraphBatch, recipe: Recipe, rate: float, interrupted: bool
) -> tuple[bool, float]:
    """Move the weights once, as one rank would with the shares of all; gives whether any rank was interrupted, and the loss.

    Errors are summed here and divided by the number of labels of all ranks, so gradients only have to be added up: over
    ranks, and over the parts that a batch is computed in to save memory.
    """
    settings, ranks = recipe.settings, recipe.ranks
    counted = [*label_counts(recipe.losses, batch), float(interrupted)]
    counts = torch.tensor(counted, dtype=torch.float64, device=recipe.device)
    here = counts[:-1].clone()
    ranks.sum_in_place(counts)

    state.weights.gradient.zero_()
    loss = 0.0
    seed_step(settings.seed, state.epoch, state.step, ranks.rank, recipe.device)
    for part in parts_of(batch, recipe.split):
        with recipe.arithmetic():
            predictions = state.model(part)
        sums = loss_sums(recipe.losses, predictions, part)
        total = (sums * (recipe.weights / counts[:-1].clamp(min=1.0)).to(sums.dtype)).sum()
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


def validate(state: TrainState, data: RunData, recipe: Recipe, watcher: Watcher) -> dict[str, float | None]:
    """``valid/loss`` and the errors of every field on the validation part, with the averaged weights where there are any."""
    totals = torch.zeros_like(state.totals)
    errors = Errors(data.targets, recipe.device)
    state.model.eval()
    with torch.no_grad(), state.weights.replaced_by(state.judged):
        for batch in (part for share in data.valid for part in parts_of(share, recipe.split)):
            watcher.lives()
            with recipe.arithmetic():
                predictions = state.model(batch)
            sums = loss_sums(recipe.losses, predictions, batch).to(torch.float64)
            totals += torch.stack([sums, sums.new_tensor(label_counts(recipe.losses, batch))])
            for target in data.targets:
                scale = data.normalisation.scales[target.name]
                error = predictions[target.name].mean.to(torch.float64) - batch[target.name].to(torch.float64)
                errors.add(target, error.reshape(-1, target.width) * error.new_tensor(scale.std), batch)
    state.model.train()
    recipe.ranks.sum_in_place(errors.sums)
    loss = recipe.weighted_mean(recipe.ranks.sum_in_place(totals))
    return {"valid/loss": loss, **flattened(errors.values(data.valid_moments), "valid")}
