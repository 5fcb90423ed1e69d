"""Tables of the report: rows of ready texts."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn.hpo import Timeline
from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.hpo.scheduling.events import node_of
from hydragnn.hpo.status.timeline import local_nodes
from hydragnn.record import RunRecord
from hydragnn.scripts.report.facts import (
    Ablation,
    CampaignFacts,
    DataFacts,
    DomainFacts,
    EnsembleFacts,
    Facts,
    FieldScores,
    Part,
    Points,
    Trial,
)
from hydragnn.scripts.report.words import (
    duration,
    join,
    measured,
    one_line,
    percent,
    pretty_unit,
    share,
    short,
    text,
    thousands,
    with_unit,
)

BEST_TRIALS, FAILURES, WORST = 10, 12, 8
STATUS = {
    "finished": "finished",
    "paused": "stopped at a rung",
    "running": "running",
    "waiting": "waiting",
    "asked": "not started",
    "failed": "failed",
    "lost": "lost to machine faults",
}
FAULTS = {
    "lost_node": "a node was lost",
    "launch": "it did not start",
    "preempted": "ended from outside",
    "cut": "the controller was gone",
    "out_of_memory": "out of memory",
}
Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of ready texts; without rows the page shows no table."""

    header: tuple[str, ...]
    rows: Rows
    caption: str
    strong: frozenset[int] = frozenset()
    prose: frozenset[int] = frozenset()

    @property
    def title(self) -> str:
        """Return the first sentence of the caption."""
        return self.caption.split(". ")[0].rstrip(".")

    def css(self, column: int) -> str:
        """Return the class of the cells of a column."""
        if column in self.prose:
            return "prose"
        cells = [row[column] for row in self.rows]
        numeric = any(cell[:1].isdigit() for cell in cells) and all(cell[:1] in "0123456789−–" for cell in cells)
        return "number" if numeric and column else ""

    def to_markdown(self) -> str:
        """Return the rows as a table in Markdown, without the caption.

        >>> print(Table(header=("what", "figure"), rows=[("a|b", "1")], caption="").to_markdown(), end="")
        | what | figure |
        |---|---|
        | a\\|b | 1 |
        """
        escaped = [[cell.replace("|", r"\|") for cell in row] for row in (self.header, *self.rows)]
        head, *lines = [f"| {' | '.join(row)} |" for row in escaped]
        return "\n".join([head, "|" + "---|" * len(self.header), *lines]) + "\n"


def parts_table(data: DataFacts, cross_validated: bool = False) -> Table:
    """Return the graphs of every part; with cross-validation, of the first member."""
    total = max(1, sum(data.parts.values()))
    purpose = {
        "train": "fits the weights",
        "valid": "chooses epoch, trial and members" + ("" if "calibration" in data.parts else "; fits intervals"),
        "calibration": "fits intervals; has chosen nothing",
        "test": "only judges",
    }
    if cross_validated:
        purpose |= {"valid": "chooses the epoch", "test": "judges this member and fits its intervals"}
    return Table(
        header=("part", "graphs", "share", "what it does"),
        rows=[
            (name, str(count), f"{100 * count / total:.0f} %", purpose.get(name, ""))
            for name, count in data.parts.items()
        ],
        caption="Graphs by part; no graph is in two parts."
        + (" These are the parts of the first member; others hold out other graphs." if cross_validated else ""),
        prose=frozenset({3}),
    )


def fields_table(data: DataFacts) -> Table:
    """Return the fields of the store."""

    def present(counts: Mapping[str, int]) -> str:
        if all(counts[part] == total for part, total in data.parts.items()):
            return "all"
        return ", ".join(f"{counts[part]} of {total} {part}" for part, total in data.parts.items())

    return Table(
        header=("field", "on", "shape", "unit", "turns as", "role", "graphs that have it"),
        rows=[
            (
                str(field["name"]),
                str(field["on"]),
                " × ".join(str(size) for size in field["shape"]) or "one number",
                pretty_unit(str(field["unit"])) or "–",
                f"{field['classes']} classes" if field["classes"] else str(field["parity"]),
                str(field["role"]),
                present(field["present"]),
            )
            for field in data.fields
        ],
        caption="Fields of the store.",
    )


def heads_table(heads: Sequence[Mapping[str, Any]]) -> Table:
    """Return the predicted fields with their losses and weights."""
    settings = ("loss", "weight", "pool", "distribution")
    return Table(
        header=("field", "kind", "loss", "weight", "pooling", "distribution", "derivatives"),
        rows=[
            (
                str(head["field"]),
                str(head.get("kind") or "–"),
                *(text(head.get(key)) for key in settings),
                join([str(head[key]) for key in ("forces", "stress") if head.get(key)]) or "–",
            )
            for head in heads
        ],
        caption="The heads of the model: one for every predicted field.",
    )


def settings_table(config: Mapping[str, Any]) -> Table:
    """Return the whole configuration, one value per row."""
    return Table(
        header=("setting", "value"),
        rows=[(path, text(value)) for path, value in leaves(config)],
        caption="The whole configuration, defaults included (of the best trial or first member, where there are several).",
    )


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return all plain values of a nested table by dotted path.

    >>> leaves({"heads": [{"weight": 1.0}], "seed": 0})
    [('heads.0.weight', 1.0), ('seed', 0)]
    """
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [leaf for number, item in enumerate(value) for leaf in leaves(item, f"{path}.{number}")]
    return [(path, value)]


def value_at(table: Any, path: str) -> Any:
    """Return the value under a dotted path; None without one.

    >>> value_at({"heads": [{"weight": 2.0}]}, "heads.0.weight")
    2.0
    """
    for key in path.split("."):
        try:
            table = table[int(key) if isinstance(table, list) else key]
        except (LookupError, TypeError, ValueError):
            return None
    return table


def space_table(campaign: CampaignFacts) -> Table:
    """Return the hyperparameters of the search with their ranges."""
    best = campaign.best

    def choices(value: Any) -> str:
        return join([text(item) for item in value], "or") if isinstance(value, list) else text(value)

    return Table(
        header=("hyperparameter", "range", "scale", "only when", "best trial"),
        rows=[
            (
                path,
                ", ".join(text(choice) for choice in entry["choices"])
                if entry.get("choices")
                else f"{text(entry.get('low'))} to {text(entry.get('high'))}",
                "categories" if entry.get("choices") else "logarithmic" if entry.get("log") else "linear",
                ", ".join(f"{key} = {choices(value)}" for key, value in (entry.get("when") or {}).items()) or "–",
                text(best.parameters.get(path)) if best else "–",
            )
            for path, entry in (campaign.search.get("space") or {}).items()
        ],
        caption="The search space.",
    )


def trial_status(trials: Sequence[Trial]) -> str:
    """Return how the trials ended, in words.

    >>> trial_status([])
    'no trials'
    """
    counts = {status: sum(trial.status == status for trial in trials) for status in STATUS}
    return ", ".join(f"{count} {STATUS[status]}" for status, count in counts.items() if count) or "no trials"


def trials_table(campaign: CampaignFacts) -> Table:
    """Return the best trials with their hyperparameters."""
    ranked, trials = campaign.ranked[:BEST_TRIALS], len(campaign.trials)
    names = [name for name in (campaign.search.get("space") or {}) if any(name in t.parameters for t in ranked)]
    return Table(
        header=("trial", campaign.measure, "status", "epochs", "time", *(short(name) for name in names)),
        rows=[
            (
                str(trial.number),
                measured(trial.objective or 0.0),
                STATUS.get(trial.status, trial.status),
                *((str(record.epochs), duration(record.cost.seconds)) if (record := trial.record) else ("–", "–")),
                *(text(trial.parameters.get(name)) for name in names),
            )
            for trial in ranked
        ],
        caption=f"The best {len(ranked)} of {trials} trials." if len(ranked) < trials else "All trials, best first.",
    )


def failures_table(campaign: CampaignFacts) -> Table:
    """Return the trials that ended without a result, with the reason."""
    failed = [trial for trial in campaign.trials if trial.failure_kind]
    many = len(failed) > FAILURES
    which = f"The first {FAILURES} of {len(failed)} trials that failed" if many else "Trials that failed"
    return Table(
        header=("trial", "kind", "reason", "configuration"),
        rows=[
            (
                str(trial.number),
                trial.failure_kind.replace("_", " "),
                one_line(trial.reason),
                ", ".join(f"{short(name)} = {text(value)}" for name, value in trial.parameters.items()),
            )
            for trial in failed[:FAILURES]
        ],
        caption=f"{which}; the sampler learns from them unless the machine was at fault.",
        prose=frozenset({2, 3}),
    )


def noun_of(timeline: Timeline) -> str:
    """Return what a node of the campaign is called."""
    return "worker" if local_nodes(map(node_of, timeline.slots)) else "node"


def faults_table(timeline: Timeline) -> Table:
    """Return failures by kind and what they cost."""
    noun = noun_of(timeline)
    return Table(
        header=("what happened", "times", "trials", f"{noun}s at fault", f"{noun} time lost", "told to the sampler"),
        rows=[
            (
                FAULTS.get(row.kind, row.kind.replace("_", " ")),
                str(row.count),
                str(row.trials),
                str(row.nodes) if row.nodes else "–",
                duration(3600 * row.node_hours) if row.node_hours else "–",
                {0: "no", row.count: "yes"}.get(row.to_sampler, f"{row.to_sampler} of {row.count}"),
            )
            for row in timeline.faults()
        ],
        caption="Faults of the campaign. Those of the machine are repeated elsewhere and never told to the sampler; a failure of "
        "the configuration is an answer, so that its time is not lost.",
    )


def hours_table(timeline: Timeline) -> Table:
    """Return the uses of the nodes' time."""
    hours, noun = timeline.node_hours(), noun_of(timeline)
    uses = {
        "training that counts": hours.useful,
        "start-up, saving, and repeated epochs": hours.overhead,
        "lost in faults": hours.faults,
        f"{noun}s probed or in quarantine": hours.out,
        "idle": hours.idle,
        "all": hours.allocated,
    }
    return Table(
        header=("use", f"{noun} time", "share"),
        rows=[
            (use, duration(3600 * value), f"{100 * value / hours.allocated:.1f} %")
            for use, value in uses.items()
            if hours.allocated > 0 and value >= 5e-4 * hours.allocated
        ],
        caption=f"Where the time of the {noun}s went. The share of training that counts is the goodput.",
        strong=frozenset({0}),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """Clock by which trials are compared: processor or wall.

    On a processor that others use, too, wall time depends on when a trial ran.
    """

    processor: bool

    @property
    def words(self) -> str:
        """Return the name of these times."""
        return "processor time" if self.processor else "time"

    def seconds(self, record: RunRecord) -> float:
        """Return the seconds of a run."""
        return record.cost.cpu_seconds if self.processor else record.cost.seconds

    def graphs_per_second(self, record: RunRecord) -> float:
        """Return training graphs per second of wall or processor time."""
        if not self.processor:
            return record.cost.graphs_per_second
        return record.parts.get("train", 0) * record.epochs / record.cost.cpu_seconds


def clock_of(trials: Sequence[Trial]) -> Clock:
    """Return the clock by which these trials can be compared."""
    records = [trial.record for trial in trials if trial.record and trial.record.epochs]
    on_processors = [record.hardware.get("type") == "cpu" and record.cost.cpu_seconds > 0 for record in records]
    return Clock(processor=bool(records) and all(on_processors))


def shortest_training(trials: Sequence[Trial]) -> float | None:
    """Return the least time of a complete training; None without any."""
    clock = clock_of(trials)
    finished = [clock.seconds(trial.record) for trial in trials if trial.record and trial.status == "finished"]
    return min(finished, default=None)


def objective_within(trial: Trial, objective: Objective, seconds: float, clock: Clock) -> float:
    """Return the objective after so many seconds; infinite before the first epoch."""
    record = trial.record
    if record is None or trial.objective is None or record.epochs < 1 or clock.seconds(record) <= 0:
        return math.inf
    epochs = min(record.epochs, int(seconds * record.epochs / clock.seconds(record) + 1e-9))
    value = objective_value(record, objective, epochs) if epochs else None
    return math.inf if value is None else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """An architecture in a campaign with its trials."""

    kind: str
    trials: tuple[Trial, ...]
    best: Trial | None
    in_time: float
    """The smallest objective within the shortest training; infinite without one."""

    @property
    def error(self) -> float:
        """Return the objective of the best trial; infinite without one."""
        return math.inf if self.best is None or self.best.objective is None else self.best.objective

    def cells(self, clock: Clock) -> tuple[str, ...]:
        """Return the row of the architecture."""
        finished = sum(trial.status == "finished" for trial in self.trials)
        failed = sum(bool(trial.failure_kind) for trial in self.trials)
        cost = ("–", "–")
        if self.best and (record := self.best.record):
            cost = (duration(clock.seconds(record)), f"{clock.graphs_per_second(record):.0f}")
        counts = (str(len(self.trials)), str(finished), str(failed))
        return (self.kind, *counts, measured(self.error), *cost, measured(self.in_time))


def compared_architectures(campaign: CampaignFacts) -> list[Architecture]:
    """Return all architectures that were tried, the smallest error first."""
    seconds, objective = shortest_training(campaign.trials), campaign.search.get("objective", "valid/loss")
    clock = clock_of(campaign.trials)
    rows = []
    for kind in sorted({trial.architecture for trial in campaign.trials} - {""}):
        own = tuple(trial for trial in campaign.trials if trial.architecture == kind)
        within = [] if seconds is None else [objective_within(trial, objective, seconds, clock) for trial in own]
        best = min(
            (trial for trial in own if trial.objective is not None), key=lambda t: t.objective or 0.0, default=None
        )
        rows.append(Architecture(kind=kind, trials=own, best=best, in_time=min(within, default=math.inf)))
    return sorted(rows, key=lambda one: (one.error, one.kind))


def architectures_table(campaign: CampaignFacts) -> Table | None:
    """Return architectures by error; None where there was no choice."""
    rows, seconds = compared_architectures(campaign), shortest_training(campaign.trials)
    clock = clock_of(campaign.trials)
    if len(rows) < 2:
        return None
    quickest = min(rows, key=lambda one: one.in_time)
    caption = "Architectures; none has a result yet."
    if math.isfinite(rows[0].error):
        caption = f"Architectures, the smallest error first: {rows[0].kind} wins per error"
        if seconds is not None and math.isfinite(quickest.in_time):
            time = duration(seconds) + (" of processors" if clock.processor else "")
            caption += f", {quickest.kind} per second: in {time}, the shortest training to the end, it came furthest"
        caption += ". Few trials of an architecture say little about it."
    within = "within the shortest training" if seconds is None else f"within {duration(seconds)}"
    return Table(
        header=(
            *("architecture", "trials", "trained to the end", "failed"),
            *(f"best {campaign.measure}", f"{clock.words} of that trial", "its graphs per second", f"best {within}"),
        ),
        rows=[one.cells(clock) for one in rows],
        caption=caption,
    )


def _compared(part: Part, categorical: bool, cells: Callable[[FieldScores, Any], tuple[str, ...]]) -> dict[str, Any]:
    """Return rows of trivial predictor, best member and ensemble per field."""
    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    for entry in part.scores:
        if entry.categorical != categorical:
            continue
        single = f"best single model ({entry.best_member.name})" if entry.ensemble and entry.best_member else "model"
        entries = (("trivial predictor", entry.trivial), (single, entry.best_member), ("ensemble", entry.ensemble))
        for name, scores in entries:
            if scores is not None:
                ratio = scores.error / entry.trivial.error if entry.trivial.error else math.nan
                rows.append((entry.field, name, *cells(entry, scores), share(ratio)))
        strong.add(len(rows) - 1)
    return {"rows": rows, "strong": frozenset(strong)}


def score_table(part: Part) -> Table:
    """Return the errors of every numeric field."""
    return Table(
        header=("field", "predictor", "unit", "MAE", "RMSE", "R²", "MAE / trivial"),
        **_compared(
            part,
            False,
            lambda entry, scores: (
                pretty_unit(entry.unit) or "–",
                measured(scores["mae"]),
                measured(scores["rmse"]),
                share(scores["r2"]),
            ),
        ),
        caption=f"Errors on the {part.name} part. MAE: mean absolute error; RMSE: root mean square error; R²: explained share "
        "of the variance.",
    )


def class_table(part: Part) -> Table:
    """Return the scores of every categorical field."""
    metrics = ("accuracy", "balanced_accuracy", "auroc", "nll", "brier", "ece")
    return Table(
        header=("field", "predictor", "accuracy", "balanced", "AUROC", "NLL", "Brier", "ECE", "wrong / trivial"),
        **_compared(part, True, lambda _, scores: tuple(share(scores[metric]) for metric in metrics)),
        caption=f"Classes on the {part.name} part. Accuracy: share of right labels; balanced: mean over classes; AUROC: one class "
        "against the rest, mean over classes; NLL (nats) and Brier: proper scores, lower is better; ECE: mean gap between "
        "the probability of the predicted class and how often it is right.",
    )


def confusion_tables(part: Part) -> list[Table]:
    """Return true against predicted classes of every categorical field."""
    return [
        Table(
            header=("true \\ predicted", *(str(number) for number in range(len(scores.confusion)))),
            rows=[(str(number), *map(str, row)) for number, row in enumerate(scores.confusion)],
            caption=f"Confusions of {scores.field} on the {part.name} part: labels by true and predicted class.",
        )
        for scores in part.scores
    ]


def uncertainty_tables(part: Part, nominal: float) -> list[Table]:
    """Return how good spreads and intervals are, and sets of classes."""
    numeric = ("coverage", "interval_width", "crps", "nll", "miscalibration_area", "spearman")
    classes = ("coverage", "set_size", "empty_sets", "spearman")
    rows = [
        (
            s.field,
            *(() if s.categorical else (pretty_unit(s.unit),)),
            *(measured(s.uncertainty.get(k, math.nan)) for k in keys),
        )
        for s in part.scores
        for keys in [classes if s.categorical else numeric]
        if s.uncertainty
    ]
    return [
        Table(
            header=("field", "unit", "coverage", "interval width", "CRPS", "NLL", "miscalibration area", "Spearman"),
            rows=[row for row in rows if len(row) == 8],
            caption=f"Uncertainty on the {part.name} part. Coverage should be {nominal:.2f}; width in the field's unit (narrower is "
            "better at equal coverage); CRPS and NLL: proper scores, lower is better; miscalibration area: 0 is perfect; "
            "Spearman: does the spread rank the errors, 1 is perfect.",
        ),
        Table(
            header=("field", "coverage", "classes in a set", "empty sets", "Spearman"),
            rows=[row for row in rows if len(row) == 5],
            caption=f"Sets of classes on the {part.name} part. Coverage should be {nominal:.2f}, with as few classes as possible; a "
            "set is empty where even the likeliest class is less probable than the truth usually is; Spearman: does the entropy "
            "rank the errors.",
        ),
    ]


def members_table(facts: Facts, ensemble: EnsembleFacts) -> Table:
    """Return every member: weight, what distinguishes it, errors, cost."""
    part = facts.evaluation_part
    records = [member.record for member in ensemble.members if member.record is not None]
    space = list(facts.campaign.search.get("space") or {}) if facts.campaign else []
    paths = [path for path in space if any(value_at(record.config, path) is not None for record in records)]
    paths = paths if space else differing_paths(records)
    fields = part.scores if part else ()
    rows = []
    for member in ensemble.members:
        record = member.record
        errors = [next((s.error for s in entry.members if s.name == member.name), math.nan) for entry in fields]
        cost = ("–", "–", "–")
        if record:
            cost = (thousands(record.parameters), str(record.epochs), duration(record.cost.seconds))
        settings = [text(value_at(record.config, path)) if record else "–" for path in paths]
        rows.append((member.name, f"{member.weight:.3g}", *settings, *map(measured, errors), *cost))
    heads = [with_unit(f"{s.field} {'wrong' if s.categorical else 'MAE'}", s.unit) for s in fields]
    return Table(
        header=("member", "weight", *(short(path) for path in paths), *heads, "parameters", "epochs", "training time"),
        rows=rows,
        caption=f"The members, with what distinguishes them and their errors on the {part.name} part."
        if part
        else "The members.",
    )


def differing_paths(records: Sequence[RunRecord]) -> list[str]:
    """Return dotted paths of plain values in which the configurations differ."""
    flat = [dict(leaves(record.config)) for record in records]
    paths = list(dict.fromkeys(path for leaves in flat for path in leaves))
    return [path for path in paths if len({json.dumps(leaves.get(path)) for leaves in flat}) > 1][:10]


def diversity_table(diversity: Mapping[str, Mapping[str, float]]) -> Table:
    """Return how differently the members err."""
    return Table(
        header=("field", "correlation of errors", "squared error that averaging removes"),
        rows=[
            (field, f"{values['error_correlation']:.2f}".replace("-", "−"), f"{100 * values['ambiguity']:.0f} %")
            for field, values in diversity.items()
            if {"error_correlation", "ambiguity"} <= set(values) and values["error_correlation"] < 1
        ],
        caption="Diversity of the members on graphs that trained none of them. Members that make the same errors (correlation near 1) gain "
        "nothing from each other.",
    )


def flags_table(domain: DomainFacts) -> Table:
    """Return the share of every part that each detector flags."""
    names = list(next(iter(domain.by_detector.values()), {}))
    return Table(
        header=("part", "flagged", *names),
        rows=[
            (part, percent(flagged), *(percent(domain.by_detector[part][name]) for name in names))
            for part, flagged in domain.flagged.items()
        ],
        caption="Graphs outside the training domain, in percent. Thresholds allow "
        f"{percent(domain.allowed)} in validation and parts like it; detectors overlap.",
    )


def worst_table(points: Points, data: DataFacts | None) -> Table:
    """Return the graphs with the largest mean absolute error of one field."""
    graphs, group = np.unique(points.graph, return_inverse=True)
    count = np.bincount(group)
    error = np.bincount(group, weights=np.abs(points.error)) / count
    many = bool(count.max() > 1)
    header = ["graph", "nodes", "MAE" if many else "error", "true", "predicted"]
    header += ["spread"] * (points.spread is not None) + ["covered"] * (points.covered is not None)
    rows = []
    for worst in np.argsort(-error, kind="stable")[:WORST]:
        own = np.flatnonzero(group == worst)
        row = own[np.argmax(np.abs(points.error[own]))]
        graph = int(graphs[worst])
        name = data.names[graph] if data is not None and graph < len(data.names) else ""
        nodes = str(data.nodes[graph]) if data is not None and graph < len(data.nodes) else "–"
        values = (error[worst], points.target[row], points.mean[row])
        cells = [f"{name} ({graph})" if name else str(graph), nodes, *(measured(float(value)) for value in values)]
        if points.spread is not None:
            cells.append(measured(float(points.spread[own].mean())))
        if points.covered is not None:
            cells.append(f"{100 * points.covered[own].mean():.0f} %")
        rows.append(tuple(cells))
    return Table(
        header=tuple(header),
        rows=rows,
        caption=with_unit(points.field, points.unit) + (": true and predicted are of the worst value." if many else ""),
    )


def ablation_table(rows: Sequence[Ablation]) -> Table:
    """Return errors with and without edges."""
    return Table(
        header=("field", "unit", "with edges", "without edges", "trivial predictor", "worse by"),
        rows=[
            (
                row.field,
                pretty_unit(row.unit),
                *map(measured, (row.with_edges, row.without_edges, row.trivial)),
                f"{row.without_edges / row.with_edges:.1f} ×" if row.with_edges else "–",
            )
            for row in rows
        ],
        caption="Errors of the same model with and without edges.",
    )
