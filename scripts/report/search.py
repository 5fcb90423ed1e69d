"""Chapter on the search: trials, hyperparameters, architectures, layouts."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from hydragnn.hpo import TrialHistory
from hydragnn.hpo.fronts import violation
from hydragnn.hpo.status.facts import TRIALS, counts_text, duration
from hydragnn.record import RunRecord
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Section, Table, table_of
from hydragnn.scripts.report.effects import effects
from hydragnn.scripts.report.facts import Campaign, Facts, failure_kind
from hydragnn.scripts.report.front import front, front_table, objective_of, settings_of, volume
from hydragnn.scripts.report.training import curve
from hydragnn.scripts.report.words import join, measured

BEST_TRIALS = 10
DOTS, LINES = 2000, 400
"""Trials above which dots and lines are drawn as pixels, so that the page stays small."""


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on the search."""
    campaign = facts.campaign
    if campaign is None:
        return None
    best, trials = campaign.best, campaign.history.trials
    lead = f"{len(trials)} trials: {counts_text(Counter(trial.status for trial in trials)) or 'no trials'}. "
    if best:
        near = ", the nearest, since none meets all bounds" if violation(best.objectives, campaign.bounds) else ""
        pairs = zip(campaign.objectives, best.objectives)
        values = join([f"{name} = {value:.6g}" for name, value in pairs])
        lead += f"The best is trial {best.number} with {values}{near}."
    else:
        lead += "None has a result yet."
    effects_drawn, effects_table = effects(campaign)
    return Section(
        "search",
        "Search",
        lead,
        [
            history(campaign),
            front(campaign),
            volume(campaign),
            effects_drawn,
            learning_curves(campaign),
        ],
        [
            front_table(campaign),
            effects_table,
            architectures_table(campaign),
            trials_table(campaign),
        ],
    )


def history(campaign: Campaign) -> Figure | None:
    """Return the objective of every trial in order; None without values."""
    scores, winner = campaign.scores, campaign.best
    if winner is None:
        return None
    numbers, values, trials, best = list(scores), list(scores.values()), campaign.history.trials, best_so_far(campaign)
    label = "best within bounds" if any(bound is not None for bound in campaign.bounds) else "best so far"
    finished = {trial.number for trial in trials if trial.status == "finished"}

    def draw(axes: Axes) -> None:
        axes.step([*numbers, trials[-1].number], [*best, best[-1]], where="post", label=label)
        for full, fill, name in ((True, canvas.SOFT, "full budget"), (False, "none", "stopped")):
            shown = [(number, value) for number, value in scores.items() if (number in finished) == full]
            look: dict[str, Any] = {"markersize": 6, "markeredgecolor": canvas.MUTED, "markeredgewidth": 0.8}
            if shown:
                axes.plot(*zip(*shown), "o", color=fill, label=name, rasterized=len(scores) > DOTS, **look)
        axes.plot([winner.number], [scores[winner.number]], "o", markersize=8)
        canvas.value_axis(axes, "y", values)
        canvas.linear_scale(axes, "x", 6, whole=True)
        canvas.label(axes, "trial", campaign.measure, "y")
        canvas.legend_above(axes)

    return canvas.figure(
        "history",
        "Objective of every trial",
        f"each dot is one trial's {campaign.objective} (lower is better), hollow where it was stopped before "
        f"its full budget; the line is the {label}. A line that is flat at the end says that more trials of the same kind "
        "would hardly help.",
        draw,
        height=280,
    )


def best_so_far(campaign: Campaign) -> list[float]:
    """Return the smallest score within bounds up to every trial; NaN before any."""
    beyond = {one.number for one in campaign.history.trials if violation(one.objectives, campaign.bounds)}
    values = [math.nan if number in beyond else value for number, value in campaign.scores.items()]
    return [float(value) for value in np.fmin.accumulate(values)]


def learning_curves(campaign: Campaign) -> Figure | None:
    """Return the validation loss of every trial over epochs, if any."""
    curves = [(trial, curve(campaign.records.get(trial.number), "valid/loss")) for trial in campaign.history.trials]
    curves = [(trial, values) for trial, values in curves if values]
    if not curves:
        return None
    best = campaign.best

    def draw(axes: Axes) -> None:
        lines = [np.column_stack([range(1, len(values) + 1), values]) for _, values in curves]
        axes.add_collection(LineCollection(lines, colors=canvas.SOFT, linewidths=1, rasterized=len(lines) > LINES))
        for (trial, _), line in zip(curves, lines):
            if best is not None and trial.number == best.number:
                axes.plot(*line.T, linewidth=2.2, zorder=3)
        axes.autoscale_view()
        losses = [value for _, values in curves for value in values[1:] or values if math.isfinite(value)]
        canvas.dashed(axes, "x", campaign.history.rungs[:-1], canvas.SOFT, zorder=1)
        if losses:
            canvas.value_axis(axes, "y", [min(losses), float(np.quantile(losses, 0.98))])
        canvas.linear_scale(axes, "x", 6, whole=True)
        canvas.label(axes, "epoch", "valid/loss", "y")

    return canvas.figure(
        "rungs",
        "Learning curves and rungs",
        "each line is one trial's validation loss. At every rung (dashed) only the better trials go on, so "
        "that the budget is spent on promising ones. The coloured line is the best.",
        draw,
        height=290,
    )


def trials_table(campaign: Campaign) -> Table:
    """Return the best trials with their hyperparameters."""
    ranked, trials, scores = campaign.ranked[:BEST_TRIALS], len(campaign.history.trials), campaign.scores

    def of_record(make: Callable[[RunRecord], str]) -> Callable[[TrialHistory], str]:
        return lambda trial: make(campaign.records[trial.number]) if trial.number in campaign.records else "–"

    return table_of(
        ranked,
        {
            "trial": lambda trial: str(trial.number),
            campaign.measure: lambda trial: f"{scores[trial.number]:.6g}",
            **{name: partial(objective_of, place) for place, name in enumerate(campaign.objectives) if place},
            "status": lambda trial: TRIALS[trial.status],
            "epochs": of_record(lambda record: str(record.epochs)),
            "time": of_record(lambda record: duration(record.cost.seconds)),
            "graphs per second": lambda trial: f"{trial.speed:.4g}" if trial.speed else "–",
            **settings_of(campaign, ranked),
        },
        f"The best {len(ranked)} of {trials} trials." if len(ranked) < trials else "All trials, best first.",
    )


def architectures_table(campaign: Campaign) -> Table | None:
    """Return architectures by error; None where there was no choice."""
    records, scores, by_kind = campaign.records, campaign.scores, dict[str, list[TrialHistory]]()
    speeds = {trial.number: trial.speed for trial in campaign.history.trials}
    for trial in campaign.history.trials:
        model = records[trial.number].config.get("model", {}) if trial.number in records else {}
        if kind := str(trial.values.get("model.kind") or model.get("kind", "")):
            by_kind.setdefault(kind, []).append(trial)
    if len(by_kind) < 2:
        return None
    scored = {
        kind: [(scores[one.number], one.number) for one in own if one.number in scores] for kind, own in by_kind.items()
    }
    best = {kind: min(own, default=(math.inf, -1)) for kind, own in scored.items()}

    def of_record(make: Callable[[RunRecord], str]) -> Callable[[str], str]:
        return lambda kind: make(records[best[kind][1]]) if best[kind][1] in records else "–"

    return table_of(
        sorted(by_kind, key=lambda kind: (best[kind][0], kind)),
        {
            "architecture": str,
            "trials": lambda kind: str(len(by_kind[kind])),
            "trained to the end": lambda kind: str(sum(one.status == "finished" for one in by_kind[kind])),
            "failed": lambda kind: str(sum(bool(failure_kind(one)) for one in by_kind[kind])),
            f"best {campaign.measure}": lambda kind: measured(best[kind][0]),
            "time of that trial": of_record(lambda record: duration(record.cost.seconds)),
            "its graphs per second": lambda kind: f"{speeds[best[kind][1]]:.4g}" if speeds.get(best[kind][1]) else "–",
        },
        "Architectures, the smallest error first. Few trials of an architecture say little about it.",
    )
