"""Tables that judge: errors, uncertainty, members, worst cases, ablation."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from hydragnn.record import RunRecord
from hydragnn.scripts.report.campaign_facts import value_at
from hydragnn.scripts.report.canvas import measured, short, thousands
from hydragnn.scripts.report.facts import (
    Ablation,
    DataFacts,
    EnsembleFacts,
    Facts,
    FieldScores,
    Part,
    Points,
    Scores,
)
from hydragnn.scripts.report.tables import Table, duration, leaves, numbers, text
from hydragnn.scripts.report.verdict import pretty_unit, with_unit

WORST = 8


def score_tables(part: Part) -> tuple[Table, ...]:
    """The scores of a part: a table for numbers, and one for classes."""
    kinds = {scores.categorical for scores in part.scores}
    return (*([score_table(part)] if False in kinds else []), *([class_table(part)] if True in kinds else []))


def class_table(part: Part) -> Table:
    """Trivial predictor, best member and ensemble of every categorical field."""
    metrics = ("accuracy", "balanced_accuracy", "auroc", "nll", "brier", "ece")
    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    for entry in (scores for scores in part.scores if scores.categorical):
        for name, scores in _rows_of(entry):
            ratio = scores.error / entry.trivial.error if entry.trivial.error else math.nan
            rows.append((entry.field, name, *(share(scores[metric]) for metric in metrics), share(ratio)))
        strong.add(len(rows) - 1)
    return Table(
        header=("field", "predictor", "accuracy", "balanced", "AUROC", "NLL", "Brier", "ECE", "wrong / trivial"),
        rows=tuple(rows),
        caption=f"Classes on the {part.name} part. Accuracy: share of right labels; balanced: mean over classes; AUROC: one class "
        "against the rest, mean over classes; NLL (nats) and Brier: proper scores, lower is better; ECE: mean gap between "
        "the probability of the predicted class and how often it is right.",
        strong=frozenset(strong),
    )


def class_uncertainty_table(part: Part, nominal: float) -> Table | None:
    """How good the conformal sets of every categorical field are; None where there are none."""
    keys = ("coverage", "set_size", "empty_sets", "spearman")
    rows = tuple(
        (s.field, *numbers([s.uncertainty.get(key, math.nan) for key in keys]))
        for s in part.scores
        if s.uncertainty and s.categorical
    )
    if not rows:
        return None
    return Table(
        header=("field", "coverage", "classes in a set", "empty sets", "Spearman"),
        rows=rows,
        caption=f"Sets of classes on the {part.name} part. Coverage should be {nominal:.2f}, with as few classes as possible; a "
        "set is empty where even the likeliest class is less probable than the truth usually is; Spearman: does the entropy "
        "rank the errors.",
    )


def confusion_tables(part: Part) -> tuple[Table, ...]:
    """True against predicted classes of every categorical field."""
    return tuple(
        Table(
            header=("true \\ predicted", *(str(number) for number in range(len(scores.confusion)))),
            rows=tuple((str(number), *map(str, row)) for number, row in enumerate(scores.confusion)),
            caption=f"Confusions of {scores.field} on the {part.name} part: labels by true and predicted class.",
        )
        for scores in part.scores
        if scores.confusion
    )


def _rows_of(entry: FieldScores) -> list[tuple[str, Scores]]:
    """The predictors of a field that are known, with their names."""
    single = f"best single model ({entry.best_member.name})" if entry.ensemble and entry.best_member else "model"
    entries = [("trivial predictor", entry.trivial), (single, entry.best_member), ("ensemble", entry.ensemble)]
    return [(name, scores) for name, scores in entries if scores is not None]


def score_table(part: Part) -> Table:
    """Trivial predictor, best member and ensemble of every numeric field."""
    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    for entry in (scores for scores in part.scores if not scores.categorical):
        for name, scores in _rows_of(entry):
            ratio = scores.error / entry.trivial.error if entry.trivial.error else math.nan
            shares = (share(scores["r2"]), share(ratio))
            unit = pretty_unit(entry.unit) or "–"
            rows.append((entry.field, name, unit, *numbers((scores["mae"], scores["rmse"])), *shares))
        strong.add(len(rows) - 1)
    return Table(
        header=("field", "predictor", "unit", "MAE", "RMSE", "R²", "MAE / trivial"),
        rows=tuple(rows),
        caption=f"Errors on the {part.name} part. MAE: mean absolute error; RMSE: root mean square error; R²: explained share "
        "of the variance.",
        strong=frozenset(strong),
    )


def share(value: float) -> str:
    """A number near one, with three decimals.

    >>> share(-0.0001), share(0.98765), share(math.nan)
    ('0.000', '0.988', '–')
    """
    return f"{value + 0.0:.3f}".replace("-0.000", "0.000").replace("-", "−") if math.isfinite(value) else "–"


def uncertainty_table(part: Part, nominal: float) -> Table | None:
    """How good the spreads and intervals of every field are; None where there are none."""
    keys = ("coverage", "interval_width", "crps", "nll", "miscalibration_area", "spearman")
    rows = tuple(
        (s.field, pretty_unit(s.unit), *numbers([s.uncertainty.get(key, math.nan) for key in keys]))
        for s in part.scores
        if s.uncertainty and not s.categorical
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
    part = facts.verdict_part
    paths = member_paths(facts, ensemble)
    fields = part.scores if part else ()
    rows = []
    for member in ensemble.members:
        record = member.record
        errors = [next((s.error for s in entry.members if s.name == member.name), math.nan) for entry in fields]
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
    heads = [
        f"{s.field} {'wrong' if s.categorical else 'MAE'}" + (f" ({pretty_unit(s.unit)})" if s.unit else "")
        for s in fields
    ]
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
    """The graphs with the largest mean absolute error of one field; true and predicted are of the worst value."""
    graphs, group = np.unique(points.graph, return_inverse=True)
    count = np.bincount(group)
    error = np.bincount(group, weights=np.abs(points.error)) / count
    rows = []
    for worst in np.argsort(-error, kind="stable")[:WORST]:
        members = np.flatnonzero(group == worst)
        row = members[np.argmax(np.abs(points.error[members]))]
        graph = int(graphs[worst])
        name = data.names[graph] if data is not None and graph < len(data.names) else ""
        cells = [
            f"{name} ({graph})" if name else str(graph),
            str(data.nodes[graph]) if data is not None and graph < len(data.nodes) else "–",
        ]
        cells += [measured(float(value)) for value in (error[worst], points.target[row], points.mean[row])]
        if points.spread is not None:
            cells.append(measured(float(points.spread[members].mean())))
        if points.covered is not None:
            cells.append(f"{100 * points.covered[members].mean():.0f} %")
        rows.append(tuple(cells))
    many = bool(count.max() > 1)
    header = ["graph", "nodes", "MAE" if many else "error", "true", "predicted"]
    header += ["spread"] * (points.spread is not None) + ["covered"] * (points.covered is not None)
    return Table(
        header=tuple(header),
        rows=tuple(rows),
        caption=with_unit(points.field, points.unit) + (": true and predicted are of the worst value." if many else ""),
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
        caption="Diversity of the members on graphs that trained none of them. Members that make the same errors (correlation near 1) gain "
        "nothing from each other.",
    )
