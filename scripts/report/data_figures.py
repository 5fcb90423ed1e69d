"""Figures of the data: sizes, composition, targets, parts."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from hydragnn.scripts.report.canvas import (
    ACCENT,
    MUTED,
    SOFT,
    Figure,
    Sketch,
    figure,
    legend_above,
    linear_scale,
    named_rows,
    panels,
    plain_number,
    quiet_grid,
    shorten,
)
from hydragnn.scripts.report.facts import DataFacts
from hydragnn.scripts.report.verdict import with_unit


def sizes(data: DataFacts) -> Figure:
    """Histogram of nodes per graph."""
    per_node = data.edges.sum() / max(1, data.nodes.sum())
    return figure(
        "sizes",
        "Size of the graphs",
        "How to read it: how many graphs have how many nodes; "
        f"a node has {plain_number(float(per_node))} incoming edges on average. "
        "Predictions for graphs far outside this range are extrapolation.",
        partial(_draw_sizes, nodes=data.nodes),
    )


def _draw_sizes(axes: Axes, nodes: NDArray[np.int64]) -> None:
    low, high = int(nodes.min()), int(nodes.max())
    if high - low < 40:
        bins = np.arange(low - 0.5, high + 1.5)
    else:
        bins = np.linspace(low - 0.5, high + 0.5, 36)
    if low == high:
        bins = np.array([low - 0.5, low + 0.5])
        axes.set_xlim(low - 3, high + 3)
    axes.hist(nodes, bins=bins.tolist(), color=ACCENT, rwidth=0.92)
    linear_scale(axes, "x", 5, whole=True)
    linear_scale(axes, "y", 4)
    quiet_grid(axes, "y")
    axes.set_xlabel("nodes per graph")
    axes.set_ylabel("graphs")


def composition(data: DataFacts) -> Figure | None:
    """Share of nodes of every kind; None where nodes have no kinds."""
    items = sorted(data.composition.items(), key=lambda item: -item[1])
    if not items:
        return None
    if len(items) > 12:
        items = [*items[:11], (f"{len(items) - 11} others", sum(share for _, share in items[11:]))]
    return figure(
        "composition",
        "Composition",
        f"How to read it: share of all nodes by {data.composition_of}. The model knows little about kinds that are rare here "
        "and nothing about kinds that are absent.",
        partial(_draw_composition, items=items),
        height=60 + 26 * len(items),
    )


def _draw_composition(axes: Axes, items: list[tuple[str, float]]) -> None:
    top = max(share for _, share in items)
    for row, (_, share) in enumerate(items):
        axes.barh(row, share, height=0.62, color=ACCENT)
        axes.text(share + 0.02 * top, row, f"{share * 100:.{0 if share >= 0.1 else 1}f} %", va="center", color=MUTED)
    named_rows(axes, [shorten(name, 18) for name, _ in items])
    axes.set_xlim(0, 1.22 * top)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def targets(data: DataFacts) -> Figure | None:
    """Distributions of the targets in the training part and in the held-out part, a panel per field."""
    known = [target for target in data.targets if any(len(values) for values in target.parts.values())]
    held_out = "test" if any(len(target.parts.get("test", ())) for target in known) else "valid"
    return panels(
        "targets",
        "Values to be learned",
        f"How to read it: distribution in the training part (filled) and in the {held_out} part (line). Both should look "
        "alike; where the line leaves the filled area, the model is asked about values that it has not seen.",
        [
            Sketch(
                name=target.field,
                label=target.field,
                draw=partial(_draw_target, parts=target.parts, held_out=held_out, unit=target.unit),
                note=f"one per {target.on}" + (f", {target.components} components" if target.components > 1 else ""),
            )
            for target in known
        ],
    )


def _draw_target(axes: Axes, parts: Mapping[str, NDArray[np.float64]], held_out: str, unit: str) -> None:
    everything = np.concatenate([part for part in parts.values() if len(part)])
    low, high = np.quantile(everything, [0.001, 0.999])
    if low == high:
        low, high = low - 0.5, high + 0.5
    bins = np.linspace(low, high, 34)
    looks: list[tuple[str, dict[str, Any]]] = [
        ("train", {"histtype": "stepfilled", "color": SOFT, "alpha": 0.7}),
        (held_out, {"histtype": "step", "color": ACCENT, "linewidth": 1.8}),
    ]
    for name, look in looks:
        part = parts.get(name)
        if part is not None and len(part):
            weights = np.full(len(part), 100 / len(part))
            axes.hist(np.clip(part, low, high), bins=bins.tolist(), weights=weights, label=name, **look)
    linear_scale(axes, "x", 4)
    linear_scale(axes, "y", 4)
    quiet_grid(axes, "y")
    axes.set_xlabel(with_unit("value", unit))
    axes.set_ylabel("share (%)")
    legend_above(axes)
