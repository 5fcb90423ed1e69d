"""The whole campaign as one value: trials, rungs, slots and budgets, with the indexes that make every decision quick."""

import math
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from immutables import Map
from msgspec import Struct, field
from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Ending, Origin, Plan, node_of
from hydragnn.hpo.scheduling.node_health import Node, NodeHealth, with_count
from hydragnn.hpo.scheduling.ordered import Pool, Ranking
from hydragnn.hpo.scheduling.sizing import Load, Mean
from hydragnn.record import Failure

Touched = tuple[int | str, Any] | None
"""A list of trials by number and nodes by name: the latest, and the list before it."""

TrialStatus = Literal["asked", "waiting", "running", "paused", "finished", "failed", "lost"]


class Trial(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One configuration on its way through the rungs."""

    number: int
    status: TrialStatus = "asked"
    values: dict[str, Any] = field(default_factory=dict)
    origin: Origin = "sampler"
    results: tuple[float, ...] = ()
    """The objective at every rung passed."""
    epochs: int = 0
    """Epochs that a next attempt need not do again."""
    passed: int = 0
    """Epochs at the last rung passed."""
    seconds: float = 0.0
    """Training time up to the last rung passed."""
    attempt: int = 0
    faults: int = 0
    """Faults of the machine since it last gained an epoch or passed a rung."""
    failure: Failure | None = None
    slots: tuple[str, ...] = ()
    begun: float = 0.0
    """When the first attempt started."""
    started: float = 0.0
    """When the latest attempt started."""
    turn: int = 0
    """How many attempts of the campaign had started before it."""
    trouble: int = 0
    """The latest trouble of the machine that it met since it last gained an epoch or passed a rung; 0: none."""
    shown: tuple[tuple[float, float], ...] = ()
    """(time, epochs) at which the latest attempt showed its progress: first, the time before last, and last."""
    slow: int = 0
    """So many looks in a row found the latest attempt slow."""
    moved: int = 0
    """So many attempts were slow since the last rung, and went on elsewhere."""
    identity: dict[str, Any] | None = None
    cancelled: str = ""
    work: float | None = None
    """Seconds per epoch on one slot: an estimate until the trial is ``measured``; None where nothing is known."""
    scaling: float | None = None
    """Slots at which half of the speed is lost; None: no loss."""
    measured: bool = False
    memory_mb: float = 0.0
    """Peak memory of one rank; 0 where unknown."""
    micro_batches: int = 1
    """Parts in which every batch is computed, doubled whenever memory runs out."""

    @property
    def value(self) -> float | None:
        """The objective at the last rung passed; None before the first."""
        return self.results[-1] if self.results else None


class Rung(Struct, frozen=True):
    """Who reached a rung, and who still rests there."""

    reached: Ranking = field(default_factory=Ranking)
    paused: Ranking = field(default_factory=Ranking)

    def promotable(self, reduction: int) -> int:
        """How many of those that rest belong to the best ``1 / reduction`` of those that reached the rung; they are the best that rest."""
        limit = len(self.reached) // reduction
        return len(self.paused) if limit == len(self.reached) else self.paused.rank(self.reached[limit])


class Target(Struct, frozen=True):
    """When all unfinished trials are to end together, and for what that was found."""

    time: float = math.inf
    trials: int = 0
    slots: int = 0

    def serves(self, trials: int, slots: int) -> bool:
        """Return True where it is still good enough for so many unfinished trials on so many slots: within a tenth of both."""
        return 10 * abs(trials - self.trials) <= self.trials and 10 * abs(slots - self.slots) <= self.slots


class VainAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that a fault of the machine ended before it gained an epoch, for no reason that is known."""

    trial: int
    attempt: int
    turn: int
    node: str
    """The first of its nodes."""
    seconds: float
    """How long it took to fail."""


class Trouble(Struct, frozen=True, kw_only=True):
    """What speaks against the machine as a whole."""

    latest: tuple[VainAttempt, ...] = ()
    """The latest attempts in vain, each of another trial and on another node; empty while there is trouble."""
    number: int = 0
    """How many troubles there were, this one included."""
    since: float = math.inf
    """When it began; infinite where the machine is in order."""
    spells: int = 0
    """Troubles in a row, this one included, without an attempt in between that was seen to work."""
    first: int = 0
    """The turn of the first attempt that tries the machine again."""
    vain: int = 0
    """How many of those that try it again came to nothing."""
    until: float = -math.inf
    """Nothing starts before."""
    proof: float = math.inf
    """Seconds that an attempt has to live to show that the machine works."""
    sick: int = 0
    """Probes in a row that failed, before any was answered well."""
    well: int = 0
    """Probes in a row that were answered well, after enough had failed."""


class State(Struct, frozen=True, kw_only=True, eq=False):
    """The whole campaign; made by ``transition`` only."""

    plan: Plan = field(default_factory=lambda: Plan(trials=0, rungs=(1,)))
    slots: tuple[str, ...] = ()
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The slots of every node."""
    free: Pool = field(default_factory=Pool)
    health: NodeHealth = field(default_factory=NodeHealth)
    trials: Map[int, Trial] = field(default_factory=Map)
    """All trials by number; in no order."""
    active: Map[int, int] = field(default_factory=Map)
    """The attempts that run, by trial."""
    counts: Map[str, int] = field(default_factory=Map)
    """How many trials have a status."""
    rungs: tuple[Rung, ...] = ()
    waiting: tuple[int, ...] = ()
    """Trials that are ready to go on, first come first."""
    asked: int = 0
    """Proposals that are still to come."""
    exhausted: bool = False
    succeeded: bool = False
    failures: int = 0
    """Trials that came to nothing since the campaign was opened, while nothing has succeeded yet."""
    ending: Ending | None = None
    """Why nothing more is started; the campaign is over once ``closed``."""
    closed: bool = False
    session_start: float = 0.0
    """When the present controller began, on the clock of the events."""
    last: float = 0.0
    spent: float = 0.0
    """Seconds under earlier controllers."""
    spent_node: float = 0.0
    """Seconds times nodes under earlier controllers."""
    ends: float = math.inf
    """When the first budget, or the allocation, is used up."""
    ends_by: Ending = "walltime"
    """Which one it is."""
    starts: int = 0
    """Attempts so far."""
    disturbed: int = 0
    """Those of them that faults of the machine ended, outside of its troubles."""
    trouble: Trouble = field(default_factory=Trouble)
    due: float = math.inf
    """Before this moment the clock alone changes nothing about attempts and nodes."""
    leader: int | None = None
    """The trial with the lowest objective."""
    target: Target = field(default_factory=Target)
    looked: float = -math.inf
    """When it was last asked which attempt should go on with idle slots."""
    startup: Mean = field(default_factory=Mean)
    """Seconds from a start to the first step."""
    work: Mean = field(default_factory=Mean)
    """Seconds per epoch on one slot, as measured."""
    touched: Touched = None
    """What the last event changed, some perhaps more than once; no part of what makes two states equal."""

    def __eq__(self, other: object) -> bool:
        same = (getattr(self, name) == getattr(other, name) for name in self.__struct_fields__ if name != "touched")
        return isinstance(other, State) and all(same)

    @property
    def running(self) -> list[Trial]:
        """Trials that are being trained, by number."""
        return [self.trials[number] for number in sorted(self.active)]

    @property
    def best(self) -> Trial | None:
        """The trial with the lowest objective at the last rung it passed; None before the first result."""
        return None if self.leader is None else self.trials[self.leader]

    @property
    def healthy(self) -> int:
        """Slots that are free or in use, those kept back left out."""
        return len(self.slots) - self.health.held

    @property
    def least(self) -> int:
        """Slots that every attempt gets at least; fewer than planned where there are not so many."""
        return least_slots(self.plan, self.slots)

    @property
    def most(self) -> int:
        """Slots that an attempt gets at most."""
        return most_slots(self.plan, self.slots)

    @property
    def simple(self) -> bool:
        """True for journals from before nodes had a health: all slots are on the machine ``local``, whose faults are not its own."""
        return len(self.nodes) == 1 and "local" in self.nodes

    def status(self, number: int) -> TrialStatus:
        """The status of a trial; KeyError for one that there is not."""
        return self.trials[number].status

    def elapsed(self, now: float) -> float:
        """Seconds of campaign up to now, pauses between controllers left out."""
        return self.spent + max(0.0, now - self.session_start)

    def node_seconds(self, now: float) -> float:
        """Seconds times nodes up to now, idle ones included."""
        return self.spent_node + max(0.0, now - self.session_start) * len(self.nodes)

    def count(self, *statuses: str) -> int:
        """How many trials have one of the statuses."""
        return sum(self.counts.get(status, 0) for status in statuses)


def least_slots(plan: Plan, slots: Sequence[str]) -> int:
    """Slots that every attempt gets at least."""
    return max(1, min(plan.min_slots, len(slots)))


def most_slots(plan: Plan, slots: Sequence[str]) -> int:
    """Slots that an attempt gets at most."""
    return max(least_slots(plan, slots), min(plan.max_slots, len(slots)))


def speed_of(plan: Plan, slots: Sequence[str]) -> float:
    """Return how many of the fastest slots do the work of these, whose ranks wait for the slowest.

    >>> speed_of(Plan(trials=1, rungs=(1,), sizes={"a": 1.0, "b": 0.5}), ("a", "b"))
    1.0
    """
    slowest = min((plan.sizes.get(node_of(slot), 1.0) for slot in slots), default=1.0) if plan.sizes else 1.0
    return len(slots) * slowest


def attempts_at_once(plan: Plan, slots: Sequence[str]) -> int:
    """How many attempts can run at once, each on as few slots as can be."""
    return len(slots) // least_slots(plan, slots)


def with_trial(state: State, trial: Trial) -> State:
    """The state with a trial replaced or added; the indexes follow its status."""
    before = state.trials.get(trial.number)
    if before is not None and before.status == trial.status:
        active = state.active
        if trial.status == "running" and before.attempt != trial.attempt:
            active = active.set(trial.number, trial.attempt)
        return replace(
            state, trials=state.trials.set(trial.number, trial), active=active, touched=(trial.number, state.touched)
        )
    counts, active = state.counts, state.active
    if before is not None:
        counts = with_count(counts, before.status, -1)
        active = active.delete(trial.number) if before.status == "running" else active
    counts = with_count(counts, trial.status, 1)
    active = active.set(trial.number, trial.attempt) if trial.status == "running" else active
    return replace(
        state,
        trials=state.trials.set(trial.number, trial),
        counts=counts,
        active=active,
        touched=(trial.number, state.touched),
    )


def without_trial(state: State, number: int) -> State:
    """The state without a trial that was asked for only."""
    counts = with_count(state.counts, "asked", -1)
    return replace(state, trials=state.trials.delete(number), counts=counts, touched=(number, state.touched))


def with_node(state: State, name: str, node: Node) -> State:
    """The state in which this is what speaks against a node."""
    return replace(state, health=state.health.with_node(name, node), touched=(name, state.touched))


def without_node(state: State, name: str) -> State:
    """The state in which nothing speaks against a node any more."""
    return replace(state, health=state.health.without(name), touched=(name, state.touched))


def nodes_of(slots: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The slots of every node.

    >>> nodes_of(["a/0", "b", "a/1"])
    {'a': ('a/0', 'a/1'), 'b': ('b',)}
    """
    nodes: dict[str, list[str]] = {}
    for slot in slots:
        nodes.setdefault(node_of(slot), []).append(slot)
    return {name: tuple(of_node) for name, of_node in nodes.items()}


def resting_entry(trial: Trial) -> tuple[int, tuple[float, int]] | None:
    """The rung on which a paused trial rests, and its entry there; None for others."""
    if trial.status != "paused":
        return None
    return len(trial.results) - 1, (trial.results[-1], trial.number)


def with_waiting(state: State, trial: Trial) -> State:
    """The state in which a trial, now ``waiting``, is in the line."""
    state = with_trial(state, trial)
    line = list(state.waiting)
    insort(line, trial.number, key=lambda number: _turn(state, number))
    return replace(state, waiting=tuple(line))


def in_line(state: State, numbers: Iterable[int]) -> State:
    """The state in which these trials wait; the longest segment by measurement or estimate is first."""
    return replace(state, waiting=tuple(sorted(numbers, key=lambda number: _turn(state, number))))


def with_entry(state: State, trial: Trial, level: int) -> State:
    """The state in which a trial, that just reached a rung, stands there; and the leader is known."""
    rung, entry = state.rungs[level], (trial.results[-1], trial.number)
    paused = rung.paused.with_entry(entry) if trial.status == "paused" else rung.paused
    rung = Rung(rung.reached.with_entry(entry), paused)
    return replace(
        state, rungs=(*state.rungs[:level], rung, *state.rungs[level + 1 :]), leader=_leader(state, trial, entry[0])
    )


def without_entry(state: State, trial: Trial) -> State:
    """The state in which a trial that was paused rests no more."""
    level = len(trial.results) - 1
    rung = state.rungs[level]
    rung = Rung(rung.reached, rung.paused.without_entry((trial.results[-1], trial.number)))
    return replace(state, rungs=(*state.rungs[:level], rung, *state.rungs[level + 1 :]))


def segment(state: State, trial: Trial) -> float | None:
    """Seconds on one slot up to the trial's next rung; None where its work is not known."""
    rungs = state.plan.rungs
    until = rungs[min(len(trial.results), len(rungs) - 1)]
    return None if trial.work is None else trial.work * max(0, until - trial.epochs)


def remaining(state: State, trial: Trial, work: float) -> Load:
    """What is expected to be left of a trial, if every rung lets ``1 / reduction`` through; ``work`` where its own is not known."""
    epochs, share, at = 0.0, 1.0, trial.epochs
    for rung in state.plan.rungs[len(trial.results) :]:
        epochs += share * max(0, rung - at)
        share, at = share / state.plan.reduction, max(at, rung)
    return Load((work if trial.work is None else trial.work) * epochs, trial.scaling)


def _turn(state: State, number: int) -> tuple[float, int]:
    return (0.0 if state.simple else -(segment(state, state.trials[number]) or 0.0), number)


def _leader(state: State, trial: Trial, value: float) -> int:
    """The best trial after one has a new value; a look at all of them only where the leader itself got worse."""
    if state.leader is None:
        return trial.number
    best = state.trials[state.leader].results[-1]
    if state.leader != trial.number:
        return min((best, state.leader), (value, trial.number))[1]
    if len(trial.results) < 2 or value <= trial.results[-2]:
        return trial.number
    return min((other.results[-1], number) for number, other in state.trials.items() if other.results)[1]
