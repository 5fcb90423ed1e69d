"""Metrics and weights of classes."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore
from hydragnn.datasets.survey import BLOCK
from hydragnn.graphs.field import Field, is_labelled
from hydragnn.kernels import segment_sum
from hydragnn.models import Target

BINS = 15
"""Bins of equal width in the probability of the predicted class, for the expected calibration error."""


def values_of(
    field: Field, store: GraphStore, graphs: NDArray[np.int64]
) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
    """Return values of a field, and True for graphs that have it."""
    sizes, selection, blocks = store.sizes(), np.zeros(len(store), dtype=np.bool_), []
    selection[graphs] = True
    items = {"node": sizes.nodes, "edge": sizes.edges, "graph": np.ones(len(store), dtype=np.int64)}[field.on]
    for start in range(0, len(store), BLOCK):
        block = slice(start, min(start + BLOCK, len(store)))
        column = store.column(field.name, block.start, block.stop)
        selection[block] &= column.present
        blocks.append(column.values[np.repeat(selection[block], items[block])])
    return np.concatenate(blocks), selection


def label_counts_of(field: Field, store: GraphStore, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of labels of each class in these graphs."""
    labels, _ = values_of(field, store, graphs)
    labels = labels[is_labelled(labels, field)] if field.role == "target" else labels
    if labels.size and not 0 <= labels.min() <= labels.max() < field.classes:
        raise InputError(
            f"field {field.name} holds labels from {labels.min()} to {labels.max()}, and has classes 0 to "
            f"{field.classes - 1}; correct the store"
        )
    return np.bincount(labels.reshape(-1), minlength=field.classes)


def balanced_weights(target: Target, store: GraphStore, train: NDArray[np.int64]) -> Target:
    """Return the target with balanced weights in numbers."""
    if target.class_weights != "balanced":
        return target
    counts = label_counts_of(target.field, store, train)
    weights = np.divide(counts.sum(), counts, out=np.zeros(len(counts)), where=counts > 0) / max(1, (counts > 0).sum())
    return replace(target, class_weights=tuple(weights.tolist()))


def class_sums(
    probabilities: Float[Tensor, "rows classes"], nll: Float[Tensor, " rows"], labels: Int[Tensor, " rows"]
) -> Float[Tensor, " sums"]:
    """Return confusion, nll, Brier score and calibration bins as sums."""
    classes = probabilities.shape[1]
    confidence, predicted = probabilities.max(dim=1) if len(labels) else (nll, labels)
    confusion = segment_sum(torch.ones_like(nll), labels * classes + predicted, classes * classes)
    truth = torch.nn.functional.one_hot(labels, classes).to(probabilities.dtype)
    brier = (probabilities - truth).square().sum()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    hits = (predicted == labels).to(nll.dtype)
    of_bins = [segment_sum(values, bins, BINS) for values in (confidence, hits)]
    return torch.cat([confusion, nll.sum().view(1), brier.view(1), *of_bins])


def class_values(sums: NDArray[np.float64], classes: int) -> dict[str, float | None]:
    """Return accuracy, balanced_accuracy, error_rate, nll, brier, ece and count.

    From ``class_sums``; None where there is no label. Balanced accuracy: the mean over the classes that occur of the share of
    their labels that was found. Brier: squared distance of the probabilities from the truth, summed over classes (0 best, 2
    worst). ece: expected calibration error, the mean gap between the probability of the predicted class and its hits over bins
    (Guo et al. 2017, arXiv:1706.04599).
    """
    confusion = sums[: classes**2].reshape(classes, classes)
    nll, brier = sums[classes**2 : classes**2 + 2]
    confidence, hits = sums[classes**2 + 2 :].reshape(2, BINS)
    count = float(confusion.sum())
    if not count:
        return {**dict.fromkeys(("accuracy", "balanced_accuracy", "error_rate", "nll", "brier", "ece")), "count": 0.0}
    of_class = confusion.sum(axis=1)
    recalls = np.diag(confusion)[of_class > 0] / of_class[of_class > 0]
    accuracy = float(np.trace(confusion)) / count
    return {
        "accuracy": accuracy,
        "balanced_accuracy": float(recalls.mean()),
        "error_rate": 1.0 - accuracy,
        "nll": float(nll) / count,
        "brier": float(brier) / count,
        "ece": float(np.abs(hits - confidence).sum()) / count,
        "count": count,
    }
