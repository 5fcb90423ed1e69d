"""Tables of the report: rows of ready texts."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn.record import RunRecord
from hydragnn.scripts.report.campaign_facts import value_at
from hydragnn.scripts.report.canvas import plain_number, short
from hydragnn.scripts.report.facts import Ablation, CampaignFacts, DataFacts, EnsembleFacts, Facts, Part, Points, Trial
from hydragnn.scripts.report.verdict import join, pretty_unit

WORST, BEST_TRIALS = 8, 10
WORDS = {
    "finished": "finished",
    "paused": "stopped at a rung",
    "running": "running",
    "waiting": "waiting",
    "asked": "not started",
    "failed": "failed",
    "lost": "lost to machine faults",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of ready texts; columns of numbers are set flush right, columns of prose may break their lines."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    strong: frozenset[int] = frozenset()
    prose: frozenset[int] = frozenset()

    def css(self, column: int) -> str:
        """The class of the cells of a column."""
        if column in self.prose:
            return "prose"
        cells = [row[column] for row in self.rows]
        numeric = any(cell[:1].isdigit() for cell in cells) and all(cell[:1] in "0123456789−–" for cell in cells)
        return "number" if numeric and column else ""


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(5.25), duration(130), duration(7260)
    ('5.3 s', '2 min 10 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def text(value: Any) -> str:
    """A configuration value as one reads it.

    >>> text(0.00123456), text(True), text(None), text([64, 64])
    ('0.00123', 'yes', '–', '[64, 64]')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return plain_number(value)
    return value if isinstance(value, str) else json.dumps(value)


def numbers(values: Sequence[float]) -> tuple[str, ...]:
    """Several numbers, ready."""
    return tuple(plain_number(value) for value in values)


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
                (entry.field, label, pretty_unit(entry.unit), *numbers((scores.mae, scores.rmse, scores.r2, ratio)))
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


def parts_table(data: DataFacts) -> Table:
    """Graphs of every part."""
    total = max(1, sum(data.parts.values()))
    purpose = {
        "train": "fits the weights",
        "valid": "chooses epoch, trial and members; fits intervals",
        "test": "only judges",
    }
    return Table(
        header=("part", "graphs", "share", "what it does"),
        rows=tuple(
            (name, str(count), f"{100 * count / total:.0f} %", purpose.get(name, ""))
            for name, count in data.parts.items()
        ),
        caption="Graphs by part; no graph is in two parts.",
        prose=frozenset({3}),
    )


def fields_table(data: DataFacts) -> Table:
    """Fields of the store."""
    return Table(
        header=("field", "on", "shape", "unit", "turns as", "role"),
        rows=tuple(
            (
                str(field["name"]),
                str(field["on"]),
                " × ".join(str(size) for size in field["shape"]) or "one number",
                pretty_unit(str(field["unit"])) or "–",
                f"{field['classes']} classes" if field["classes"] else str(field["parity"]),
                str(field["role"]),
            )
            for field in data.fields
        ),
        caption="Fields of the store.",
    )


def space_table(campaign: CampaignFacts) -> Table | None:
    """What the search was allowed to change; None where the space is empty."""
    space = campaign.search.get("space") or {}
    if not space:
        return None
    best = campaign.best
    return Table(
        header=("hyperparameter", "range", "scale", "only when", "best trial"),
        rows=tuple(
            (
                path,
                ", ".join(text(choice) for choice in entry["choices"])
                if entry.get("choices")
                else f"{text(entry.get('low'))} to {text(entry.get('high'))}",
                "categories" if entry.get("choices") else "logarithmic" if entry.get("log") else "linear",
                ", ".join(f"{key} = {text(value)}" for key, value in (entry.get("when") or {}).items()) or "–",
                text(best.parameters.get(path)) if best else "–",
            )
            for path, entry in space.items()
        ),
        caption="The search space.",
    )


def trials_table(campaign: CampaignFacts) -> Table | None:
    """The best trials with their hyperparameters; None before any has a value."""
    ranked = sorted(campaign.scored, key=lambda trial: trial.objective or 0.0)[:BEST_TRIALS]
    if not ranked:
        return None
    names = [name for name in (campaign.search.get("space") or {}) if any(name in t.parameters for t in ranked)]
    return Table(
        header=("trial", campaign.objective, "status", "epochs", "time", *(short(name) for name in names)),
        rows=tuple(
            (
                str(trial.number),
                text(trial.objective),
                WORDS.get(trial.status, trial.status),
                str(trial.record.epochs) if trial.record else "–",
                duration(trial.record.cost.seconds) if trial.record else "–",
                *(text(trial.parameters.get(name)) for name in names),
            )
            for trial in ranked
        ),
        caption=f"The best {len(ranked)} of {len(campaign.trials)} trials.",
    )


def failures_table(campaign: CampaignFacts) -> Table | None:
    """Trials that ended without a result, with the reason; None where there are none."""
    failed = [trial for trial in campaign.trials if trial.failure_kind]
    if not failed:
        return None
    return Table(
        header=("trial", "kind", "reason", "configuration"),
        rows=tuple(
            (
                str(trial.number),
                trial.failure_kind.replace("_", " "),
                trial.reason,
                ", ".join(f"{short(name)} = {text(value)}" for name, value in trial.parameters.items()),
            )
            for trial in failed
        ),
        caption="Trials that failed; their reasons are told to the sampler unless the machine was at fault.",
        prose=frozenset({2, 3}),
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
                f"{record.parameters:,}".replace(",", " ") if record else "–",
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
    flat = [dict(_leaves(record.config)) for record in records]
    paths = list(dict.fromkeys(path for leaves in flat for path in leaves))
    return [path for path in paths if len({json.dumps(leaves.get(path)) for leaves in flat}) > 1][:10]


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [leaf for number, item in enumerate(value) for leaf in _leaves(item, f"{path}.{number}")]
    return [(path, value)]


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
                plain_number(float(error[g])),
                plain_number(float(points.target[row])),
                plain_number(float(points.mean[row])),
                plain_number(float(mean_spread[g])) if mean_spread is not None else "–",
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


def trial_status(trials: Sequence[Trial]) -> str:
    """How the trials ended, in words.

    >>> trial_status([])
    'no trials'
    """
    counts = {status: sum(trial.status == status for trial in trials) for status in WORDS}
    return ", ".join(f"{count} {WORDS[status]}" for status, count in counts.items() if count) or "no trials"


def heads_table(heads: Sequence[Mapping[str, Any]]) -> Table:
    """What is predicted and how it is weighed."""
    return Table(
        header=("field", "loss", "weight", "pooling", "distribution", "derivatives"),
        rows=tuple(
            (
                str(head["field"]),
                text(head.get("loss")),
                text(head.get("weight")),
                text(head.get("pool")),
                text(head.get("distribution")),
                join([str(head[key]) for key in ("forces", "stress") if head.get(key)]) or "–",
            )
            for head in heads
        ),
        caption="The heads of the model: one for every predicted field.",
    )


def settings_table(config: Mapping[str, Any]) -> Table:
    """The whole configuration, one value per row."""
    return Table(
        header=("setting", "value"),
        rows=tuple((path, text(value)) for path, value in _leaves(config)),
        caption="The base configuration with all defaults.",
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
