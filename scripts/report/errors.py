"""Chapters on errors, and on the largest of them."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgba
from numpy.typing import NDArray

from hydragnn.ensemble import TargetEvaluation
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Section, Table, table_of
from hydragnn.scripts.report.facts import (
    ClassPoints,
    Facts,
    Part,
    Points,
    Scores,
    Values,
    best_member,
    error,
    is_categorical,
    metric,
    model_scores,
)
from hydragnn.scripts.report.words import measured, per_node, pretty_unit, share, thousands, with_unit
from hydragnn.training.baselines import BASELINES

MANY, TOO_MANY = 300, 4000  # rows: vector dots below, pixels above, a density map above that
DENSITY = LinearSegmentedColormap.from_list(
    "density", [(*to_rgba(canvas.RASTER_ACCENT)[:3], a) for a in (0.12, 0.6, 1.0)]
)
NUMBERED = 12
"""Classes up to which the cells of a confusion matrix carry their numbers."""


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on errors."""
    part = facts.part
    if part is None:
        return None
    scores_of, nodes = partial(score_table, facts), facts.data.sizes.nodes if facts.data else None
    return Section(
        "errors",
        "Errors",
        "Every error stands beside the trivial predictor's, which knows only the mean of the training part (for energies "
        "with reference values: the composition; for forces: zero; for classes: their shares), and beside those of simple "
        "baselines: a linear fit to composition, ridge and boosting on statistics of inputs, ridge on means by volume.",
        [parity(part, nodes), confusion(part)],
        [scores_of(part), class_table(part)],
        [make(own) for name, own in facts.parts.items() if name != part.name for make in (scores_of, class_table)],
    )


def parity(part: Part, nodes: NDArray[np.int64] | None) -> Figure | None:
    """Return predictions against targets, also per node where values grow."""
    drawings = {}
    for name, points in part.numbers.items():
        drawings[name] = (partial(_draw_parity, points), _counts(points, "values"))
        if nodes is not None and math.isfinite(metric(model_scores(part.scores[name]), "mae_per_node")):
            own = nodes[points.graph]
            unit = f"{points.unit}/atom" if points.unit == "eV" else f"{points.unit} per node".strip()
            shares = replace(points, unit=unit, target=points.target / own, mean=points.mean / own)
            note = f"MAE {per_node(float(np.abs(shares.error).mean()), points.unit)}"
            drawings[f"{name} per node"] = (partial(_draw_parity, shares), note)
    dense = any(len(points.target) > TOO_MANY for points in part.numbers.values())
    return canvas.panels(
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
    both = np.concatenate([points.target, points.mean])
    low, high = float(both.min()), float(both.max())
    margin = 0.04 * (high - low) or 1.0
    low, high = low - margin, high + margin
    cloud(axes, points.target, points.mean, (low, high, low, high))
    canvas.square(axes, low, high)
    axes.lines[-1].set_zorder(3)
    canvas.linear_scales(axes, 4)
    canvas.label(axes, with_unit("true", points.unit), with_unit("predicted", points.unit))


def cloud(axes: Axes, x: Values, y: Values, extent: tuple[float, float, float, float]) -> None:
    """Draw few dots as vectors, many as pixels, more as densities."""
    if len(x) > TOO_MANY:
        counts, _, _ = np.histogram2d(x, y, bins=90, range=[extent[:2], extent[2:]])
        look: dict[str, Any] = {"cmap": DENSITY, "norm": LogNorm(1, max(2.0, counts.max())), "interpolation": "nearest"}
        axes.imshow(np.ma.masked_less(counts.T, 1), origin="lower", extent=extent, aspect="auto", zorder=2, **look)
    elif len(x) > MANY:
        alpha = max(0.15, min(0.6, 400 / len(x)))
        axes.plot(x, y, "o", color=canvas.RASTER_ACCENT, alpha=alpha, markersize=3.2, rasterized=True)
    else:
        axes.plot(x, y, "o", alpha=0.65, markersize=4)


def confusion(part: Part) -> Figure | None:
    """Return the confusion matrix of every categorical field."""
    return canvas.panels(
        f"confusion-{part.name}",
        "Confusion matrix",
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
        axes.set(xticks=range(classes), yticks=range(classes))
    axes.set(xlabel="predicted class", ylabel="true class")


def _compared(
    part: Part, categorical: bool, cells: Callable[[str, TargetEvaluation, Scores], tuple[str, ...]]
) -> dict[str, Any]:
    """Return rows of all predictors per field."""
    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    for field, one in part.scores.items():
        if is_categorical(one) != categorical:
            continue
        best = one.members.get(name := best_member(one))
        entries: list[tuple[str, Scores]] = [("trivial predictor", one.trivial)]
        entries += [(BASELINES.get(name, name), scores) for name, scores in one.baselines.items()]
        entries += [(f"best single model ({name})" if one.ensemble else "model", best)] if best else []
        entries += [("ensemble", one.ensemble)] if one.ensemble else []
        for name, scores in entries:
            ratio = error(scores) / error(one.trivial) if error(one.trivial) else math.nan
            rows.append((field, name, *cells(field, one, scores), share(ratio)))
        strong.add(len(rows) - 1)
    return {"rows": rows, "strong": frozenset(strong)}


def relative_errors(facts: Facts, part: Part) -> dict[str, float]:
    """Return the mean relative L2 error of fields of nodes without atoms."""
    on = {field.name: field.on for field in facts.data.store.fields()} if facts.data else {}
    fields = [own for name, own in part.numbers.items() if on.get(name) == "node" and ATOMIC_NUMBERS not in on]
    errors = {own.field: own.graph_errors().relative for own in fields}
    return {name: float(np.nanmean(own)) for name, own in errors.items() if np.isfinite(own).any()}


def score_table(facts: Facts, part: Part) -> Table:
    """Return the errors of every numeric field."""
    relative = relative_errors(facts, part)
    models = [model_scores(one) for one in part.scores.values()]
    names = ("mae_per_node", "volume_rmse", "anomaly_correlation")
    grows, by_volume, anomalies = (any(math.isfinite(metric(one, name)) for one in models) for name in names)
    columns: dict[str, Callable[[str, TargetEvaluation, Scores], str]] = {
        "unit": lambda _, one, own: pretty_unit(one.unit) or "–",
        "MAE": lambda _, one, own: measured(metric(own, "mae")),
        "MAE per node": lambda _, one, own: measured(metric(own, "mae_per_node")),
        "RMSE": lambda _, one, own: measured(metric(own, "rmse")),
        "RMSE by volume": lambda _, one, own: measured(metric(own, "volume_rmse")),
        "ACC": lambda _, one, own: share(metric(own, "anomaly_correlation")),
        "relative L2": lambda field, one, own: (
            share(relative.get(field, math.nan)) if own is model_scores(one) else "–"
        ),
        "R²": lambda _, one, own: share(metric(own, "r2")),
    }
    optional = {"MAE per node": grows, "RMSE by volume": by_volume, "ACC": anomalies, "relative L2": relative}
    columns = {name: cell for name, cell in columns.items() if optional.get(name, True)}
    return Table(
        header=("field", "predictor", *columns, "MAE / trivial"),
        **_compared(part, False, lambda *row: tuple(cell(*row) for cell in columns.values())),
        caption=f"Errors on the {part.name} part. MAE: mean absolute error; RMSE: root mean square error; R²: explained share "
        "of the variance."
        + " Per node: of values that grow with the graph, divided by its nodes." * grows
        + " RMSE by volume: squares weighted by the volumes (areas) of nodes." * by_volume
        + " ACC: correlation of anomalies from the climatology." * anomalies
        + " Relative L2: norm of a graph's errors over the norm of its true values, mean over graphs." * bool(relative),
    )


def class_table(part: Part) -> Table:
    """Return the scores of every categorical field."""
    metrics = ("accuracy", "balanced_accuracy", "auroc", "nll", "brier", "ece")
    return Table(
        header=("field", "predictor", "accuracy", "balanced", "AUROC", "NLL", "Brier", "ECE", "wrong / trivial"),
        **_compared(part, True, lambda _, one, own: tuple(share(metric(own, name)) for name in metrics)),
        caption=f"Classes on the {part.name} part. Accuracy: share of right labels; balanced: mean over classes; AUROC: one class "
        "against the rest, mean over classes; NLL (nats) and Brier: proper scores, lower is better; ECE: mean gap between "
        "the probability of the predicted class and how often it is right.",
    )


WORST = 8


def worst_chapter(facts: Facts) -> Section | None:
    """Return the chapter on the graphs with the largest errors."""
    part = facts.part
    if part is None or not part.numbers:
        return None
    return Section(
        "worst",
        "Largest errors",
        f"The graphs of the {part.name} part with the largest errors, by their number in the store. Look at these first: "
        "wrong labels and missing physics show here.",
        tables=[worst_table(points, facts) for points in part.numbers.values()],
    )


def worst_table(points: Points, facts: Facts) -> Table:
    """Return the graphs with the largest errors of one field."""
    errors, data, outside, covered = points.graph_errors(), facts.data, facts.outside, points.covered
    worst = {int(errors.number[n]): float(errors.mae[n]) for n in np.argsort(-errors.mae, kind="stable")[:WORST]}
    rows_of = {graph: np.flatnonzero(points.graph == graph) for graph in worst}
    top = {graph: own[np.argmax(np.abs(points.error[own]))] for graph, own in rows_of.items()}
    many = len(errors.number) < len(points.graph)

    def inside(graph: int) -> str:
        share = np.nan if covered is None else covered[rows_of[graph]].mean()  # a graph has all intervals or none
        return "unknown" if np.isnan(share) else f"{100 * share:.0f} %"

    columns: dict[str, Callable[[int], str]] = {
        "graph": lambda graph: f"{facts.name_of(graph)} ({graph})" if facts.name_of(graph) else str(graph),
        "nodes": lambda graph: str(data.sizes.nodes[graph]) if data is not None and graph < len(data.sizes) else "–",
        "MAE" if many else "error": lambda graph: measured(worst[graph]),
        "true": lambda graph: measured(float(points.target[top[graph]])),
        "predicted": lambda graph: measured(float(points.mean[top[graph]])),
    }
    if (spread := points.spread) is not None:
        columns["spread"] = lambda graph: measured(float(spread[rows_of[graph]].mean()))
    columns |= {"covered": inside} if covered is not None else {}
    if outside:
        columns["domain"] = lambda graph: f"outside: {outside[graph]}" if outside[graph] else "inside"
    caption = with_unit(points.field, points.unit) + ": true and predicted are of the worst value." * many
    return table_of(worst, columns, caption)
