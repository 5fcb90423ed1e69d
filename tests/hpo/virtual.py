"""A campaign through the real scheduler on a virtual clock: what is due happens in turn, and every action finds its answer."""

import heapq
import math
from dataclasses import dataclass, field
from itertools import count

from hydragnn.hpo.journal import Entry
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Event,
    Failed,
    Plan,
    Probe,
    Propose,
    Settle,
    Start,
)
from hydragnn.hpo.scheduling.scheduler import State, decide


def transition(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """Let an event happen; the state and what is to be done."""
    return state, decide(state, event, now).actions


@dataclass
class Virtual:
    """Who inherits from it says what is proposed, how attempts end, and which nodes are well; ``entries`` is what a journal would hold."""

    plan: Plan
    slots: tuple[str, ...]
    now: float = field(default=0.0, kw_only=True)
    state: State = field(default_factory=State, init=False)
    events: list[tuple[float, Event]] = field(default_factory=list, init=False)
    entries: list[Entry] = field(default_factory=list, init=False)
    settled: dict[int, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._order = count()
        self._queue: list[tuple[float, int, Event]] = []

    @property
    def due(self) -> float:
        """When the next event happens; infinity where none will."""
        return self._queue[0][0] if self._queue else math.inf

    def later(self, seconds: float, event: Event) -> None:
        """An event that happens in so many seconds."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), event))

    def turn(self) -> Event:
        """The next event; the clock stands at its time."""
        self.now, _, event = heapq.heappop(self._queue)
        return event

    def forget(self) -> None:
        """Nothing is due any more."""
        self._queue.clear()

    def happen(self, event: Event) -> None:
        """Let the scheduler know, and answer whatever it asks for."""
        changes, actions = decide(self.state, event, self.now)
        if changes is not None:
            self.events.append((self.now, event))
            self.entries.append(Entry(self.now, event, changes))
        for action in actions:
            self._answer(action)

    def propose(self, trial: int) -> None:
        """Answer the wish for a configuration."""
        raise NotImplementedError

    def train(self, start: Start) -> None:
        """Decide how an attempt will end, and when."""
        raise NotImplementedError

    def probe(self, node: str) -> None:
        """Decide what a probe of the node finds, and when."""
        raise NotImplementedError

    def _answer(self, action: Action) -> None:
        match action:
            case Propose():
                self.propose(action.trial)
            case Start():
                self.train(action)
            case Probe():
                self.probe(action.node)
            case Cancel():
                trial, kept = action.trial, self.state.trials[action.trial].epochs
                saved = Failed(trial=trial, attempt=action.attempt, kind="preempted", message="saved", epochs=kept)
                self.later(1.0, saved)
            case Settle():
                self.settled[action.trial] = action.outcome
