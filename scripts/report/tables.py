"""Tables of the report: rows of ready texts."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.hpo import Timeline
from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.hpo.scheduling.events import node_of
from hydragnn.hpo.search_settings import PARALLEL
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
    Member,
    Part,
    Points,
    Trial,
)
from hydragnn.scripts.report.groups import groups_of
from hydragnn.scripts.report.words import (
    duration,
    join,
    measured,
    one_line,
    per_node,
    percent,
    pretty_unit,
    share,
    short,
    text,
    thousands,
    with_unit,
)
from hydragnn.training.baselines import BASELINES

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
    bars: Sequence[float] = ()
    """By row, the length of a bar in its third cell: 1 is the whole cell."""

    @property
    def title(self) -> str:
        """Return the first sentence of the caption."""
        return self.caption.split(". ")[0].rstrip(".")

    def __bool__(self) -> bool:
        """Return True where there are rows to show."""
        return bool(self.rows)

    def css(self, column: int) -> str:
        """Return the class of the cells of a column."""
        if column in self.prose:
            return "prose"
        cells = [row[column] for row in self.rows]
        numeric = any(cell != "–" for cell in cells) and all(cell[:1] in "0123456789−–" for cell in cells)
        numeric &= not any(" to " in cell for cell in cells)
        return "number" if numeric and column else ""


def table_of(items: Iterable[Any], columns: Mapping[str, Callable[[Any], str]], caption: str, **looks: Any) -> Table:
    """Return a table with a row per item; ``columns`` has headers and cells.

    >>> table_of([1, 2], {"number": str, "twice": lambda number: str(2 * number)}, "").rows
    [('1', '2'), ('2', '4')]
    """
    rows = [tuple(cell(item) for cell in columns.values()) for item in items]
    return Table(header=tuple(columns), rows=rows, caption=caption, **looks)


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
    return table_of(
        data.parts,
        {
            "part": str,
            "graphs": lambda name: str(data.parts[name]),
            "share": lambda name: f"{100 * data.parts[name] / total:.0f} %",
            "what it does": lambda name: purpose.get(name, ""),
        },
        "Graphs by part; no graph is in two parts."
        + (" These are the parts of the first member; others hold out other graphs." if cross_validated else ""),
        prose=frozenset({3}),
    )


def fields_table(data: DataFacts) -> Table:
    """Return the fields of the store."""

    def present(field: Mapping[str, Any]) -> str:
        return all_or_some([(field["present"][part], total, part) for part, total in data.parts.items()])

    def labels(field: Mapping[str, Any]) -> str:
        return all_or_some([(*field["labels"][part], part) for part in data.parts])

    def all_or_some(counts: list[tuple[int, int, str]]) -> str:
        if all(count == total for count, total, _ in counts):
            return "all"
        return ", ".join(f"{count} of {total} {part}" for count, total, part in counts)

    return table_of(
        data.fields,
        {
            "field": lambda field: str(field["name"]),
            "on": lambda field: str(field["on"]),
            "shape": lambda field: " × ".join(map(str, field["shape"])) or "one number",
            "unit": lambda field: pretty_unit(str(field["unit"])) or "–",
            "turns as": lambda field: f"{field['classes']} classes" if field["classes"] else str(field["parity"]),
            "role": lambda field: str(field["role"]),
            "graphs that have it": present,
            **({"labels": labels} if any(labels(field) != "all" for field in data.fields) else {}),
        },
        "Fields of the store.",
    )


def heads_table(heads: Sequence[Mapping[str, Any]]) -> Table:
    """Return the predicted fields with their losses and weights."""
    return table_of(
        heads,
        {
            "field": lambda head: str(head["field"]),
            "kind": lambda head: str(head.get("kind") or "–"),
            "loss": lambda head: text(head.get("loss")),
            "weight": lambda head: text(head.get("weight")),
            "pooling": lambda head: text(head.get("pool")),
            "distribution": lambda head: text(head.get("distribution")),
            "derivatives": lambda head: join([str(head[key]) for key in ("forces", "stress") if head.get(key)]) or "–",
        },
        "The heads of the model: one for every predicted field.",
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
    space: Mapping[str, Any] = campaign.search.get("space") or {}

    def choices(value: Any) -> str:
        return join([text(item) for item in value], "or") if isinstance(value, list) else text(value)

    def span(path: str) -> str:
        if space[path].get("choices"):
            return ", ".join(map(text, space[path]["choices"]))
        return f"{text(space[path].get('low'))} to {text(space[path].get('high'))}"

    def scale(path: str) -> str:
        return "categories" if space[path].get("choices") else "logarithmic" if space[path].get("log") else "linear"

    def condition(path: str) -> str:
        return ", ".join(f"{key} = {choices(value)}" for key, value in (space[path].get("when") or {}).items()) or "–"

    def chosen(path: str) -> str:
        return text(best.parameters.get(path)) if best else "–"

    return table_of(
        space,
        {"hyperparameter": str, "range": span, "scale": scale, "only when": condition, "best trial": chosen},
        "The search space.",
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


def layouts_table(campaign: CampaignFacts) -> Table | None:
    """Return layouts of ranks by throughput; None where none were searched."""
    axes = [path for path in (campaign.search.get("space") or {}) if path.startswith(PARALLEL)]
    trials_by_layout: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in campaign.trials:
        trials_by_layout.setdefault(tuple(trial.parameters.get(path) for path in axes), []).append(trial)
    if not axes or not trials_by_layout:
        return None
    first = campaign.search.get("layout_trials") or 0

    def speed(trials: Sequence[Trial]) -> float:
        compared = [trial.speed for trial in trials if trial.number < first] or [trial.speed for trial in trials]
        return max(compared)

    rows = sorted(trials_by_layout.items(), key=lambda row: -speed(row[1]))
    caption = "Layouts of ranks, the fastest first: graphs of training per second, of all ranks together, in the first segment of the best trial."
    if first:
        rule = f"The first {first} trials differ in their layout only, and the fastest of these is that of all later trials."
        caption += f" {rule} Their throughput is shown."
    return Table(
        header=(*map(short, axes), "trials", "graphs per second", "most memory of a rank", "out of memory"),
        rows=[
            (
                *map(text, layout),
                str(len(trials)),
                f"{speed(trials):.4g}" if speed(trials) else "–",
                memory_text([trial.record.cost.peak_memory_mb for trial in trials if trial.record]),
                str(sum(trial.failure_kind == "out_of_memory" for trial in trials)),
            )
            for layout, trials in rows
        ],
        caption=caption,
    )


def memory_text(megabytes: Sequence[float]) -> str:
    """Return the largest of some peaks; a dash without any.

    >>> memory_text([200.0, 236.6])
    '237 MB'
    """
    return f"{max(megabytes):,.0f} MB" if any(megabytes) else "–"


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
    return table_of(
        timeline.faults(),
        {
            "what happened": lambda row: FAULTS.get(row.kind, row.kind.replace("_", " ")),
            "times": lambda row: str(row.count),
            "trials": lambda row: str(row.trials),
            f"{noun}s at fault": lambda row: str(row.nodes or "–"),
            f"{noun} time lost": lambda row: duration(3600 * row.node_hours) if row.node_hours else "–",
            "told to the sampler": lambda row: {0: "no", row.count: "yes"}.get(
                row.to_sampler, f"{row.to_sampler} of {row.count}"
            ),
        },
        "Faults of the campaign. Those of the machine are repeated elsewhere and never told to the sampler; a failure of "
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


def compared_by_processor(trials: Sequence[Trial]) -> bool:
    """Return True where trials are compared by processor time.

    On a processor that others use, too, wall time depends on when a trial ran.
    """
    records = [trial.record for trial in trials if trial.record and trial.record.epochs]
    return bool(records) and all(one.hardware.get("type") == "cpu" and one.cost.cpu_seconds > 0 for one in records)


def seconds_of(record: RunRecord, processor: bool) -> float:
    """Return the processor or wall seconds of a run."""
    return record.cost.cpu_seconds if processor else record.cost.seconds


def objective_within(trial: Trial, objective: Objective, seconds: float, processor: bool) -> float:
    """Return the objective after so many seconds; infinite before the first epoch."""
    record = trial.record
    if record is None or trial.objective is None or record.epochs < 1 or seconds_of(record, processor) <= 0:
        return math.inf
    epochs = min(record.epochs, int(seconds * record.epochs / seconds_of(record, processor) + 1e-9))
    value = objective_value(record, objective, epochs) if epochs else None
    return math.inf if value is None else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """An architecture in a campaign with its trials."""

    kind: str
    trials: tuple[Trial, ...]
    error: float
    """Objective of the best trial; infinite without one."""
    record: RunRecord | None
    """Record of the best trial."""
    in_time: float
    """Smallest objective within the shortest training; infinite without one."""


def compared_architectures(campaign: CampaignFacts, shortest: float | None, processor: bool) -> list[Architecture]:
    """Return all architectures that were tried, the smallest error first.

    ``shortest`` is the least time of a complete training.
    """
    objective, rows = campaign.search.get("objective", "valid/loss"), []
    for kind in {trial.architecture for trial in campaign.trials} - {""}:
        own = tuple(trial for trial in campaign.trials if trial.architecture == kind)
        within = [] if shortest is None else [objective_within(trial, objective, shortest, processor) for trial in own]
        best = next((trial for trial in campaign.ranked if trial.architecture == kind), None)
        error = math.inf if best is None or best.objective is None else best.objective
        record, in_time = best.record if best else None, min(within, default=math.inf)
        rows.append(Architecture(kind=kind, trials=own, error=error, record=record, in_time=in_time))
    return sorted(rows, key=lambda one: (one.error, one.kind))


def architectures_table(campaign: CampaignFacts) -> Table | None:
    """Return architectures by error; None where there was no choice."""
    processor = compared_by_processor(campaign.trials)
    ends = [seconds_of(one.record, processor) for one in campaign.trials if one.record and one.status == "finished"]
    seconds = min(ends, default=None)
    rows = compared_architectures(campaign, seconds, processor)
    if len(rows) < 2:
        return None
    quickest = min(rows, key=lambda one: one.in_time)
    caption = "Architectures; none has a result yet."
    if math.isfinite(rows[0].error):
        caption = f"Architectures, the smallest error first: {rows[0].kind} wins per error"
        if seconds is not None and math.isfinite(quickest.in_time):
            time = duration(seconds) + (" of processors" if processor else "")
            caption += f", {quickest.kind} per second: in {time}, the shortest training to the end, it came furthest"
        caption += ". Few trials of an architecture say little about it."

    def speed(record: RunRecord) -> float:
        if processor:
            return record.parts.get("train", 0) * record.epochs / record.cost.cpu_seconds
        return record.cost.graphs_per_second

    return table_of(
        rows,
        {
            "architecture": lambda one: one.kind,
            "trials": lambda one: str(len(one.trials)),
            "trained to the end": lambda one: str(sum(trial.status == "finished" for trial in one.trials)),
            "failed": lambda one: str(sum(bool(trial.failure_kind) for trial in one.trials)),
            f"best {campaign.measure}": lambda one: measured(one.error),
            f"{'processor time' if processor else 'time'} of that trial": lambda one: (
                duration(seconds_of(one.record, processor)) if one.record else "–"
            ),
            "its graphs per second": lambda one: f"{speed(one.record):.0f}" if one.record else "–",
            f"best within {'the shortest training' if seconds is None else duration(seconds)}": lambda one: measured(
                one.in_time
            ),
        },
        caption,
    )


def _compared(part: Part, categorical: bool, cells: Callable[[FieldScores, Any], tuple[str, ...]]) -> dict[str, Any]:
    """Return rows of trivial predictor, simple baselines, best member and ensemble per field."""
    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    for entry in part.scores:
        if entry.categorical != categorical:
            continue
        single = f"best single model ({entry.best_member.name})" if entry.ensemble and entry.best_member else "model"
        simple = [(BASELINES.get(one.name, one.name), one) for one in entry.baselines]
        models = ((single, entry.best_member), ("ensemble", entry.ensemble))
        entries = (("trivial predictor", entry.trivial), *simple, *models)
        for name, scores in entries:
            if scores is not None:
                ratio = scores.error / entry.trivial.error if entry.trivial.error else math.nan
                rows.append((entry.field, name, *cells(entry, scores), share(ratio)))
        strong.add(len(rows) - 1)
    return {"rows": rows, "strong": frozenset(strong)}


def relative_errors(facts: Facts, part: Part) -> dict[str, float]:
    """Return the mean relative L2 error of fields of nodes without atoms."""
    on = {str(field["name"]): field["on"] for field in facts.data.fields} if facts.data else {}
    fields = [own for name, own in part.numbers.items() if on.get(name) == "node" and ATOMIC_NUMBERS not in on]
    errors = {own.field: own.graph_errors().relative for own in fields}
    return {name: float(np.nanmean(own)) for name, own in errors.items() if np.isfinite(own).any()}


def score_table(facts: Facts, part: Part) -> Table:
    """Return the errors of every numeric field."""
    relative = relative_errors(facts, part)
    grows = any(math.isfinite(entry.of_model["mae_per_node"]) for entry in part.scores)
    columns: dict[str, Callable[[FieldScores, Any], str]] = {
        "unit": lambda entry, _: pretty_unit(entry.unit) or "–",
        "MAE": lambda _, own: measured(own["mae"]),
        **({"MAE per node": lambda _, own: measured(own["mae_per_node"])} if grows else {}),
        "RMSE": lambda _, own: measured(own["rmse"]),
        "relative L2": lambda one, own: share(relative.get(one.field, math.nan)) if own is one.of_model else "–",
        "R²": lambda _, own: share(own["r2"]),
    }
    if not relative:
        del columns["relative L2"]
    return Table(
        header=("field", "predictor", *columns, "MAE / trivial"),
        **_compared(part, False, lambda entry, own: tuple(cell(entry, own) for cell in columns.values())),
        caption=f"Errors on the {part.name} part. MAE: mean absolute error; RMSE: root mean square error; R²: explained share "
        "of the variance."
        + " Per node: of values that grow with the graph, divided by its nodes." * grows
        + " Relative L2: norm of a graph's errors over the norm of its true values, mean over graphs." * bool(relative),
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
    columns = {"coverage": "coverage", "unknown": "unknown", "interval width": "interval_width", "CRPS": "crps"}
    columns |= {"NLL": "nll", "miscalibration area": "miscalibration_area", "Spearman": "spearman"}
    sets = {"coverage": "coverage", "classes in a set": "set_size", "empty sets": "empty_sets", "Spearman": "spearman"}
    numeric, classes = (
        [
            (s.field, *units, *(measured(s.uncertainty.get(key, math.nan)) for key in keys.values()))
            for s in part.scores
            for units in [() if categorical else (pretty_unit(s.unit),)]
            if s.uncertainty and s.categorical == categorical
        ]
        for keys, categorical in ((columns, False), (sets, True))
    )
    return [
        Table(
            header=("field", "unit", *columns),
            rows=numeric,
            caption=f"Uncertainty on the {part.name} part. Coverage should be {nominal:.2f}; unknown: share of values without an interval, of graphs further from training data than all that calibrate; width in the field's unit (narrower is "
            "better at equal coverage); CRPS and NLL: proper scores, lower is better; miscalibration area: 0 is perfect; "
            "Spearman: does the spread rank the errors, 1 is perfect.",
        ),
        Table(
            header=("field", *sets),
            rows=classes,
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
        rows.append((member.name, weights_of(member), *settings, *map(measured, errors), *cost))
    heads = [with_unit(f"{s.field} {'wrong' if s.categorical else 'MAE'}", s.unit) for s in fields]
    return Table(
        header=("member", "weight", *(short(path) for path in paths), *heads, "parameters", "epochs", "training time"),
        rows=rows,
        caption=f"The members, with what distinguishes them and their errors on the {part.name} part."
        if part
        else "The members.",
    )


def weights_of(member: Member) -> str:
    """Return the weight of a member; by field where weights differ."""
    distinct = set(member.weights.values())
    if len(distinct) == 1:
        return f"{distinct.pop():.3g}"
    return ", ".join(f"{name} {weight:.3g}" for name, weight in member.weights.items())


def differing_paths(records: Sequence[RunRecord]) -> list[str]:
    """Return dotted paths of plain values in which the configurations differ."""
    flat = [dict(leaves(record.config)) for record in records]
    paths = list(dict.fromkeys(path for leaves in flat for path in leaves))
    return [path for path in paths if len({json.dumps(leaves.get(path)) for leaves in flat}) > 1][:10]


def diversity_table(diversity: Mapping[str, Mapping[str, float]]) -> Table:
    """Return how differently the members err."""
    wanted = {"error_correlation", "ambiguity"}
    return table_of(
        [(field, one) for field, one in diversity.items() if wanted <= set(one) and one["error_correlation"] < 1],
        {
            "field": lambda row: row[0],
            "correlation of errors": lambda row: f"{row[1]['error_correlation']:.2f}".replace("-", "−"),
            "squared error that averaging removes": lambda row: f"{100 * row[1]['ambiguity']:.0f} %",
        },
        "Diversity of the members on graphs that trained none of them. Members that make the same errors (correlation near 1) gain "
        "nothing from each other.",
    )


def flags_table(domain: DomainFacts) -> Table:
    """Return the share of every part that each detector flags."""
    detectors = list(next(iter(domain.by_detector.values()), {}))
    columns = {name: lambda part, name=name: percent(domain.by_detector[part][name]) for name in detectors}
    return table_of(
        domain.flagged,
        {"part": str, "flagged": lambda part: percent(domain.flagged[part]), **columns},
        "Graphs outside the training domain, in percent. Thresholds allow "
        f"{percent(domain.allowed)} in validation and parts like it; detectors overlap."
        + (
            ""
            if domain.expected <= domain.allowed
            else f" Held-out graphs are so few that about {percent(domain.expected)} are flagged."
        ),
    )


def worst_table(points: Points, facts: Facts) -> Table:
    """Return the graphs with the largest errors of one field."""
    errors, data, outside, covered = points.graph_errors(), facts.data, facts.outside, points.covered
    worst = {int(errors.number[n]): float(errors.mae[n]) for n in np.argsort(-errors.mae, kind="stable")[:WORST]}
    rows_of = {graph: np.flatnonzero(points.graph == graph) for graph in worst}
    top = {graph: own[np.argmax(np.abs(points.error[own]))] for graph, own in rows_of.items()}
    many = len(errors.number) < len(points.graph)

    def inside(graph: int) -> str:
        share = np.nan if covered is None else covered[rows_of[graph]].mean()  # a graph has all intervals or none
        return "unknown" if np.isnan(share) else f"{100 * share:.0f} %"

    columns: dict[str, Callable[[int], str]] = {
        "graph": lambda graph: f"{facts.name_of(graph)} ({graph})" if facts.name_of(graph) else str(graph),
        "nodes": lambda graph: str(data.nodes[graph]) if data is not None and graph < len(data.nodes) else "–",
        "MAE" if many else "error": lambda graph: measured(worst[graph]),
        "true": lambda graph: measured(float(points.target[top[graph]])),
        "predicted": lambda graph: measured(float(points.mean[top[graph]])),
    }
    if (spread := points.spread) is not None:
        columns["spread"] = lambda graph: measured(float(spread[rows_of[graph]].mean()))
    columns |= {"covered": inside} if covered is not None else {}
    columns |= (
        {"domain": lambda graph: "outside: " * bool(outside[graph]) + (outside[graph] or "inside")} if outside else {}
    )
    caption = with_unit(points.field, points.unit) + ": true and predicted are of the worst value." * many
    return table_of(worst, columns, caption)


def groups_table(facts: Facts, part: Part, scores: FieldScores) -> Table | None:
    """Return errors of one field by groups of its values, if any."""
    points = part.numbers.get(scores.field)
    groups = list(groups_of(points, facts.graphs, facts.data)) if points is not None else []
    if points is None or not groups:
        return None
    error, covered, outside, data = np.abs(points.error), points.covered, facts.outside, facts.data
    mae = [float(error[rows].mean()) for _, _, rows in groups]
    columns: dict[str, Callable[[Any], str]] = {
        "by": lambda n: "" if n and groups[n - 1][0] == groups[n][0] else groups[n][0],
        "group": lambda n: groups[n][1],
        "MAE": lambda n: measured(mae[n]),
        "RMSE": lambda n: measured(float(np.sqrt(np.mean(error[groups[n][2]] ** 2)))),
    }
    if data is not None and math.isfinite(scores.of_model["mae_per_node"]):
        share_of = error / data.nodes[points.graph]
        columns["MAE per node"] = lambda n: per_node(float(share_of[groups[n][2]].mean()), points.unit)
    if covered is not None:
        name = f"in {facts.nominal * 100:.0f} % interval"
        inside = [covered[rows][np.isfinite(covered[rows])] for _, _, rows in groups]
        columns[name] = lambda n: percent(float(inside[n].mean())) + " %" if len(inside[n]) else "–"
    graphs = [np.unique(points.graph[rows]).tolist() for _, _, rows in groups]
    if outside:
        columns["outside domain"] = lambda n: percent(sum(bool(outside[g]) for g in graphs[n]) / len(graphs[n])) + " %"
    columns["values"] = lambda n: thousands(len(groups[n][2]))
    columns["graphs"] = lambda n: thousands(len(graphs[n]))
    caption = f"{with_unit(scores.field, scores.unit)}: errors by group; the bar is the MAE."
    return table_of(range(len(groups)), columns, caption, bars=[one / (max(mae) or 1.0) for one in mae])


def ablation_table(rows: Sequence[Ablation]) -> Table:
    """Return errors with and without edges."""
    return table_of(
        rows,
        {
            "field": lambda row: row.field,
            "unit": lambda row: pretty_unit(row.unit),
            "with edges": lambda row: measured(row.with_edges),
            "without edges": lambda row: measured(row.without_edges),
            "trivial predictor": lambda row: measured(row.trivial),
            "worse by": lambda row: f"{row.without_edges / row.with_edges:.1f} ×" if row.with_edges else "–",
        },
        "Errors of the same model with and without edges.",
    )


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
