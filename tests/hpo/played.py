"""Campaigns played through the real scheduler on a virtual clock, with the faults that tests ask for: journals in milliseconds."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.hpo.journal import Entry, Journal
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
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
    Start,
    Stopping,
    Tick,
    node_of,
)
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.status.timeline import TimelineBuilder

STARTUP = 5.0
OWN, MACHINE = ("diverged", "out_of_memory"), ("lost_node", "launch", "preempted")


@dataclass
class Player:
    """Plays a campaign. Rates are probabilities per attempt."""

    plan: Plan
    slots: tuple[str, ...]
    seed: int = 0
    own: float = 0.0
    machine: float = 0.0
    bad: frozenset[str] = frozenset()
    """Nodes that fail whatever is started on them."""
    work: float = 20.0
    """Seconds per epoch on one slot of the middle trial."""

    now: float = field(default=1000.0, init=False)
    state: State = field(default_factory=State, init=False)
    events: list[tuple[float, Event]] = field(default_factory=list, init=False)
    entries: list[Entry] = field(default_factory=list, init=False)
    """Lines of the journal."""

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)
        self._cost: dict[int, float] = {}
        self._order = count()
        self._queue: list[tuple[float, int, Event]] = []

    def session(self, *, stop_after: float = math.inf, kill_after: float = math.inf, slots: Sequence[str] = ()) -> None:
        """Play until the campaign is closed; ``stop_after`` so many seconds it is interrupted, or killed."""
        self._queue.clear()
        self.now += 100.0
        begun = self.now
        self.slots = tuple(slots) or self.slots
        self.happen(Opened(plan=self.plan, slots=self.slots))
        self.later(60.0, Tick())
        stopping = False
        while not self.state.closed and self._queue:
            due = self._queue[0][0]
            if due - begun >= kill_after:
                return
            if due - begun >= stop_after and not stopping:
                stopping, self.now = True, begun + stop_after
                self.happen(Stopping(reason="SIGTERM"))
                continue
            self.now, _, event = heapq.heappop(self._queue)
            self.happen(event)
            if isinstance(event, Tick):
                self.later(60.0, Tick())

    def write(self, path: Path) -> None:
        """Put the events and what was decided into a journal."""
        with Journal(path) as journal:
            journal.extend(self.entries)

    def later(self, seconds: float, event: Event) -> None:
        """An event that happens in so many seconds."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), event))

    def happen(self, event: Event) -> None:
        """Let the scheduler know, and answer whatever it asks for."""
        changes, actions = decide(self.state, event, self.now)
        if changes is not None:
            self.events.append((self.now, event))
            self.entries.append(Entry(self.now, event, changes))
        for action in actions:
            self._answer(action)

    def _answer(self, action: Action) -> None:
        match action:
            case Propose():
                self.happen(Proposed(trial=action.trial, values=self._point(action.trial)))
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
        self.happen(Launched(trial=start.trial, attempt=start.attempt, identity={"pid": start.trial}))
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
