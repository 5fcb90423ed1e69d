"""Which architecture has the smallest error, and which has it for the least time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.record import RunRecord
from hydragnn.scripts.report.canvas import measured
from hydragnn.scripts.report.facts import CampaignFacts, Trial
from hydragnn.scripts.report.tables import Table, duration


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """An architecture in a campaign: its trials, the best of them, and how far any came within a time."""

    kind: str
    trials: tuple[Trial, ...]
    best: Trial | None
    in_time: float
    """The smallest objective within the time in which all are compared; infinite where none had one by then."""

    @property
    def error(self) -> float:
        """The objective of the best trial; infinite without one."""
        return math.inf if self.best is None or self.best.objective is None else self.best.objective

    @property
    def finished(self) -> int:
        """Trials that were trained to the end."""
        return sum(trial.status == "finished" for trial in self.trials)

    @property
    def failed(self) -> int:
        """Trials without a result."""
        return sum(bool(trial.failure_kind) for trial in self.trials)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """What the times of trials are taken by: of the wall, or of the processor where all of them trained on one.

    On a processor that others use, too, the wall's clock tells when a trial ran rather than what it needs.
    """

    processor: bool

    @property
    def words(self) -> str:
        """How a column calls these times."""
        return "processor time" if self.processor else "time"

    def seconds(self, record: RunRecord) -> float:
        """What the run took by this clock."""
        return record.cost.cpu_seconds if self.processor else record.cost.seconds

    def graphs_per_second(self, record: RunRecord) -> float:
        """Graphs of training per second: while it trained by the wall's clock, of all its time by the processor's."""
        if not self.processor:
            return record.cost.graphs_per_second
        return record.parts.get("train", 0) * record.epochs / record.cost.cpu_seconds


def clock_of(trials: Sequence[Trial]) -> Clock:
    """The clock by which these trials can be compared."""
    records = [trial.record for trial in trials if trial.record and trial.record.epochs]
    on_processors = [record.hardware.get("type") == "cpu" and record.cost.cpu_seconds > 0 for record in records]
    return Clock(processor=bool(records) and all(on_processors))


def shortest_training(trials: Sequence[Trial]) -> float | None:
    """The least time in which a trial was trained to the end; None before any was."""
    clock = clock_of(trials)
    finished = [clock.seconds(trial.record) for trial in trials if trial.record and trial.status == "finished"]
    return min(finished, default=None)


def objective_within(trial: Trial, objective: Objective, seconds: float, clock: Clock) -> float:
    """The objective of a trial after so many seconds of its training, epochs being of one length; infinite before its first epoch."""
    record = trial.record
    if record is None or trial.objective is None or record.epochs < 1 or clock.seconds(record) <= 0:
        return math.inf
    epochs = min(record.epochs, int(seconds * record.epochs / clock.seconds(record) + 1e-9))
    value = objective_value(record, objective, epochs) if epochs else None
    return math.inf if value is None else value


def standings(campaign: CampaignFacts) -> list[Standing]:
    """All architectures that were tried, the smallest error first."""
    seconds, objective = shortest_training(campaign.trials), campaign.search.get("objective", "valid/loss")
    clock = clock_of(campaign.trials)
    result = []
    for kind in sorted({trial.architecture for trial in campaign.trials} - {""}):
        own = tuple(trial for trial in campaign.trials if trial.architecture == kind)
        scored = [trial for trial in own if trial.objective is not None]
        within = [] if seconds is None else [objective_within(trial, objective, seconds, clock) for trial in scored]
        best = min(scored, key=lambda trial: trial.objective or 0.0, default=None)
        result.append(Standing(kind=kind, trials=own, best=best, in_time=min(within, default=math.inf)))
    return sorted(result, key=lambda one: (one.error, one.kind))


def architectures_table(campaign: CampaignFacts) -> Table | None:
    """One line per architecture, the smallest error first; None where there was no choice."""
    rows, seconds, clock = standings(campaign), shortest_training(campaign.trials), clock_of(campaign.trials)
    if len(rows) < 2:
        return None
    within = "within the shortest training" if seconds is None else f"within {duration(seconds)}"
    return Table(
        header=(
            *("architecture", "trials", "trained to the end", "failed"),
            *(f"best {campaign.measure}", f"{clock.words} of that trial", "its graphs per second", f"best {within}"),
        ),
        rows=tuple(
            (
                *(one.kind, str(len(one.trials)), str(one.finished), str(one.failed), _number(one.error)),
                *_of_record(one.best, clock),
                _number(one.in_time),
            )
            for one in rows
        ),
        caption=_caption(rows, seconds, clock),
    )


def _of_record(trial: Trial | None, clock: Clock) -> tuple[str, str]:
    """Time of a trial, and its graphs per second."""
    if trial is None or trial.record is None:
        return "–", "–"
    return duration(clock.seconds(trial.record)), f"{clock.graphs_per_second(trial.record):.0f}"


def _number(value: float) -> str:
    return measured(value) if math.isfinite(value) else "–"


def _caption(rows: Sequence[Standing], seconds: float | None, clock: Clock) -> str:
    """Who wins per error, and who per second."""
    if not math.isfinite(rows[0].error):
        return "Architectures; none has a result yet."
    text = f"Architectures, the smallest error first: {rows[0].kind} wins per error"
    quickest = min(rows, key=lambda one: one.in_time)
    by = " of processors" if clock.processor else ""
    if seconds is not None and math.isfinite(quickest.in_time):
        text += f", {quickest.kind} per second: in {duration(seconds)}{by}, the shortest training to the end, it came furthest"
    return f"{text}. Few trials of an architecture say little about it."
