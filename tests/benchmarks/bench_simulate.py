"""The platform's figures on a simulated machine of 9,408 nodes.

    PYTHONPATH=. python -m tests.benchmarks.bench_simulate --seeds 5
    PYTHONPATH=. python -m tests.benchmarks.bench_simulate --seeds 10 --troubles

The first prints goodput and the ratio to the static practice for several seeds, the final training of the best 15, and the
wall time of the simulation. The second prints goodput and lost trials where faults come together. Every figure but wall time and memory is simulated.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.simulation import Assumptions, Figures, figures_of, final_scenario, scenario_of
from tests.benchmarks.static_practice import equal_final_training, static_practice

CAMPAIGN: dict[str, Any] = {
    "data": {"store": "nowhere.h5"},
    "model": {"kind": "schnet"},
    "heads": [{"kind": "scalar", "field": "energy"}],
    "train": {"epochs": 100},
    "search": {
        "trials": 100_000,
        "rungs": [10, 30],
        "reduction": 3,
        "nodes_per_trial": [8, 512],
        "grace_seconds": 30.0,
        "space": {"train.learning_rate": {"type": "float", "low": 1e-4, "high": 1e-2}},
    },
}
"""The campaign of docs/measurements/simulate.md."""

NO_HOLES = Assumptions(black_holes=0.0)
"""The machine of the performance notes, kinder to the static practice: no node fails every launch."""

FINAL_COSTS = (Assumptions(median_node_hours=384.0), Assumptions(median_node_hours=128.0))
"""The final training of 15 configurations whose longest takes about 12 h on 128 nodes, as in the performance notes; and as long as a trial of the search."""

TROUBLES: dict[str, dict[str, float]] = {
    "all of these": {
        "storm_minutes": 10,
        "cabinet_minutes": 45,
        "late_failures": 0.001,
    },
    "storm of 10 minutes": {"storm_minutes": 10},
    "storm of 5 minutes at the beginning": {"storm_minutes": 5, "storm_first_hours": 0},
    "cabinet of 64 every 45 minutes": {"cabinet_minutes": 45},
    "nodes that fail after 20 minutes": {"late_failures": 0.001},
    "1 % of nodes three times slower after an hour": {"slow_nodes": 0.01},
    "none": {},
}
"""Faults that come together, on the machine of docs/measurements/simulate.md."""


def acceptance(seeds: int) -> None:
    """Print the figures that the platform promises, for seeds 0, 1, ..."""
    settings = campaign_settings(CAMPAIGN, Path("CAMPAIGN.toml"))
    rows = []
    for seed in range(seeds):
        begin = time.perf_counter()
        scenario = scenario_of(settings, Assumptions(), nodes=9408, seed=seed)
        ours, static = figures_of(scenario, 6.0), static_practice(scenario, 6.0)
        wall = time.perf_counter() - begin
        kind = static_practice(scenario_of(settings, NO_HOLES, nodes=9408, seed=seed), 6.0)
        machines = [scenario_of(settings, cost, nodes=2560, seed=seed) for cost in FINAL_COSTS]
        final = [(figures_of(final_scenario(one, 15), 1000.0), equal_final_training(one, 15)) for one in machines]
        rows.append(_row(seed, ours, static, kind, wall) | _final_row(*final))
        print("simulated:", json.dumps(rows[-1]), flush=True)
    mean = {key: round(fmean(row[key] for row in rows), 4) for key in rows[0] if key != "seed"}
    print(f"simulated, mean of {seeds} seeds:", json.dumps(mean))
    print(f"measured, peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def troubles(seeds: int) -> bool:
    """Print goodput and what was lost under each of the troubles, for seeds 0, 1, ...; True where no trial was lost."""
    good, settings = True, campaign_settings(CAMPAIGN, Path("CAMPAIGN.toml"))
    for name, assume in TROUBLES.items():
        assumptions, results = Assumptions.model_validate(assume), []
        for seed in range(seeds):
            scenario = scenario_of(settings, assumptions, nodes=9408, seed=seed)
            results.append(figures_of(scenario, 6.0))
        goodputs = [result.goodput for result in results]
        lost = sum(result.lost for result in results)
        good = good and not lost
        print(
            f"simulated: {name}: goodput {fmean(goodputs):.4f} ({min(goodputs):.4f} to {max(goodputs):.4f}), {lost} trials lost, "
            f"{sum(result.trials for result in results):,} trials in {seeds} seeds",
            flush=True,
        )
    return good


def _row(seed: int, ours: Figures, static: Figures, kind: Figures, wall: float) -> dict[str, float]:
    return {
        "seed": seed,
        "goodput": round(ours.goodput, 4),
        "static": round(static.goodput, 4),
        "static without black holes": round(kind.goodput, 4),
        "ratio": round(ours.goodput / static.goodput, 3),
        "ratio without black holes": round(ours.goodput / kind.goodput, 3),
        "measured seconds": round(wall, 1),
    }


def _final_row(*costs: Sequence[Figures]) -> dict[str, float]:
    row: dict[str, float] = {}
    for assumptions, (ours, static) in zip(FINAL_COSTS, costs):
        name = f"final training at {assumptions.median_node_hours:g} node-hours"
        row |= {
            f"{name}, busy": round(ours.utilisation, 4),
            f"{name}, goodput": round(ours.goodput, 4),
            f"{name}, hours": round(ours.hours, 2),
            f"{name}, static busy": round(static.utilisation, 4),
            f"{name}, static hours": round(static.hours, 2),
        }
    return row


def main() -> None:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--troubles", action="store_true", help="Instead: faults that come together.")
    options = parser.parse_args()
    if options.troubles:
        sys.exit(0 if troubles(options.seeds) else 1)
    acceptance(options.seeds)


if __name__ == "__main__":
    main()
