"""Tables that judge: errors, uncertainty, members, worst cases, ablation."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from hydragnn.record import RunRecord
from hydragnn.scripts.report.campaign_facts import value_at
from hydragnn.scripts.report.canvas import measured, short, thousands
from hydragnn.scripts.report.facts import Ablation, DataFacts, EnsembleFacts, Facts, Part, Points
from hydragnn.scripts.report.tables import Table, duration, leaves, numbers, text
from hydragnn.scripts.report.verdict import pretty_unit

WORST = 8


def score_table(part: Part) -> Table:
    """Trivial predictor, best member and ensemble of every field."""
    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    for entry in part.scores:
        chosen = [
            ("trivial predictor", entry.trivial),
            ("best single model", entry.best_member),
            ("ensemble", entry.ensemble),
        ]
        for name, scores in chosen:
            if scores is None:
                continue
            if name == "ensemble":
                strong.add(len(rows))
            ratio = scores.mae / entry.trivial.mae if entry.trivial.mae else math.nan
            label = f"{name} ({scores.name})" if name == "best single model" and len(entry.members) > 1 else name
            rows.append(
                (
                    entry.field,
                    label,
                    pretty_unit(entry.unit) or "–",
                    *numbers((scores.mae, scores.rmse)),
                    *(
                        f"{value:.3f}".replace("-", "−") if math.isfinite(value) else "–"
                        for value in (scores.r2, ratio)
                    ),
                )
            )
    return Table(
        header=("field", "predictor", "unit", "MAE", "RMSE", "R²", "MAE / trivial"),
        rows=tuple(rows),
        caption=f"Errors on the {part.name} part. MAE: mean absolute error; RMSE: root mean square error; R²: explained share "
        "of the variance.",
        strong=frozenset(strong),
    )


def uncertainty_table(part: Part, nominal: float) -> Table | None:
    """How good the spreads and intervals of every field are; None where there are none."""
    keys = ("coverage", "interval_width", "crps", "nll", "miscalibration_area", "spearman")
    rows = tuple(
        (s.field, pretty_unit(s.unit), *numbers([s.uncertainty.get(key, math.nan) for key in keys]))
        for s in part.scores
        if s.uncertainty
    )
    if not rows:
        return None
    return Table(
        header=("field", "unit", "coverage", "interval width", "CRPS", "NLL", "miscalibration area", "Spearman"),
        rows=rows,
        caption=f"Uncertainty on the {part.name} part. Coverage should be {nominal:.2f}; width in the field's unit (narrower is "
        "better at equal coverage); CRPS and NLL: proper scores, lower is better; miscalibration area: 0 is perfect; "
        "Spearman: does the spread rank the errors, 1 is perfect.",
    )


def members_table(facts: Facts, ensemble: EnsembleFacts) -> Table:
    """Every member: weight, what distinguishes it, errors, cost."""
    part = facts.judged_part
    paths = member_paths(facts, ensemble)
    fields = part.scores if part else ()
    rows = []
    for member in ensemble.members:
        record = member.record
        errors = [next((s.mae for s in entry.members if s.name == member.name), math.nan) for entry in fields]
        rows.append(
            (
                member.name,
                f"{member.weight:.3g}",
                *(text(value_at(record.config, path)) if record else "–" for path in paths),
                *numbers(errors),
                thousands(record.parameters) if record else "–",
                str(record.epochs) if record else "–",
                duration(record.cost.seconds) if record else "–",
            )
        )
    heads = [f"{s.field} MAE" + (f" ({pretty_unit(s.unit)})" if s.unit else "") for s in fields]
    return Table(
        header=("member", "weight", *(short(path) for path in paths), *heads, "parameters", "epochs", "training time"),
        rows=tuple(rows),
        caption=f"The members, with what distinguishes them and their errors on the {part.name} part."
        if part
        else "The members.",
    )


def member_paths(facts: Facts, ensemble: EnsembleFacts) -> list[str]:
    """The searched paths, else the configuration paths in which the members differ."""
    records = [member.record for member in ensemble.members if member.record is not None]
    space = list(facts.campaign.search.get("space") or {}) if facts.campaign else []
    if space:
        return [path for path in space if any(value_at(r.config, path) is not None for r in records)]
    return differing_paths(records)


def differing_paths(records: Sequence[RunRecord]) -> list[str]:
    """Dotted paths of plain values that are not the same in all configurations."""
    flat = [dict(leaves(record.config)) for record in records]
    paths = list(dict.fromkeys(path for leaves in flat for path in leaves))
    return [path for path in paths if len({json.dumps(leaves.get(path)) for leaves in flat}) > 1][:10]


def worst_table(points: Points, data: DataFacts | None) -> Table:
    """The graphs with the largest mean absolute error of one field."""
    graphs, group = np.unique(points.graph, return_inverse=True)
    count = np.bincount(group)
    error = np.bincount(group, weights=np.abs(points.error)) / count
    spread = points.spread
    mean_spread = np.bincount(group, weights=spread) / count if spread is not None else None
    covered = points.covered
    inside = np.bincount(group, weights=covered.astype(float)) / count if covered is not None else None
    order = np.argsort(-error, kind="stable")[:WORST]
    rows = []
    for g in order:
        rows_of = np.flatnonzero(group == g)
        row = rows_of[np.argmax(np.abs(points.error[rows_of]))]
        nodes = str(data.nodes[graphs[g]]) if data is not None and graphs[g] < len(data.nodes) else "–"
        rows.append(
            (
                str(graphs[g]),
                nodes,
                measured(float(error[g])),
                measured(float(points.target[row])),
                measured(float(points.mean[row])),
                measured(float(mean_spread[g])) if mean_spread is not None else "–",
                f"{100 * inside[g]:.0f} %" if inside is not None else "–",
            )
        )
    many = bool(count.max() > 1)
    return Table(
        header=("graph", "nodes", "MAE" if many else "error", "true", "predicted", "spread", "covered"),
        rows=tuple(rows),
        caption=f"{points.field}"
        + (f" ({pretty_unit(points.unit)})" if points.unit else "")
        + ": the graphs with the largest "
        "error, by their number in the store"
        + ("; true and predicted are those of the graph's worst single value." if many else "."),
    )


def ablation_table(rows: Sequence[Ablation]) -> Table:
    """Errors with and without edges."""
    return Table(
        header=("field", "unit", "with edges", "without edges", "trivial predictor", "worse by"),
        rows=tuple(
            (
                row.field,
                pretty_unit(row.unit),
                *numbers((row.with_edges, row.without_edges, row.trivial)),
                f"{row.without_edges / row.with_edges:.1f} ×" if row.with_edges else "–",
            )
            for row in rows
        ),
        caption="Errors of the same model with and without edges.",
    )


def diversity_table(diversity: Mapping[str, Mapping[str, float]]) -> Table | None:
    """How differently the members err; None where that is unknown or there is one member."""
    rows = tuple(
        (
            field,
            f"{values['error_correlation']:.2f}".replace("-", "−"),
            f"{100 * values['ambiguity']:.0f} %",
        )
        for field, values in diversity.items()
        if {"error_correlation", "ambiguity"} <= set(values) and values["error_correlation"] < 1
    )
    if not rows:
        return None
    return Table(
        header=("field", "correlation of errors", "squared error that averaging removes"),
        rows=rows,
        caption="Diversity of the members on validation graphs. Members that make the same errors (correlation near 1) gain "
        "nothing from each other.",
    )
