"""What a simulated policy came to, in figures."""

from dataclasses import dataclass, field
from typing import Any

from hydragnn.hpo.simulation.campaign import Finish, VirtualCampaign
from hydragnn.hpo.simulation.ledger import Ledger
from hydragnn.hpo.simulation.population import Population
from hydragnn.hpo.simulation.static import StaticPractice

BINS = 180
"""Points of the picture of utilisation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyResult:
    """One policy on the simulated machine; every figure is simulated."""

    policy: str
    hours: float
    """Allocated hours, queues left out."""
    node_hours: dict[str, float]
    """By cause; ``useful`` first, the sum is what was allocated."""
    utilisation: float
    """Part of the allocated node-hours during which nodes trained."""
    trials: int
    finished: int
    pruned: int
    failed: int
    """Failed by their own fault."""
    lost: int
    """Given up after machine faults; in the static practice, also those that an allocation's end cut off."""
    false_failures: int
    """Machine faults that the sampler was told as failures of the configuration."""
    hours_to_best: float | None
    best: float | None
    faults: dict[str, int]
    busy: list[float] = field(repr=False)
    """Part of the nodes that train, over equal stretches of the hours."""
    violations: list[str] = field(default_factory=list)
    """Broken invariants; empty, or there is a defect."""
    decisions: int = 0
    decision_ms: dict[str, float] = field(default_factory=dict)
    """Wall time of one decision of the scheduler: median, p99, largest."""

    @property
    def goodput(self) -> float:
        """Useful over allocated node-hours."""
        return self.node_hours["useful"] / max(sum(self.node_hours.values()), 1e-12)

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return {
            "goodput": self.goodput,
            "utilisation": self.utilisation,
            "useful node-hours": self.node_hours["useful"],
            "allocated node-hours": sum(self.node_hours.values()),
            "hours": self.hours,
            "hours to the best": self.hours_to_best,
            "best objective": self.best,
            "trials": self.trials,
            "trained to the end": self.finished,
            "pruned": self.pruned,
            "failed by themselves": self.failed,
            "lost": self.lost,
            "machine faults told to the sampler": self.false_failures,
            "faults": self.faults,
            "node-hours": self.node_hours,
            "decisions": self.decisions,
            "milliseconds per decision": self.decision_ms,
            "violations": self.violations,
        }


def adaptive_result(name: str, campaign: VirtualCampaign, target: float) -> PolicyResult:
    """The figures of a campaign under our scheduler; ``target``: the objective that counts as best."""
    statuses = [trial.status for trial in campaign.state.trials.values()]
    ledger, world = campaign.world.ledger, campaign.world
    return PolicyResult(
        policy=name,
        **_common(ledger, world.num_nodes, campaign.finishes, target),
        trials=len(statuses),
        finished=statuses.count("finished"),
        pruned=sum(outcome == "pruned" for outcome in campaign.settled.values()),
        failed=statuses.count("failed"),
        lost=statuses.count("lost"),
        false_failures=campaign.false_failures,
        faults=dict(sorted(world.faults.items())),
        violations=world.violations,
        decisions=len(campaign.decision_seconds),
        decision_ms=_quantiles(campaign.decision_seconds),
    )


def static_result(name: str, practice: StaticPractice, target: float) -> PolicyResult:
    """The figures of the static practice."""
    return PolicyResult(
        policy=name,
        **_common(practice.ledger, practice.nodes, practice.finishes, target),
        trials=practice.trials,
        finished=len(practice.finishes),
        pruned=0,
        failed=practice.failed,
        lost=practice.false_failures + practice.cut,
        false_failures=practice.false_failures,
        faults=dict(sorted(practice.faults.items())),
    )


def best_of(population: Population, count: int) -> float:
    """The objective of the best of the first ``count`` configurations, all trained to the end."""
    return min(population(number).final for number in range(count))


def _common(ledger: Ledger, nodes: int, finishes: list[Finish], target: float) -> dict[str, Any]:
    seconds = ledger.allocated / (nodes * ledger.shares)
    trained = sum((end - begin) * slots for begin, end, slots in ledger.training)
    hit = min((f.seconds for f in finishes if f.value <= target * (1 + 1e-9)), default=None)
    return {
        "hours": seconds / 3600,
        "node_hours": ledger.balance(),
        "utilisation": trained / max(ledger.allocated, 1e-12),
        "hours_to_best": None if hit is None else hit / 3600,
        "best": min((f.value for f in finishes), default=None),
        "busy": ledger.busy(seconds, BINS, nodes * ledger.shares),
    }


def _quantiles(seconds: Any) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    at = {"median": 0.5, "p99": 0.99, "largest": 1.0}
    return {name: 1e3 * ordered[min(int(q * len(ordered)), len(ordered) - 1)] for name, q in at.items()}
