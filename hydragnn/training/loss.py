"""Errors of predictions as sums and counts, one pair for each target."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from hydragnn.base.errors import InputError, own_code
from hydragnn.base.imports import function_of_kind
from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.kernels import segment_sum
from hydragnn.models import Distribution, Target
from hydragnn.models.heads.kinds import LOSS_GROUP


def huber(error: Tensor) -> Tensor:
    """Half the square up to 1, then linear (Huber 1964)."""
    size = error.abs()
    return torch.where(size <= 1.0, 0.5 * error.square(), size - 0.5)


TINY = 1e-12  # keeps the slope of a root finite where an error is exactly zero

JUDGED_BY_DISTRIBUTION = ("nll", "cross_entropy", "relative")
"""Losses that are no function of single errors."""

POINT_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"mse": torch.square, "mae": torch.abs, "huber": huber}


@cache
def point_loss(name: str) -> Callable[[Tensor], Tensor]:
    """Return the elementwise loss; InputError for a function that is none."""
    loss = function_of_kind(name, POINT_LOSSES, group=LOSS_GROUP, where=f"heads.loss = {name!r}", noun="loss")
    if name in POINT_LOSSES:
        return loss

    def checked_loss(error: Tensor) -> Tensor:
        shape = tuple(error.shape)
        with own_code(f"heads.loss = {name!r}, for errors of shape {shape},"):
            values = loss(error)
        if not isinstance(values, Tensor) or values.numel() != error.numel():
            what = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise InputError(f"heads.loss = {name!r} gives {what} for errors of shape {shape}; return a loss for each")
        if torch.is_grad_enabled() and error.requires_grad and not values.requires_grad:
            raise InputError(
                f"heads.loss = {name!r} gives numbers without a slope; compute with tensors of torch alone"
            )
        return values

    with torch.enable_grad():
        errors = torch.linspace(-3.0, 3.0, 7, requires_grad=True)
        values = checked_loss(errors)
        slope = torch.autograd.grad(values.sum(), errors)[0]
    if not bool(values.isfinite().all() and slope.isfinite().all() and slope.any()):
        problem = f"heads.loss = {name!r} has no finite slope for errors from -3 to 3 ({slope.tolist()})"
        raise InputError(f"{problem}; return one that is smooth at 0")
    if values[3] > values.min():
        raise InputError(f"heads.loss = {name!r} is {values.tolist()} for errors from -3 to 3; it must be least at 0")
    return checked_loss


def label_norms(batch: GraphBatch, name: str) -> Float[Tensor, " graphs"]:
    """Return the norm of each graph's labels; 0 without any."""
    return _squares_per_graph(_labelled_only(batch[name], _labelled(batch, name)), batch, name).sqrt()


def _squares_per_graph(values: Tensor, batch: GraphBatch, name: str) -> Float[Tensor, " graphs"]:
    squares = values.unsqueeze(-1).flatten(1).square().sum(1)
    location = batch.fields[name].on
    if location == "graph":
        return squares
    return segment_sum(squares, batch.owner(location), batch.num_graphs)


def label_counts(targets: Sequence[Target], batch: GraphBatch) -> Float64[Tensor, " targets"]:
    """Return the number of labels of each target, without missing ones."""
    return torch.stack([_label_count(target, batch) for target in targets])


def _label_count(target: Target, batch: GraphBatch) -> Float64[Tensor, ""]:
    name = target.field.name
    if target.loss == "relative":
        return (label_norms(batch, name) > 0).sum().to(torch.float64)
    labels, labelled = batch[name], _labelled(batch, name)
    if labelled is None:
        return torch.full((), float(labels.shape[0] * target.field.width), dtype=torch.float64, device=labels.device)
    return labelled.sum().to(torch.float64)


def loss_sums(
    targets: Sequence[Target], predictions: Mapping[str, Distribution], batch: GraphBatch
) -> Float[Tensor, " targets"]:
    """Return summed normalised errors of each target; zeros where another stage predicts."""
    absent = batch.positions.new_zeros(())
    sums = [loss_sum(t, predictions[t.name], batch) if t.name in predictions else absent for t in targets]
    return torch.stack([one.to(sums[0].dtype) for one in sums])


def loss_sum(target: Target, prediction: Distribution, batch: GraphBatch) -> Float[Tensor, ""]:
    """Return the summed error of one target; missing labels add nothing."""
    name = target.field.name
    labelled = _labelled(batch, name)
    labels = _labelled_only(batch[name], labelled)
    prediction = prediction.to(dtype=labels.dtype if labels.is_floating_point() else batch.positions.dtype)
    divisor = _like_items(batch.nodes_per_graph.clamp(min=1), labels) if target.per_node else None
    if target.loss in ("nll", "cross_entropy"):
        values = prediction.nll(labels, divisor)
        if target.class_weights is not None:
            values = values * class_weights_on(target.class_weights, values.dtype, values.device)[labels]
        return _labelled_only(values, labelled).sum()
    error = _labelled_only(prediction.error(labels), labelled)
    if divisor is not None:
        error = error / divisor
        if target.derivative == "stress":
            error = error * _like_items(volumes(batch).to(error.dtype), error)
    if target.loss == "relative":
        norms = label_norms(batch, name)
        ratios = (_squares_per_graph(error, batch, name) + TINY).sqrt() / norms.clamp(min=TINY)
        return torch.where(norms > 0, ratios, 0.0).sum()
    return point_loss(target.loss)(error).sum()


@cache
def class_weights_on(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the weights of classes, copied once for recorded steps."""
    return torch.tensor(weights, dtype=dtype, device=device)


def _labelled(batch: GraphBatch, name: str) -> Tensor | None:
    """Return a bool per label; None where all are present."""
    return batch.labelled(name) if name in batch.masks or batch.halo is not None else None


def _labelled_only(values: Tensor, labelled: Tensor | None) -> Tensor:
    """The values with zero where the label is missing."""
    return values if labelled is None else torch.where(labelled, values, values.new_zeros(()))


def _like_items(per_item: Tensor, values: Tensor) -> Tensor:
    """Return numbers per item, shaped to broadcast to ``values``."""
    return per_item.view(-1, *[1] * (values.ndim - 1))
