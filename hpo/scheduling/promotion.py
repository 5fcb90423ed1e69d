"""Promotion: which of the trials that rest at a rung go on."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hydragnn.hpo.scheduling.events import Plan
from hydragnn.hpo.scheduling.rung import Rung


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
