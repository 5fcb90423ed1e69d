"""Scores of intervals on fresh graphs: coverage of all and of thirds, width and CRPS."""

from dataclasses import replace
from typing import Any

import numpy as np

from hydragnn.ensemble.estimates.calibration.numbers import Calibration, rows_of
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.estimates.metrics import gaussian_crps
from hydragnn.ensemble.estimates.numbers import NumberEstimate, moments_of
from hydragnn.models import Target

NOMINAL = 0.9


def graph_mean(values: np.ndarray, graph: np.ndarray) -> float:
    """The mean over graphs of the means of their items."""
    _, group, counts = np.unique(graph, return_inverse=True, return_counts=True)
    return float(np.mean(np.bincount(group, weights=values) / counts))


def thirds_of(inside: np.ndarray, graph: np.ndarray, by: np.ndarray) -> list[float]:
    """Coverage of the items in each third by a quantity, every graph weighing the same."""
    limits = np.quantile(by, [1 / 3, 2 / 3])
    third = np.digitize(by, limits, right=True)
    return [graph_mean(inside[third == k], graph[third == k]) if (third == k).any() else np.nan for k in range(3)]


def score_intervals(target: Target, calibration: Calibration, weights: np.ndarray, fresh: Labelled) -> dict[str, Any]:
    """Coverage, width and CRPS on fresh items; of vectors every component is an item."""
    one = NumberEstimate.of(target, fresh.members, weights, calibration, fresh.nodes)
    width = target.field.width
    graph, nodes = np.repeat(fresh.graph, width), np.repeat(fresh.nodes, width)
    inside = ((one.lower <= fresh.labels) & (fresh.labels <= one.upper)).ravel().astype(np.float64)
    crps = gaussian_crps(fresh.labels.ravel(), one.mean.ravel(), one.std.ravel())
    magnitude = rows_of(target.field, moments_of(fresh.members, weights), fresh.nodes).magnitude.ravel()
    return {
        "coverage": graph_mean(inside, graph),
        "by_nodes": thirds_of(inside, graph, nodes),
        "by_magnitude": thirds_of(inside, graph, magnitude),
        "width": graph_mean((one.upper - one.lower).ravel(), graph),
        "crps": graph_mean(crps, graph),
    }


def alone(items: Labelled) -> Labelled:
    """What the first member says."""
    return replace(items, members=items.members[:1])
