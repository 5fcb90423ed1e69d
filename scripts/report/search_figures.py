"""Figures of searches and runs: history, importance, learning curves, parallel coordinates."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hydragnn.record import RunRecord
from hydragnn.scripts.report.canvas import (
    ACCENT,
    INK,
    MUTED,
    SOFT,
    Figure,
    dashed,
    figure,
    label,
    legend_above,
    linear_scale,
    panels,
    plate,
    value_axis,
)
from hydragnn.scripts.report.facts import CampaignFacts
from hydragnn.scripts.report.words import plain_number, short, shorten, with_unit

DOTS = 2000
"""Trials above which dots are drawn as pixels, so that the page stays small."""
MOST = 7  # hyperparameters in parallel coordinates: more are unreadable
ABSENT = -0.18  # where trials without a conditional hyperparameter pass


def history(campaign: CampaignFacts) -> Figure | None:
    """Return the objective of every trial in order; None without values."""
    scored, winner = campaign.scored, campaign.best
    if winner is None:
        return None
    numbers = [trial.number for trial in scored]
    values = [trial.objective or 0.0 for trial in scored]
    best = np.minimum.accumulate(values)

    def draw(axes: Axes) -> None:
        axes.step([*numbers, campaign.trials[-1].number], [*best, best[-1]], where="post", label="best so far")
        for full, fill, name in ((True, SOFT, "full budget"), (False, "none", "stopped")):
            shown = [(t.number, t.objective) for t in scored if (t.status == "finished") == full]
            look: dict[str, Any] = {"markersize": 6, "markeredgecolor": MUTED, "markeredgewidth": 0.8}
            if shown:
                axes.plot(*zip(*shown), "o", color=fill, label=name, rasterized=len(scored) > DOTS, **look)
        axes.plot([winner.number], [winner.objective or 0.0], "o", markersize=8)
        value_axis(axes, "y", values)
        linear_scale(axes, "x", 6, whole=True)
        label(axes, "trial", campaign.measure, "y")
        legend_above(axes)

    return figure(
        "history",
        "Objective of every trial",
        f"each dot is one trial's {campaign.objective} (lower is better), hollow where it was stopped before "
        "its full budget; the line is the best so far. A line that is flat at the end says that more trials of the same kind "
        "would hardly help.",
        draw,
        height=300,
        narrow_height=280,
        span="large",
    )


def importance(campaign: CampaignFacts) -> Figure | None:
    """Return the importance of each hyperparameter; None where unknown."""
    items = sorted(campaign.importances.items(), key=lambda item: -item[1])[:10]
    if not items:
        return None
    top = max(value for _, value in items) or 1.0

    def draw(axes: Axes) -> None:
        for row, (name, value) in enumerate(items):  # names above the bars: they are longer than any margin
            axes.barh(row, value, height=0.3, color=ACCENT if row == 0 else SOFT)
            axes.text(0, row - 0.24, shorten(name, 42), va="bottom", ha="left", fontsize=11)
            axes.text(value + 0.02 * top, row, f"{value * 100:.0f} %", va="center", ha="left", color=MUTED, fontsize=11)
        axes.set_xlim(0, 1.18 * top)
        axes.set_ylim(len(items) - 0.6, -0.8)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)

    return figure(
        "importance",
        "What mattered in the search",
        "the share of the objective's variation over all trials that each hyperparameter explains. Long bars "
        "are worth searching more finely; short ones can be left at their defaults. With few trials this is a hint only.",
        draw,
        height=70 + 34 * len(items),
    )


def learning_curves(campaign: CampaignFacts) -> Figure | None:
    """Return the validation loss of every trial over epochs, if any."""
    curves = [(trial, curve(trial.record, "valid/loss")) for trial in campaign.trials if trial.record is not None]
    curves = [(trial, values) for trial, values in curves if values]
    if not curves:
        return None
    best = campaign.best

    def draw(axes: Axes) -> None:
        losses: list[float] = []
        for trial, values in curves:
            winner = best is not None and trial.number == best.number
            look: dict[str, Any] = {"linewidth": 2.2, "zorder": 3} if winner else {"color": SOFT, "linewidth": 1}
            axes.plot(range(1, len(values) + 1), values, **look)
            if trial.status in ("paused", "failed", "lost"):
                axes.plot([len(values)], values[-1:], "x", color=MUTED, markersize=6, markeredgewidth=1, zorder=3)
            losses += [value for value in values[1:] or values if math.isfinite(value)]
        dashed(axes, "x", campaign.rungs, SOFT, zorder=1)
        if losses:
            value_axis(axes, "y", [min(losses), float(np.quantile(losses, 0.98))])
        linear_scale(axes, "x", 6, whole=True)
        label(axes, "epoch", "valid/loss", "y")

    return figure(
        "rungs",
        "Learning curves and rungs",
        "each line is one trial's validation loss. At every rung (dashed) only the better trials go on, so "
        "that the budget is spent on promising ones; a cross marks where a trial was stopped. The coloured line is the best.",
        draw,
        height=300,
        narrow_height=290,
        span="page",
    )


def curve(record: RunRecord, name: str) -> list[float]:
    """Return one curve of a record, NaN for epochs without value."""
    return [math.nan if value is None else float(value) for value in record.curves.get(name, [])]


def run_curves(records: Mapping[str, RunRecord], units: Mapping[str, str]) -> Figure | None:
    """Return losses and validation errors of a run or of members."""
    first, alone = next(iter(records.values()), None), len(records) == 1
    parts, drawings = (("train", "valid") if alone else ("valid",)), {}
    metrics = curve_fields(first) if first else {}
    for field, path in {"loss": "loss", **{field: f"{field}/{metric}" for field, metric in metrics.items()}}.items():
        every = {(part, name): curve(own, f"{part}/{path}") for part in parts for name, own in records.items()}
        curves = {key: values for key, values in every.items() if values}
        trivial = first.trivial.get(f"valid/{path}", math.nan) if first else math.nan
        error = with_unit("MAE", units.get(field, "")) if path.endswith("/mae") else "share of wrong labels"
        draw = partial(_draw_run, curves, trivial, "loss" if path == "loss" else error)
        if curves:
            drawings[field] = (draw, "" if path == "loss" else "validation error")
    return panels(
        "curves",
        "Over training",
        "after every epoch, the loss on normalised values and each field's error (mean absolute; of classes the share of wrong ones) on validation "
        "graphs; dashed is the trivial predictor. A line that still falls at the end says that longer training would help; a "
        "validation line that rises, or lies far above the training line, says that the model memorises."
        + ("" if alone else " A line per member; the one that reaches the lowest value is coloured."),
        drawings,
    )


def curve_fields(record: RunRecord) -> dict[str, str]:
    """Return the fields with a validation curve, and its metric."""
    paths = [name.split("/") for name, values in record.curves.items() if values and name.count("/") == 2]
    return {field: metric for _, field, metric in paths if metric in ("mae", "error_rate")}


def _draw_run(curves: Mapping[tuple[str, str], list[float]], trivial: float, name: str, axes: Axes) -> None:
    lowest = {key: np.nanmin([*values, math.inf]) for key, values in curves.items() if key[0] == "valid"}
    for key, values in curves.items():
        strong = key in lowest and lowest[key] == min(lowest.values())
        axes.plot(range(1, len(values) + 1), values, color=ACCENT if strong else SOFT, label=key[0], zorder=2 + strong)
    if math.isfinite(trivial):
        dashed(axes, "y", [trivial])
    value_axis(axes, "y", [trivial, *(value for values in curves.values() for value in values)])
    linear_scale(axes, "x", 6, whole=True)
    label(axes, "epoch", name, "y")
    if len({part for part, _ in curves}) > 1:
        legend_above(axes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinate:
    """Axis of parallel coordinates; positions are 0 to 1 or ``ABSENT``."""

    name: str
    places: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def floor(self) -> float:
        """Return the position where the axis begins."""
        return min(0.0, *self.places)


def coordinate(name: str, values: Sequence[Any], *, log: bool = False) -> Coordinate:
    """Return the axis of a hyperparameter; None marks trials without it.

    >>> coordinate("kind", ["b", "a", None]).places
    (1.0, 0.0, -0.18)
    """
    present = [value for value in values if value is not None]
    key: Callable[[Any], Any] = str
    at: dict[Any, float]
    if present and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        key = float
        scale = math.log if log and min(present) > 0 else float
        low, high = scale(min(present)), scale(max(present))
        at = {float(value): (scale(value) - low) / ((high - low) or 1.0) for value in present}
        ticks = [(at[float(value)], plain_number(value)) for value in sorted({min(present), max(present)})]
    else:
        labels: list[Any] = sorted({str(value) for value in present})
        at = {label: number / max(1, len(labels) - 1) for number, label in enumerate(labels)}
        ticks = [(at[label], shorten(label, 12)) for label in labels]
    if len(present) < len(values):
        ticks = [(ABSENT, "none"), *ticks]
    places = tuple(ABSENT if value is None else at[key(value)] for value in values)
    return Coordinate(name=name, places=places, ticks=tuple(ticks))


def parallel_coordinates(campaign: CampaignFacts) -> Figure | None:
    """Return a line per trial through all hyperparameters, if several."""
    used = {name for trial in campaign.scored for name in trial.parameters}
    space = {name: entry for name, entry in campaign.search.get("space", {}).items() if name in used}
    ranked = sorted(space, key=lambda name: -campaign.importances.get(name, 0.0))[:MOST]
    if len(ranked) < 2 or len(campaign.scored) < 2:
        return None
    columns = [
        coordinate(
            name,
            [trial.parameters.get(name) for trial in campaign.scored],
            log=bool(isinstance(entry, Mapping) and entry.get("log")),
        )
        for name, entry in space.items()
        if name in ranked
    ]
    columns.append(coordinate(campaign.measure, [trial.objective or 0.0 for trial in campaign.scored], log=True))
    absent = any(column.floor < 0 for column in columns)
    return figure(
        "parallel",
        "All trials through all hyperparameters",
        "each line is one trial; follow it through the value of every hyperparameter to its objective. The "
        "coloured lines are the best ones, the thick line is the winner: where they bundle, the search has found what it likes; where they fan out, the "
        "value does not matter."
        + (" A trial that lacks a conditional hyperparameter passes through “none”." if absent else ""),
        partial(_draw_lying, columns),
        narrow=partial(_draw_standing, columns),
        height=330,
        narrow_height=64 * len(columns) + 20,
        span="page",
    )


def _looks(columns: Sequence[Coordinate]) -> list[tuple[int, dict[str, Any]]]:
    """Return trials from worst to best with the look of their line."""
    order = [int(trial) for trial in np.argsort([-place for place in columns[-1].places], kind="stable")]
    best = set(order[-min(10, max(1, len(order) // 5)) :])
    return [
        (trial, {"linewidth": 2.2 if trial == order[-1] else 1.3})
        if trial in best
        else (trial, {"color": SOFT, "linewidth": 0.9, "alpha": 0.75})
        for trial in order
    ]


def _draw_lying(columns: Sequence[Coordinate], axes: Axes) -> None:
    """Draw axes side by side, the objective at the right."""
    for trial, look in _looks(columns):
        axes.plot(range(len(columns)), [column.places[trial] for column in columns], **look)
    stagger = 0.11 if len(columns) > 6 else 0.0
    for at, column in enumerate(columns):
        axes.plot([at, at], [column.floor, 1], color=MUTED, linewidth=0.8, zorder=1)
        for place, text in column.ticks:
            axes.text(at + 0.04, place, text, va="center", fontsize=11.5, bbox=plate())
        name_height = 1.08 + stagger * (at % 2)
        axes.text(at, name_height, shorten(short(column.name), 22), ha="center", fontsize=12, color=MUTED)
    axes.set_xlim(-0.35, len(columns) - 0.4)
    axes.set_ylim(min(column.floor for column in columns) - 0.06, 1.16 + stagger)
    axes.axis("off")


def _draw_standing(columns: Sequence[Coordinate], axes: Axes) -> None:
    """Draw axes below each other, the objective at the bottom."""
    for trial, look in _looks(columns):
        axes.plot([column.places[trial] for column in columns], range(len(columns)), **look)
    for at, column in enumerate(columns):
        axes.plot([column.floor, 1], [at, at], color=MUTED, linewidth=0.8, zorder=1)
        for place, text in column.ticks:
            side = "left" if place <= 0 else "right" if place >= 1 else "center"
            axes.text(place, at + 0.12, text, va="top", ha=side, fontsize=11.5, color=INK, bbox=plate())
        axes.text(0.5, at - 0.1, shorten(short(column.name), 22), ha="center", fontsize=11.5, color=MUTED, bbox=plate())
    axes.set_ylim(len(columns) - 0.4, -0.5)
    axes.set_xlim(min(column.floor for column in columns) - 0.06, 1.06)
    axes.axis("off")
