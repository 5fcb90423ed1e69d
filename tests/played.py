"""Campaigns played through the real scheduler on a virtual clock, with the faults that tests ask for: journals in milliseconds."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.hpo.journal import Journal
from hydragnn.hpo.scheduling.events import (
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
from hydragnn.hpo.scheduling.scheduler import State, step

STARTUP = 5.0
OWN, MACHINE = ("diverged", "out_of_memory"), ("lost_node", "launch", "preempted")


@dataclass
class Player:
    """Plays a campaign; ``events`` is what its journal holds. Rates are probabilities per attempt."""

    plan: Plan
    places: tuple[str, ...]
    seed: int = 0
    own: float = 0.0
    machine: float = 0.0
    bad: frozenset[str] = frozenset()
    """Nodes that fail whatever is started on them."""
    work: float = 20.0
    """Seconds per epoch on one place of the middle trial."""
    events: list[tuple[float, Event]] = field(default_factory=list)
    state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)
        self._order = count()
        self._due: list[tuple[float, int, Event]] = []
        self._cost: dict[int, float] = {}
        self.now = 1000.0

    def session(
        self, *, stop_after: float = math.inf, kill_after: float = math.inf, places: Sequence[str] = ()
    ) -> None:
        """Play until the campaign is closed; ``stop_after`` so many seconds it is interrupted, or killed."""
        self._due.clear()
        self.now += 100.0
        begun = self.now
        self.places = tuple(places) or self.places
        self._happen(Opened(plan=self.plan, places=self.places))
        self._later(60.0, Tick())
        stopping = False
        while not self.state.closed and self._due:
            due = self._due[0][0]
            if due - begun >= kill_after:
                return
            if due - begun >= stop_after and not stopping:
                stopping, self.now = True, begun + stop_after
                self._happen(Stopping(reason="SIGTERM"))
                continue
            self.now, _, event = heapq.heappop(self._due)
            self._happen(event)
            if isinstance(event, Tick):
                self._later(60.0, Tick())

    def write(self, path: Path) -> None:
        """Put the events into a journal."""
        with Journal(path) as journal:
            journal.extend(self.events)

    def _happen(self, event: Event) -> None:
        after, actions = step(self.state, event, self.now)
        if after is not self.state or actions:
            self.events.append((self.now, event))
        self.state = after
        for action in actions:
            match action:
                case Propose():
                    self._happen(Proposed(trial=action.trial, values=self._point(action.trial)))
                case Start():
                    self._happen(Launched(trial=action.trial, attempt=action.attempt, identity={"pid": action.trial}))
                    self._train(action)
                case Probe():
                    self._later(10.0, Probed(node=action.node, healthy=action.node not in self.bad))
                case Cancel():
                    kept = self.state.trials[action.trial].epochs
                    saved = Failed(
                        trial=action.trial, attempt=action.attempt, kind="preempted", message="saved", epochs=kept
                    )
                    self._later(1.0, saved)

    def _point(self, number: int) -> dict[str, Any]:
        width = int(2 ** self._generator.uniform(4, 7))
        self._cost[number] = self.work * (width / 64) ** 1.5 * math.exp(0.1 * self._generator.normal())
        return {"model.hidden_dim": width, "train.learning_rate": float(10 ** self._generator.uniform(-4, -2))}

    def _train(self, start: Start) -> None:
        """Decide how an attempt will end, and when."""
        trial = self.state.trials[start.trial]
        per_epoch = self._cost[start.trial] / len(start.places)
        epochs = start.until - trial.epochs
        chance = self._generator.random()
        bad = [node for node in dict.fromkeys(map(node_of, start.places)) if node in self.bad]
        if bad or chance < self.own + self.machine:
            own = not bad and chance < self.own
            kind = str(self._generator.choice(OWN if own else MACHINE))
            cut = float(self._generator.random())
            kept = trial.epochs + int(cut * epochs) * (kind != "launch")
            suspects = tuple(bad) if bad else start.places[:1] if kind != "preempted" and not own else ()
            failed = Failed(
                trial=start.trial,
                attempt=start.attempt,
                kind="launch" if bad else kind,  # type: ignore[arg-type]
                message="as planned",
                epochs=kept,
                suspects=tuple(map(node_of, suspects)),
            )
            self._later(2.0 if bad else STARTUP + cut * epochs * per_epoch, failed)
            return
        reached = Reached(
            trial=start.trial,
            attempt=start.attempt,
            epochs=start.until,
            value=float(self._generator.random()) + 1 / start.until,
            seconds=trial.seconds + epochs * per_epoch,
            memory_mb=200.0 + 2.0 * trial.values["model.hidden_dim"],
        )
        self._later(STARTUP + epochs * per_epoch, reached)

    def _later(self, seconds: float, event: Event) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), event))


def nodes(number: int) -> tuple[str, ...]:
    """So many whole nodes."""
    return tuple(f"n{k}" for k in range(1, number + 1))
