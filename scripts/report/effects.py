"""Effects of hyperparameters with their directions, and interactions."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hydragnn.hpo.records import Effects
from hydragnn.hpo.space.parameters import Choices
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Table, table_of
from hydragnn.scripts.report.facts import Campaign
from hydragnn.scripts.report.words import measured, short, shorten, text

SHOWN, PAIRS = 10, 5
CLEAR = 0.3
"""Least correlation of a value with its effect that is a direction."""


def effects_figure(campaign: Campaign) -> Figure | None:
    """Return the effect of every parameter in every trial; None where unknown."""
    effects = campaign.effects
    if effects is None:
        return None
    order, names = _strongest(effects), [*effects.results.parameters]
    jitter = np.random.default_rng(0).uniform(-0.16, 0.16, len(effects.shares))

    def draw(axes: Axes) -> None:
        look: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0, "alpha": 0.8, "rasterized": True}
        for row, number in enumerate(order):
            values = effects.results.rows[:, number]
            active, high = effects.results.active[:, number], values > np.median(values)
            for side, color in ((~high, canvas.SOFT), (high, canvas.RASTER_ACCENT)):
                axes.plot(effects.shares[active & side, number], row + jitter[active & side], "o", color=color, **look)
            axes.annotate(
                shorten(names[number], 42),
                (0, row - 0.24),
                xycoords=("axes fraction", "data"),
                va="bottom",
                fontsize=11,
            )
        axes.axvline(0, color=canvas.MUTED, linewidth=1, zorder=1)
        axes.set(ylim=(len(order) - 0.6, -0.8), yticks=[])
        axes.spines["left"].set_visible(False)
        canvas.linear_scale(axes, "x")
        canvas.label(axes, f"effect on {campaign.measure}", grid="x")

    return canvas.figure(
        "effects",
        "Effects of hyperparameters",
        f"each dot is a trial: how much a value raised (right) or lowered (left, better) its {campaign.objective} at the first rung, "
        "as SHAP values of boosted trees. Coloured dots have values in the upper half of those tried, and choices that are later in their list.",
        draw,
        height=90 + 40 * len(order),
    )


def effects_table(campaign: Campaign) -> Table | None:
    """Return strengths and directions of effects, then interactions; None where unknown."""
    effects = campaign.effects
    if effects is None:
        return None
    names = [*effects.results.parameters]
    sizes = np.abs(effects.shares).mean(0)
    rows = [(short(names[one]), measured(sizes[one]), direction(effects, one)) for one in _strongest(effects)]
    pairs = sorted(zip(*np.triu_indices(len(names), 1)), key=lambda pair: -effects.pairs[pair])[:PAIRS]
    rows += [
        (f"{short(names[a])} with {short(names[b])}", measured(effects.pairs[a, b]), "interaction")
        for a, b in pairs
        if effects.pairs[a, b] > 0
    ]
    return table_of(
        rows,
        {"parameter": lambda row: row[0], "mean effect": lambda row: row[1], "direction": lambda row: row[2]},
        f"Effects on {campaign.objective} at the first rung (lower is better), the strongest first, and the strongest interactions. With few trials this is a hint only.",
        prose=frozenset({2}),
    )


def direction(effects: Effects, number: int) -> str:
    """Return in words which values of a parameter lower the objective."""
    parameter = [*effects.results.parameters.values()][number]
    active = effects.results.active[:, number]
    values, shares = effects.results.rows[active, number], effects.shares[active, number]
    if len(np.unique(values)) < 2 or not shares.std():
        return "–"
    if isinstance(parameter, Choices):
        means = {one: shares[values == one].mean() for one in np.unique(values)}
        low, high = (text(parameter.choices[int(pick(means, key=lambda one: means[one]))]) for pick in (min, max))
        return f"lowest with {low}, highest with {high}"
    slope = float(np.corrcoef(values, shares)[0, 1])
    return (
        "larger values raise it"
        if slope > CLEAR
        else "larger values lower it"
        if slope < -CLEAR
        else "no single direction"
    )


def _strongest(effects: Effects) -> list[int]:
    """Return the parameters with any effect, the strongest first."""
    sizes = np.abs(effects.shares).mean(0)
    return [int(one) for one in np.argsort(-sizes, kind="stable")[:SHOWN] if sizes[one] > 0]
