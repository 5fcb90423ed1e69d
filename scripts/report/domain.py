"""Chapter on graphs that are unlike those of training."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.section import Section, Table, table_of
from hydragnn.scripts.report.words import percent

OWN = ("valid", "held-out")
"""Parts that thresholds of the training domain are set on."""
LEAST, GREATEST = 1e-4, 1.0
"""Scores of the training domain that the figure shows; beyond, curves go straight on."""


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on graphs that are unlike those of training."""
    if not facts.evaluation.domain:
        return None
    return Section(
        "domain",
        "Training domain",
        "Every prediction comes with a score of how unlike the training part its graph is, and with the detector that says so.",
        [domain_scores(facts)],
        [flags_table(facts)],
    )


def domain_scores(facts: Facts) -> Figure | None:
    """Return shares of graphs below any score of the training domain; None without scores."""
    allowed = facts.evaluation.domain["false_alarms"]
    if not facts.p_values:
        return None

    def draw(axes: Axes) -> None:
        for position, (part, values) in enumerate(facts.p_values.items()):
            finite = np.sort(np.clip(values[np.isfinite(values)], LEAST, GREATEST))
            if not len(finite):
                continue
            below = np.arange(1, len(finite) + 1) / len(finite)
            look: dict[str, Any] = (
                {"color": canvas.MUTED} if part in OWN else {"color": canvas.ACCENT, "alpha": 1 / max(1, position)}
            )
            axes.step([LEAST, *finite, GREATEST], [0.0, *below, 1.0], where="post", **look)
            height = max(0.1, 0.75 - 0.2 * position)  # curves of parts like training lie close together, names must not
            place = float(np.quantile(finite, height))
            axes.annotate(part, (place, height), color=look["color"], xytext=(4, 2), textcoords="offset points")
        canvas.dashed(axes, "x", [allowed], canvas.INK)
        axes.axhline(allowed, color=canvas.MUTED, linewidth=1)
        canvas.log_scale(axes, "x", LEAST, GREATEST)
        axes.set_ylim(0, 1.02)
        canvas.linear_scale(axes, "y")
        canvas.label(axes, "domain score", "share of graphs below")

    return canvas.figure(
        "domain",
        "Scores of the training domain",
        "a curve per part, the share of its graphs whose score is below the number. The score is the probability that a graph like "
        f"those of training is as unlike them; graphs are flagged up to {allowed * 100:.1f}\u00a0% (dashed). It compares with graphs that "
        "trained no member, or not those that were asked (grey), and with those that calibrate. Other parts (coloured) chose nothing; one that "
        "lies far to the left is foreign.",
        draw,
        height=310,
    )


def flags_table(facts: Facts) -> Table:
    """Return the share of every part that each detector flags."""
    domain = facts.evaluation.domain
    by_detector, allowed = domain["flagged_by_detector"], domain["false_alarms"]
    expected = domain.get("expected", allowed)
    columns = {name: lambda part, name=name: percent(by_detector[part][name]) for name in domain["detectors"]}
    few = f" Held-out graphs are so few that about {percent(expected)} are flagged."
    return table_of(
        domain["flagged"],
        {"part": str, "flagged": lambda part: percent(domain["flagged"][part]), **columns},
        f"Graphs outside the training domain, in percent. Thresholds allow {percent(allowed)} in validation and parts like it; "
        "detectors overlap." + few * (expected > allowed),
    )
