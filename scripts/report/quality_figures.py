"""Figures that judge predictions: errors against baselines, parity, calibration, coverage, spread against error."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgba
from scipy.special import ndtri

from hydragnn.scripts.report.canvas import (
    ACCENT,
    INK,
    MUTED,
    PAPER,
    RASTER_ACCENT,
    SOFT,
    Figure,
    Sketch,
    figure,
    linear_scale,
    log_scale,
    named_rows,
    panels,
    plain_number,
    quiet_grid,
    thousands,
    wide_figure,
)
from hydragnn.scripts.report.facts import Ablation, FieldScores, Part, Points, Values
from hydragnn.scripts.report.verdict import coverage_error, with_unit

MANY, TOO_MANY = 300, 4000  # rows: vector dots below, pixels above, a density map above that
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
DENSITY = LinearSegmentedColormap.from_list("density", [(*to_rgba(RASTER_ACCENT)[:3], a) for a in (0.12, 0.6, 1.0)])


def error_ratios(scores: Sequence[FieldScores], part: str) -> Figure:
    """Every field's error divided by the trivial predictor's: members, best member and ensemble on one axis."""
    draw = partial(_draw_ratios, scores=scores)
    height = 80 + 34 * len(scores)
    return wide_figure(
        f"ratios-{part}",
        "Error relative to the trivial predictor",
        "How to read it: one row per field; 1 (dashed) is the trivial predictor, which knows nothing but the mean of the "
        "training part. Further left is better, and every step of the axis is a factor. "
        + (
            "Small dots are the single members, the large dot is the ensemble."
            if any(entry.ensemble for entry in scores)
            else "The dot is the model."
        ),
        draw,
        draw,
        height=height,
        narrow_height=height + 10,
    )


def _draw_ratios(axes: Axes, scores: Sequence[FieldScores]) -> None:
    ratios: list[float] = [1.0]
    for row, entry in enumerate(scores):
        base = entry.trivial.error or math.nan
        members = [member.error / base for member in entry.members]
        alone = entry.ensemble is None and len(members) == 1
        look: dict[str, Any] = {"color": ACCENT, "markersize": 9} if alone else {"color": SOFT, "markersize": 5}
        axes.plot(members, [row] * len(members), "o", markeredgewidth=0, **look)
        ratios += members
        if entry.ensemble is not None:
            axes.plot([entry.ensemble.error / base], [row], "o", color=ACCENT, markersize=9, markeredgewidth=0)
            ratios.append(entry.ensemble.error / base)
    axes.axvline(1.0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
    finite = [ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    log_scale(axes, "x", min(finite) / 1.5, max(finite) * 1.5)
    named_rows(axes, [entry.field for entry in scores])
    quiet_grid(axes, "x")
    axes.set_xlabel("error / trivial error")


def parity(part: Part) -> Figure | None:
    """Predictions against targets, a panel per field."""
    dense = any(len(points.target) > TOO_MANY for points in part.points.values())
    return panels(
        f"parity-{part.name}",
        "Predicted against true",
        f"How to read it: every dot is one value of the {part.name} part; a perfect model puts all of them on the diagonal. "
        "A cloud that is flatter than the diagonal means that extremes are predicted too mildly."
        + (" Where values are too many for dots, darker cells hold more of them." if dense else ""),
        [
            Sketch(
                name=name,
                label=name,
                draw=partial(_draw_parity, points=points),
                note=f"{thousands(len(points.target))} values of {thousands(len(np.unique(points.graph)))} graphs",
            )
            for name, points in part.points.items()
        ],
        height=330,
    )


def _draw_parity(axes: Axes, points: Points) -> None:
    low = float(min(points.target.min(), points.mean.min()))
    high = float(max(points.target.max(), points.mean.max()))
    margin = 0.04 * (high - low) or 1.0
    low, high = low - margin, high + margin
    axes.plot([low, high], [low, high], color=MUTED, linewidth=1, zorder=3)
    cloud(axes, points.target, points.mean, (low, high, low, high))
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    linear_scale(axes, "x", 4)
    linear_scale(axes, "y", 4)
    quiet_grid(axes)
    axes.set_xlabel(with_unit("true", points.unit))
    axes.set_ylabel(with_unit("predicted", points.unit))


def cloud(axes: Axes, x: Values, y: Values, extent: tuple[float, float, float, float]) -> None:
    """Dots where they are few, pixels where they are many, a density map where they would hide each other."""
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
        axes.plot(
            x, y, "o", color=RASTER_ACCENT, alpha=alpha, markersize=3.2, markeredgewidth=0, rasterized=True, zorder=2
        )
    else:
        axes.plot(x, y, "o", color=ACCENT, alpha=0.65, markersize=4, markeredgewidth=0, zorder=2)


def errors(part: Part) -> Figure | None:
    """Histograms of signed errors, a panel per field."""
    trivial = {scores.field: scores.trivial.error for scores in part.scores}
    return panels(
        f"errors-{part.name}",
        "Distribution of errors",
        "How to read it: prediction minus truth; the hill should be narrow and centred on zero. A hill beside zero is a bias. "
        "Dashed lines are plus and minus the mean absolute error; the outermost bars collect everything beyond them.",
        [
            Sketch(
                name=name,
                label=name,
                draw=partial(_draw_errors, points=points),
                note=f"MAE\u00a0{plain_number(float(np.abs(points.error).mean()))}, trivial predictor "
                + with_unit(plain_number(trivial.get(name, math.nan)), points.unit, "{0}\u00a0{1}").replace(
                    "/", "/\u2060"
                ),
            )
            for name, points in part.points.items()
        ],
        height=240,
    )


def _draw_errors(axes: Axes, points: Points) -> None:
    error = points.error
    reach = float(np.quantile(np.abs(error), 0.99)) * 1.15 or 1.0
    bins = np.linspace(-reach, reach, 12 if len(error) < 100 else 42)
    axes.hist(np.clip(error, -reach, reach), bins=bins.tolist(), color=ACCENT, alpha=0.85)
    mae = float(np.abs(error).mean())
    for place in (-mae, mae):
        axes.axvline(place, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    axes.axvline(0.0, color=INK, linewidth=1)
    axes.set_xlim(-reach, reach)
    linear_scale(axes, "x", 4)
    linear_scale(axes, "y", 4)
    axes.set_xlabel(with_unit("prediction − truth", points.unit))
    axes.set_ylabel("values")


def observed_levels(points: Points) -> Values | None:
    """Share of targets inside the central Gaussian interval of every level of ``LEVELS``; None without spreads."""
    spread = points.spread
    if spread is None:
        return None
    z = ndtri(0.5 + np.array(LEVELS) / 2)
    inside = np.abs(points.error)[None, :] <= z[:, None] * np.maximum(spread, 1e-300)[None, :]
    return np.asarray(inside.mean(axis=1), dtype=np.float64)


def calibration(part: Part, nominal: float) -> Figure | None:
    """Promised against observed coverage, a panel per field that has a spread."""
    promise = f"{nominal * 100:.0f}\u00a0%"
    return panels(
        f"calibration-{part.name}",
        "Calibration: promised against observed",
        "How to read it: for every promised probability, the share of true values that really fell inside the interval of "
        "that probability. On the diagonal the promise is kept; below it the model is overconfident, above it too cautious. "
        f"The line uses the predicted spread; the diamond is the conformal {promise} interval that predictions carry.",
        [
            Sketch(
                name=name,
                label=name,
                draw=partial(_draw_calibration, points=points, nominal=nominal),
                note=f"{promise} interval holds {points.covered.mean() * 100:.1f}\u00a0%"
                if points.covered is not None
                else "",
            )
            for name, points in part.points.items()
            if points.spread is not None
        ],
        height=310,
    )


def _draw_calibration(axes: Axes, points: Points, nominal: float) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1)
    observed = observed_levels(points)
    if observed is not None:
        axes.fill_between((0, *LEVELS, 1), (0, *LEVELS, 1), (0, *observed, 1), color=ACCENT, alpha=0.15, linewidth=0)
        axes.plot((0, *LEVELS, 1), (0, *observed, 1), color=ACCENT)
    if points.covered is not None:
        share = float(points.covered.mean())
        axes.plot([nominal], [share], "D", color=INK, markersize=7, markeredgecolor=PAPER)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    linear_scale(axes, "x")
    linear_scale(axes, "y")
    quiet_grid(axes)
    axes.set_xlabel("promised share")
    axes.set_ylabel("observed share")


def coverage(parts: Sequence[Part], nominal: float) -> Figure | None:
    """Coverage of every field and part with its chance error, against nominal; None without intervals."""
    rows = [
        (f"{name} ({part.name})", float(points.covered.mean()), coverage_error(points, nominal))
        for part in parts
        for name, points in part.all_points.items()
        if points.covered is not None
    ]
    if not rows:
        return None
    promise = f"{nominal * 100:.0f}\u00a0%"
    draw = partial(_draw_coverage, rows=rows, nominal=nominal)
    height = 80 + 30 * len(rows)
    return wide_figure(
        "coverage",
        f"Coverage of the {promise} intervals",
        "How to read it: the dot is the share of true values inside their interval, the line what chance alone would allow "
        f"(two standard errors, graphs counted as wholes). The dashed line is the promise, {promise}. "
        "Validation values were used to make the model and its intervals, so that only other parts (coloured) are evidence.",
        draw,
        draw,
        height=height,
        narrow_height=height + 10,
    )


def _draw_coverage(axes: Axes, rows: list[tuple[str, float, float]], nominal: float) -> None:
    for row, (name, share, chance) in enumerate(rows):
        colour = MUTED if name.endswith("(valid)") else ACCENT
        axes.plot([max(0, share - 2 * chance), min(1, share + 2 * chance)], [row, row], color=colour, linewidth=2)
        axes.plot([share], [row], "o", color=colour, markersize=7, markeredgewidth=0)
    axes.axvline(nominal, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    low = min(min(share - 2 * chance for _, share, chance in rows), nominal - 0.1)
    axes.set_xlim(max(0.0, low - 0.02), 1.01)
    named_rows(axes, [name for name, _, _ in rows])
    linear_scale(axes, "x", 5)
    quiet_grid(axes, "x")
    axes.set_xlabel("share of true values inside")


def spread_against_error(part: Part) -> Figure | None:
    """Binned root-mean-square error against predicted spread, a panel per field whose spreads differ."""
    return panels(
        f"spread-{part.name}",
        "Spread against error",
        "How to read it: values are sorted by predicted spread into groups of equal count; each dot is the real error (root mean square) of one "
        "group. Rising dots mean that the spread knows which predictions are bad; dots on the diagonal mean that its size "
        "is right too, dots above it that it is too small.",
        [
            Sketch(
                name=name,
                label=name,
                draw=partial(_draw_spread, spread=points.spread, error=points.error, unit=points.unit),
            )
            for name, points in part.points.items()
            if points.spread is not None and _varies(points.spread)
        ],
        height=310,
    )


def _varies(spread: Values) -> bool:
    return len(spread) >= 20 and float(np.ptp(spread)) > 1e-9 * float(spread.max())


def binned_errors(spread: Values, error: Values, bins: int) -> tuple[Values, Values]:
    """Root mean square of spread and of error in groups of equal count, in the order of the spread."""
    order = np.argsort(spread, kind="stable")
    groups = np.array_split(order, min(bins, max(1, len(order) // 10)))
    rms = [(np.sqrt(np.mean(spread[g] ** 2)), np.sqrt(np.mean(error[g] ** 2))) for g in groups]
    x, y = np.array(rms, dtype=np.float64).T
    return x, y


def _draw_spread(axes: Axes, spread: Values, error: Values, unit: str) -> None:
    x, y = binned_errors(spread, error, 10)
    positive = [value for value in (*x, *y) if value > 0] or [1.0]
    low, high = min(positive) / 1.5, max(positive) * 1.5
    axes.plot([low, high], [low, high], color=MUTED, linewidth=1)
    axes.plot(x, y, "-", color=SOFT, linewidth=1)
    axes.plot(x, y, "o", color=ACCENT, markersize=7, markeredgewidth=0)
    log_scale(axes, "x", low, high)
    log_scale(axes, "y", low, high)
    axes.set_aspect("equal")
    quiet_grid(axes)
    axes.set_xlabel(with_unit("predicted spread", unit))
    axes.set_ylabel(with_unit("real error", unit))


def ablation(rows: Sequence[Ablation]) -> Figure:
    """Error with and without edges, relative to the trivial predictor."""
    return figure(
        "ablation",
        "What the neighbours are worth",
        "How to read it: error relative to the trivial predictor (dashed) of the same model trained with all edges (filled) "
        "and with every edge taken away (hollow). A wide gap means that the answer really depends on the neighbours.",
        partial(_draw_ablation, rows=rows),
        height=95 + 34 * len(rows),
    )


def _draw_ablation(axes: Axes, rows: Sequence[Ablation]) -> None:
    values = [1.0]
    for row, entry in enumerate(rows):
        base = entry.trivial or math.nan
        pair = [entry.with_edges / base, entry.without_edges / base]
        axes.plot(pair, [row, row], color=SOFT, linewidth=2)
        axes.plot(pair[:1], [row], "o", color=ACCENT, markersize=9, markeredgewidth=0)
        axes.plot(pair[1:], [row], "o", color=PAPER, markersize=8, markeredgecolor=INK, markeredgewidth=1.4)
        values += [value for value in pair if math.isfinite(value)]
    axes.axvline(1.0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
    positive = [value for value in values if value > 0]
    log_scale(axes, "x", min(positive) / 1.5, max(positive) * 1.5)
    named_rows(axes, [entry.field for entry in rows])
    quiet_grid(axes, "x")
    axes.set_xlabel("error / trivial error")
