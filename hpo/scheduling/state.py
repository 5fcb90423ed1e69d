"""The state of a campaign, and how it changes.

A campaign changes by the methods of ``State`` only. While a controller runs, the rules call them (``scheduler.decide``), and
``changes`` says as plain JSON what an event changed. A journal is read by ``apply``, which calls the same methods with what
``changes`` said and decides nothing, so that rules may differ from version to version.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from dataclasses import field as dataclass_field
from itertools import takewhile
from operator import attrgetter
from typing import Any, Literal, get_type_hints

from msgspec import UNSET, Raw, Struct, UnsetType, defstruct, field
from msgspec.json import Decoder
from msgspec.structs import asdict as members_of
from msgspec.structs import replace

from hydragnn.base.errors import InputError
from hydragnn.hpo.fronts import Bounds, places, violation
from hydragnn.hpo.scheduling.events import Ending, Event, Failed, Opened, Origin, Plan, Reached, node_of
from hydragnn.hpo.scheduling.node_health import NodeEntry, NodeHealth
from hydragnn.hpo.scheduling.pool import FreeChange, Pool
from hydragnn.hpo.scheduling.sizing import Load, Mean
from hydragnn.record import Failure

Changes = dict[str, Any]
"""Changed members of ``trials`` and ``nodes`` by name (null: removed), edits of ``waiting`` and ``free``, and other members whole."""

Written = dict[str, Raw]  # changes as a journal has them: the JSON text of each by its name

DELAY = 2
"""Results at a rung for every promotion from it, of several objectives."""

TrialStatus = Literal["asked", "waiting", "running", "paused", "finished", "failed", "lost"]
FAILED = ("failed", "lost")
"""States of trials that ended without a result."""


class Trial(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One configuration on its way through the rungs."""

    number: int
    status: TrialStatus = "asked"
    values: dict[str, Any] = field(default_factory=dict)
    origin: Origin = "sampler"
    results: tuple[float, ...] = ()
    """The objective at every rung passed; the first of several."""
    others: tuple[tuple[float, ...], ...] = ()
    """Further objectives at every rung passed."""
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
    """Start of the first attempt."""
    started: float = 0.0
    """Start of the latest attempt."""
    turn: int = 0
    """Attempts of the campaign that had started before it."""
    trouble: int = 0
    """The latest trouble of the machine that it met since it last gained an epoch or passed a rung; 0: none."""
    shown: tuple[tuple[float, float], ...] = ()
    """(time, epochs) at which the latest attempt showed its progress: first, the time before last, and last."""
    slow: int = 0
    """Looks in a row that found the latest attempt slow."""
    moved: int = 0
    """Attempts since the last rung that were slow and went on elsewhere."""
    identity: dict[str, Any] | None = None
    cancelled: str = ""
    work: float | None = None
    """Seconds per epoch on one slot: an estimate until the trial is ``measured``; None where nothing is known."""
    scaling: float | None = None
    """Slots at which half of the speed is lost; None: no loss."""
    measured: bool = False
    memory_mb: float = 0.0
    """Peak memory of one rank; 0 where unknown."""
    speed: float = 0.0
    """Graphs of training per second in its first segment, all ranks together; 0 where unknown."""
    micro_batches: int = 1
    """Parts in which every batch is computed, doubled whenever memory runs out."""

    @property
    def value(self) -> float | None:
        """The objective at the last rung passed; None before the first."""
        return self.results[-1] if self.results else None

    def values_at(self, level: int) -> tuple[float, ...]:
        """Return all objectives at a rung passed; -1 is the last."""
        return (self.results[level], *(self.others[level] if self.others else ()))

    @property
    def reason(self) -> str | None:
        """The latest failure in words; None without one."""
        return None if self.failure is None else f"{self.failure.kind}: {self.failure.message}"


class CommonEnd(Struct, frozen=True):
    """Common end of all unfinished trials, and its assumptions."""

    time: float = math.inf
    trials: int = 0
    slots: int = 0

    def serves(self, trials: int, slots: int) -> bool:
        """Return True where the assumptions still hold within a tenth."""
        return 10 * abs(trials - self.trials) <= self.trials and 10 * abs(slots - self.slots) <= self.slots


class VainAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that failed without progress for no known reason."""

    trial: int
    attempt: int
    turn: int
    node: str
    """The first of its nodes."""


class Trouble(Struct, frozen=True, kw_only=True):
    """Outage of the machine, or signs of one."""

    latest: tuple[VainAttempt, ...] = ()
    """The latest attempts in vain, each of another trial and on another node; empty while there is trouble."""
    number: int = 0
    """Number of troubles, this one included."""
    since: float = math.inf
    """Its beginning; infinite where the machine is in order."""
    first: int = 0
    """The turn of the first attempt after it began, or after it ended."""
    until: float = -math.inf
    """Nothing starts before."""


RankingEntry = tuple[float, int]
"""(value, trial), or (place, trial) where there are several objectives, so that entries sort best first."""


@dataclass(slots=True)
class Rung:
    """Trials that reached a rung, and those that rest there."""

    bounds: Bounds = ()
    """Bounds of several objectives; empty where there is one."""
    reached: list[RankingEntry] = dataclass_field(default_factory=list)
    paused: list[RankingEntry] = dataclass_field(default_factory=list)
    values: dict[int, tuple[float, ...]] = dataclass_field(default_factory=dict)
    """Objectives by trial, where there are several."""

    def reach(self, number: int, values: tuple[float, ...]) -> None:
        """Add a trial with its objectives."""
        if not self.bounds:
            insort(self.reached, (values[0], number))
            return
        self.values[number] = values
        resting = {number for _, number in self.paused}
        self.reached = sorted(zip(places([*self.values.values()], self.bounds), self.values))
        self.paused = [entry for entry in self.reached if entry[1] in resting]

    def rest(self, number: int, value: float) -> None:
        """Let a trial rest here."""
        insort(self.paused, self._entry(number, value))

    def leave(self, number: int, value: float) -> None:
        """Remove a resting trial; ValueError where it does not rest."""
        entry = self._entry(number, value)
        at = bisect_left(self.paused, entry)
        if self.paused[at : at + 1] != [entry]:
            raise ValueError(f"trial {number} does not rest at this rung")
        del self.paused[at]

    def _entry(self, number: int, value: float) -> RankingEntry:
        if not self.bounds:
            return value, number
        return next((entry for entry in self.reached if entry[1] == number), (math.inf, number))

    def promotable(self, reduction: int) -> int:
        """Return how many resting trials are of the best ``1 / reduction``.

        Asynchronous halving (Li et al. 2020, arXiv:1810.05934, algorithm 2); with a reduction of 1 all trials go on. Of several
        objectives nearly every new result is at first at one end of the front: promotions wait for others
        (Li et al. 2022, arXiv:2201.06834).
        """
        count = len(self.reached)
        if (limit := count // reduction) == count:
            return len(self.paused)
        best = bisect_left(self.paused, self.reached[limit])
        gone = count - len(self.paused)
        return max(0, min(best, count // DELAY - gone)) if self.bounds else best


class State(Struct, kw_only=True, eq=False):
    """A campaign; changed in place by its methods."""

    plan: Plan = field(default_factory=lambda: Plan(trials=0, rungs=(1,)))
    slots: tuple[str, ...] = ()
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Slots of every node."""
    free: Pool = field(default_factory=Pool)
    health: NodeHealth = field(default_factory=NodeHealth)
    trials: dict[int, Trial] = field(default_factory=dict)
    """All trials by number."""
    active: dict[int, int] = field(default_factory=dict)
    """Running attempts by trial."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of trials by status."""
    rungs: list[Rung] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    """Trials that are ready to go on, in the order in which they will."""
    ended: tuple[Trial, ...] = ()
    """Trials whose attempts the latest event ended, as they were before it."""
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
    """Start of the present controller on the clock of the events."""
    last: float = 0.0
    spent: float = 0.0
    """Seconds under earlier controllers."""
    spent_node: float = 0.0
    """Seconds times nodes under earlier controllers."""
    ends: float = math.inf
    """End of the first budget, or of the allocation."""
    ends_by: Ending = "walltime"
    """Name of that budget."""
    starts: int = 0
    """Attempts so far."""
    trouble: Trouble = field(default_factory=Trouble)
    due: float = math.inf
    """Before this moment the clock alone changes nothing about attempts and nodes."""
    leader: int | None = None
    """The trial with the lowest objective."""
    target: CommonEnd = field(default_factory=CommonEnd)
    looked: float = -math.inf
    """Time of the last question which attempt should go on with idle slots."""
    startup: Mean = field(default_factory=Mean)
    """Seconds from a start to the first step."""
    work: Mean = field(default_factory=Mean)
    """Seconds per epoch on one slot, as measured."""
    changed: bool = False
    """True where the present event changed anything."""
    previous: dict[int | str, Any] = field(default_factory=dict)
    """Trials by number and nodes by name as they were before the present event, the latest change last."""
    line: list[int] | None = None
    """``waiting`` before the present event; None where it did not change."""
    members: tuple[Any, ...] = ()
    """Values of ``MEMBERS`` before the present event."""

    def __eq__(self, other: object) -> bool:
        names = (*INDEXED, *MEMBERS)
        return isinstance(other, State) and all(getattr(self, name) == getattr(other, name) for name in names)

    @property
    def running(self) -> list[Trial]:
        """Return the running trials by number."""
        return [self.trials[number] for number in sorted(self.active)]

    @property
    def best(self) -> Trial | None:
        """Return the leading trial; None before the first result."""
        return None if self.leader is None else self.trials[self.leader]

    @property
    def healthy(self) -> int:
        """Return how many slots are free or in use."""
        return len(self.slots) - self.health.held

    @property
    def least(self) -> int:
        """Return how many slots every attempt gets at least."""
        return max(1, min(self.plan.min_slots, len(self.slots)))

    @property
    def most(self) -> int:
        """Return how many slots an attempt gets at most."""
        return max(self.least, min(self.plan.max_slots, len(self.slots)))

    @property
    def at_once(self) -> int:
        """Return how many attempts can run at once."""
        return len(self.slots) // self.least

    def elapsed(self, now: float) -> float:
        """Return the seconds of campaign, pauses left out."""
        return self.spent + max(0.0, now - self.session_start)

    def node_seconds(self, now: float) -> float:
        """Return seconds times nodes up to now, idle nodes included."""
        return self.spent_node + max(0.0, now - self.session_start) * len(self.nodes)

    def count(self, *statuses: str) -> int:
        """Return how many trials have one of the statuses."""
        return sum(self.counts[status] for status in statuses)

    # changes

    def begin(self, event: Event) -> None:
        """Note what an event changes from now on."""
        self.changed, self.previous, self.line, self.members = False, {}, None, MEMBER_VALUES(self)
        self.free.begin()
        self._end_attempts(event)

    def set(self, **members: Any) -> None:
        """Give members other values."""
        self.changed = True
        for name, value in members.items():
            setattr(self, name, value)

    def open(self, plan: Plan, slots: tuple[str, ...]) -> None:
        """Take the plan and the slots of a new controller."""
        self.set(plan=plan, slots=slots, nodes=nodes_of(slots))
        if not self.rungs:
            self.rungs = [Rung(plan.bounds) for _ in plan.rungs]

    def put_trial(self, trial: Trial) -> None:
        """Add or replace a trial; indexes and rungs follow."""
        number = trial.number
        previous = self._touch(number, self.trials.get(number))
        self.trials[number] = trial
        if previous is None or previous.status != trial.status:
            self._count(previous, trial)
        elif trial.status == "running":
            self.active[number] = trial.attempt
        if previous is None or previous.results is not trial.results:
            for level in range(0 if previous is None else len(previous.results), len(trial.results)):
                self.rungs[level].reach(number, trial.values_at(level))

    def drop_trial(self, number: int) -> None:
        """Remove a trial that has no results; KeyError where there is none."""
        self._touch(number, self.trials[number])
        self._count(self.trials.pop(number), None)

    def _count(self, previous: Trial | None, current: Trial | None) -> None:
        """Let the indexes follow a status that changed."""
        if previous is not None:
            self.counts[previous.status] -= 1
            if previous.status == "running":
                del self.active[previous.number]
            elif previous.status == "paused":
                self.rungs[len(previous.results) - 1].leave(previous.number, previous.results[-1])
        if current is not None:
            self.counts[current.status] += 1
            if current.status == "running":
                self.active[current.number] = current.attempt
            elif current.status == "paused":
                self.rungs[len(current.results) - 1].rest(current.number, current.results[-1])

    def put_node(self, name: str, node: NodeEntry | None) -> None:
        """Replace the health of a node; None: it is healthy."""
        self._touch(name, self.health.get(name))
        self.health.put(name, node)

    def put_waiting(self, numbers: Iterable[int]) -> None:
        """Replace the line of waiting trials."""
        self.line = self.waiting if self.line is None else self.line
        self.changed, self.waiting = True, list(numbers)

    def _touch(self, name: int | str, previous: Any) -> Any:
        """Note a trial or node that changes, and return it."""
        self.changed = True
        self.previous[name] = self.previous.pop(name, previous)
        return previous

    def _end_attempts(self, event: Event) -> None:
        """Note the trials whose attempts an event ends."""
        self.ended = ()
        if isinstance(event, Reached | Failed):
            if self.active.get(event.trial) == event.attempt:
                self.ended = (self.trials[event.trial],)
        elif isinstance(event, Opened):
            self.ended = tuple(self.running)

    def changes(self) -> Changes:
        """Return what has changed since ``begin``, as plain JSON."""
        trials, nodes = Changes(), Changes()
        for name in reversed(self.previous):
            previous = self.previous[name]
            if isinstance(name, str):
                current: Any = self.health.get(name)
                if previous != current:
                    nodes[name] = _changed_members(previous or NodeEntry(), current)
                continue
            current = self.trials.get(name)
            if previous != current:
                trials[str(name)] = _changed_members(previous or Trial(number=name), current)
        parts: Changes = {
            "trials": trials,
            "nodes": nodes,
            "waiting": None if self.line is None or self.line == self.waiting else edit_of(self.line, self.waiting),
            "free": self.free.changes(),
        }
        after_members = zip(MEMBERS, self.members, MEMBER_VALUES(self))
        changed = {name: _plain(current) for name, previous, current in after_members if previous != current}
        return {name: part for name, part in parts.items() if part} | changed

    def apply(self, event: Event, changes: Written) -> None:
        """Apply the changes of an event; InputError where they do not fit."""
        self._end_attempts(event)
        self.previous = {}
        try:
            if isinstance(event, Opened):
                self.open(event.plan, event.slots)
            for name, text in changes.items():
                READERS[name](self, text)
        except MISFITS as error:
            raise InputError(f"its changes do not fit the campaign before them ({error})") from error

    def _apply_trials(self, text: Raw) -> None:
        for number, changed in TRIALS.decode(text).items():
            if changed is None:
                self.drop_trial(number)
            else:
                self.put_trial(replace(self.trials.get(number) or Trial(number=number), **_set_members(changed)))

    def _apply_nodes(self, text: Raw) -> None:
        for name, changed in NODES.decode(text).items():
            entry = self.health.get(name) or NodeEntry()
            self.put_node(name, None if changed is None else replace(entry, **_set_members(changed)))

    def _apply_waiting(self, text: Raw) -> None:
        start, stop, numbers = WAITING.decode(text)
        self.waiting[start:stop] = numbers


def _set_members(changed: Struct) -> dict[str, Any]:
    return {name: value for name, value in members_of(changed).items() if value is not UNSET}


INDEXED = ("plan", "slots", "nodes", "free", "health", "trials", "active", "counts", "rungs", "waiting")
"""Fields of a state that an opening gives, that follow from others, or that changes have in a form of their own."""

MEMBERS = tuple(
    name
    for name in State.__struct_fields__
    if name not in (*INDEXED, "ended", "changed", "previous", "line", "members")
)
"""Fields that changes hold whole."""

MEMBER_VALUES: Callable[[State], tuple[Any, ...]] = attrgetter(*MEMBERS)

MISFITS = (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError)
"""Errors where changes are not those of the campaign before them, or of a newer program."""


def _decoder(key: type, cls: type[Struct]) -> Decoder[dict[Any, Any]]:
    """Return a reader of changed members by name, in journal order."""
    hints = get_type_hints(cls)
    members = [(name, hint | UnsetType, UNSET) for name, hint in sorted(hints.items()) if name != "number"]
    changed: Any = defstruct(f"Changed{cls.__name__}", members, forbid_unknown_fields=True, gc=False)
    by_name: Any = dict
    return Decoder(by_name[key, changed | None], strict=False)


TRIALS = _decoder(int, Trial)
NODES = _decoder(str, NodeEntry)
FREE = Decoder(FreeChange)
WAITING = Decoder(tuple[int, int, tuple[int, ...]])


def _member_reader(name: str, hint: Any) -> Callable[[State, Raw], None]:
    decode = Decoder(hint, strict=False).decode  # infinite numbers are words
    return lambda state, text: setattr(state, name, decode(text))


READERS: dict[str, Callable[[State, Raw], None]] = {
    "trials": State._apply_trials,
    "nodes": State._apply_nodes,
    "waiting": State._apply_waiting,
    "free": lambda state, text: state.free.apply(FREE.decode(text)),
    **{name: _member_reader(name, hint) for name, hint in get_type_hints(State).items() if name in MEMBERS},
    "disturbed": lambda state, text: None,  # of 0.2.0
}
"""Readers of all changes by name."""


def _changed_members(previous: Struct, current: Struct | None) -> Changes | None:
    """Return changed members of a trial or node; None: removed."""
    if current is None:
        return None
    names = current.__struct_fields__
    return {name: _plain(value) for name in names if (value := getattr(current, name)) != getattr(previous, name)}


def edit_of(previous: list[int], current: list[int]) -> list[Any]:
    """Return the edit of a list: [start, stop, numbers].

    >>> edit_of([1, 2, 3, 4], [1, 9, 4])
    [1, 3, [9]]
    """
    start = _num_equal(zip(previous, current))
    end = _num_equal(zip(reversed(previous[start:]), reversed(current[start:])))
    return [start, len(previous) - end, current[start : len(current) - end]]


def _num_equal(pairs: Iterable[tuple[int, int]]) -> int:
    """Return how many pairs are equal at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _plain(value: Any) -> Any:
    """Return a value as JSON; infinite numbers as words."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def speed_of(plan: Plan, slots: Sequence[str]) -> float:
    """Return the equivalent number of fastest slots.

    >>> speed_of(Plan(trials=1, rungs=(1,), sizes={"a": 1.0, "b": 0.5}), ("a", "b"))
    1.0
    """
    slowest = min((plan.sizes.get(node_of(slot), 1.0) for slot in slots), default=1.0) if plan.sizes else 1.0
    return len(slots) * slowest


def nodes_of(slots: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the slots of every node.

    >>> nodes_of(["a/0", "b", "a/1"])
    {'a': ('a/0', 'a/1'), 'b': ('b',)}
    """
    nodes: dict[str, list[str]] = {}
    for slot in slots:
        nodes.setdefault(node_of(slot), []).append(slot)
    return {name: tuple(of_node) for name, of_node in nodes.items()}


def line_up(state: State, numbers: Iterable[int]) -> None:
    """Replace the waiting trials; the longest segment is first."""
    state.put_waiting(sorted(numbers, key=lambda number: _position(state, number)))


def put_in_line(state: State, trial: Trial) -> None:
    """Replace a trial, now ``waiting``, and add it to the line."""
    state.put_trial(trial)
    line = state.waiting.copy()
    insort(line, trial.number, key=lambda number: _position(state, number))
    state.put_waiting(line)


def _position(state: State, number: int) -> tuple[float, int]:
    return -(segment(state, state.trials[number]) or 0.0), number


def put_result(state: State, trial: Trial) -> None:
    """Replace a trial that reached a rung or failed; the leader follows."""
    state.put_trial(trial)
    state.set(leader=_leader(state, trial))


def _leader(state: State, trial: Trial) -> int | None:
    """Return the best trial that did not fail, after one has changed."""
    bounds, leader, has_failed = state.plan.bounds, state.leader, trial.status in FAILED

    def key(one: Trial, level: int = -1) -> tuple[float, tuple[float, ...], int]:
        return violation(one.values_at(level), bounds), one.values_at(level), one.number

    if leader is not None and leader != trial.number:
        return leader if has_failed else min(key(state.trials[leader]), key(trial))[-1]
    if not has_failed and (leader is None or len(trial.results) < 2 or key(trial) <= key(trial, -2)):
        return trial.number
    others = [key(other) for other in state.trials.values() if other.results and other.status not in FAILED]
    return min(others)[-1] if others else None


def segment(state: State, trial: Trial) -> float | None:
    """Return one-slot seconds to the next rung; None if unknown."""
    rungs = state.plan.rungs
    until = rungs[min(len(trial.results), len(rungs) - 1)]
    return None if trial.work is None else trial.work * max(0, until - trial.epochs)


def remaining(state: State, trial: Trial, work: float) -> Load:
    """Return a trial's expected remaining load.

    ``work``: seconds per epoch where its own are not known.
    """
    epochs, share, at = 0.0, 1.0, trial.epochs
    for rung in state.plan.rungs[len(trial.results) :]:
        epochs += share * max(0, rung - at)
        share, at = share / state.plan.reduction, max(at, rung)
    return Load((work if trial.work is None else trial.work) * epochs, trial.scaling)
