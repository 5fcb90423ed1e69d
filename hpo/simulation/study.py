"""Policies side by side on one simulated machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, islice
from math import isfinite
from pathlib import Path

from hydragnn.base.errors import InputError, nearest
from hydragnn.hpo.preflight import plan_of
from hydragnn.hpo.scheduling.events import Plan
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.hpo.simulation.campaign import Finish, VirtualCampaign
from hydragnn.hpo.simulation.ledger import Ledger
from hydragnn.hpo.simulation.population import Population, drawn_population, recorded_population
from hydragnn.hpo.simulation.results import PolicyResult, adaptive_result, best_of, static_result
from hydragnn.hpo.simulation.static import StaticPractice
from hydragnn.hpo.simulation.world import World

WIDTH = 128
"""Nodes of every trial in the static practice."""

ADAPTIVE: dict[str, Callable[[Plan], Plan]] = {
    "adaptive": lambda plan: plan,
    "no pruning": lambda plan: replace(plan, reduction=1),
    "fixed size": lambda plan: replace(plan, min_slots=WIDTH, max_slots=WIDTH),
    "no retries": lambda plan: replace(plan, retries=0),
}
"""Our scheduler, and the same with one thing switched off."""

POLICIES = (*ADAPTIVE, "static")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Everything that a simulation depends on."""

    plan: Plan
    population: Population
    assumptions: Assumptions
    nodes: int
    shares: int
    """Slots per node."""
    seed: int
    hang_seconds: float

    @property
    def slots(self) -> int:
        """Slots of the whole machine."""
        return self.nodes * self.shares


def scenario_of(
    settings: CampaignSettings, assumptions: Assumptions, *, nodes: int, seed: int, recorded: Path | None = None
) -> Scenario:
    """The simulated campaign that a campaign file describes, with trials as in ``recorded`` where given."""
    search = settings.search
    plan, shares = plan_of(settings), search.trials_per_node
    if plan.min_slots > nodes:
        raise InputError(
            f"search.nodes_per_trial: a trial needs {plan.min_slots} nodes, the machine has {nodes}; raise --nodes, or set "
            f"search.nodes_per_trial={nodes}"
        )
    epochs = plan.rungs[-1]
    if recorded is None:
        population = drawn_population(assumptions, epochs, seed, shares)
    else:
        population = recorded_population(recorded, search.objective, assumptions, epochs, seed)
    return Scenario(
        plan=replace(plan, moves=True, max_slots=min(plan.max_slots, nodes * shares)),
        population=population,
        assumptions=assumptions,
        nodes=nodes,
        shares=shares,
        seed=seed,
        hang_seconds=search.hang_minutes * 60,
    )


def compare_policies(scenario: Scenario, policies: Sequence[str], hours: float) -> list[PolicyResult]:
    """The figures of every policy after so many hours on the same machine, with the same configurations and faults."""
    for name in policies:
        if name not in POLICIES:
            raise InputError(f"unknown policy {name}; {nearest(name, list(POLICIES))}")
    target = best_of(scenario.population, scenario.assumptions.best_of)
    return [
        static_practice(scenario, hours, target) if name == "static" else adaptive(scenario, name, hours, target)
        for name in policies
    ]


def adaptive(scenario: Scenario, name: str, hours: float, target: float) -> PolicyResult:
    """Our scheduler, or a variant of it."""
    plan = ADAPTIVE[name](scenario.plan)
    campaign = VirtualCampaign(plan=plan, world=world_of(scenario))
    campaign.run(hours)
    return adaptive_result(name, campaign, target)


def static_practice(scenario: Scenario, hours: float, target: float) -> PolicyResult:
    """Equal trials from a queue, as public scripts do it; small machines are given to one trial as a whole."""
    practice = StaticPractice(
        assumptions=scenario.assumptions,
        population=scenario.population,
        ledger=Ledger(shares=scenario.shares),
        nodes=scenario.nodes,
        seed=scenario.seed,
        width=min(WIDTH, scenario.nodes),
    )
    practice.run(hours)
    return static_result("static", practice, target)


def final_training(scenario: Scenario, members: int, hours: float) -> list[PolicyResult]:
    """The final training of ``members`` configurations in one allocation: ours, and equal jobs side by side."""
    scenario = final_scenario(scenario, members)
    campaign = VirtualCampaign(plan=scenario.plan, world=world_of(scenario))
    campaign.run(hours)
    practice = equal_jobs(scenario, members)
    best = best_of(scenario.population, members)
    return [adaptive_result("adaptive", campaign, best), static_result("static", practice, best)]


def final_scenario(scenario: Scenario, members: int) -> Scenario:
    """The scenario in which the first ``members`` configurations that do not fail by themselves are trained to the end."""
    assumptions, epochs = scenario.assumptions, scenario.plan.rungs[-1]
    courses = list(islice((c for k in count() if isfinite((c := scenario.population(k)).final)), members))
    plan = replace(
        scenario.plan, trials=members, rungs=(epochs,), reduction=1, finalists=members, max_slots=scenario.slots
    )
    known = {"estimate_error": assumptions.measured_error, "first_estimates": 0}
    return replace(
        scenario,
        plan=plan,
        population=[replace(course, micro_batches=1) for course in courses].__getitem__,
        assumptions=assumptions.model_copy(update=known),
    )


def equal_jobs(scenario: Scenario, members: int) -> StaticPractice:
    """One job of equal size per member, as many at once as fit; without faults, in favour of this practice."""
    width = min(WIDTH, scenario.nodes)
    slots, ledger = width * scenario.shares, Ledger(shares=scenario.shares)
    practice = StaticPractice(
        assumptions=scenario.assumptions,
        population=scenario.population,
        ledger=ledger,
        nodes=scenario.nodes,
        seed=scenario.seed,
        width=width,
        trials=members,
    )
    free_at = [0.0] * (scenario.nodes // width)
    for trial in range(members):
        course, begin = scenario.population(trial), heappop(free_at)
        trains = begin + scenario.assumptions.startup_seconds
        end = trains + course.epochs * course.epoch_seconds(slots)
        heappush(free_at, end)
        ledger.useful[trial] = course.epochs * course.work
        ledger.waste("start-up", slots * (trains - begin))
        ledger.waste("more slots than one", course.epochs * (course.work * (slots - 1) / course.scaling))
        ledger.training.append((trains, end, slots))
        practice.finishes.append(Finish(seconds=end, trial=trial, value=course.final))
    ledger.allocated = max(free_at) * scenario.nodes * scenario.shares
    return practice


def world_of(scenario: Scenario) -> World:
    """A fresh machine."""
    return World(
        scenario.assumptions,
        scenario.population,
        Ledger(shares=scenario.shares),
        nodes=scenario.nodes,
        seed=scenario.seed,
        grace=scenario.plan.grace,
        hang_seconds=scenario.hang_seconds,
    )
