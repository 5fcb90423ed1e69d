"""Chapter on the training of a single run, and curves of runs over epochs."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from hydragnn.record import RunRecord
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.section import Section, Table, table_of
from hydragnn.scripts.report.words import duration, measured, thousands, with_unit


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on the training of a single run."""
    record = facts.run
    if record is None:
        return None
    lead = (
        f"The run is {record.status} after {record.epochs} epochs and {duration(record.cost.seconds)}; "
        f"{thousands(record.parameters)} parameters"
        + (f"; best epoch {record.best['epoch']:.0f}" if "epoch" in record.best else "")
        + (f". It failed ({record.failure.kind.replace('_', ' ')}): {record.failure.message}" if record.failure else "")
        + "."
    )
    return Section("training", "Training", lead, [run_curves({"": record}, facts.units)], [forgetting_table(record)])


def curve(record: RunRecord | None, name: str) -> list[float]:
    """Return one curve of a record, NaN for epochs without value; empty without a record."""
    return [math.nan if value is None else float(value) for value in (record.curves.get(name, []) if record else [])]


def run_curves(records: Mapping[str, RunRecord], units: Mapping[str, str]) -> Figure | None:
    """Return losses and validation errors of a run or of members."""
    first, alone = next(iter(records.values()), None), len(records) == 1
    parts, drawings = (("train", "valid") if alone else ("valid",)), {}
    metrics = curve_fields(first) if first else {}
    for field, path in {"loss": "loss", **{field: f"{field}/{metric}" for field, metric in metrics.items()}}.items():
        every = {(part, name): curve(own, f"{part}/{path}") for part in parts for name, own in records.items()}
        curves = {key: values for key, values in every.items() if values}
        trivial = first.trivial.get(f"valid/{path}", math.nan) if first else math.nan
        error = with_unit("MAE", units.get(field, "")) if path.endswith("/mae") else "share of wrong labels"
        draw = partial(_draw_run, curves, trivial, "loss" if path == "loss" else error)
        if curves:
            drawings[field] = (draw, "" if path == "loss" else "validation error")
    return canvas.panels(
        "curves",
        "Curves over epochs",
        "after every epoch, the loss on normalised values and each field's error (mean absolute; of classes the share of wrong ones) on validation "
        "graphs; dashed is the trivial predictor. A line that still falls at the end says that longer training would help; a "
        "validation line that rises, or lies far above the training line, says that the model memorises."
        + ("" if alone else " A line per member; the one that reaches the lowest value is coloured."),
        drawings,
    )


def curve_fields(record: RunRecord) -> dict[str, str]:
    """Return the fields with a validation curve, and its metric."""
    paths = [name.split("/") for name, values in record.curves.items() if values and name.count("/") == 2]
    return {field: metric for _, field, metric in paths if metric in ("mae", "error_rate")}


def _draw_run(curves: Mapping[tuple[str, str], list[float]], trivial: float, name: str, axes: Axes) -> None:
    lowest = {key: np.nanmin([*values, math.inf]) for key, values in curves.items() if key[0] == "valid"}
    for key, values in curves.items():
        strong = key in lowest and lowest[key] == min(lowest.values())
        axes.plot(
            range(1, len(values) + 1),
            values,
            color=canvas.ACCENT if strong else canvas.SOFT,
            label=key[0],
            zorder=2 + strong,
        )
    if math.isfinite(trivial):
        canvas.dashed(axes, "y", [trivial])
    canvas.value_axis(axes, "y", [trivial, *(value for values in curves.values() for value in values)])
    canvas.linear_scale(axes, "x", 6, whole=True)
    canvas.label(axes, "epoch", name, "y")
    if len({part for part, _ in curves}) > 1:
        canvas.legend_above(axes)


def forgetting_table(record: RunRecord) -> Table:
    """Return errors on the start's data before and after training."""
    forgotten = record.start.get("forgetting", {})
    return table_of(
        [item for item in forgotten.get("errors", {}).items() if item[0].endswith(("/mae", "/accuracy"))],
        {
            "error": lambda item: str(item[0]),
            "before": lambda item: measured(item[1]["before"]),
            "after": lambda item: measured(item[1]["after"]),
            "times": lambda item: f"{item[1]['after'] / item[1]['before']:.2f}" if item[1]["before"] else "–",
        },
        f"Errors on {forgotten.get('graphs', 0)} test graphs of the data of the start, in the units of the fields: what was forgotten.",
    )
