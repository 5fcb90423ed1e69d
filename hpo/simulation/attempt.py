"""Simulated attempt at a segment."""

import math
from dataclasses import dataclass

from hydragnn.hpo.scheduling.events import Start, node_of
from hydragnn.hpo.simulation.machine import Fate, Pace
from hydragnn.hpo.simulation.population import Course
from hydragnn.record import FailureKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """End of an attempt, unless something happens before."""

    stops: float
    """When training stops."""
    reported: float
    """When the launcher notices."""
    kind: FailureKind | None = None
    """None: the segment is done."""
    saved: bool = False
    """The step is saved; otherwise the last whole epoch remains."""
    suspects: tuple[str, ...] = ()


@dataclass(slots=True)
class Attempt:
    """One attempt at one segment, on its slots."""

    action: Start
    course: Course
    fate: Fate
    pace: Pace
    opened: float
    """When the allocation began."""
    assigned: float
    base: float
    """Epochs, with a fraction, from which it continues."""
    began: float = math.inf
    """When its processes exist."""
    trains: float = math.inf
    """When its first step is."""
    epoch_seconds: float = 0.0
    outcome: Outcome | None = None
    asked: bool = False
    """True where the scheduler wanted it to leave."""
    over: bool = False

    @property
    def nodes(self) -> set[str]:
        """The nodes it runs on."""
        return {node_of(slot) for slot in self.action.slots}

    def trained(self, until: float) -> float:
        """Seconds of training up to a time, without what delayed it."""
        return self.pace.trained(self.trains - self.opened, until - self.opened) if self.trains < until else 0.0

    def done(self, seconds: float) -> float:
        """Return the end of so many seconds of training."""
        return self.opened + self.pace.end(self.trains - self.opened, seconds)

    def progress(self, outcome: Outcome) -> float:
        """Epochs that the checkpoint holds after ``outcome``."""
        trained = self.trained(outcome.stops)
        if outcome.kind is None:
            return float(self.action.until)
        reached = min(self.base + trained / self.epoch_seconds, self.action.until) if trained else self.base
        return reached if outcome.saved else max(self.base, float(math.floor(reached + 1e-9)))
