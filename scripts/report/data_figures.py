"""Figures of the data: sizes, composition, targets."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hydragnn.scripts.report.canvas import (
    MUTED,
    SOFT,
    Draw,
    Figure,
    figure,
    label,
    legend_above,
    linear_scale,
    named_rows,
    panels,
)
from hydragnn.scripts.report.facts import DataFacts, Target
from hydragnn.scripts.report.words import plain_number, shorten, with_unit


def sizes(data: DataFacts) -> Figure:
    """Return the histogram of nodes per graph."""
    low, high = int(data.nodes.min()), int(data.nodes.max())

    def draw(axes: Axes) -> None:
        bins = np.arange(low - 0.5, high + 1.5) if high - low < 40 else np.linspace(low - 0.5, high + 0.5, 36)
        if low == high:
            bins = np.array([low - 0.5, low + 0.5])
            axes.set_xlim(low - 3, high + 3)
        axes.hist(data.nodes, bins=bins.tolist(), rwidth=0.92)
        linear_scale(axes, "x", 5, whole=True)
        linear_scale(axes, "y", 4)
        label(axes, "nodes per graph", "graphs", "y")

    per_node = float(data.edges.sum() / max(1, data.nodes.sum()))
    return figure(
        "sizes",
        "Size of the graphs",
        f"how many graphs have how many nodes; a node has {plain_number(per_node)} incoming edges on average. "
        "Predictions for graphs far outside this range are extrapolation.",
        draw,
    )


def composition(data: DataFacts) -> Figure | None:
    """Return the share of nodes of every kind; None without kinds."""
    items = sorted(data.composition.items(), key=lambda item: -item[1])
    if not items:
        return None
    if len(items) > 12:
        items = [*items[:11], (f"{len(items) - 11} others", sum(share for _, share in items[11:]))]
    top = max(share for _, share in items)

    def draw(axes: Axes) -> None:
        for row, (_, share) in enumerate(items):
            axes.barh(row, share, height=0.62)
            text = f"{share * 100:.{0 if share >= 0.1 else 1}f} %"
            axes.text(share + 0.02 * top, row, text, va="center", color=MUTED)
        named_rows(axes, [shorten(name, 18) for name, _ in items])
        axes.set_xlim(0, 1.22 * top)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)

    return figure(
        "composition",
        "Composition",
        f"share of all nodes by {data.composition_of}. The model knows little about kinds that are rare here "
        "and nothing about kinds that are absent.",
        draw,
        height=60 + 26 * len(items),
    )


def targets(data: DataFacts) -> Figure | None:
    """Return distributions of targets in training and in the held-out part."""
    present = [target for target in data.targets if any(len(values) for values in target.parts.values())]
    held_out = "test" if any(len(target.parts.get("test", ())) for target in present) else "valid"

    def drawing(target: Target) -> tuple[Draw, str]:
        everything = np.concatenate([part for part in target.parts.values() if len(part)])
        low, high = np.quantile(everything, [0.001, 0.999])
        if low == high:
            low, high = low - 0.5, high + 0.5
        bins = np.linspace(low, high, 34).tolist()
        filled: dict[str, Any] = {"histtype": "stepfilled", "color": SOFT, "alpha": 0.7}
        line: dict[str, Any] = {"histtype": "step", "linewidth": 1.8}

        def draw(axes: Axes) -> None:
            for name, look in (("train", filled), (held_out, line)):
                part = target.parts.get(name, ())
                if len(part):
                    weights = np.full(len(part), 100 / len(part))
                    axes.hist(np.clip(part, low, high), bins=bins, weights=weights, label=name, **look)
            linear_scale(axes, "x", 4)
            linear_scale(axes, "y", 4)
            label(axes, with_unit("value", target.unit), "share (%)", "y")
            legend_above(axes)

        components = f", {target.components} components" if target.components > 1 else ""
        return draw, f"one per {target.on}{components}"

    return panels(
        "targets",
        "Values to be learned",
        f"distribution in the training part (filled) and in the {held_out} part (line). Both should look "
        "alike; where the line leaves the filled area, the model is asked about values that it has not seen.",
        {target.field: drawing(target) for target in present},
    )
