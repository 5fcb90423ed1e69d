"""Result of ``hydragnn simulate``: policies side by side, and assumptions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_target, read_json, write_json
from hydragnn.base.shown import Shown
from hydragnn.base.terminal import PlainConsole
from hydragnn.hpo.simulation import PolicyResult, Scenario, compare_policies, final_training

FINAL_HOURS = 1000.0
"""A final training that has not ended by then never will."""

FILES = ("simulated.json", "utilisation.svg", "utilisation.png")

SHARES = ("goodput", "utilisation")
HIDDEN = ("node-hours", "faults", "milliseconds per decision", "violations", "decisions")


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult(Shown):
    """Policies on one simulated machine, with the same configurations and faults."""

    title: str
    nodes: int
    seed: int
    """Of faults and trials; equal seeds give equal figures."""
    rungs: tuple[int, ...]
    """Epochs at which trials are compared; the last is the full budget."""
    slots_per_trial: tuple[int, int]
    """The fewest and the most that a trial may have."""
    policies: Mapping[str, PolicyResult]
    assumptions: Mapping[str, Any]
    """Those that apply, as docs/simulate.md explains them."""
    files: tuple[Path, ...] = ()
    """What was written; empty without ``out``."""

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON."""
        return {
            "title": self.title,
            "simulated": True,
            "nodes": self.nodes,
            "seed": self.seed,
            "rungs": list(self.rungs),
            "slots per trial": list(self.slots_per_trial),
            "policies": {name: one.to_json() for name, one in self.policies.items()},
            "assumptions": dict(self.assumptions),
            **({"files": [str(path) for path in self.files]} if self.files else {}),
        }

    def __str__(self) -> str:
        """The goodput of every policy."""
        return f"{self.title}: " + ", ".join(f"{name} goodput {one.goodput:.1%}" for name, one in self.policies.items())


def simulation_of(
    scenario: Scenario, policies: Sequence[str], hours: float, final: int | None, out: Path | None
) -> SimulationResult:
    """Return the simulated figures of every policy, also written to ``out``."""
    nodes = f"{scenario.nodes:,} nodes"
    if final is None:
        results, title = compare_policies(scenario, policies, hours), f"simulated campaign, {nodes}, {hours:g} h"
    else:
        results = [final_training(scenario, final, FINAL_HOURS)]
        title = f"simulated final training of {final} configurations, {nodes}"
    result = SimulationResult(
        title=title,
        nodes=scenario.nodes,
        seed=scenario.seed,
        rungs=tuple(scenario.plan.rungs),
        slots_per_trial=(scenario.plan.min_slots, scenario.plan.max_slots),
        policies={one.policy: one for one in results},
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


def show(result: SimulationResult) -> None:
    """Print the result of a simulation."""
    console, value = PlainConsole(), result.to_json()
    console.print(_figures(value), _causes(value))
    for name, policy in value["policies"].items():
        for violation in policy["violations"]:
            console.print(f"defect in {name}: {violation}", style="bold")
    console.print("simulated; assumptions: " + ", ".join(f"{k} = {v}" for k, v in value["assumptions"].items()))
    for path in value.get("files", ()):
        console.print(path)


def picture(results: Sequence[PolicyResult], title: str, path: Path) -> None:
    """Draw the share of training nodes over time, a line per policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for result in results:
        edges = np.linspace(0.0, result.hours, len(result.busy) + 1)
        label = f"{result.policy}: goodput {result.goodput:.1%}"
        axes.stairs([100 * part for part in result.busy], edges, label=label, linewidth=1.4, baseline=None)
    axes.set(xlabel="allocated hours", ylabel="nodes that train, %", ylim=(0, 101), title=title)
    axes.set_xlim(0, max(result.hours for result in results))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _write(result: SimulationResult, out: Path) -> list[Path]:
    """Write figures as JSON, and utilisation as SVG and PNG."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}; choose another folder") from error
    paths = [out / name for name in FILES]
    over_time = {name: policy.busy for name, policy in result.policies.items()}
    write_json(paths[0], json.loads(json.dumps({**result.to_json(), "utilisation over time": over_time})))
    for path in paths[1:]:
        picture(list(result.policies.values()), result.title, path)
    return paths


def _figures(value: dict[str, Any]) -> Table:
    policies = value["policies"]
    table = Table("simulated", *policies, title=value["title"], box=None, pad_edge=False)
    for key in next(iter(policies.values())):
        if key not in HIDDEN:
            table.add_row(key, *(_cell(key, policy[key]) for policy in policies.values()))
    return table


def _causes(value: dict[str, Any]) -> Table:
    policies = value["policies"]
    table = Table("simulated node-hours", *policies, box=None, pad_edge=False)
    for cause in next(iter(policies.values()))["node-hours"]:
        cells = [(p["node-hours"][cause], p["allocated node-hours"]) for p in policies.values()]
        table.add_row(cause, *(f"{hours:,.0f} ({hours / max(whole, 1e-12):.2%})" for hours, whole in cells))
    return table


def _cell(key: str, item: Any) -> str:
    if item is None:
        return "not reached"
    if key in SHARES:
        return f"{item:.1%}"
    return f"{item:,.2f}" if isinstance(item, float) else str(item)
