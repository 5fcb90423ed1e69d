"""Result of ``hydragnn simulate``: figures and assumptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydragnn.base.shown import Shown
from hydragnn.hpo.simulation import Figures, Scenario, figures_of, final_scenario
from hydragnn.scripts.showing import Result

FINAL_HOURS = 1000.0
"""A final training that has not ended by then never will."""

SHARES = ("goodput", "utilisation")
HIDDEN = ("node-hours", "faults")


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult(Shown):
    """Figures of a campaign on one simulated machine with faults."""

    title: str
    nodes: int
    seed: int
    """Seed of faults and trials; equal seeds give equal figures."""
    rungs: tuple[int, ...]
    """Epochs at which trials are compared; the last is the full budget."""
    slots_per_trial: tuple[int, int]
    """The fewest and the most that a trial may have."""
    figures: Figures
    assumptions: Mapping[str, Any]
    """Assumptions that apply, as docs/simulate.md explains them."""

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON."""
        return {
            "title": self.title,
            "simulated": True,
            "nodes": self.nodes,
            "seed": self.seed,
            "rungs": list(self.rungs),
            "slots per trial": list(self.slots_per_trial),
            "figures": self.figures.to_json(),
            "assumptions": dict(self.assumptions),
        }

    def __str__(self) -> str:
        """The goodput."""
        return f"{self.title}: goodput {self.figures.goodput:.1%}"


def simulation_of(scenario: Scenario, hours: float, final: int | None) -> SimulationResult:
    """Return the simulated figures."""
    nodes = f"{scenario.nodes:,} nodes"
    if final is None:
        figures, title = figures_of(scenario, hours), f"simulated campaign, {nodes}, {hours:g} h"
    else:
        figures = figures_of(final_scenario(scenario, final), FINAL_HOURS)
        title = f"simulated final training of {final} configurations, {nodes}"
    return SimulationResult(
        title=title,
        nodes=scenario.nodes,
        seed=scenario.seed,
        rungs=tuple(scenario.plan.rungs),
        slots_per_trial=(scenario.plan.min_slots, scenario.plan.max_slots),
        figures=figures,
        assumptions={key: item for key, item in scenario.assumptions.to_json().items() if item is not None},
    )


def shown(result: SimulationResult) -> Result:
    """Return figures, causes and assumptions for a terminal."""
    value = result.to_json()
    whole = max(value["figures"]["allocated node-hours"], 1e-12)
    table = {
        "title": value["title"],
        **{key: _cell(key, item) for key, item in value["figures"].items() if key not in HIDDEN},
        "simulated node-hours": {
            cause: f"{hours:,.0f} ({hours / whole:.2%})" for cause, hours in value["figures"]["node-hours"].items()
        },
        "assumptions": value["assumptions"],
    }
    return Result(value=value, table=table)


def _cell(key: str, item: Any) -> Any:
    if item is None:
        return "not reached"
    if key in SHARES:
        return f"{item:.1%}"
    return f"{item:,.2f}" if isinstance(item, float) else item
