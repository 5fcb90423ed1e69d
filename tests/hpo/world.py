"""Campaigns of the real scheduler on a virtual clock: by hand, with the invariants under watch, or played with the faults that a test asks for."""

import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hydragnn.hpo.journal import Entry, Journal
from hydragnn.hpo.scheduling import filling, health, scheduler
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Close,
    Event,
    Failed,
    Launched,
    Opened,
    Plan,
    Probe,
    Probed,
    Propose,
    Proposed,
    Reached,
    Settle,
    Start,
    Stopping,
    Tick,
    node_of,
)
from hydragnn.hpo.scheduling.health import PATIENCE
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, State, decide
from hydragnn.hpo.scheduling.state import Changes, Written
from hydragnn.hpo.status.timeline import TimelineBuilder

STARTUP = 5.0
OWN, MACHINE = ("diverged", "out_of_memory"), ("lost_node", "launch", "preempted")


def after(state: State, now: float, *events: Event) -> list[Action]:
    """Let events happen; everything that is to be done then."""
    return [action for event in events for action in decide(state, event, now).actions]


def timeline_builder(events: Iterable[tuple[float, Event]]) -> TimelineBuilder:
    """The timeline of events, decided upon."""
    builder = TimelineBuilder()
    for now, event in events:
        decide(builder.state, event, now)
        builder.observe(event, builder.state, now)
    return builder


def nodes(number: int) -> tuple[str, ...]:
    """So many whole nodes."""
    return tuple(f"n{k}" for k in range(1, number + 1))


LATER_RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "nodes strike out at once, for long": lambda patch: (
        patch.setattr(health, "STRIKES", 1),
        patch.setattr(health, "QUARANTINE", 4000.0),
    )[0],
    "new trials first": lambda patch: patch.setattr(filling, "ready_trials", new_ones_first),
    "every trial gets all it can use": lambda patch: patch.setattr(
        filling, "fewest_slots", lambda _load, _s, _l, most: most
    ),
    "a first failure ends all hope": lambda patch: patch.setattr(scheduler, "HOPELESS", 1),
    "nobody is tried again": lambda patch: patch.setattr(scheduler, "MACHINE_FAULTS", frozenset()),
}


def new_ones_first(state: State, given: Callable[[State], Any] = filling.ready_trials) -> Any:
    """Trials in another order."""
    return sorted(given(state), key=lambda number: -1 if number is None else number)


class World:
    """One campaign, its controllers one after the other; an AssertionError where something does not hold."""

    def __init__(self, plan: Plan, slots: tuple[str, ...] = ("p0",)) -> None:
        self.plan, self.slots = plan, slots
        self.state = State()
        self.now = 1000.0
        self.running: dict[int, Start] = {}
        self.user: dict[str, int] = {}
        """The trial that uses a slot."""
        self.cancelled: set[int] = set()
        self.to_propose: list[int] = []
        self.to_probe: dict[str, float] = {}
        """When a probe was asked for."""
        self.attempts: Counter[int] = Counter()
        self.started: list[tuple[int, int]] = []
        """Trial and epoch of every segment, in order."""
        self.settled: dict[int, str] = {}
        self.closed: str | None = "not yet open"
        self.journal: list[tuple[float, Event, Changes]] = []

    # what a controller does

    def open(self, deadline: float | None = None) -> None:
        """A new controller, after whatever ended the one before."""
        for known in (self.running, self.user, self.cancelled, self.to_propose, self.to_probe):
            known.clear()
        self.settled = {number: outcome for number, outcome in self.settled.items() if outcome != "pruned"}
        self.closed = None
        self.feed(Opened(plan=self.plan, slots=self.slots, deadline=deadline))

    def feed(self, event: Event) -> None:
        changes, actions = decide(self.state, event, self.now)
        if changes is None:
            assert not actions
            return
        self.journal.append((self.now, event, changes))
        for action in actions:
            self.obey(action)
        self.watch()

    def reach(self, number: int, value: float, over: bool = False, seconds: float = 0.0) -> None:
        """A segment is done, in so many seconds."""
        start = self.ended(number)
        self.feed(
            Reached(
                trial=number,
                attempt=start.attempt,
                epochs=start.until,
                value=value,
                over=over,
                seconds=self.state.trials[number].seconds + seconds,
            )
        )

    def fail(self, number: int, kind: Any, epochs: int = 0, suspects: tuple[str, ...] = ()) -> None:
        attempt = self.ended(number).attempt
        self.feed(Failed(trial=number, attempt=attempt, kind=kind, message="why", epochs=epochs, suspects=suspects))

    def probe(self, healthy: bool = True) -> None:
        self.feed(Probed(node=self.oldest_probe(), healthy=healthy, message="found"))

    def propose(self, work: float | None = None, scaling: float | None = None) -> None:
        number = self.to_propose.pop(0)
        self.feed(Proposed(trial=number, values={"x": number}, work=work, scaling=scaling))

    def ended(self, number: int) -> Start:
        """The attempt of a trial, which is over and has left its slots."""
        start = self.running.pop(number)
        for slot in start.slots:
            del self.user[slot]
        return start

    def oldest_probe(self) -> str:
        """The node that waits longest for its probe, and waits no more."""
        node = next(iter(self.to_probe))
        del self.to_probe[node]
        return node

    # how it comes to an end

    def finish(self) -> None:
        """Nothing goes wrong any more: there must be a way to the end."""
        for _ in range(100_000):
            if self.closed == "finished":
                return
            if self.closed is not None:
                self.open()
            elif self.to_propose:
                self.propose()
            elif self.running:
                self.now += 1.0
                self.reach(min(self.running), 0.5)
            elif self.to_probe:
                self.probe(True)
            elif self.state.due < math.inf:
                self.now = max(self.now, self.state.due)
                self.feed(Tick())
            else:
                raise AssertionError("dead end: nothing runs, nothing is asked, and the campaign is open")
        raise AssertionError("the campaign goes round in circles")

    def check(self) -> None:
        """Every trial has come to an end, and the state tells the same."""
        trials = self.state.trials
        assert set(self.settled) == set(trials), "a trial was lost"
        assert len(trials) == self.plan.trials or self.state.exhausted
        for number, outcome in self.settled.items():
            expected = "paused" if outcome == "pruned" else outcome
            assert trials[number].status == expected

    def check_journal(self) -> None:
        """The journal gives the state back, by its decisions and by deciding again."""
        decided, replayed = State(), State()
        for now, event, changes in self.journal:
            decide(decided, event, now)
            replayed.apply(event, msgspec.json.decode(json.dumps(changes, allow_nan=False), type=Written))
            assert replayed == decided, f"what {event} changed is not all written"
        assert replayed == self.state, "the journal does not give the state back"

    # what must hold

    def obey(self, action: Action) -> None:
        assert self.closed is None
        match action:
            case Propose():
                assert action.trial not in self.to_propose
                self.to_propose.append(action.trial)
            case Probe():
                assert self.now >= self.to_probe.pop(action.node, -math.inf) + PATIENCE, "probed twice at once"
                self.to_probe[action.node] = self.now
            case Start():
                self.begin(action)
            case Cancel():
                assert self.running[action.trial].attempt == action.attempt
                self.cancelled.add(action.trial)
            case Settle():
                self.settle(action)
            case Close():
                assert not self.running
                self.closed = action.ending

    def begin(self, action: Start) -> None:
        number = action.trial
        assert number not in self.running, "run twice at once"
        assert self.settled.get(number, "pruned") == "pruned", "run after its end"
        self.attempts[number] += 1
        assert action.attempt == self.attempts[number], "two attempts with one number"
        assert min(self.plan.min_slots, len(self.slots)) <= len(action.slots) <= self.plan.max_slots
        for slot in action.slots:
            assert slot in self.slots
            assert slot not in self.user, "a slot was given to two attempts at once"
            self.user[slot] = number
        self.running[number] = action
        self.started.append((number, action.until))

    def settle(self, action: Settle) -> None:
        assert action.trial not in self.settled, "settled twice"
        self.settled[action.trial] = action.outcome
        failure = self.state.trials[action.trial].failure
        if action.outcome == "failed":
            assert failure is not None and failure.kind not in MACHINE_FAULTS, "a machine fault was told as a failure"

    def watch(self) -> None:
        """Trials that run, and slots: counted anew after every event."""
        state = self.state
        assert len(state.active) == len(self.running) and all(n in self.running for n in state.active)
        assert state.asked == len(self.to_propose)
        out = {name for name, node in state.health.items() if node.status != "pool"}
        idle = {slot for slot in self.slots if slot not in self.user and node_of(slot) not in out}
        assert set(state.free) == idle, "a slot is neither free nor in use nor kept back, or is two of them"
        assert state.healthy == len(idle) + len(self.user), "healthy is not the number of slots free or in use"


class Player(World):
    """Plays a campaign by itself, with faults at random: ``own`` and ``machine`` are probabilities per attempt."""

    def __init__(
        self,
        plan: Plan,
        slots: tuple[str, ...],
        *,
        seed: int = 0,
        own: float = 0.0,
        machine: float = 0.0,
        bad: frozenset[str] = frozenset(),
        work: float = 20.0,
    ) -> None:
        """``bad`` nodes fail whatever is started on them; ``work``: seconds per epoch on one slot of the middle trial."""
        super().__init__(plan, slots)
        self.own, self.machine, self.bad, self.work = own, machine, bad, work
        self._generator = np.random.default_rng(seed)
        self._cost: dict[int, float] = {}
        self._order = count()
        self._queue: list[tuple[float, int, Event]] = []
        self._actions: list[Action] = []

    @property
    def events(self) -> list[tuple[float, Event]]:
        return [(now, event) for now, event, _ in self.journal]

    def session(self, *, stop_after: float = math.inf, kill_after: float = math.inf, slots: Sequence[str] = ()) -> None:
        """Play until the campaign is closed; ``stop_after`` so many seconds it is interrupted, or killed."""
        self._queue.clear()
        self.now += 100.0
        begun = self.now
        self.slots = tuple(slots) or self.slots
        self.open()
        self.later(60.0, Tick())
        stopping = False
        while not self.state.closed and self._queue:
            due = self._queue[0][0]
            if due - begun >= kill_after:
                return
            if due - begun >= stop_after and not stopping:
                stopping, self.now = True, begun + stop_after
                self.feed(Stopping(reason="SIGTERM"))
                continue
            self.now, _, event = heapq.heappop(self._queue)
            self.happen(event)

    def write(self, path: Path) -> None:
        """Put the events and what was decided into a journal."""
        with Journal(path) as journal:
            journal.extend(Entry(*line) for line in self.journal)

    def later(self, seconds: float, event: Event) -> None:
        """An event that happens in so many seconds."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), event))

    def happen(self, event: Event) -> None:
        match event:
            case Reached() | Failed() if event.trial in self.running:
                if self.running[event.trial].attempt == event.attempt:
                    self.ended(event.trial)
            case Probed():
                self.to_probe.pop(event.node, None)
            case Tick():
                self.later(60.0, event)
        self.feed(event)

    def feed(self, event: Event) -> None:
        super().feed(event)
        actions, self._actions = self._actions, []
        for action in actions:
            self._answer(action)

    def obey(self, action: Action) -> None:
        super().obey(action)
        self._actions.append(action)

    def _answer(self, action: Action) -> None:
        match action:
            case Propose():
                self.to_propose.remove(action.trial)
                self.feed(Proposed(trial=action.trial, values=self._point(action.trial)))
            case Start():
                self.train(action)
            case Probe():
                self.later(10.0, Probed(node=action.node, healthy=action.node not in self.bad))
            case Cancel():
                trial, kept = action.trial, self.state.trials[action.trial].epochs
                saved = Failed(trial=trial, attempt=action.attempt, kind="preempted", message="saved", epochs=kept)
                self.later(1.0, saved)

    def _point(self, number: int) -> dict[str, Any]:
        width = int(2 ** self._generator.uniform(4, 7))
        self._cost[number] = self.work * (width / 64) ** 1.5 * math.exp(0.1 * self._generator.normal())
        return {"model.hidden_dim": width, "train.learning_rate": float(10 ** self._generator.uniform(-4, -2))}

    def train(self, start: Start) -> None:
        self.feed(Launched(trial=start.trial, attempt=start.attempt, identity={"pid": start.trial}))
        trial = self.state.trials[start.trial]
        per_epoch = self._cost[start.trial] / len(start.slots)
        epochs = start.until - trial.epochs
        chance = self._generator.random()
        bad = [node for node in dict.fromkeys(map(node_of, start.slots)) if node in self.bad]
        if bad or chance < self.own + self.machine:
            own = not bad and chance < self.own
            kind = str(self._generator.choice(OWN if own else MACHINE))
            cut = float(self._generator.random())
            kept = trial.epochs + int(cut * epochs) * (kind != "launch")
            suspects = tuple(bad) if bad else start.slots[:1] if kind != "preempted" and not own else ()
            failed = Failed(
                trial=start.trial,
                attempt=start.attempt,
                kind="launch" if bad else kind,  # type: ignore[arg-type]
                message="as planned",
                epochs=kept,
                suspects=tuple(map(node_of, suspects)),
            )
            self.later(2.0 if bad else STARTUP + cut * epochs * per_epoch, failed)
            return
        reached = Reached(
            trial=start.trial,
            attempt=start.attempt,
            epochs=start.until,
            value=float(self._generator.random()) + 1 / start.until,
            seconds=trial.seconds + epochs * per_epoch,
            memory_mb=200.0 + 2.0 * trial.values["model.hidden_dim"],
        )
        self.later(STARTUP + epochs * per_epoch, reached)
