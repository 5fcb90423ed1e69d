"""Ledger of a simulated campaign's node-hours."""

from collections import defaultdict
from dataclasses import dataclass, field

CAUSES = (
    "more slots than one",
    "stragglers",
    "slow nodes",
    "checkpoints",
    "start-up",
    "waiting to start",
    "lost to machine faults",
    "own failures",
    "saving",
    "not kept",
    "dead nodes",
    "idle",
)
"""Causes of useless time; ``idle`` includes probes and quarantine."""


@dataclass(slots=True)
class Ledger:
    """Slot-seconds by trial; useful until the trial is discarded."""

    shares: int = 1
    """Slots per node."""
    useful: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    wasted: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    trained: float = 0.0
    """Slot-seconds of training."""
    allocated: float = 0.0

    def waste(self, cause: str, slot_seconds: float) -> None:
        """Book time that brought nothing."""
        assert cause in CAUSES
        self.wasted[cause] += max(0.0, slot_seconds)

    def discard(self, trial: int) -> None:
        """Count the work of a trial as not kept."""
        self.wasted["not kept"] += self.useful.pop(trial, 0.0)

    def balance(self) -> dict[str, float]:
        """Node-hours by cause, ``useful`` first; their sum is what was allocated."""
        useful = sum(self.useful.values())
        by_cause = {cause: self.wasted.get(cause, 0.0) for cause in CAUSES if cause != "idle"}
        rest = self.allocated - useful - sum(by_cause.values())
        per_hour = 3600.0 * self.shares
        return {cause: value / per_hour for cause, value in {"useful": useful, **by_cause, "idle": rest}.items()}
