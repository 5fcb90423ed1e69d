"""What an ensemble flags as outside its training domain: read from its evaluation, drawn, and put into a table."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hydragnn.ensemble.domain import joint_score
from hydragnn.scripts.report.canvas import ACCENT, INK, MUTED, Figure, figure, linear_scale, log_scale, quiet_grid
from hydragnn.scripts.report.facts import DomainFacts, Values
from hydragnn.scripts.report.tables import Table

OWN = ("valid", "held-out")
"""Parts that thresholds are set on."""

LEAST, GREATEST = 0.1, 30.0
"""Scores that the figure shows; beyond, curves go straight on."""


def domain_facts(evaluation: Mapping[str, Any], arrays: Mapping[str, Any]) -> DomainFacts | None:
    """What ``evaluation.json`` says of the domain; None in ensembles from before, and where there are no detectors."""
    domain = evaluation.get("domain")
    if not domain or not domain["detectors"]:
        return None
    names = tuple(str(name) for name in domain["detectors"])
    rows = {part: np.asarray(arrays[f"{part}/domain/scores"], dtype=np.float64) for part in domain["flagged"]}
    if any(values.ndim != 2 or values.shape[1] != len(names) for values in rows.values()):
        raise ValueError("scores of the domain that do not fit its detectors")
    return DomainFacts(
        allowed=float(domain["false_alarms"]),
        flagged={part: float(share) for part, share in domain["flagged"].items()},
        by_detector={
            part: {name: float(shares[name]) for name in names}
            for part, shares in domain["flagged_by_detector"].items()
        },
        scores={part: joint_score(dict(zip(names, values.T)), len(values)) for part, values in rows.items()},
    )


def domain_scores(domain: DomainFacts) -> Figure:
    """The share of graphs of every part above any score."""
    draw = partial(_draw_scores, scores=domain.scores, allowed=domain.allowed)
    return figure(
        "domain",
        "Scores against the threshold of the training domain",
        "How to read it: a curve per part, the share of its graphs whose score exceeds the number below. A graph is flagged above 1 "
        "(dashed), and thresholds are set on graphs that trained no member, or not those that were asked (grey), and on those that calibrate, so that at "
        f"most {domain.allowed * 100:.0f}\u00a0% of graphs "
        "like those of training are. Other parts (coloured) chose nothing; one that lies far to the right is foreign.",
        draw,
        height=310,
    )


def _draw_scores(axes: Axes, scores: Mapping[str, Values], allowed: float) -> None:
    for position, (part, values) in enumerate(scores.items()):
        known = np.sort(np.clip(values[np.isfinite(values)], LEAST, GREATEST))
        if not len(known):
            continue
        above = 1 - np.arange(1, len(known) + 1) / len(known)
        look: dict[str, Any] = {"color": MUTED} if part in OWN else {"color": ACCENT, "alpha": 1 / max(1, position)}
        axes.step([LEAST, *known, GREATEST], [1.0, *above, 0.0], where="post", **look)
        height = max(0.1, 0.75 - 0.2 * position)  # curves of parts like training lie close together, names must not
        there = float(np.quantile(known, 1 - height))
        axes.annotate(part, (there, height), color=look["color"], xytext=(4, 2), textcoords="offset points")
    axes.axvline(1.0, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    axes.axhline(allowed, color=MUTED, linewidth=1)
    log_scale(axes, "x", LEAST, GREATEST)
    axes.set_ylim(0, 1.02)
    linear_scale(axes, "y")
    quiet_grid(axes)
    axes.set_xlabel("score (1 is the threshold)")
    axes.set_ylabel("share of graphs above")


def flags_table(domain: DomainFacts) -> Table:
    """The share of every part that each detector flags."""
    names = list(next(iter(domain.by_detector.values()), {}))
    rows = tuple(
        (part, percent(share), *(percent(domain.by_detector[part][name]) for name in names))
        for part, share in domain.flagged.items()
    )
    return Table(
        header=("part", "flagged", *names),
        rows=rows,
        caption="Graphs outside the training domain, in percent. Thresholds allow "
        f"{percent(domain.allowed)} in validation and parts like it; detectors overlap.",
    )


def percent(share: float) -> str:
    """A share as a number of percents.

    >>> percent(0.015)
    '1.5'
    """
    return f"{100 * share:.1f}"
