"""Chapter on the search: trials, hyperparameters, architectures, layouts."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from hydragnn.base.errors import InputError
from hydragnn.hpo import TrialHistory
from hydragnn.hpo.objective import Quantity, goals_of, objective_value
from hydragnn.hpo.status.facts import TRIALS, counts_text, duration
from hydragnn.record import RunRecord
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Section, Table, table_of
from hydragnn.scripts.report.effects import effects
from hydragnn.scripts.report.facts import FAILED, Campaign, Facts, failure_kind
from hydragnn.scripts.report.front import front, front_table, objective_of, settings_of, volume
from hydragnn.scripts.report.training import curve
from hydragnn.scripts.report.words import measured, plain_number

BEST_TRIALS = 10
DOTS, LINES = 2000, 400
"""Trials above which dots and lines are drawn as pixels, so that the page stays small."""


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on the search."""
    campaign = facts.campaign
    if campaign is None:
        return None
    best, trials = campaign.best, campaign.history.trials
    lead = f"{len(trials)} trials: {counts_text(Counter(trial.status for trial in trials)) or 'no trials'}. " + (
        f"The best is trial {best.number} with {campaign.objective} = {plain_number(best.value or 0.0)}."
        if best
        else "None has a result yet."
    )
    try:
        architectures = architectures_table(campaign)
    except InputError as error:  # of an objective of the user's own
        architectures, lead = None, f"{lead} Architectures are not compared: {error}."
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
            architectures,
            trials_table(campaign),
        ],
    )


def history(campaign: Campaign) -> Figure | None:
    """Return the objective of every trial in order; None without values."""
    scores, winner = campaign.scores, campaign.best
    if winner is None:
        return None
    numbers, values = list(scores), list(scores.values())
    best = np.minimum.accumulate(values)
    finished = {trial.number for trial in campaign.history.trials if trial.status == "finished"}

    def draw(axes: Axes) -> None:
        last = campaign.history.trials[-1].number
        axes.step([*numbers, last], [*best, best[-1]], where="post", label="best so far")
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
        "its full budget; the line is the best so far. A line that is flat at the end says that more trials of the same kind "
        "would hardly help.",
        draw,
        height=280,
    )


def learning_curves(campaign: Campaign) -> Figure | None:
    """Return the validation loss of every trial over epochs, if any."""
    curves = [(trial, curve(campaign.records.get(trial.number), "valid/loss")) for trial in campaign.history.trials]
    curves = [(trial, values) for trial, values in curves if values]
    if not curves:
        return None
    best = campaign.best

    def draw(axes: Axes) -> None:
        lines = [np.column_stack([range(1, len(values) + 1), values]) for _, values in curves]
        many = len(lines) > LINES
        axes.add_collection(LineCollection(lines, colors=canvas.SOFT, linewidths=1, rasterized=many))
        for (trial, _), line in zip(curves, lines):
            if best is not None and trial.number == best.number:
                axes.plot(*line.T, linewidth=2.2, zorder=3)
        ends = [line[-1] for (trial, _), line in zip(curves, lines) if trial.status in ("paused", *FAILED)]
        if ends:
            look: dict[str, Any] = {"color": canvas.MUTED, "markersize": 6, "markeredgewidth": 1}
            axes.plot(*zip(*ends), "x", zorder=3, rasterized=many, **look)
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
        "that the budget is spent on promising ones; a cross marks where a trial was stopped. The coloured line is the best.",
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
            campaign.measure: lambda trial: measured(scores[trial.number]),
            **{name: partial(objective_of, place) for place, name in enumerate(campaign.objectives) if place},
            "status": lambda trial: TRIALS[trial.status],
            "epochs": of_record(lambda record: str(record.epochs)),
            "time": of_record(lambda record: duration(record.cost.seconds)),
            "graphs per second": lambda trial: f"{trial.speed:.4g}" if trial.speed else "–",
            **settings_of(campaign, ranked),
        },
        f"The best {len(ranked)} of {trials} trials." if len(ranked) < trials else "All trials, best first.",
    )


def seconds_of(record: RunRecord, processor: bool) -> float:
    """Return the processor or wall seconds of a run."""
    return record.cost.cpu_seconds if processor else record.cost.seconds


def objective_within(record: RunRecord | None, objective: Quantity, seconds: float, processor: bool) -> float:
    """Return the objective after so many seconds; infinite before the first epoch."""
    if record is None or record.epochs < 1 or seconds_of(record, processor) <= 0:
        return math.inf
    epochs = min(record.epochs, int(seconds * record.epochs / seconds_of(record, processor) + 1e-9))
    value = objective_value(record, objective, epochs) if epochs else None
    return math.inf if value is None else value


class ArchitectureTrials(NamedTuple):
    """Trials of an architecture; objectives are infinite without one."""

    kind: str
    trials: list[TrialHistory]
    error: float  # objective of the best trial
    record: RunRecord | None  # of the best trial
    in_time: float  # smallest objective within the shortest training


def compared_architectures(campaign: Campaign, shortest: float | None, processor: bool) -> list[ArchitectureTrials]:
    """Return all architectures that were tried, the smallest error first.

    ``shortest`` is the least time of a complete training.
    """
    objective, scores = goals_of(campaign.history.settings.search.objective)[0].of, campaign.scores
    records = campaign.records
    by_kind: dict[str, list[TrialHistory]] = {}
    for trial in campaign.history.trials:
        model = records[trial.number].config.get("model", {}) if trial.number in records else {}
        by_kind.setdefault(str(trial.values.get("model.kind") or model.get("kind", "")), []).append(trial)
    rows = []
    for kind, trials in by_kind.items():
        numbers = [trial.number for trial in trials if trial.number in scores]
        within = [objective_within(records.get(n), objective, shortest or 0.0, processor) for n in numbers]
        best = min(numbers, key=lambda n: scores[n], default=-1)
        error, in_time = scores.get(best, math.inf), min(within, default=math.inf)
        rows.append(ArchitectureTrials(kind, trials, error, records.get(best), in_time))
    return sorted((one for one in rows if one.kind), key=lambda one: (one.error, one.kind))


def architectures_table(campaign: Campaign) -> Table | None:
    """Return architectures by error; None where there was no choice."""
    records, trained = campaign.records, [record for record in campaign.records.values() if record.epochs]
    # on a processor that others use, too, wall time depends on when a trial ran
    processor = bool(trained) and all(one.hardware.get("type") == "cpu" and one.cost.cpu_seconds > 0 for one in trained)
    finished = [trial.number for trial in campaign.history.trials if trial.status == "finished"]
    seconds = min((seconds_of(records[n], processor) for n in finished if n in records), default=None)
    rows = compared_architectures(campaign, seconds, processor)
    if len(rows) < 2:
        return None
    quickest = min(rows, key=lambda one: one.in_time)
    shortest = "the shortest training" if seconds is None else duration(seconds)
    caption = "Architectures; none has a result yet."
    if math.isfinite(rows[0].error):
        caption = f"Architectures, the smallest error first: {rows[0].kind} wins per error"
        if seconds is not None and math.isfinite(quickest.in_time):
            time = duration(seconds) + (" of processors" if processor else "")
            caption += f", {quickest.kind} per second: in {time}, the shortest training to the end, it came furthest"
        caption += ". Few trials of an architecture say little about it."

    def speed(record: RunRecord) -> float:
        if processor:
            return record.parts.get("train", 0) * record.epochs / record.cost.cpu_seconds
        return record.cost.graphs_per_second

    return table_of(
        rows,
        {
            "architecture": lambda one: one.kind,
            "trials": lambda one: str(len(one.trials)),
            "trained to the end": lambda one: str(sum(trial.status == "finished" for trial in one.trials)),
            "failed": lambda one: str(sum(bool(failure_kind(trial)) for trial in one.trials)),
            f"best {campaign.measure}": lambda one: measured(one.error),
            f"{'processor time' if processor else 'time'} of that trial": lambda one: (
                duration(seconds_of(one.record, processor)) if one.record else "–"
            ),
            "its graphs per second": lambda one: f"{speed(one.record):.0f}" if one.record else "–",
            f"best within {shortest}": lambda one: measured(one.in_time),
        },
        caption,
    )
