"""Ledger of a simulated campaign's node-hours."""

from collections import defaultdict
from dataclasses import dataclass, field


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
        self.wasted[cause] += max(0.0, slot_seconds)

    def discard(self, trial: int) -> None:
        """Count the work of a trial as not kept."""
        self.wasted["not kept"] += self.useful.pop(trial, 0.0)

    def balance(self) -> dict[str, float]:
        """Node-hours by cause, ``useful`` first; their sum is what was allocated.

        ``idle`` includes dead nodes, probes and quarantine.
        """
        hours = {"useful": sum(self.useful.values()), **self.wasted}
        hours["idle"] = self.allocated - sum(hours.values())
        return {cause: value / (3600.0 * self.shares) for cause, value in hours.items()}
