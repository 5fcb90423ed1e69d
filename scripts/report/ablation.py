"""Chapter on a training without edges."""

import math

from matplotlib.axes import Axes

from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.section import Section, Table, table_of
from hydragnn.scripts.report.words import measured, pretty_unit


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on trainings without edges."""
    if not facts.ablation:
        return None
    return Section(
        "ablation",
        "Training without edges",
        "The same configuration was trained with every edge taken away, so that no node hears of its neighbours.",
        [ablation_figure(facts)],
        [ablation_table(facts)],
    )


def ablation_figure(facts: Facts) -> Figure:
    """Return errors with and without edges, relative to the trivial predictor."""

    def draw(axes: Axes) -> None:
        ratios: list[float] = []
        for row, one in enumerate(facts.ablation.values()):
            base = one["trivial"] or math.nan
            pair = [one["with_edges"] / base, one["without_edges"] / base]
            axes.plot(pair, [row, row], color=canvas.SOFT, linewidth=2)
            axes.plot(pair[:1], [row], "o", markersize=9)
            axes.plot(
                pair[1:], [row], "o", color=canvas.PAPER, markersize=8, markeredgecolor=canvas.INK, markeredgewidth=1.4
            )
            ratios += pair
        canvas.ratio_axis(axes, ratios)
        canvas.named_rows(axes, list(facts.ablation))
        canvas.label(axes, "error / trivial error", grid="x")

    return canvas.figure(
        "ablation",
        "Errors with and without edges",
        "error relative to the trivial predictor (dashed) of the same model trained with all edges (filled) "
        "and with every edge taken away (hollow). A wide gap means that the answer really depends on the neighbours.",
        draw,
        height=95 + 34 * len(facts.ablation),
    )


def ablation_table(facts: Facts) -> Table:
    """Return errors with and without edges."""
    return table_of(
        facts.ablation.items(),
        {
            "field": lambda row: row[0],
            "unit": lambda row: pretty_unit(row[1]["unit"]),
            "with edges": lambda row: measured(row[1]["with_edges"]),
            "without edges": lambda row: measured(row[1]["without_edges"]),
            "trivial predictor": lambda row: measured(row[1]["trivial"]),
            "worse by": lambda row: (
                f"{row[1]['without_edges'] / row[1]['with_edges']:.1f} ×" if row[1]["with_edges"] else "–"
            ),
        },
        "Errors of the same model with and without edges.",
    )
