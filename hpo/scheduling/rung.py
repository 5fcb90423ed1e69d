"""A rung: the ranking of the trials that reached it, best first."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

RankingEntry = tuple[float, int]
"""(value, trial), so that entries sort best first."""


@dataclass(slots=True)
class Rung:
    """Trials that reached a rung, and those that rest there."""

    reached: list[RankingEntry] = field(default_factory=list)
    paused: list[RankingEntry] = field(default_factory=list)

    def num_paused_before(self, entry: RankingEntry) -> int:
        """Return how many resting trials are better than an entry."""
        return bisect_left(self.paused, entry)

    def rest(self, entry: RankingEntry) -> None:
        """Add a trial to those that rest."""
        insort(self.paused, entry)

    def leave(self, entry: RankingEntry) -> None:
        """Remove a resting trial; ValueError where it does not rest."""
        at = bisect_left(self.paused, entry)
        if self.paused[at : at + 1] != [entry]:
            raise ValueError(f"trial {entry[1]} does not rest at this rung")
        del self.paused[at]
