"""Tables of the report: rows of ready texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn.hpo import Timeline
from hydragnn.hpo.scheduling.events import node_of
from hydragnn.hpo.status.timeline import local_nodes
from hydragnn.scripts.report.canvas import measured, plain_number, short, shorten
from hydragnn.scripts.report.facts import CampaignFacts, DataFacts, Trial
from hydragnn.scripts.report.verdict import join, pretty_unit

BEST_TRIALS, FAILURES = 10, 12
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

    @property
    def title(self) -> str:
        """The first sentence of the caption."""
        return self.caption.split(". ")[0].rstrip(".")

    def css(self, column: int) -> str:
        """The class of the cells of a column."""
        if column in self.prose:
            return "prose"
        cells = [row[column] for row in self.rows]
        numeric = any(cell[:1].isdigit() for cell in cells) and all(cell[:1] in "0123456789−–" for cell in cells)
        return "number" if numeric and column else ""

    def to_markdown(self) -> str:
        """The rows as a table in Markdown, without the caption.

        >>> print(Table(header=("what", "figure"), rows=(("a|b", "1"),), caption="").to_markdown(), end="")
        | what | figure |
        |---|---|
        | a\\|b | 1 |
        """
        escaped = [[cell.replace("|", r"\|") for cell in row] for row in (self.header, *self.rows)]
        head, *lines = [f"| {' | '.join(row)} |" for row in escaped]
        return "\n".join([head, "|" + "---|" * len(self.header), *lines]) + "\n"


def duration(seconds: int | float) -> str:
    """A time as people say it.

    >>> duration(5.3), duration(130), duration(7260)
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


def choices(value: Any) -> str:
    """A value, or a list of them as alternatives.

    >>> choices(["schnet", "egnn"]), choices(3)
    ('schnet or egnn', '3')
    """
    return join([text(item) for item in value], "or") if isinstance(value, list) else text(value)


def one_line(reason: str, length: int = 300) -> str:
    """A reason without its middle: programs say what went wrong in their first or in their last line.

    >>> one_line("exit code 2\\nlong story\\nno space left")
    'exit code 2 … no space left'
    """
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return shorten(" … ".join(lines if len(lines) < 2 else (lines[0], lines[-1])), length)


def numbers(values: Sequence[float]) -> tuple[str, ...]:
    """Several numbers, ready."""
    return tuple(measured(value) for value in values)


def parts_table(data: DataFacts, cross_validated: bool = False) -> Table:
    """Graphs of every part; of an ensemble by cross-validation as its first member sees them."""
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
        rows=tuple(
            (name, str(count), f"{100 * count / total:.0f} %", purpose.get(name, ""))
            for name, count in data.parts.items()
        ),
        caption="Graphs by part; no graph is in two parts."
        + (" These are the parts of the first member; others hold out other graphs." if cross_validated else ""),
        prose=frozenset({3}),
    )


def fields_table(data: DataFacts) -> Table:
    """Fields of the store."""
    return Table(
        header=("field", "on", "shape", "unit", "turns as", "role", "graphs that have it"),
        rows=tuple(
            (
                str(field["name"]),
                str(field["on"]),
                " × ".join(str(size) for size in field["shape"]) or "one number",
                pretty_unit(str(field["unit"])) or "–",
                f"{field['classes']} classes" if field["classes"] else str(field["parity"]),
                str(field["role"]),
                _present(field["present"], data.parts),
            )
            for field in data.fields
        ),
        caption="Fields of the store.",
    )


def _present(counts: Mapping[str, int], parts: Mapping[str, int]) -> str:
    """How many graphs of every part have a field, where not all have it."""
    if all(counts[part] == total for part, total in parts.items()):
        return "all"
    return ", ".join(f"{counts[part]} of {total} {part}" for part, total in parts.items())


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
                ", ".join(f"{key} = {choices(value)}" for key, value in (entry.get("when") or {}).items()) or "–",
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
        header=("trial", campaign.measure, "status", "epochs", "time", *(short(name) for name in names)),
        rows=tuple(
            (
                str(trial.number),
                measured(trial.objective or 0.0),
                WORDS.get(trial.status, trial.status),
                str(trial.record.epochs) if trial.record else "–",
                duration(trial.record.cost.seconds) if trial.record else "–",
                *(text(trial.parameters.get(name)) for name in names),
            )
            for trial in ranked
        ),
        caption=f"The best {len(ranked)} of {len(campaign.trials)} trials."
        if len(ranked) < len(campaign.trials)
        else "All trials, best first.",
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
                one_line(trial.reason),
                ", ".join(f"{short(name)} = {text(value)}" for name, value in trial.parameters.items()),
            )
            for trial in failed[:FAILURES]
        ),
        caption=(
            "Trials that failed"
            if len(failed) <= FAILURES
            else f"The first {FAILURES} of {len(failed)} trials that failed"
        )
        + "; the sampler learns from them unless the machine was at fault.",
        prose=frozenset({2, 3}),
    )


FAULT_WORDS = {
    "lost_node": "a node was lost",
    "launch": "it did not start",
    "preempted": "ended from outside",
    "cut": "the controller was gone",
    "out_of_memory": "out of memory",
}


def faults_table(timeline: Timeline) -> Table | None:
    """Failures by kind and what they cost; None where there were none."""
    rows, noun = timeline.faults(), _noun(timeline)
    if not rows:
        return None
    return Table(
        header=("what happened", "times", "trials", f"{noun}s at fault", f"{noun} time lost", "told to the sampler"),
        rows=tuple(
            (
                FAULT_WORDS.get(row.kind, row.kind.replace("_", " ")),
                str(row.count),
                str(row.trials),
                str(row.nodes) if row.nodes else "–",
                duration(3600 * row.node_hours) if row.node_hours else "–",
                {0: "no", row.count: "yes"}.get(row.to_sampler, f"{row.to_sampler} of {row.count}"),
            )
            for row in rows
        ),
        caption="Faults of the campaign. Those of the machine are repeated elsewhere and never told to the sampler; a failure of "
        "the configuration is an answer, so that its time is not lost.",
    )


def hours_table(timeline: Timeline) -> Table | None:
    """What became of the nodes' time; None before any passed."""
    hours = timeline.node_hours()
    if hours.allocated <= 0:
        return None
    noun = _noun(timeline)
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
        rows=tuple(
            (use, duration(3600 * value), f"{100 * value / hours.allocated:.1f} %")
            for use, value in uses.items()
            if value >= 5e-4 * hours.allocated
        ),
        caption=f"Where the time of the {noun}s went. The share of training that counts is the goodput.",
        strong=frozenset({0}),
    )


def _noun(timeline: Timeline) -> str:
    return "worker" if local_nodes(map(node_of, timeline.slots)) else "node"


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """All plain values of a nested table by dotted path; lists of numbers count as one value.

    >>> leaves({"heads": [{"weight": 1.0}], "seed": 0})
    [('heads.0.weight', 1.0), ('seed', 0)]
    """
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [leaf for number, item in enumerate(value) for leaf in leaves(item, f"{path}.{number}")]
    return [(path, value)]


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
        header=("field", "kind", "loss", "weight", "pooling", "distribution", "derivatives"),
        rows=tuple(
            (
                str(head["field"]),
                str(head.get("kind") or "–"),
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
        rows=tuple((path, text(value)) for path, value in leaves(config)),
        caption="The whole configuration, defaults included (of the best trial or first member, where there are several).",
    )
