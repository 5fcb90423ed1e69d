"""Rungs, where trials are ranked, and promotion: which of those that rest go on."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hydragnn.hpo.scheduling.events import Plan

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


@runtime_checkable
class Promotion(Protocol):
    """A rule by which rungs let trials through."""

    def promotable(self, rung: Rung) -> int:
        """Return how many resting trials go on, the best first."""

    def continuing(self, share: float) -> float:
        """Return the share of trials that passes a rung, from its entrants'."""


@dataclass(frozen=True, slots=True)
class AsynchronousHalving:
    """Promotion of the best ``1 / reduction`` that reached a rung.

    Li et al. 2020 (arXiv:1810.05934, algorithm 2).
    """

    reduction: int

    def promotable(self, rung: Rung) -> int:
        """Return how many resting trials belong to the best ``1 / reduction``."""
        limit = len(rung.reached) // self.reduction
        return len(rung.paused) if limit == len(rung.reached) else rung.num_paused_before(rung.reached[limit])

    def continuing(self, share: float) -> float:
        """Return the share divided by the reduction."""
        return share / self.reduction


class NoHalving:
    """All trials go on."""

    def promotable(self, rung: Rung) -> int:
        """Return how many trials rest."""
        return len(rung.paused)

    def continuing(self, share: float) -> float:
        """Return the share."""
        return share


def promotion_of(plan: Plan) -> Promotion:
    """Return the promotion of a plan; nothing else reads ``reduction``."""
    return NoHalving() if plan.reduction == 1 else AsynchronousHalving(plan.reduction)
