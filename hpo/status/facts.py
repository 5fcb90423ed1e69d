"""Status of a campaign, from its journal alone, from any machine."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hydragnn.base.shown import Shown
from hydragnn.hpo.costs import Estimates
from hydragnn.hpo.folder import NAME, campaign_table
from hydragnn.hpo.fronts import Bounds, front_of
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import followed, young_garbage_only
from hydragnn.hpo.lines import LineChain
from hydragnn.hpo.objective import goals_of, quantity_text
from hydragnn.hpo.scheduling.events import node_of
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.search_settings import sampler_text, search_settings
from hydragnn.hpo.space.parameters import place_of
from hydragnn.hpo.space.points import Point, space_of
from hydragnn.hpo.status.timeline import FaultRow, NodeHours, TimelineBuilder, local_nodes

AnyTrial = TypeVar("AnyTrial", bound=Trial)

SILENT = 180.0  # seconds without a line after which the controller counts as gone

ENDINGS: dict[str, str] = {
    "finished": "all trials done",
    "hours": "max_hours spent; raise it and continue with --resume",
    "node_hours": "max_node_hours spent; raise it and continue with --resume",
    "walltime": "the allocation ended; continue with --resume",
    "stopped": "interrupted; continue with --resume",
    "hopeless": "every trial failed",
}
"""Endings in words, and how the campaign can go on."""

TRIALS = {
    "running": "running",
    "waiting": "waiting",
    "paused": "at a rung",
    "finished": "trained to the end",
    "failed": "failed",
    "lost": "lost to the machine",
    "asked": "not started",
}
"""Trials by status, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RungStatus:
    """Trials that reached a rung."""

    epochs: int
    reached: int
    best: float | None
    """Lowest objective at this rung."""
    trial: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """Leading trial, by the first objective, within all bounds."""

    trial: int
    value: float
    values: Point
    """Its configuration by path."""
    others: tuple[float, ...] = ()
    """Further objectives, where there are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCounts:
    """Counts of nodes; a node with one busy slot is busy."""

    known: int
    busy: int
    idle: int
    probing: int
    quarantined: tuple[str, ...]
    local: bool
    """True where they are worker processes of one machine."""

    @property
    def noun(self) -> str:
        """Noun for one of them."""
        return "worker" if self.local else "node"

    @property
    def text(self) -> str:
        """The counts in words, those that are zero left out.

        >>> NodeCounts(known=8, busy=5, idle=2, probing=0, quarantined=("n7",), local=False).text
        '5 nodes busy, 2 idle, 1 quarantined'
        """
        noun = self.noun + "s" * (self.busy != 1)
        rest = {"idle": self.idle, "being probed": self.probing, "quarantined": len(self.quarantined)}
        return ", ".join([f"{self.busy} {noun} busy", *(f"{count} {word}" for word, count in rest.items() if count)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """State of the cost model."""

    measured: int
    error: float | None
    """Mean relative error of seconds per epoch; None for few trials. Every trial is predicted from all others."""
    scaling: float | None
    """Slots at which half of the speed is lost; None if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetUse:
    """Use of a limit."""

    name: str
    used: int | float
    limit: int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """End of a campaign at its pace so far."""

    seconds: float
    by: str
    """``finished`` where all trials will be done, otherwise the budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignStatus(Shown):
    """Status that ``hydragnn status`` shows."""

    campaign: str
    status: str
    """running, silent, begun (nothing happened yet), or the ending."""
    silence: float
    """Seconds since the last sign of life."""
    seconds: float
    """Seconds of campaign, pauses left out."""
    planned: int
    """Trials that were asked for."""
    trials: dict[str, int]
    """Trials by status; paused ones rest at a rung."""
    stand_ins: int
    """Trials with a random configuration because the sampler had none in time."""
    sampler: str = ""
    """Sampler of the other trials, and why it was chosen."""
    rungs: tuple[RungStatus, ...]
    best: Best | None
    objectives: tuple[str, ...] = ()
    """Names of several objectives; empty where there is one."""
    front: tuple[Best, ...] = ()
    """Finished trials within bounds that none dominates, by the first objective."""
    nodes: NodeCounts
    goodput: float | None
    """Useful share of the allocated node-hours; running attempts count."""
    node_hours: NodeHours
    faults: tuple[FaultRow, ...]
    trouble: dict[str, int | float | None] | None
    """Outages of the machine on the clock of the journal: ``number``, ``since``, ``until``; None without any."""
    costs: Costs = Costs(measured=0, error=None, scaling=None)
    budgets: tuple[BudgetUse, ...]
    forecast: Forecast | None

    def to_json(self) -> dict[str, Any]:
        """The status as plain JSON."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """The status with a table of the front: objectives and configurations."""
        names = ("trial", *self.objectives)
        front = [{**dict(zip(names, (one.trial, one.value, *one.others))), **one.values} for one in self.front]
        return {**self.to_json(), "front": front}

    def __str__(self) -> str:
        """Return state, finished trials, the best one and node counts."""
        best = "" if self.best is None else f"; best: trial {self.best.trial} with {self.best.value:.6g}"
        return f"{self.campaign}: {self.status}, {self.trials['finished']} of {self.planned} trials done{best}; {self.nodes.text}"


class Follower:
    """Reader of a growing journal; InputError for a folder without campaign."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        table = campaign_table(folder)
        search = search_settings(table.get("search", {}), str(folder / NAME))
        self._sampler, self._estimates = search.sampler, Estimates(space_of(search.space))
        goals = goals_of(search.objective)
        self._objectives = tuple(quantity_text(goal.of) for goal in goals) if len(goals) > 1 else ()
        self.builder = TimelineBuilder()
        """Timeline so far."""
        self._chain, self._last = LineChain(folder / JOURNAL), 0.0
        self.update()

    def update(self) -> bool:
        """Read new complete lines; return False without any."""
        path, state, before = self._folder / JOURNAL, self.builder.state, self._chain.length
        with young_garbage_only():
            for entry in followed(path, self._chain, state, brief=True):
                self.builder.observe(entry.event, state, entry.time)
                self._estimates.follow(entry.event, state)
                self._last = entry.time
        return self._chain.length > before

    @property
    def sampler(self) -> str:
        """Sampler of the search, and why it was chosen."""
        state = self.builder.state
        return sampler_text(self._sampler, state.at_once, max(1, len(state.plan.bounds)))

    def status(self) -> CampaignStatus:
        """Return the status as far as the journal was read."""
        with young_garbage_only():
            estimates = self._estimates
            estimates.fit(self.builder.state)
            error = estimates.law.error if estimates.law else None
            silence = max(0.0, self._clock() - self._last) if self._last else 0.0
            return replace(
                status_of(self.builder, self._folder, self._last, silence),
                sampler=self.sampler,
                objectives=self._objectives,
                costs=Costs(measured=len(estimates.measured), error=error, scaling=estimates.scaling),
            )


def status_of(builder: TimelineBuilder, folder: Path, last: float, silence: float = 0.0) -> CampaignStatus:
    """Return the status at time ``last``, without sampler and costs."""
    state = builder.state
    timeline = builder.timeline(last or None)
    hours, seconds, best = timeline.node_hours(), state.elapsed(last) if last else 0.0, state.best
    status = (state.ending or "stopped") if state.closed else "silent" if silence > SILENT else "running"
    return CampaignStatus(
        campaign=str(folder),
        status=status if last else "begun",
        silence=silence,
        seconds=seconds,
        planned=state.plan.trials,
        trials={status: state.count(status) for status in TRIALS},
        stand_ins=sum(trial.origin == "stand-in" for trial in state.trials.values()),
        rungs=tuple(
            RungStatus(
                epochs=epochs,
                reached=len(rung.reached),
                best=None if number is None else state.trials[number].results[level],
                trial=number,
            )
            for level, (epochs, rung) in enumerate(zip(state.plan.rungs, state.rungs))
            for number in [rung.reached[0][1] if rung.reached else None]
        ),
        best=None if best is None else _best(best),
        front=tuple(map(_best, front_trials(state.trials.values(), state.plan.bounds))) if state.plan.bounds else (),
        nodes=node_counts(state),
        goodput=hours.goodput,
        node_hours=hours,
        faults=timeline.faults(),
        trouble=_trouble(state),
        budgets=_budgets(state, seconds, last),
        forecast=forecast(state, last),
    )


def _best(trial: Trial) -> Best:
    value, *others = trial.values_at(-1)
    return Best(trial=trial.number, value=value, values=trial.values, others=tuple(others))


def front_trials(trials: Iterable[AnyTrial], bounds: Bounds) -> list[AnyTrial]:
    """Return the front of finished trials within bounds, by first objective."""
    finished = [trial for trial in trials if trial.status == "finished"]
    return [finished[index] for index in front_of([trial.values_at(-1) for trial in finished], bounds)]


def campaign_status(folder: Path | str) -> CampaignStatus:
    """Return the status of a folder; InputError without a campaign."""
    return Follower(Path(folder)).status()


def forecast(state: State, now: float) -> Forecast | None:
    """Return the end at the pace so far, or by budget.

    The pace counts the epochs that the rungs will require. None start the first result and after the end.
    """
    epochs = sum(trial.epochs for trial in state.trials.values())
    if not epochs or not state.plan.rungs or state.closed:
        return None
    start, total, reaching = 0, 0.0, float(state.plan.trials)
    reduction, floor = state.plan.reduction, float(min(state.plan.finalists, state.plan.trials))
    for rung in state.plan.rungs:
        total += reaching * (rung - start)
        start, reaching = rung, max(reaching / reduction, floor)
    rest, until = max(0.0, (total - epochs) * state.elapsed(now) / epochs), state.ends - now
    if until < rest:
        return Forecast(seconds=max(0.0, until), by=state.ends_by)
    return Forecast(seconds=rest, by="finished")


def node_counts(state: State) -> NodeCounts:
    """Return counts of nodes by what they do."""
    busy = {node_of(slot) for trial in state.running for slot in trial.slots}
    out = {name: node.status for name, node in state.health.items() if node.status != "pool" and name not in busy}
    return NodeCounts(
        known=len(state.nodes),
        busy=len(busy),
        idle=max(0, len(state.nodes) - len(busy) - len(out)),
        probing=sum(status == "probing" for status in out.values()),
        quarantined=tuple(sorted(name for name, status in out.items() if status == "quarantined")),
        local=local_nodes(state.nodes),
    )


def counts_text(statuses: Mapping[str, int]) -> str:
    """Return counts of trials by status in words.

    >>> counts_text({"failed": 2, "finished": 1, "asked": 1})
    '1 trained to the end, 2 failed'
    """
    return ", ".join(f"{statuses[key]} {word}" for key, word in TRIALS.items() if statuses.get(key) and key != "asked")


def duration(seconds: int | float) -> str:
    """Return a time in the units in which people count it.

    >>> duration(5.3), duration(119.9), duration(7260)
    ('5.3 s', '2 min 0 s', '2 h 1 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def values_line(values: Point) -> str:
    """A configuration in one line: the last word of each path.

    >>> values_line({"model.hidden_dim": 64, "train.learning_rate": 0.00123456})
    'hidden_dim=64 learning_rate=0.00123'
    """
    return " ".join(
        f"{place_of(path).rpartition('.')[2]}={f'{value:.3g}' if isinstance(value, float) else value}"
        for path, value in values.items()
    )


def _trouble(state: State) -> dict[str, int | float | None] | None:
    values = {key: getattr(state.trouble, key) for key in ("number", "since", "until")}
    return {key: value if math.isfinite(value) else None for key, value in values.items()} if values["number"] else None


def _budgets(state: State, seconds: float, now: float) -> tuple[BudgetUse, ...]:
    plan = state.plan
    budgets = [BudgetUse(name="trials", used=len(state.trials) - state.count("asked"), limit=plan.trials)]
    if plan.max_seconds is not None:
        budgets.append(BudgetUse(name="hours", used=seconds / 3600, limit=plan.max_seconds / 3600))
    if plan.max_node_seconds is not None:
        used = state.node_seconds(now) / 3600
        budgets.append(BudgetUse(name="node-hours", used=used, limit=plan.max_node_seconds / 3600))
    return tuple(budgets) if plan.trials else ()
