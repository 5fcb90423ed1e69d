"""How good a model is on a part of a store, in the fields' units, and how good the trivial predictor is there."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.datasets import BatchSettings, GraphStore, Loader, Normalisation, reference_sums
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import TrainedModel
from hydragnn.training.metrics import Errors, Moments, Target, target_moments, targets_of

Metrics = dict[str, dict[str, float | None]]


def evaluate(
    model: TrainedModel, store: GraphStore, indices: NDArray[np.int64], settings: BatchSettings | None = None
) -> Metrics:
    """Errors of a trained model on the graphs ``indices``: field name to mae, rmse, r2, count (and per node) in its unit."""
    targets = targets_of(model.heads, model.fields)

    def means(batch: GraphBatch) -> dict[str, Tensor]:
        return {name: prediction.mean for name, prediction in model.predict(batch).items()}

    return errors_on(means, store, indices, targets, settings or BatchSettings())


def errors_on(
    predict: Callable[[GraphBatch], Mapping[str, Tensor]],
    store: GraphStore,
    indices: NDArray[np.int64],
    targets: Sequence[Target],
    settings: BatchSettings,
) -> Metrics:
    """Errors of any predictor (raw batch to values in the fields' units) on the graphs ``indices``."""
    errors = Errors(targets)
    moments: dict[str, Moments] = {}
    for _, batch in Loader(store, indices, settings, shuffle=False).epoch(0):
        values = predict(batch)
        here = target_moments(targets, batch)
        for target in targets:
            errors.add(target, values[target.name].cpu() - batch[target.name], batch)
        moments = {name: moments[name].merged(part) if moments else part for name, part in here.items()}
    return errors.values(moments)


def trivial_predictor(
    store: GraphStore, train: NDArray[np.int64], targets: Sequence[Target], normalisation: Normalisation
) -> Callable[[GraphBatch], dict[str, Tensor]]:
    """What anyone can predict without a model: the mean of the training part for each component.

    Extensive fields: the fit on composition where there are references, otherwise the mean per node times the nodes. Forces
    and stress: zero.
    """
    means = {target.name: _training_mean(store, train, target) for target in targets if not target.derived}

    def predict(batch: GraphBatch) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for target in targets:
            like = batch[target.name]
            if target.derived:
                values[target.name] = torch.zeros_like(like, dtype=torch.float64)
            elif target.name in normalisation.references:
                values[target.name] = reference_sums(normalisation, target.name, batch).view(like.shape)
            else:
                items = batch.counts("node") if target.extensive else like.new_ones(like.shape[0], dtype=torch.float64)
                values[target.name] = (items.unsqueeze(1) * means[target.name]).view(like.shape)
        return values

    return predict


def _training_mean(store: GraphStore, train: NDArray[np.int64], target: Target) -> Tensor:
    """Mean of each component over the training part, per node where the field is extensive."""
    column = store.column(target.name)
    place = next(field.on for field in store.fields() if field.name == target.name)
    sizes = store.sizes()
    chosen = np.zeros(len(store), dtype=np.bool_)
    chosen[train] = True
    chosen &= column.present
    counts = {"node": sizes.nodes, "edge": sizes.edges, "graph": np.ones(len(store), dtype=np.int64)}[place]
    values = column.values[np.repeat(chosen, counts)].reshape(-1, target.width).astype(np.float64)
    items = int(sizes.nodes[chosen].sum()) if target.extensive else len(values)
    return torch.from_numpy(values.sum(axis=0) / max(1, items))


def trivial_metrics(
    store: GraphStore,
    train: NDArray[np.int64],
    part: NDArray[np.int64],
    targets: Sequence[Target],
    normalisation: Normalisation,
) -> Metrics:
    """Errors of the trivial predictor, fitted on the graphs ``train``, on the graphs ``part``."""
    predict = trivial_predictor(store, train, targets, normalisation)
    return errors_on(predict, store, part, targets, BatchSettings(max_graphs=1024))


def flattened(metrics: Metrics, part: str) -> dict[str, float]:
    """Metrics under the names of a run record (``valid/energy/mae``), without counts and undefined values."""
    return {
        f"{part}/{field}/{name}": value
        for field, values in metrics.items()
        for name, value in values.items()
        if value is not None and name != "count"
    }
