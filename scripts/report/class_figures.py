"""Figures of categorical fields: what is taken for what, and whether probabilities mean what they say."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from hydragnn.scripts.report.canvas import (
    ACCENT,
    INK,
    MUTED,
    Figure,
    Sketch,
    linear_scale,
    panels,
    quiet_grid,
    thousands,
)
from hydragnn.scripts.report.facts import ClassPoints, Part, Values
from hydragnn.scripts.report.quality_figures import DENSITY

BINS = 10
"""Groups of equal width in the probability of the predicted class."""
NUMBERED = 12
"""Classes up to which the cells of a confusion matrix carry their numbers."""


def confusion(part: Part) -> Figure | None:
    """The confusion matrix of every categorical field; None where there is none."""
    return panels(
        f"confusion-{part.name}",
        "What is taken for what",
        "How to read it: each row holds the labels of one true class, each column what was predicted; a cell shows the share "
        "of its row. A perfect model fills the diagonal only.",
        [
            Sketch(
                name=name,
                label=name,
                draw=partial(_draw_confusion, points=points),
                note=f"{thousands(len(points.target))} labels of {thousands(len(np.unique(points.graph)))} graphs",
            )
            for name, points in part.class_points.items()
        ],
        height=330,
    )


def shares(points: ClassPoints) -> Values:
    """Share of every true class (rows) that was predicted as each class; zeros for a class without labels."""
    classes = points.probability.shape[1]
    counts = np.zeros((classes, classes))
    np.add.at(counts, (points.target, points.label), 1.0)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0))


def _draw_confusion(axes: Axes, points: ClassPoints) -> None:
    matrix = shares(points)
    classes = len(matrix)
    axes.imshow(matrix, cmap=DENSITY, vmin=0.0, vmax=1.0, interpolation="nearest")
    if classes <= NUMBERED:
        for row, column in np.ndindex(classes, classes):
            if matrix[row, column] > 0:
                axes.text(column, row, f"{100 * matrix[row, column]:.0f}", ha="center", va="center", color=INK)
        axes.set_xticks(range(classes))
        axes.set_yticks(range(classes))
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")


def reliability(part: Part) -> Figure | None:
    """Probability of the predicted class against how often it is right, a panel per categorical field."""
    return panels(
        f"reliability-{part.name}",
        "Reliability: promised against observed hits",
        "How to read it: predictions are grouped by the probability of the predicted class; each dot is the share of right "
        "ones in its group. On the diagonal probabilities mean what they say; below it the model is overconfident.",
        [
            Sketch(name=name, label=name, draw=partial(_draw_reliability, points=points))
            for name, points in part.class_points.items()
        ],
        height=310,
    )


def reliability_curve(points: ClassPoints) -> tuple[Values, Values]:
    """Mean probability of the predicted class and share of right ones, for every group that is not empty."""
    confidence, right = points.probability.max(axis=1), points.label == points.target
    group = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(group, minlength=BINS)
    some = count > 0
    promised = np.bincount(group, weights=confidence, minlength=BINS)[some] / count[some]
    observed = np.bincount(group, weights=right.astype(np.float64), minlength=BINS)[some] / count[some]
    return promised, observed


def _draw_reliability(axes: Axes, points: ClassPoints) -> None:
    promised, observed = reliability_curve(points)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1)
    axes.plot(promised, observed, "-o", color=ACCENT, markersize=6, markeredgewidth=0)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    linear_scale(axes, "x")
    linear_scale(axes, "y")
    quiet_grid(axes)
    axes.set_xlabel("probability of the predicted class")
    axes.set_ylabel("share of right ones")
