"""Figures of a search: history, importance of hyperparameters, parallel coordinates, learning curves by rung."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from hydragnn.record import RunRecord
from hydragnn.scripts.report.canvas import (
    ACCENT,
    INK,
    MUTED,
    SOFT,
    Figure,
    Sketch,
    figure,
    legend_above,
    linear_scale,
    log_scale,
    panels,
    quiet_grid,
    shorten,
    wide_figure,
)
from hydragnn.scripts.report.facts import CampaignFacts, Trial
from hydragnn.scripts.report.verdict import with_unit

DOTS = 2000
"""From so many trials on dots are drawn as pixels, so that the page stays small."""


def history(campaign: CampaignFacts) -> Figure | None:
    """The objective of every trial in order, with the best so far; None before any trial has a value."""
    if not campaign.scored:
        return None
    draw = partial(_draw_history, campaign=campaign)
    return wide_figure(
        "history",
        "Objective of every trial",
        f"How to read it: each dot is one trial's {campaign.objective} (lower is better), hollow where it was stopped before "
        "its full budget; the line is the best so far. A line that is flat at the end says that more trials of the same kind "
        "would hardly help.",
        draw,
        draw,
        height=300,
        span="large",
    )


def _draw_history(axes: Axes, campaign: CampaignFacts) -> None:
    scored = campaign.scored
    numbers = [trial.number for trial in scored]
    values = [trial.objective if trial.objective is not None else math.nan for trial in scored]
    full = [trial.status == "finished" for trial in scored]
    best = np.minimum.accumulate(values)
    axes.step(
        [*numbers, campaign.trials[-1].number], [*best, best[-1]], where="post", color=ACCENT, label="best so far"
    )
    for full_budget, fill, label in ((True, SOFT, "full budget"), (False, "none", "stopped")):
        shown = [(n, v) for n, v, done in zip(numbers, values, full) if done == full_budget]
        if shown:
            x, y = zip(*shown)
            axes.plot(
                x,
                y,
                "o",
                color=fill,
                markersize=6,
                markeredgecolor=MUTED,
                markeredgewidth=0.8,
                label=label,
                rasterized=len(scored) > DOTS,
            )
    winner = campaign.best
    if winner is not None and winner.objective is not None:
        axes.plot([winner.number], [winner.objective], "o", color=ACCENT, markersize=8, markeredgewidth=0)
    value_axis(axes, "y", values)
    linear_scale(axes, "x", 6, whole=True)
    quiet_grid(axes, "y")
    axes.set_xlabel("trial")
    axes.set_ylabel(campaign.measure)
    legend_above(axes)


def value_axis(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """Logarithmic where positive values span more than a factor of five, else linear."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > 5:
        log_scale(axes, axis, min(finite) / 1.3, max(finite) * 1.3)
    else:
        linear_scale(axes, axis)


def importance(campaign: CampaignFacts) -> Figure | None:
    """Share of the objective's variation that each hyperparameter explains; None where it is unknown."""
    items = sorted(campaign.importances.items(), key=lambda item: -item[1])[:10]
    if not items:
        return None
    return figure(
        "importance",
        "What mattered in the search",
        "How to read it: the share of the objective's variation over all trials that each hyperparameter explains. Long bars "
        "are worth searching more finely; short ones can be left at their defaults. With few trials this is a hint only.",
        partial(_draw_importance, items=items),
        height=70 + 34 * len(items),
    )


def _draw_importance(axes: Axes, items: Sequence[tuple[str, float]]) -> None:
    """Bars with the names above them, since paths of configuration keys are longer than any margin."""
    top = max(value for _, value in items) or 1.0
    for row, (name, value) in enumerate(items):
        axes.barh(row, value, height=0.3, color=ACCENT if row == 0 else SOFT)
        axes.text(0, row - 0.24, shorten(name, 42), va="bottom", ha="left", color=INK, fontsize=11)
        axes.text(value + 0.02 * top, row, f"{value * 100:.0f} %", va="center", ha="left", color=MUTED, fontsize=11)
    axes.set_xlim(0, 1.18 * top)
    axes.set_ylim(len(items) - 0.6, -0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def learning_curves(campaign: CampaignFacts) -> Figure | None:
    """Validation loss of every trial over epochs with the rungs marked; None where no trial has a curve."""
    curves = [(trial, curve(trial.record, "valid/loss")) for trial in campaign.trials if trial.record is not None]
    curves = [(trial, values) for trial, values in curves if values]
    if not curves:
        return None
    draw = partial(_draw_curves, curves=curves, rungs=campaign.rungs, best=campaign.best)
    return wide_figure(
        "rungs",
        "Learning curves and rungs",
        "How to read it: each line is one trial's validation loss. At every rung (dashed) only the better trials go on, so "
        "that the budget is spent on promising ones; a cross marks where a trial was stopped. The coloured line is the best.",
        draw,
        draw,
        height=300,
        narrow_height=290,
    )


def curve(record: RunRecord, name: str) -> list[float]:
    """One curve of a record with NaN where an epoch has no value."""
    return [math.nan if value is None else float(value) for value in record.curves.get(name, [])]


def _draw_curves(
    axes: Axes, curves: Sequence[tuple[Trial, list[float]]], rungs: Sequence[int], best: Trial | None
) -> None:
    everything: list[float] = []
    for trial, values in curves:
        epochs = range(1, len(values) + 1)
        winner = best is not None and trial.number == best.number
        axes.plot(
            epochs, values, color=ACCENT if winner else SOFT, linewidth=2.2 if winner else 1, zorder=3 if winner else 2
        )
        if trial.status in ("paused", "failed", "lost"):
            axes.plot([len(values)], values[-1:], "x", color=MUTED, markersize=6, zorder=3)
        everything += values[1:] or values
    for rung in rungs:
        axes.axvline(rung, color=SOFT, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    finite = [value for value in everything if math.isfinite(value)]
    if finite:
        value_axis(axes, "y", [min(finite), float(np.quantile(finite, 0.98))])
    linear_scale(axes, "x", 6, whole=True)
    quiet_grid(axes, "y")
    axes.set_xlabel("epoch")
    axes.set_ylabel("valid/loss")


def run_curves(record: RunRecord, units: Mapping[str, str]) -> Figure | None:
    """Losses and every field's validation error over the epochs of one run; None where the record has no curves."""
    losses = {name: curve(record, f"{name}/loss") for name in ("train", "valid")}
    sketches = (
        [Sketch(name="loss", label="loss", draw=partial(_draw_losses, curves=losses))] if any(losses.values()) else []
    )
    for field, metric in curve_fields(record).items():
        draw = partial(
            _draw_run,
            values=curve(record, f"valid/{field}/{metric}"),
            trivial=record.trivial.get(f"valid/{field}/{metric}"),
            label=with_unit("MAE", units.get(field, "")) if metric == "mae" else "share of wrong labels",
        )
        sketches.append(Sketch(name=field, label=field, draw=draw, note="validation error"))
    return panels(
        "curves",
        "Over training",
        "How to read it: after every epoch, the loss on normalised values and each field's error (mean absolute; of classes the share of wrong ones) on validation "
        "graphs; dashed is the trivial predictor. A line that still falls at the end says that longer training would help; a "
        "validation line that rises, or lies far above the training line, says that the model memorises.",
        sketches,
    )


def curve_fields(record: RunRecord) -> dict[str, str]:
    """Fields with a curve of their validation error, and the metric that it shows."""
    paths = [name.split("/") for name, values in record.curves.items() if values and name.count("/") == 2]
    return {field: metric for _, field, metric in paths if metric in ("mae", "error_rate")}


def _draw_run(axes: Axes, values: list[float], trivial: float | None, label: str) -> None:
    axes.plot(range(1, len(values) + 1), values, color=ACCENT)
    shown = list(values)
    if trivial is not None and math.isfinite(trivial):
        axes.axhline(trivial, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        shown.append(trivial)
    value_axis(axes, "y", shown)
    linear_scale(axes, "x", 6, whole=True)
    quiet_grid(axes, "y")
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)


def _draw_losses(axes: Axes, curves: Mapping[str, list[float]]) -> None:
    for name, colour in (("train", SOFT), ("valid", ACCENT)):
        if curves[name]:
            axes.plot(range(1, len(curves[name]) + 1), curves[name], color=colour, label=name)
    value_axis(axes, "y", [value for values in curves.values() for value in values])
    linear_scale(axes, "x", 6, whole=True)
    quiet_grid(axes, "y")
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    legend_above(axes)
