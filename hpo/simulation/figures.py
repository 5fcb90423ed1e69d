"""Figures of a simulated search or final training."""

from dataclasses import dataclass, replace
from itertools import count, islice
from math import isfinite
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.hpo.preflight import plan_of
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.hpo.simulation.campaign import Finish, VirtualCampaign
from hydragnn.hpo.simulation.courses import CourseOf, drawn_courses
from hydragnn.hpo.simulation.world import Ledger, Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Figures of a campaign, all of them simulated."""

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
    """Given up after machine faults."""
    hours_to_best: float | None
    best: float | None
    faults: dict[str, int]

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
            "faults": self.faults,
            "node-hours": self.node_hours,
        }


def scenario_of(settings: CampaignSettings, assumptions: Assumptions, *, nodes: int, seed: int) -> Scenario:
    """Return the simulated campaign of a file."""
    search = settings.search
    plan, shares = plan_of(settings), max(search.trials_per_node, search.trials_per_device)
    if plan.min_slots > nodes:
        problem = f"search.nodes_per_trial: a trial needs {plan.min_slots} nodes, the machine has {nodes}"
        raise InputError(f"{problem}; raise --nodes, or set search.nodes_per_trial={nodes}")
    return Scenario(
        plan=replace(plan, moves=True, max_slots=min(plan.max_slots, nodes * shares)),
        course_of=drawn_courses(assumptions, plan.rungs[-1], seed, shares),
        assumptions=assumptions,
        nodes=nodes,
        shares=shares,
        seed=seed,
        hang_seconds=search.hang_minutes * 60,
    )


def figures_of(scenario: Scenario, hours: float) -> Figures:
    """Return the figures of a campaign after ``hours``."""
    campaign = VirtualCampaign(scenario)
    campaign.run(hours)
    return campaign_figures(campaign, best_of(scenario.course_of, scenario.assumptions.best_of))


def final_scenario(scenario: Scenario, members: int) -> Scenario:
    """Return the scenario of training the first ``members`` sound configurations."""
    assumptions, epochs = scenario.assumptions, scenario.plan.rungs[-1]
    courses = list(islice((c for k in count() if isfinite((c := scenario.course_of(k)).final)), members))
    plan = replace(
        scenario.plan, trials=members, rungs=(epochs,), reduction=1, finalists=members, max_slots=scenario.slots
    )
    changes = {"estimate_error": assumptions.measured_error, "first_estimates": 0, "best_of": members}
    return replace(
        scenario,
        plan=plan,
        course_of=[replace(course, micro_batches=1) for course in courses].__getitem__,
        assumptions=assumptions.model_copy(update=changes),
    )


def campaign_figures(campaign: VirtualCampaign, target: float) -> Figures:
    """Return the figures of a campaign; ``target`` counts as best."""
    statuses = [trial.status for trial in campaign.state.trials.values()]
    return Figures(
        **common_figures(campaign.world.ledger, campaign.world.num_nodes, campaign.finishes, target),
        trials=len(statuses),
        finished=statuses.count("finished"),
        pruned=sum(outcome == "pruned" for outcome in campaign.settled.values()),
        failed=statuses.count("failed"),
        lost=statuses.count("lost"),
        faults=dict(sorted(campaign.world.faults.items())),
    )


def best_of(course_of: CourseOf, count: int) -> float:
    """Return the best objective of the first ``count`` configurations."""
    return min(course_of(number).final for number in range(count))


def common_figures(ledger: Ledger, nodes: int, finishes: list[Finish], target: float) -> dict[str, Any]:
    """Return the figures that follow from a ledger and the finished trials."""
    seconds = ledger.allocated / (nodes * ledger.shares)
    hit = min((f.seconds for f in finishes if f.value <= target * (1 + 1e-9)), default=None)
    return {
        "hours": seconds / 3600,
        "node_hours": ledger.balance(),
        "utilisation": ledger.trained / max(ledger.allocated, 1e-12),
        "hours_to_best": None if hit is None else hit / 3600,
        "best": min((f.value for f in finishes), default=None),
    }
