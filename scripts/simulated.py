"""Result of ``hydragnn simulate``: figures, a picture and assumptions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_target, read_json, write_json
from hydragnn.base.shown import Shown
from hydragnn.hpo.simulation import Figures, Scenario, figures_of, final_scenario
from hydragnn.scripts.showing import Result

FINAL_HOURS = 1000.0
"""A final training that has not ended by then never will."""

FILES = ("simulated.json", "utilisation.svg", "utilisation.png")

SHARES = ("goodput", "utilisation")
HIDDEN = ("node-hours", "faults", "milliseconds per decision", "decisions")


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
    files: tuple[Path, ...] = ()
    """Files that were written; empty without ``out``."""

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
            **({"files": [str(path) for path in self.files]} if self.files else {}),
        }

    def __str__(self) -> str:
        """The goodput."""
        return f"{self.title}: goodput {self.figures.goodput:.1%}"


def simulation_of(scenario: Scenario, hours: float, final: int | None, out: Path | None) -> SimulationResult:
    """Return the simulated figures, also written to ``out``."""
    nodes = f"{scenario.nodes:,} nodes"
    if final is None:
        figures, title = figures_of(scenario, hours), f"simulated campaign, {nodes}, {hours:g} h"
    else:
        figures = figures_of(final_scenario(scenario, final), FINAL_HOURS)
        title = f"simulated final training of {final} configurations, {nodes}"
    result = SimulationResult(
        title=title,
        nodes=scenario.nodes,
        seed=scenario.seed,
        rungs=tuple(scenario.plan.rungs),
        slots_per_trial=(scenario.plan.min_slots, scenario.plan.max_slots),
        figures=figures,
        assumptions={key: item for key, item in scenario.assumptions.to_json().items() if item is not None},
    )
    return result if out is None else replace(result, files=tuple(_write(result, out)))


def check_simulated(out: Path) -> None:
    """Raise InputError where ``out`` is no earlier simulation, empty or free."""
    check_target(out, FILES, mark=FILES[0])
    if (out / FILES[0]).exists():
        earlier = read_json(out / FILES[0])
        if not isinstance(earlier, dict) or earlier.get("simulated") is not True:
            raise InputError(f"{out / FILES[0]} is no simulation of this program; choose another --out")


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
    return Result(value=value, table=table, lines=value.get("files", ()))


def picture(figures: Figures, title: str, path: Path) -> None:
    """Draw the share of training nodes over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    edges = np.linspace(0.0, figures.hours, len(figures.busy) + 1)
    label = f"goodput {figures.goodput:.1%}"
    axes.stairs([100 * part for part in figures.busy], edges, label=label, linewidth=1.4, baseline=None)
    axes.set(xlabel="allocated hours", ylabel="nodes that train, %", ylim=(0, 101), title=title)
    axes.set_xlim(0, figures.hours)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _write(result: SimulationResult, out: Path) -> list[Path]:
    """Write figures as JSON, and utilisation as SVG and PNG."""
    paths = [out / name for name in FILES]
    whole = {**result.to_json(), "utilisation over time": result.figures.busy}
    write_json(paths[0], json.loads(json.dumps(whole)))
    for path in paths[1:]:
        picture(result.figures, result.title, path)
    return paths


def _cell(key: str, item: Any) -> Any:
    if item is None:
        return "not reached"
    if key in SHARES:
        return f"{item:.1%}"
    return f"{item:,.2f}" if isinstance(item, float) else item
