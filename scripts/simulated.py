"""What `hydragnn simulate` shows: one column per policy, a picture of utilisation, and the assumptions; all simulated."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hydragnn.errors import InputError
from hydragnn.files import check_target, read_json, write_json
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.simulation import Assumptions, PolicyResult, Scenario, compared, final_training, scenario_of
from hydragnn.settings import with_overrides

FINAL_HOURS = 1000.0
"""A final training that has not ended by then never will."""

FILES = ("simulated.json", "utilisation.svg", "utilisation.png")

SHARES = ("goodput", "utilisation")
HIDDEN = ("node-hours", "faults", "milliseconds per decision", "violations", "decisions")


def run_simulation(
    table: dict[str, Any],
    source: Path,
    *,
    nodes: int,
    hours: float,
    seed: int | None,
    recorded: Path | None,
    policies: Sequence[str],
    final: int | None,
    assume: Sequence[str],
    out: Path | None,
) -> dict[str, Any]:
    """The simulated figures of every policy, as plain JSON; with ``out`` also written there, with a picture."""
    if out is not None:
        check_simulated(out)
    settings = campaign_settings(table, source)
    assumptions = Assumptions.parse(
        with_overrides({}, assume, option="--assume", example="node_mtbf_hours=5000"), source="--assume"
    )
    seed = settings.search.seed if seed is None else seed
    scenario = scenario_of(settings, assumptions, nodes=nodes, seed=seed, recorded=recorded)
    if final is None:
        results, title = compared(scenario, policies, hours), f"simulated campaign, {nodes:,} nodes, {hours:g} h"
    else:
        results = final_training(scenario, final, FINAL_HOURS)
        title = f"simulated final training of {final} configurations, {nodes:,} nodes"
    value = _as_json(title, scenario, results)
    if out is not None:
        value["files"] = [str(path) for path in _written(value, results, out)]
    return value


def check_simulated(out: Path) -> None:
    """Raise InputError where ``out`` is anything but an earlier simulation, an empty folder or free."""
    check_target(out, FILES, mark=FILES[0])
    if (out / FILES[0]).exists():
        before = read_json(out / FILES[0])
        if not isinstance(before, dict) or before.get("simulated") is not True:
            raise InputError(f"{out / FILES[0]} is no simulation of this program; choose another --out")


def show(value: dict[str, Any]) -> None:
    """Print what ``run_simulation`` gave."""
    console = Console()
    console.print(_figures(value), _causes(value))
    for name, text in value["useful work against static"].items():
        console.print(f"simulated: {name} does {text:.2f} times the useful work per allocated node-hour of static")
    for name, policy in value["policies"].items():
        for violation in policy["violations"]:
            console.print(f"[bold]defect[/bold] in {name}: {violation}")
    console.print("simulated; assumptions: " + ", ".join(f"{k} = {v}" for k, v in value["assumptions"].items()))
    for path in value.get("files", ()):
        console.print(path)


def picture(results: Sequence[PolicyResult], title: str, path: Path) -> None:
    """Draw the part of the nodes that train, over time, one line per policy."""
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


def _as_json(title: str, scenario: Scenario, results: Sequence[PolicyResult]) -> dict[str, Any]:
    assumptions = scenario.assumptions.to_json()
    static = next((result for result in results if result.policy == "static"), None)
    return {
        "title": title,
        "simulated": True,
        "nodes": scenario.nodes,
        "seed": scenario.seed,
        "rungs": list(scenario.plan.rungs),
        "places per trial": [scenario.plan.min_places, scenario.plan.max_places],
        "policies": {result.policy: result.summary() for result in results},
        "useful work against static": {
            result.policy: result.goodput / static.goodput
            for result in results
            if static is not None and result is not static and static.goodput > 0
        },
        "assumptions": {key: item for key, item in assumptions.items() if item is not None},
    }


def _written(value: dict[str, Any], results: Sequence[PolicyResult], out: Path) -> list[Path]:
    """Files in the folder ``out``: figures as JSON, utilisation as SVG and PNG."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}; choose another folder") from error
    paths = [out / name for name in FILES]
    over_time = {result.policy: result.busy for result in results}
    write_json(paths[0], json.loads(json.dumps({**value, "utilisation over time": over_time})))
    for path in paths[1:]:
        picture(results, value["title"], path)
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
