"""Chapters on the training of a run, and on an ensemble's members."""

import json
import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from hydragnn.base.settings import leaves
from hydragnn.hpo.status.facts import duration
from hydragnn.record import RunRecord
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Section, Table, table_of
from hydragnn.scripts.report.facts import Facts, error, is_categorical
from hydragnn.scripts.report.words import join, measured, plain_number, short, text, thousands, with_unit
from hydragnn.training.baselines import BASELINES


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
    """Return a curve of a record, NaN without value; else empty."""
    return [math.nan if value is None else float(value) for value in (record.curves.get(name, []) if record else [])]


def run_curves(records: Mapping[str, RunRecord], units: Mapping[str, str]) -> Figure | None:
    """Return losses and validation errors of a run or of members."""
    first, alone = next(iter(records.values()), None), len(records) == 1
    parts, drawings = (("train", "valid") if alone else ("valid",)), {}
    paths = [name.split("/") for name, values in first.curves.items() if values] if first else []
    errors = {own[1]: "/".join(own[1:]) for own in paths if len(own) == 3 and own[2] in ("mae", "error_rate")}
    for field, path in {"loss": "loss", **errors}.items():
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


def _draw_run(curves: Mapping[tuple[str, str], list[float]], trivial: float, name: str, axes: Axes) -> None:
    lowest = {key: np.nanmin([*values, math.inf]) for key, values in curves.items() if key[0] == "valid"}
    for key, values in curves.items():
        strong = key in lowest and lowest[key] == min(lowest.values())
        colour = canvas.ACCENT if strong else canvas.SOFT
        axes.plot(range(1, len(values) + 1), values, color=colour, label=key[0], zorder=2 + strong)
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


def members_chapter(facts: Facts) -> Section | None:
    """Return the chapter on the members of the ensemble."""
    manifest, evaluation = facts.manifest, facts.evaluation
    if manifest is None:
        return None
    selection = manifest.selection
    simple = f", and simple ones for {join(list(manifest.simple.fitted))}" if manifest.simple.fitted else ""
    lead = [f"The ensemble has {len(manifest.members)} member{'s' * (len(manifest.members) > 1)}{simple}."]
    idle = [own.name for place, own in enumerate(manifest.members) if _weights(facts, place) == "0"]
    lead += [f"Weights on validation graphs leave {join(idle)} out: the others carry every prediction."] if idle else []
    if "held-out" in evaluation.parts:
        lead.append(
            "They cross-validate: every graph was held out by some and trained others, and errors of a member are those on the "
            "graphs that it held out."
        )
    if selection.get("method") and selection.get("candidates"):
        by = selection.get("by", "valid/loss")
        lead.append(f"Chosen among {selection['candidates']} finished runs ({selection['method']} by {by}).")
    if selection.get("final_seeds"):
        lead.append(f"Each configuration was trained anew with {selection['final_seeds']} seed(s).")
    if facts.members:
        lead.append(f"They took {duration(sum(own.cost.seconds for own in facts.members.values()))} to train.")
    if evaluation.seconds_per_graph:
        speed = plain_number(evaluation.graphs_per_second)
        lead.append(f"Together they predict {speed} graphs per second on the machine that built them.")
    return Section(
        "members", "Members", " ".join(lead), [run_curves(facts.members, facts.units)], [members_table(facts)]
    )


def members_table(facts: Facts) -> Table:
    """Return every member: weight, what distinguishes it, errors, cost."""
    scores = facts.part.scores if facts.part else {}
    flat = {name: dict(leaves(record.config)) for name, record in facts.members.items()}
    space = list(facts.campaign.search["space"]) if facts.campaign else []
    paths = [path for path in space if any(own.get(path) is not None for own in flat.values())]
    if not space:
        every = dict.fromkeys(path for own in flat.values() for path in own)
        texts = {path: {json.dumps(own.get(path)) for own in flat.values()} for path in every}
        paths = [path for path, different in texts.items() if len(different) > 1][:10]
    rows = []
    for position, name in enumerate(entry.name for entry in facts.manifest.members) if facts.manifest else ():
        record = facts.members.get(name)
        errors, cost = [error(one.members.get(name)) for one in scores.values()], ("–", "–", "–")
        if record:
            cost = (thousands(record.parameters), str(record.epochs), duration(record.cost.seconds))
        settings = [text(flat[name].get(path)) if record else "–" for path in paths]
        rows.append((name, _weights(facts, position), *settings, *map(measured, errors), *cost))
    simple = facts.manifest.simple.fitted if facts.manifest else {}
    for field, name in ((field, name) for field, own in simple.items() for name in own):
        assert facts.manifest is not None
        weight = f"{field} {facts.manifest.weights[field][-1]:.3g}"
        errors = [error(one.baselines.get(name) if own == field else None) for own, one in scores.items()]
        rows.append((BASELINES.get(name, name), weight, *("–" for _ in paths), *map(measured, errors), "–", "–", "–"))
    heads = [with_unit(f"{name} {'wrong' if is_categorical(one) else 'MAE'}", one.unit) for name, one in scores.items()]
    return Table(
        header=("member", "weight", *(short(path) for path in paths), *heads, "parameters", "epochs", "training time"),
        rows=rows,
        caption=f"The members, with what distinguishes them and their errors on the {facts.part.name} part."
        if facts.part
        else "The members.",
    )


def _weights(facts: Facts, position: int) -> str:
    """Return the weight of a member; by field where weights differ."""
    assert facts.manifest is not None
    entry, by_field = facts.manifest.members[position], facts.manifest.weights
    names = [target.name for target in facts.manifest.targets]
    weights = {name: by_field[name][position] if name in by_field else entry.weight for name in names}
    if len(set(weights.values())) == 1:
        return f"{weights[names[0]]:.3g}"
    return ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items())
