"""Predictions of ``hydragnn plan`` beside measured memory and time of steps.

    python -m tests.benchmarks.bench_plan [--ranks 1 2 4] [--rounds 5] [--only painn] [--clock processor] [--json FILE]
    python -m tests.benchmarks.bench_plan --curves

Every row is a configuration: an architecture, its width, graphs of a batch, ranks (gloo, one thread each) and a layout. Costs are measured by small
steps on all ranks at the same time, as the command does, then the run itself takes its first batches over and over; of every batch the
least time counts. Memory is the sum of the state's tensors and of what torch's allocator gives during a step, which is exact. Ratios are predicted
over measured; the target is 10 % of memory and 20 % of time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from hydragnn.base.machine import cores
from hydragnn.config import RunConfig
from hydragnn.distributed import Ranks, join_ranks, leave, this_launch
from hydragnn.distributed.fabric import Fabric, Link, alike, measured_fabric, site_fabric
from hydragnn.parallel import ParallelSettings
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.costs import RunCosts
from hydragnn.runs.layer_costs import costs_of_layers
from hydragnn.runs.layout_plan import MachineSize, layouts_on, planned, scaling_curve
from hydragnn.runs.plan import RunPlan, plan_run
from hydragnn.runs.rank_steps import steps_of_ranks
from hydragnn.runs.step_costs import Clock, costs_of_layouts, is_possible
from hydragnn.scripts.plan_command import layout_words
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import take_step
from hydragnn.training.memory import allocations
from hydragnn.training.parameters import FlatParameters
from tests.benchmarks.harness import Figures
from tests.benchmarks.step_times import CUTOFF, MODELS, crystals

CPU = torch.device("cpu")
ALONE = Fabric(
    within=alike(Link(latency=0.0, bandwidth=1e12)), between=Link(latency=0.0, bandwidth=1e12), source="one rank"
)
WIDTHS = {"painn": (32, 192), "schnet": (64, 256), "mace": (16, 32)}
"""Of the wider, weights of PaiNN and SchNet are more than a bucket, so that copies share states."""
BATCH = 12
LAYOUTS: Mapping[int, Sequence[dict[str, int]]] = {
    1: ({}, {"micro_batches": 3}),
    2: (
        {},
        {"micro_batches": 2},
        {"shard": 2},
        {"shard": 2, "micro_batches": 2},
        {"tensor": 2},
        {"graph": 2},
    ),
    4: ({}, {"shard": 2}, {"shard": 4}, {"tensor": 2}, {"shard": 2, "tensor": 2}, {"graph": 2}),
}
"""By number of ranks; four train the narrower models."""

STAGED = ("painn", "schnet")
STAGES: Mapping[int, Sequence[dict[str, int]]] = {
    2: ({"pipeline": 2, "micro_batches": 6}, {"pipeline": 2, "chunks": 2, "micro_batches": 6}),
    4: ({"pipeline": 2, "micro_batches": 6}, {"pipeline": 4, "micro_batches": 12}),
}
"""Of the narrower models, which learn energies without forces by them."""


class Case(NamedTuple):
    """A model, and the layouts of its rows."""

    kind: str
    hidden: int
    forces: bool
    layouts: Sequence[dict[str, int]]

    @property
    def measured(self) -> list[ParallelSettings]:
        """Return the layouts in one part each, or as many as stages."""
        every = (ParallelSettings.parse({**layout, "micro_batches": 1}) for layout in self.layouts)
        return list({one.model_dump_json(): one for one in every}.values())


def cases(ranks: int, only: str) -> list[Case]:
    """Return what so many ranks measure."""
    chosen = [(kind, widths if ranks < 4 else widths[:1]) for kind, widths in WIDTHS.items() if only in kind]
    whole = [Case(kind, hidden, True, LAYOUTS[ranks]) for kind, widths in chosen for hidden in widths]
    staged = [(kind, widths[0]) for kind, widths in chosen if kind in STAGED and ranks in STAGES]
    return whole + [Case(kind, hidden, False, STAGES[ranks]) for kind, hidden in staged]


def config_of(case: Case, layout: dict[str, int]) -> RunConfig:
    """Return a run on alloys, energies and perhaps forces."""
    layers = 3 if case.forces else 4
    settings = MODELS.get(case.kind, {})
    model = {"kind": case.kind, "hidden_dim": case.hidden, "num_layers": layers, "cutoff": CUTOFF, **settings}
    energy = {"kind": "energy", "field": "energy"}
    return RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "split": {"train": 0.75, "valid": 0.125},  # three whole batches
            "batch": {"max_graphs": BATCH},
            "model": model,
            "heads": [energy | {"forces": "forces"} if case.forces else energy],
            "train": {"graphs": "off", "epochs": 1},
            "parallel": layout,
        }
    )


def assembled(config: RunConfig, ranks: Ranks) -> tuple[RunPlan, Assembly]:
    """Return plan and run of these ranks."""
    plan = plan_run(config, crystals(4 * BATCH))
    return plan, assemble(plan, DevicePlacement(device=CPU, dtype=torch.float32), ranks, lambda: None)


def step_of(run: Assembly, rounds: int, ranks: Ranks, clock: Clock) -> tuple[float, float]:
    """Return seconds of a step, and bytes of the largest rank."""
    steps = run.data.steps(0)
    least = np.full(steps, np.inf)
    for _ in range(rounds):
        shares = run.data.epoch(0)
        for number in range(steps):
            ranks.wait()
            begin = clock()
            share = next(shares)
            take_step(run.state, share, run.context, 0.0)
            least[number] = min(least[number], clock() - begin)
    peak = 0.0
    for share in run.data.epoch(0):
        given = sum(part.size for part in share.parts)
        changes = allocations(partial(take_step, run.state, share, run.context, 0.0), CPU)
        peak = max(peak, given + float(np.concatenate([[0], changes]).cumsum().max()))
    total = torch.tensor([least.mean(), peak + state_bytes(run)], dtype=torch.float64)
    seconds, size = ranks.gather(total).max(0).values.tolist()
    return seconds, size


def state_bytes(run: Assembly) -> int:
    """Return the bytes that a rank keeps between steps."""
    parameters = run.state.parameters
    assert isinstance(parameters, FlatParameters)
    gathered = parameters.gathered.bytes if parameters.gathered else 0  # those are of steps
    valid = sum(part.size for branch in run.data.branches for part in branch.valid)
    return parameters.bytes - parameters.best_vector.nbytes - gathered + valid


def costs_alone(case: Case, size: int, clock: Clock) -> tuple[Case, RunPlan, Assembly, RunCosts]:
    """Return a case with the costs that a process without peers measures."""
    plan, run = assembled(config_of(case, {}), Ranks())
    unstaged = [one for one in case.measured if one.pipeline == 1]
    costs = costs_of_layouts(run, plan, unstaged, clock=clock, followed=size > 1)
    layers = () if case.forces else costs_of_layers(run, plan, clock=clock)
    return case, plan, run, replace(costs, layers=layers)


def work(folder: Path, rounds: int, only: str, clock: Clock) -> None:
    """Measure as a rank; the first prints a line per row.

    Costs come first, since they need processes without peers.
    """
    torch.set_num_threads(1)
    size = this_launch().size
    costs_first = partial(costs_alone, size=size, clock=clock)
    told = map(costs_first, cases(size, only)) if size == 1 else [*map(costs_first, cases(size, only))]
    machine = MachineSize(nodes=1, ranks_per_node=size, cores=cores(), measured=size)
    with join_ranks(folder, CPU) as ranks:
        fabric = measured_fabric(ranks, CPU) if size > 1 else ALONE
        for case, plan, run, costs in told:
            if size > 1:
                costs = replace(costs, steps=steps_of_ranks(run, plan, case.measured, ranks, clock=clock))
            for layout in case.layouts:
                one = planned(costs, ParallelSettings.parse(layout), machine, fabric)
                _, run = assembled(config_of(case, layout), ranks)
                seconds, peak = step_of(run, rounds, ranks, clock)
                row = {"kind": case.kind, "width": case.hidden, "ranks": size, "layout": json.dumps(layout)}
                figures = {"ms": 1e3 * seconds, "MB": peak / 1e6}
                ratios = {"time": one.seconds / seconds, "memory": one.memory.total / peak}
                if ranks.first:
                    print(json.dumps(row | figures | ratios), flush=True)


def main() -> None:
    """Print the rows and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="architectures whose name contains this")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--curves", action="store_true", help="only simulate scaling to 3,072 devices")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        clock = time.process_time if options.clock == "processor" else time.perf_counter
        work(options.work, options.rounds, options.only, clock)
        leave(0)
    if options.curves:
        print_curves()
        return
    columns = {"kind": "8", "width": "6d", "ranks": "6d", "layout": "32"}
    figures = Figures({**columns, "ms": "8.1f", "MB": "8.1f", "time": "7.3f", "memory": "7.3f"}, options.json)
    for size in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                "--work",
                folder,
                "--rounds",
                str(options.rounds),
                "--only",
                options.only,
                "--clock",
                options.clock,
            ]
            start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
            command = [*start, "-m", "tests.benchmarks.bench_plan", *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("{"):
                        figures.add(*json.loads(line).values())
    print_summary(figures.rows)


CURVES: Mapping[str, tuple[Case, int]] = {
    "MACE of width 16, forces, 8 graphs a device": (Case("mace", 16, True, ()), 8),
    "SchNet of width 256, energies, 1 graph a device": (Case("schnet", 256, False, ()), 1),
}
"""Models with the graphs of a device when the most devices share a batch."""

FASTER = 100
"""Times that a device is as fast as a core, by a network as many times slower."""


def print_curves() -> None:
    """Print simulated scaling on Frontier's network as tables."""
    torch.set_num_threads(1)
    site, devices = site_fabric("frontier"), (8, 64, 512, 1024, 3072)
    slower = Link(latency=FASTER * site.between.latency, bandwidth=site.between.bandwidth / FASTER)
    within = {kind: Link(latency=slower.latency, bandwidth=one.bandwidth / FASTER) for kind, one in site.within.items()}
    networks = {"cores": site, f"devices {FASTER} times as fast": replace(site, between=slower, within=within)}
    machine = MachineSize(nodes=1, ranks_per_node=8)
    for title, (case, each) in CURVES.items():
        plan, run = assembled(config_of(case, {}), Ranks())
        layouts = [one for one in layouts_on(machine, ("shard", "tensor")) if is_possible(plan, one)]
        costs = replace(costs_of_layouts(run, plan, layouts), layers=costs_of_layers(run, plan))
        grown = np.resize(costs.workload.batches[0], each * devices[-1])
        costs = replace(costs, workload=replace(costs.workload, batches=(grown,)))
        for name, fabric in networks.items():
            print(
                f"\n{title}, {name}\n\n| devices | strong | by, limited by | weak | by, limited by |\n|---|---|---|---|---|"
            )
            for row in scaling_curve(costs, machine, fabric, devices, each):
                strong, weak = (
                    f"{value:.1%} | {layout_words(dict(layout))}, {limit}"
                    for value, layout, limit in (
                        (row.strong, row.strong_layout, row.strong_limit),
                        (row.weak, row.weak_layout, row.weak_limit),
                    )
                )
                print(f"| {row.devices:,} | {strong} | {weak} |")


def print_summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print how many predictions are near, by ranks and kind of layout."""

    def layout_of(row: Mapping[str, Any]) -> str:
        axes = [f"{axis} {size}" for axis, size in json.loads(row["layout"]).items() if axis != "micro_batches"]
        return f"{row['ranks']} ranks, {' x '.join(axes) or 'copies'}"

    kinds = dict.fromkeys(map(layout_of, rows))
    for kind in (*kinds, "all"):
        own = [row for row in rows if kind in ("all", layout_of(row))]
        words = []
        for name, limit in (("memory", 0.1), ("time", 0.1), ("time", 0.2)):
            errors = [abs(row[name] - 1) for row in own]
            within = sum(error <= limit for error in errors)
            words.append(f"{name} {within} of {len(own)} within {limit:.0%}")
        for name in ("memory", "time"):
            ratios = [row[name] for row in own]
            words.append(
                f"{name} {min(ratios):.2f} to {max(ratios):.2f}, median error {median(abs(one - 1) for one in ratios):.1%}"
            )
        print(f"{kind}: {'; '.join(words)}")


if __name__ == "__main__":
    main()
