"""Chapters on spreads and intervals, and on the training domain."""

from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.special import ndtri

from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Section, Table, table_of
from hydragnn.scripts.report.facts import ClassPoints, Facts, Part, Points, Values, is_categorical, metric
from hydragnn.scripts.report.words import measured, pretty_unit, with_unit

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
BINS = 10
"""Groups of equal width in the probability of the predicted class."""


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on spreads and intervals."""
    part, nominal = facts.part, facts.evaluation.nominal
    if part is None or facts.manifest is None:
        return None
    chapter = Section(
        "uncertainty",
        "Uncertainty and intervals",
        f"Every prediction comes with a spread (between members and within each) and a {nominal * 100:.0f} % interval. "
        "Here both are compared with the true values. "
        + " ".join(f"{name}: {own.sentence}." for name, own in facts.manifest.calibration.items()),
        [calibration(part, nominal), spread_against_error(part), reliability(part)],
        uncertainty_tables(part, nominal),
        [
            table
            for other in facts.parts.values()
            if other.name != part.name
            for table in uncertainty_tables(other, nominal)
        ],
    )
    return chapter if any(chapter.figures) or any(chapter.tables) else None


def reliability(part: Part) -> Figure | None:
    """Return probabilities of predicted classes against observed frequencies."""
    return canvas.panels(
        f"reliability-{part.name}",
        "Reliability of probabilities",
        "predictions are grouped by the probability of the predicted class; each dot is the share of right "
        "ones in its group. On the diagonal probabilities mean what they say; below it the model is overconfident.",
        {name: (partial(_draw_reliability, points), "") for name, points in part.classes.items()},
        height=310,
    )


def _draw_reliability(points: ClassPoints, axes: Axes) -> None:
    confidence, right = points.probability.max(axis=1), points.label == points.target
    group = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(group, minlength=BINS)
    some = count > 0
    promised, observed = (np.bincount(group, own, BINS)[some] / count[some] for own in (confidence, right))
    canvas.square(axes, 0.0, 1.0, 1.02)
    axes.plot(promised, observed, "-o", markersize=6)
    axes.set_xlim(0, 1.02)
    canvas.linear_scales(axes)
    canvas.label(axes, "probability of the predicted class", "share of right ones")


def observed_levels(error: Values, spread: Values) -> Values:
    """Return the coverage of Gaussian intervals of all ``LEVELS``."""
    z = ndtri(0.5 + np.array(LEVELS) / 2)
    inside = np.abs(error)[None, :] <= z[:, None] * np.maximum(spread, 1e-300)[None, :]
    return np.asarray(inside.mean(axis=1), dtype=np.float64)


def calibration(part: Part, nominal: float) -> Figure | None:
    """Return promised against observed coverage of fields with spreads."""
    promise = f"{nominal * 100:.0f}\u00a0%"

    def note(points: Points) -> str:
        covered = points.covered
        return "" if covered is None else f"{promise} interval holds {np.nanmean(covered) * 100:.1f}\u00a0%"

    return canvas.panels(
        f"calibration-{part.name}",
        "Calibration of the spread",
        "for every promised probability, the share of true values that really fell inside the interval of "
        "that probability. On the diagonal the promise is kept; below it the model is overconfident, above it too cautious. "
        f"The line uses the predicted spread; the diamond is the conformal {promise} interval that predictions carry.",
        {
            name: (partial(_draw_calibration, points, spread, nominal), note(points))
            for name, points in part.numbers.items()
            if (spread := points.spread) is not None
        },
        height=310,
    )


def _draw_calibration(points: Points, spread: Values, nominal: float, axes: Axes) -> None:
    canvas.square(axes, 0.0, 1.0, 1.02)
    observed, promised = (0, *observed_levels(points.error, spread), 1), (0, *LEVELS, 1)
    axes.fill_between(promised, promised, observed, color=canvas.ACCENT, alpha=0.15, linewidth=0)
    axes.plot(promised, observed)
    if points.covered is not None:
        edge: dict[str, Any] = {"markeredgecolor": canvas.PAPER, "markeredgewidth": 1}
        axes.plot([nominal], [float(np.nanmean(points.covered))], "D", color=canvas.INK, markersize=7, **edge)
    canvas.linear_scales(axes)
    canvas.label(axes, "promised share", "observed share")


def spread_against_error(part: Part) -> Figure | None:
    """Return binned errors against predicted spread."""
    return canvas.panels(
        f"spread-{part.name}",
        "Spread against error",
        "values are sorted by predicted spread into groups of equal count; each dot is the real error (root mean square) of one "
        "group. Rising dots mean that the spread knows which predictions are bad; dots on the diagonal mean that its size "
        "is right too, dots above it that it is too small.",
        {
            name: (partial(_draw_spread, spread, points), "")
            for name, points in part.numbers.items()
            if (spread := points.spread) is not None and len(spread) >= 20 and np.ptp(spread) > 1e-9 * spread.max()
        },
        height=310,
    )


def binned_errors(spread: Values, error: Values, bins: int) -> tuple[Values, Values]:
    """Return root mean squares of spread and error by bins of spread."""
    order = np.argsort(spread, kind="stable")
    groups = np.array_split(order, min(bins, max(1, len(order) // 10)))
    rms = [(np.sqrt(np.mean(spread[g] ** 2)), np.sqrt(np.mean(error[g] ** 2))) for g in groups]
    x, y = np.array(rms, dtype=np.float64).T
    return x, y


def _draw_spread(spread: Values, points: Points, axes: Axes) -> None:
    x, y = binned_errors(spread, points.error, 10)
    positive = [value for value in (*x, *y) if value > 0] or [1.0]
    low, high = min(positive) / 1.5, max(positive) * 1.5
    canvas.square(axes, low, high)
    axes.plot(x, y, "-", color=canvas.SOFT, linewidth=1)
    axes.plot(x, y, "o", markersize=7)
    canvas.log_scale(axes, "x", low, high)
    canvas.log_scale(axes, "y", low, high)
    canvas.label(axes, with_unit("predicted spread", points.unit), with_unit("real error", points.unit))


def uncertainty_tables(part: Part, nominal: float) -> list[Table]:
    """Return how good spreads and intervals are, and sets of classes."""
    columns = {"coverage": "coverage", "unknown": "unknown", "interval width": "interval_width", "CRPS": "crps"}
    columns |= {"NLL": "nll", "miscalibration area": "miscalibration_area", "Spearman": "spearman"}
    sets = {"coverage": "coverage", "classes in a set": "set_size", "empty sets": "empty_sets", "Spearman": "spearman"}
    numeric, classes = (
        [
            (field, *units, *(measured(metric(one.ensemble, key)) for key in keys.values()))
            for field, one in part.scores.items()
            for units in [() if categorical else (pretty_unit(one.unit) or "–",)]
            if "spearman" in one.ensemble and is_categorical(one) == categorical
        ]
        for keys, categorical in ((columns, False), (sets, True))
    )
    return [
        Table(
            header=("field", "unit", *columns),
            rows=numeric,
            caption=f"Uncertainty on the {part.name} part. Coverage should be {nominal:.2f}; unknown: share of values without an interval, of graphs further from training data than all that calibrate; width in the field's unit (narrower is "
            "better at equal coverage); CRPS and NLL: proper scores, lower is better; miscalibration area: 0 is perfect; "
            "Spearman: does the spread rank the errors, 1 is perfect.",
        ),
        Table(
            header=("field", *sets),
            rows=classes,
            caption=f"Sets of classes on the {part.name} part. Coverage should be {nominal:.2f}, with as few classes as possible; a "
            "set is empty where even the likeliest class is less probable than the truth usually is; Spearman: does the entropy "
            "rank the errors.",
        ),
    ]


def domain_chapter(facts: Facts) -> Section | None:
    """Return the chapter on graphs that are unlike those of training."""
    domain = facts.evaluation.domain
    if not domain:
        return None
    by_detector, allowed = domain["flagged_by_detector"], domain["false_alarms"]
    expected = domain.get("expected", allowed)
    few = f" Held-out graphs are so few that about {100 * expected:.1f} are flagged."
    columns = {name: lambda part, name=name: f"{100 * by_detector[part][name]:.1f}" for name in domain["detectors"]}
    flags = table_of(
        domain["flagged"],
        {"part": str, "flagged": lambda part: f"{100 * domain['flagged'][part]:.1f}", **columns},
        f"Graphs outside the training domain, in percent. Thresholds allow {100 * allowed:.1f} of validation and calibration "
        "graphs together, and of graphs like these; detectors overlap." + few * (expected > allowed),
    )
    lead = "Every prediction comes with a score of how unlike the training part its graph is, and with the detector that says so."
    return Section("domain", "Training domain", lead, tables=[flags])
