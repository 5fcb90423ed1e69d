"""Rungs, where trials are ranked, and promotion: which of those that rest go on."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

RankingEntry = tuple[float, int]
"""(value, trial), so that entries sort best first."""


@dataclass(slots=True)
class Rung:
    """Trials that reached a rung, and those that rest there."""

    reached: list[RankingEntry] = field(default_factory=list)
    paused: list[RankingEntry] = field(default_factory=list)

    def rest(self, entry: RankingEntry) -> None:
        """Add a trial to those that rest."""
        insort(self.paused, entry)

    def leave(self, entry: RankingEntry) -> None:
        """Remove a resting trial; ValueError where it does not rest."""
        at = bisect_left(self.paused, entry)
        if self.paused[at : at + 1] != [entry]:
            raise ValueError(f"trial {entry[1]} does not rest at this rung")
        del self.paused[at]

    def promotable(self, reduction: int) -> int:
        """Return how many resting trials are of the best ``1 / reduction``.

        Asynchronous halving (Li et al. 2020, arXiv:1810.05934, algorithm 2); with a reduction of 1 all trials go on.
        """
        limit = len(self.reached) // reduction
        return len(self.paused) if limit == len(self.reached) else bisect_left(self.paused, self.reached[limit])
