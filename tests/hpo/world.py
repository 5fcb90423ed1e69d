"""A campaign by hand: whoever plays it says what happens next, the scheduler's actions are carried out, and the invariants are under watch."""

import json
import math
from collections import Counter
from typing import Any

import msgspec

from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Close,
    Event,
    Failed,
    Opened,
    Plan,
    Probe,
    Probed,
    Propose,
    Proposed,
    Reached,
    Settle,
    Start,
    Tick,
    node_of,
)
from hydragnn.hpo.scheduling.health import PATIENCE
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, State, decide
from hydragnn.hpo.scheduling.state import Changes, Written


def transition(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """Let an event happen; the state and what is to be done."""
    return state, decide(state, event, now).actions


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
