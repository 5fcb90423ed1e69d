"""Parallel coordinates: all trials of a search through all hyperparameters, lying for desktops and standing for phones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hydragnn.scripts.report.canvas import (
    ACCENT,
    INK,
    MUTED,
    SOFT,
    Figure,
    plain_number,
    plate,
    short,
    shorten,
    wide_figure,
)
from hydragnn.scripts.report.facts import CampaignFacts

MOST = 7  # axes beside the objective: more are unreadable
ABSENT = -0.18  # where trials without a conditional hyperparameter pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinate:
    """One axis: where every trial lies (0 to 1, or ``ABSENT``), and what is written where."""

    name: str
    places: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def floor(self) -> float:
        """Where the axis begins."""
        return min(0.0, *self.places)


def coordinate(name: str, values: Sequence[Any], *, log: bool = False) -> Coordinate:
    """The axis of a hyperparameter with these values; None is a trial that does not have it.

    >>> coordinate("kind", ["b", "a", None]).places
    (1.0, 0.0, -0.18)
    """
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        scale = math.log if log and min(present) > 0 else float
        low, high = scale(min(present)), scale(max(present))
        width = (high - low) or 1.0
        at = {value: (scale(value) - low) / width for value in present}
        ends = sorted({min(present), max(present)})
        ticks = [(at[value], plain_number(value)) for value in ends]
        places = [ABSENT if value is None else at[value] for value in values]
    else:
        labels = sorted({str(value) for value in present})
        at = {label: number / max(1, len(labels) - 1) for number, label in enumerate(labels)}
        ticks = [(at[label], shorten(label, 12)) for label in labels]
        places = [ABSENT if value is None else at[str(value)] for value in values]
    if len(present) < len(values):
        ticks = [(ABSENT, "none"), *ticks]
    return Coordinate(name=name, places=tuple(places), ticks=tuple(ticks))


def parallel_coordinates(campaign: CampaignFacts) -> Figure | None:
    """One line per scored trial through all searched hyperparameters; None with fewer than two of either."""
    names = coordinate_names(campaign)
    if len(names) < 2 or len(campaign.scored) < 2:
        return None
    objectives = [trial.objective or 0.0 for trial in campaign.scored]
    columns = [
        *(coordinate(n, [t.parameters.get(n) for t in campaign.scored], log=_logarithmic(campaign, n)) for n in names),
        coordinate(campaign.measure, objectives, log=True),
    ]
    return wide_figure(
        "parallel",
        "All trials through all hyperparameters",
        "How to read it: each line is one trial; follow it through the value of every hyperparameter to its objective. The "
        "coloured lines are the best ones, the thick line is the winner: where they bundle, the search has found what it likes; where they fan out, the "
        "value does not matter."
        + (
            " A trial that lacks a conditional hyperparameter passes through “none”."
            if any(column.floor < 0 for column in columns)
            else ""
        ),
        partial(_draw_lying, columns=columns),
        partial(_draw_standing, columns=columns),
        height=330,
        narrow_height=64 * len(columns) + 20,
    )


def coordinate_names(campaign: CampaignFacts) -> list[str]:
    """Up to ``MOST`` searched paths, the important ones where that is known, in the order of the space."""
    used = {name for trial in campaign.scored for name in trial.parameters}
    names = [name for name in campaign.search.get("space", {}) if name in used]
    ranked = sorted(names, key=lambda name: -campaign.importances.get(name, 0.0))[:MOST]
    return [name for name in names if name in ranked]


def _logarithmic(campaign: CampaignFacts, name: str) -> bool:
    entry = campaign.search["space"][name]
    return bool(isinstance(entry, Mapping) and entry.get("log"))


def _looks(columns: Sequence[Coordinate]) -> list[tuple[int, dict[str, Any]]]:
    """Trials from worst to best with the look of their line."""
    order = [int(trial) for trial in np.argsort([-place for place in columns[-1].places], kind="stable")]
    best = set(order[-min(10, max(1, len(order) // 5)) :])
    return [
        (trial, {"color": ACCENT, "linewidth": 2.2 if trial == order[-1] else 1.3})
        if trial in best
        else (trial, {"color": SOFT, "linewidth": 0.9, "alpha": 0.75})
        for trial in order
    ]


def _draw_lying(axes: Axes, columns: Sequence[Coordinate]) -> None:
    """Axes side by side, objective at the right."""
    for trial, look in _looks(columns):
        axes.plot(range(len(columns)), [column.places[trial] for column in columns], **look)
    stagger = 0.11 if len(columns) > 6 else 0.0
    for at, column in enumerate(columns):
        axes.plot([at, at], [column.floor, 1], color=MUTED, linewidth=0.8, zorder=1)
        for place, label in column.ticks:
            axes.text(at + 0.04, place, label, va="center", fontsize=11.5, color=INK, bbox=plate())
        name_height = 1.08 + stagger * (at % 2)
        axes.text(at, name_height, shorten(short(column.name), 22), ha="center", fontsize=12, color=MUTED)
    axes.set_xlim(-0.35, len(columns) - 0.4)
    axes.set_ylim(min(column.floor for column in columns) - 0.06, 1.16 + stagger)
    axes.axis("off")


def _draw_standing(axes: Axes, columns: Sequence[Coordinate]) -> None:
    """Axes below each other, objective at the bottom."""
    for trial, look in _looks(columns):
        axes.plot([column.places[trial] for column in columns], range(len(columns)), **look)
    for at, column in enumerate(columns):
        axes.plot([column.floor, 1], [at, at], color=MUTED, linewidth=0.8, zorder=1)
        for place, label in column.ticks:
            side = "left" if place <= 0 else "right" if place >= 1 else "center"
            axes.text(place, at + 0.12, label, va="top", ha=side, fontsize=11.5, color=INK, bbox=plate())
        axes.text(0.5, at - 0.1, shorten(short(column.name), 22), ha="center", fontsize=11.5, color=MUTED, bbox=plate())
    axes.set_ylim(len(columns) - 0.4, -0.5)
    axes.set_xlim(min(column.floor for column in columns) - 0.06, 1.06)
    axes.axis("off")
