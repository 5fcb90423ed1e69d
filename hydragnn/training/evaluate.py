"""Errors of models and of the trivial predictor, in physical units."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.datasets import Budget, GraphStore, Loader, Normalisation, Survey, reference_sums
from hydragnn.datasets.fit import fitted_references
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import is_labelled
from hydragnn.models import Categorical, Distribution, Point, Target
from hydragnn.training.class_metrics import label_counts_of, values_of
from hydragnn.training.metrics import Errors, RunningMoments, target_moments

Metrics = dict[str, dict[str, float | None]]


def errors_on(
    predict: Callable[[GraphBatch], Mapping[str, Distribution]],
    store: GraphStore,
    indices: NDArray[np.int64],
    targets: Sequence[Target],
    budget: Budget,
) -> Metrics:
    """Return errors of any predictor of physical values."""
    return errors_of_folds([(predict, indices)], store, targets, budget)


def errors_of_folds(
    folds: Sequence[tuple[Callable[[GraphBatch], Mapping[str, Distribution]], NDArray[np.int64]]],
    store: GraphStore,
    targets: Sequence[Target],
    budget: Budget,
) -> Metrics:
    """Errors of several predictors, each on graphs of its own, taken together."""
    errors = Errors(targets)
    moments: dict[str, RunningMoments] = {}
    for predict, indices in folds:
        for _, batch in Loader(store, indices, budget, shuffle=False).epoch(0):
            predictions = predict(batch)
            batch_moments = target_moments(targets, batch)
            for target in targets:
                errors.add(target, predictions[target.name], batch)
            moments = {name: moments[name].merged(part) if moments else part for name, part in batch_moments.items()}
    return errors.values(moments)


def trivial_predictor(
    store: GraphStore, train: NDArray[np.int64], targets: Sequence[Target], normalisation: Normalisation
) -> Callable[[GraphBatch], dict[str, Distribution]]:
    """Return the predictor of training means, which needs no model.

    Extensive fields: the fit on composition where there are references, also where they are given (atoms in molecules are bound), otherwise the mean per node times the nodes. Forces
    and stress: zero. Classes: their shares of the training labels.
    """
    means = {target.name: _training_mean(store, train, target) for target in targets if not target.derivative}
    references = dict(normalisation.references)
    for target in targets:
        if target.given_references and target.field.name in references:  # which serve elements that are absent
            fitted = fitted_references(Survey(store, train), target.field)
            references[target.field.name] = {**references[target.field.name], **fitted}
    normalisation = replace(normalisation, references=references)

    def predict(batch: GraphBatch) -> dict[str, Distribution]:
        guesses: dict[str, Distribution] = {}
        for target in targets:
            like = batch[target.field.name]
            if target.derivative:
                guesses[target.name] = Point(mean=torch.zeros_like(like, dtype=torch.float64))
            elif target.field.classes:
                guesses[target.name] = Categorical(logits=means[target.name].log().expand(*like.shape, -1))
            elif target.field.name in normalisation.references:
                sums = reference_sums(normalisation, target.field.name, batch)
                guesses[target.name] = Point(mean=sums.view(like.shape))
            else:
                items = batch.counts("node") if target.extensive else like.new_ones(like.shape[0], dtype=torch.float64)
                guesses[target.name] = Point(mean=(items.unsqueeze(1) * means[target.name]).view(like.shape))
        return guesses

    return predict


def _training_mean(store: GraphStore, train: NDArray[np.int64], target: Target) -> Tensor:
    """Return each component's training mean, per node if extensive; shares of classes."""
    if target.field.classes:
        counts = torch.from_numpy(label_counts_of(target.field, store, train) + 1.0)  # smoothed
        return counts / counts.sum()
    column, selection = values_of(target.field, store, train)
    values = column.reshape(-1, target.field.width).astype(np.float64)
    labelled = is_labelled(values, target.field)
    weights = store.sizes().nodes[selection][:, None] if target.extensive else np.ones((len(values), 1), dtype=np.int64)
    return torch.from_numpy(
        np.where(labelled, values, 0.0).sum(axis=0) / np.maximum(1, (labelled * weights).sum(axis=0))
    )


def flat_metrics(metrics: Metrics, part: str) -> dict[str, float]:
    """Return metrics under record names such as ``valid/energy/mae``."""
    return {
        f"{part}/{field}/{name}": value
        for field, values in metrics.items()
        for name, value in values.items()
        if value is not None and name != "count"
    }
