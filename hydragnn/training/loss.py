"""Errors of predictions as sums and counts, one pair for each field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.config import RunConfig, head_weights
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models.prediction import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldLoss:
    """How the errors of one field are measured and weighed."""

    name: str
    kind: str
    weight: float
    per_node: bool = False


def field_losses(config: RunConfig) -> tuple[FieldLoss, ...]:
    """The loss of every predicted field, in the order of the heads; forces and stress share the kind of their energy."""
    return tuple(
        FieldLoss(name=name, kind=head.loss, weight=weight, per_node=head.per_node and name == head.field)
        for head in config.heads
        for name, weight in head_weights(head).items()
    )


def squared(error: Tensor) -> Tensor:
    """Squares."""
    return error.square()


def absolute(error: Tensor) -> Tensor:
    """Absolute values."""
    return error.abs()


def huber(error: Tensor) -> Tensor:
    """Half the square up to 1, then linear (Huber 1964); errors are in normalised units."""
    size = error.abs()
    return torch.where(size <= 1.0, 0.5 * error.square(), size - 0.5)


TINY = 1e-12  # keeps the slope of a root finite where an error is exactly zero

POINT_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"mse": squared, "mae": absolute, "huber": huber}


def negative_log_likelihood(error: Tensor, variance: Tensor) -> Tensor:
    """Of a Gaussian, without the constant; Nix and Weigend 1994, doi:10.1109/ICNN.1994.374138."""
    return 0.5 * (variance.log() + error.square() / variance)


def label_norms(batch: GraphBatch, name: str) -> Float[Tensor, " graphs"]:
    """Root of the summed squares of each graph's labels; 0 for a graph without them."""
    target, present = batch[name], batch.present_items(name)
    if present is not None:
        target = torch.where(present.view(-1, *[1] * (target.ndim - 1)), target, 0.0)
    return _squares_per_graph(target, batch, name).sqrt()


def _squares_per_graph(values: Tensor, batch: GraphBatch, name: str) -> Float[Tensor, " graphs"]:
    squares = values.reshape(len(values), -1).square().sum(1)
    location = batch.fields[name].on
    if location == "graph":
        return squares
    return squares.new_zeros(batch.num_graphs).index_add(0, batch.owner(location), squares)


def label_counts(losses: Sequence[FieldLoss], batch: GraphBatch) -> list[float]:
    """How many numbers of each field are present (a vector of three counts three times); graphs for relative errors."""
    counts = []
    for loss in losses:
        if loss.kind == "relative":
            counts.append(float((label_norms(batch, loss.name) > 0).sum()))
            continue
        present = batch.present_items(loss.name)
        items = batch[loss.name].shape[0] if present is None else int(present.sum())
        counts.append(float(items * batch.fields[loss.name].width))
    return counts


def loss_sums(
    losses: Sequence[FieldLoss], predictions: Mapping[str, Prediction], batch: GraphBatch
) -> Float[Tensor, " fields"]:
    """The summed errors of each field over the labels that are present, in normalised units."""
    return torch.stack([loss_sum(loss, predictions[loss.name], batch) for loss in losses])


def loss_sum(loss: FieldLoss, prediction: Prediction, batch: GraphBatch) -> Float[Tensor, ""]:
    """The summed error of one field; a missing label contributes neither value nor gradient."""
    target = batch[loss.name]
    mean = prediction.mean.to(target.dtype)
    error = mean - target
    present = batch.present_items(loss.name)
    if present is not None:
        present = present.view(-1, *[1] * (error.ndim - 1))
        error = torch.where(present, error, 0.0)
    divisor = batch.counts("node").view(-1, *[1] * (error.ndim - 1)).clamp(min=1) if loss.per_node else None
    if divisor is not None:
        error = error / divisor
    if loss.kind == "relative":
        norms = label_norms(batch, loss.name)
        ratios = (_squares_per_graph(error, batch, loss.name) + TINY).sqrt() / norms.clamp(min=TINY)
        return torch.where(norms > 0, ratios, 0.0).sum()
    if loss.kind != "nll":
        return POINT_LOSSES[loss.kind](error).sum()
    assert prediction.variance is not None, f"head {loss.name} has no variance"
    variance = prediction.variance.to(target.dtype)
    if divisor is not None:
        variance = variance / divisor.square()
    values = negative_log_likelihood(error, variance)
    return (values if present is None else torch.where(present, values, 0.0)).sum()
