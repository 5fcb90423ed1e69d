"""Figures of predictions: errors, parity, confusions, calibration, coverage, spread, training domain, ablation."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgba
from numpy.typing import NDArray
from scipy.special import ndtri

from hydragnn.scripts.report.canvas import (
    ACCENT,
    INK,
    MUTED,
    PAPER,
    RASTER_ACCENT,
    SOFT,
    Figure,
    dashed,
    figure,
    label,
    linear_scale,
    log_scale,
    named_rows,
    panels,
    ratio_axis,
    square,
)
from hydragnn.scripts.report.facts import Ablation, ClassPoints, DomainFacts, FieldScores, Part, Points, Values
from hydragnn.scripts.report.verdict import coverage_error
from hydragnn.scripts.report.words import per_node, plain_number, thousands, with_unit

MANY, TOO_MANY = 300, 4000  # rows: vector dots below, pixels above, a density map above that
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
DENSITY = LinearSegmentedColormap.from_list("density", [(*to_rgba(RASTER_ACCENT)[:3], a) for a in (0.12, 0.6, 1.0)])
BINS = 10
"""Groups of equal width in the probability of the predicted class."""
NUMBERED = 12
"""Classes up to which the cells of a confusion matrix carry their numbers."""
OWN = ("valid", "held-out")
"""Parts that thresholds of the training domain are set on."""
LEAST, GREATEST = 1e-4, 1.0
"""Scores of the training domain that the figure shows; beyond, curves go straight on."""


def error_ratios(scores: Sequence[FieldScores], part: str) -> Figure:
    """Return errors of members and ensemble over the trivial predictor's."""

    def draw(axes: Axes) -> None:
        ratios: list[float] = []
        for row, entry in enumerate(scores):
            base = entry.trivial.error or math.nan
            members = [member.error / base for member in entry.members]
            alone = entry.ensemble is None and len(members) == 1
            look: dict[str, Any] = {"markersize": 9} if alone else {"color": SOFT, "markersize": 5}
            axes.plot(members, [row] * len(members), "o", **look)
            ratios += members
            if entry.ensemble is not None:
                ratios.append(entry.ensemble.error / base)
                axes.plot(ratios[-1:], [row], "o", markersize=9)
        ratio_axis(axes, ratios)
        named_rows(axes, [entry.field for entry in scores])
        label(axes, "error / trivial error", grid="x")

    height = 80 + 34 * len(scores)
    several = any(entry.ensemble for entry in scores)
    return figure(
        f"ratios-{part}",
        "Error relative to the trivial predictor",
        "one row per field; 1 (dashed) is the trivial predictor, which knows nothing but the mean of the "
        "training part. Further left is better, and every step of the axis is a factor. "
        + ("Small dots are the single members, the large dot is the ensemble." if several else "The dot is the model."),
        draw,
        height=height,
        narrow_height=height + 10,
        span="page",
    )


def parity(part: Part, nodes: NDArray[np.int64] | None) -> Figure | None:
    """Return predictions against targets, also per node where values grow."""
    drawings = {}
    for scores in part.scores:
        if (points := part.numbers.get(scores.field)) is not None:
            drawings[scores.field] = (partial(_draw_parity, points), _counts(points, "values"))
            if nodes is not None and math.isfinite(scores.of_model["mae_per_node"]):
                shares = points.per_node(nodes)
                note = f"MAE {per_node(float(np.abs(shares.error).mean()), points.unit)}"
                drawings[f"{scores.field} per node"] = (partial(_draw_parity, shares), note)
    dense = any(len(points.target) > TOO_MANY for points in part.numbers.values())
    return panels(
        f"parity-{part.name}",
        "Predicted against true",
        f"every dot is one value of the {part.name} part; a perfect model puts all of them on the diagonal. "
        "A cloud that is flatter than the diagonal means that extremes are predicted too mildly."
        + (" Where values are too many for dots, darker cells hold more of them." if dense else ""),
        drawings,
        height=330,
    )


def _counts(points: Points | ClassPoints, noun: str) -> str:
    return f"{thousands(len(points.target))} {noun} of {thousands(len(np.unique(points.graph)))} graphs"


def _draw_parity(points: Points, axes: Axes) -> None:
    low = float(min(points.target.min(), points.mean.min()))
    high = float(max(points.target.max(), points.mean.max()))
    margin = 0.04 * (high - low) or 1.0
    low, high = low - margin, high + margin
    cloud(axes, points.target, points.mean, (low, high, low, high))
    square(axes, low, high)
    axes.lines[-1].set_zorder(3)
    linear_scale(axes, "x", 4)
    linear_scale(axes, "y", 4)
    label(axes, with_unit("true", points.unit), with_unit("predicted", points.unit))


def cloud(axes: Axes, x: Values, y: Values, extent: tuple[float, float, float, float]) -> None:
    """Draw few dots as vectors, many as pixels, more as densities."""
    if len(x) > TOO_MANY:
        counts, _, _ = np.histogram2d(x, y, bins=90, range=[extent[:2], extent[2:]])
        axes.imshow(
            np.ma.masked_less(counts.T, 1),
            origin="lower",
            extent=extent,
            cmap=DENSITY,
            norm=LogNorm(1, max(2.0, counts.max())),
            aspect="auto",
            interpolation="nearest",
            zorder=2,
        )
    elif len(x) > MANY:
        alpha = max(0.15, min(0.6, 400 / len(x)))
        axes.plot(x, y, "o", color=RASTER_ACCENT, alpha=alpha, markersize=3.2, rasterized=True)
    else:
        axes.plot(x, y, "o", alpha=0.65, markersize=4)


def errors(part: Part) -> Figure | None:
    """Return histograms of signed errors, a panel per field."""
    trivial = {scores.field: scores.trivial.error for scores in part.scores}

    def note(name: str, points: Points) -> str:
        base = with_unit(plain_number(trivial.get(name, math.nan)), points.unit, "{0}\u00a0{1}").replace("/", "/\u2060")
        return f"MAE\u00a0{plain_number(float(np.abs(points.error).mean()))}, trivial predictor {base}"

    return panels(
        f"errors-{part.name}",
        "Distribution of errors",
        "prediction minus truth; the hill should be narrow and centred on zero. A hill beside zero is a bias. "
        "Dashed lines are plus and minus the mean absolute error; the outermost bars collect everything beyond them.",
        {name: (partial(_draw_errors, points), note(name, points)) for name, points in part.numbers.items()},
        height=240,
    )


def _draw_errors(points: Points, axes: Axes) -> None:
    error = points.error
    reach = float(np.quantile(np.abs(error), 0.99)) * 1.15 or 1.0
    bins = np.linspace(-reach, reach, 12 if len(error) < 100 else 42)
    axes.hist(np.clip(error, -reach, reach), bins=bins.tolist(), alpha=0.85)
    mae = float(np.abs(error).mean())
    dashed(axes, "x", (-mae, mae), INK)
    axes.axvline(0.0, color=INK, linewidth=1)
    axes.set_xlim(-reach, reach)
    linear_scale(axes, "x", 4)
    linear_scale(axes, "y", 4)
    axes.set_xlabel(with_unit("prediction − truth", points.unit))
    axes.set_ylabel("values")


def confusion(part: Part) -> Figure | None:
    """Return the confusion matrix of every categorical field."""
    return panels(
        f"confusion-{part.name}",
        "What is taken for what",
        "each row holds the labels of one true class, each column what was predicted; a cell shows the share "
        "of its row. A perfect model fills the diagonal only.",
        {name: (partial(_draw_confusion, points), _counts(points, "labels")) for name, points in part.classes.items()},
        height=330,
    )


def _draw_confusion(points: ClassPoints, axes: Axes) -> None:
    classes = points.probability.shape[1]
    counts = np.zeros((classes, classes))
    np.add.at(counts, (points.target, points.label), 1.0)
    matrix = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    axes.imshow(matrix, cmap=DENSITY, vmin=0.0, vmax=1.0, interpolation="nearest")
    if classes <= NUMBERED:
        for row, column in np.argwhere(matrix > 0):
            axes.text(column, row, f"{100 * matrix[row, column]:.0f}", ha="center", va="center")
        axes.set_xticks(range(classes))
        axes.set_yticks(range(classes))
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")


def reliability(part: Part) -> Figure | None:
    """Return probabilities of predicted classes against observed frequencies."""
    return panels(
        f"reliability-{part.name}",
        "Reliability: promised against observed hits",
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
    promised, observed = (
        np.bincount(group, weights=np.asarray(weights, dtype=np.float64), minlength=BINS)[some] / count[some]
        for weights in (confidence, right)
    )
    square(axes, 0.0, 1.0, 1.02)
    axes.plot(promised, observed, "-o", markersize=6)
    axes.set_xlim(0, 1.02)
    linear_scale(axes, "x")
    linear_scale(axes, "y")
    label(axes, "probability of the predicted class", "share of right ones")


def observed_levels(points: Points) -> Values | None:
    """Return the coverage of Gaussian intervals of all ``LEVELS``; None without spreads."""
    spread = points.spread
    if spread is None:
        return None
    z = ndtri(0.5 + np.array(LEVELS) / 2)
    inside = np.abs(points.error)[None, :] <= z[:, None] * np.maximum(spread, 1e-300)[None, :]
    return np.asarray(inside.mean(axis=1), dtype=np.float64)


def calibration(part: Part, nominal: float) -> Figure | None:
    """Return promised against observed coverage of fields with spreads."""
    promise = f"{nominal * 100:.0f}\u00a0%"

    def note(points: Points) -> str:
        covered = points.covered
        return "" if covered is None else f"{promise} interval holds {np.nanmean(covered) * 100:.1f}\u00a0%"

    return panels(
        f"calibration-{part.name}",
        "Calibration: promised against observed",
        "for every promised probability, the share of true values that really fell inside the interval of "
        "that probability. On the diagonal the promise is kept; below it the model is overconfident, above it too cautious. "
        f"The line uses the predicted spread; the diamond is the conformal {promise} interval that predictions carry.",
        {
            name: (partial(_draw_calibration, points, nominal), note(points))
            for name, points in part.numbers.items()
            if points.spread is not None
        },
        height=310,
    )


def _draw_calibration(points: Points, nominal: float, axes: Axes) -> None:
    square(axes, 0.0, 1.0, 1.02)
    observed = observed_levels(points)
    if observed is not None:
        axes.fill_between((0, *LEVELS, 1), (0, *LEVELS, 1), (0, *observed, 1), color=ACCENT, alpha=0.15, linewidth=0)
        axes.plot((0, *LEVELS, 1), (0, *observed, 1))
    if points.covered is not None:
        look: dict[str, Any] = {"color": INK, "markersize": 7, "markeredgecolor": PAPER, "markeredgewidth": 1}
        axes.plot([nominal], [float(np.nanmean(points.covered))], "D", **look)
    linear_scale(axes, "x")
    linear_scale(axes, "y")
    label(axes, "promised share", "observed share")


def coverage(parts: Sequence[Part], nominal: float) -> Figure | None:
    """Return coverage by field and part with chance errors, if any."""
    rows = [
        (f"{name} ({part.name})", float(np.nanmean(points.covered)), coverage_error(points, nominal))
        for part in parts
        for name, points in part.points.items()
        if points.covered is not None
    ]
    if not rows:
        return None
    promise = f"{nominal * 100:.0f}\u00a0%"

    def draw(axes: Axes) -> None:
        for row, (name, share, chance) in enumerate(rows):
            colour = MUTED if name.endswith("(valid)") else ACCENT
            axes.plot([max(0, share - 2 * chance), min(1, share + 2 * chance)], [row, row], color=colour, linewidth=2)
            axes.plot([share], [row], "o", color=colour, markersize=7)
        dashed(axes, "x", [nominal], INK)
        low = min(min(share - 2 * chance for _, share, chance in rows), nominal - 0.1)
        axes.set_xlim(max(0.0, low - 0.02), 1.01)
        named_rows(axes, [name for name, _, _ in rows])
        linear_scale(axes, "x", 5)
        label(axes, "share of true values inside", grid="x")

    height = 80 + 30 * len(rows)
    return figure(
        "coverage",
        f"Coverage of the {promise} intervals",
        "the dot is the share of true values inside their interval, the line what chance alone would allow "
        f"(two standard errors, graphs counted as wholes). The dashed line is the promise, {promise}. "
        "Validation values were used to make the model and its intervals, so that only other parts (coloured) are evidence.",
        draw,
        height=height,
        narrow_height=height + 10,
        span="page",
    )


def spread_against_error(part: Part) -> Figure | None:
    """Return binned errors against predicted spread."""
    return panels(
        f"spread-{part.name}",
        "Spread against error",
        "values are sorted by predicted spread into groups of equal count; each dot is the real error (root mean square) of one "
        "group. Rising dots mean that the spread knows which predictions are bad; dots on the diagonal mean that its size "
        "is right too, dots above it that it is too small.",
        {
            name: (partial(_draw_spread, points.spread, points), "")
            for name, points in part.numbers.items()
            if points.spread is not None and _varies(points.spread)
        },
        height=310,
    )


def _varies(spread: Values) -> bool:
    return len(spread) >= 20 and float(np.ptp(spread)) > 1e-9 * float(spread.max())


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
    square(axes, low, high)
    axes.plot(x, y, "-", color=SOFT, linewidth=1)
    axes.plot(x, y, "o", markersize=7)
    log_scale(axes, "x", low, high)
    log_scale(axes, "y", low, high)
    label(axes, with_unit("predicted spread", points.unit), with_unit("real error", points.unit))


def domain_scores(domain: DomainFacts) -> Figure | None:
    """Return shares of graphs below any score of the training domain; None without scores."""
    if not domain.scores:
        return None

    def draw(axes: Axes) -> None:
        for position, (part, values) in enumerate(domain.scores.items()):
            finite = np.sort(np.clip(values[np.isfinite(values)], LEAST, GREATEST))
            if not len(finite):
                continue
            below = np.arange(1, len(finite) + 1) / len(finite)
            look: dict[str, Any] = {"color": MUTED} if part in OWN else {"color": ACCENT, "alpha": 1 / max(1, position)}
            axes.step([LEAST, *finite, GREATEST], [0.0, *below, 1.0], where="post", **look)
            height = max(0.1, 0.75 - 0.2 * position)  # curves of parts like training lie close together, names must not
            place = float(np.quantile(finite, height))
            axes.annotate(part, (place, height), color=look["color"], xytext=(4, 2), textcoords="offset points")
        dashed(axes, "x", [domain.allowed], INK)
        axes.axhline(domain.allowed, color=MUTED, linewidth=1)
        log_scale(axes, "x", LEAST, GREATEST)
        axes.set_ylim(0, 1.02)
        linear_scale(axes, "y")
        label(axes, "domain score", "share of graphs below")

    return figure(
        "domain",
        "Scores of the training domain",
        "a curve per part, the share of its graphs whose score is below the number. The score is the probability that a graph like "
        f"those of training is as unlike them; graphs are flagged up to {domain.allowed * 100:.1f}\u00a0% (dashed). It compares with graphs that "
        "trained no member, or not those that were asked (grey), and with those that calibrate. Other parts (coloured) chose nothing; one that "
        "lies far to the left is foreign.",
        draw,
        height=310,
    )


def ablation(rows: Sequence[Ablation]) -> Figure:
    """Return errors with and without edges, relative to the trivial predictor."""

    def draw(axes: Axes) -> None:
        ratios: list[float] = []
        for row, entry in enumerate(rows):
            base = entry.trivial or math.nan
            pair = [entry.with_edges / base, entry.without_edges / base]
            axes.plot(pair, [row, row], color=SOFT, linewidth=2)
            axes.plot(pair[:1], [row], "o", markersize=9)
            axes.plot(pair[1:], [row], "o", color=PAPER, markersize=8, markeredgecolor=INK, markeredgewidth=1.4)
            ratios += pair
        ratio_axis(axes, ratios)
        named_rows(axes, [entry.field for entry in rows])
        label(axes, "error / trivial error", grid="x")

    return figure(
        "ablation",
        "What the neighbours are worth",
        "error relative to the trivial predictor (dashed) of the same model trained with all edges (filled) "
        "and with every edge taken away (hollow). A wide gap means that the answer really depends on the neighbours.",
        draw,
        height=95 + 34 * len(rows),
    )
