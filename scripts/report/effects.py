"""Effects of hyperparameters with their directions, and interactions."""

from itertools import combinations
from operator import itemgetter
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
"""Least rank correlation of a value with its effect that is a direction."""


def effects(campaign: Campaign) -> tuple[Figure | None, Table | None]:
    """Return the effect of parameters by trial, and their strengths; without ``shap`` these alone."""
    own = campaign.effects
    if own is None:
        return None, table_of(
            [*campaign.importances.items()][:SHOWN],
            {"parameter": lambda item: short(item[0]), "importance": lambda item: f"{100 * item[1]:.0f} %"},
            "Importance of hyperparameters: the share of the objective's variation over all trials that each explains. With few "
            "trials this is a hint only. pip install 'hydragnn-ensemble[effects]' adds directions and interactions (SHAP).",
        )
    names, sizes = [*own.parameters], np.abs(own.shares).mean(0)
    order = [int(one) for one in np.argsort(-sizes, kind="stable")[:SHOWN] if sizes[one] > 0]
    jitter = np.random.default_rng(0).uniform(-0.16, 0.16, len(own.rows))

    def draw(axes: Axes) -> None:
        look: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0, "alpha": 0.8, "rasterized": True}
        for row, number in enumerate(order):
            high = own.rows[:, number] > np.median(np.unique(own.rows[:, number]))
            for side, color in ((~high, canvas.SOFT), (high, canvas.RASTER_ACCENT)):
                dots = own.active[:, number] & side
                axes.plot(own.shares[dots, number], row + jitter[dots], "o", color=color, **look)
            place: dict[str, Any] = {"xy": (0, row - 0.24), "xycoords": ("axes fraction", "data")}
            axes.annotate(shorten(names[number], 42), **place, va="bottom", fontsize=11)
        axes.set(ylim=(len(order) - 0.6, -0.8), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.axvline(0, color=canvas.MUTED, linewidth=1, zorder=1)
        canvas.linear_scale(axes, "x")
        canvas.label(axes, f"effect on {campaign.measure}", grid="x")

    rows = [(short(names[one]), measured(sizes[one]), direction(own, one)) for one in order]
    pairs = sorted(combinations(range(len(names)), 2), key=lambda pair: -own.pairs[pair])[:PAIRS]
    rows += [
        (" with ".join(short(names[one]) for one in pair), measured(own.pairs[pair]), "interaction")
        for pair in pairs
        if own.pairs[pair] > 0
    ]
    return canvas.figure(
        "effects",
        "Effects of hyperparameters",
        f"each dot is a trial: how much a value raised (right) or lowered (left, better) its {campaign.objective} at the first rung, "
        "as SHAP values of boosted trees; outliers are brought nearer. Coloured dots have values in the upper half of those tried, and choices that are later in their list.",
        draw,
        height=90 + 40 * len(order),
    ), table_of(
        rows,
        {name: itemgetter(place) for place, name in enumerate(("parameter", "mean effect", "direction"))},
        f"Effects on {campaign.objective} at the first rung (lower is better), the strongest first, and the strongest interactions. With few trials this is a hint only.",
        prose=frozenset({2}),
    )


def direction(own: Effects, number: int) -> str:
    """Return in words which values of a parameter lower the objective."""
    parameter, active = [*own.parameters.values()][number], own.active[:, number]
    values, shares = own.rows[active, number], own.shares[active, number]
    levels, places = np.unique(values, return_inverse=True)
    if len(levels) < 2 or not shares.std():
        return "–"
    if isinstance(parameter, Choices):
        order = sorted(levels, key=lambda one: float(shares[values == one].mean()))
        return "lowest with {}, highest with {}".format(*(text(parameter.choices[int(order[end])]) for end in (0, -1)))
    slope = float(np.corrcoef(places, shares)[0, 1])
    return "no single direction" if abs(slope) < CLEAR else f"larger values {'raise' if slope > 0 else 'lower'} it"
