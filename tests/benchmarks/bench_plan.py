"""Predictions of ``hydragnn plan`` beside measured memory and time of steps.

    python -m tests.benchmarks.bench_plan [--ranks 1 2 4] [--rounds 5] [--only painn] [--json FILE]

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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from hydragnn.base.machine import cores
from hydragnn.config import RunConfig
from hydragnn.distributed import Ranks, join_ranks, leave
from hydragnn.distributed.fabric import Fabric, Link, alike, measured_fabric
from hydragnn.parallel import ParallelSettings
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.layout_plan import MachineSize, planned
from hydragnn.runs.plan import plan_run
from hydragnn.runs.step_costs import BATCHES, StepCosts, measured_costs
from hydragnn.scripts.step_bench import CUTOFF, MODELS, crystals
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import take_step
from hydragnn.training.memory import allocations
from tests.benchmarks.harness import Figures

CPU = torch.device("cpu")
ALONE = Fabric(
    within=alike(Link(latency=0.0, bandwidth=1e12)), between=Link(latency=0.0, bandwidth=1e12), source="one rank"
)
WIDTHS = {"painn": (16, 64), "schnet": (32, 128), "mace": (16, 32)}
BATCH = (8, 24)
LAYOUTS: Sequence[dict[str, int]] = ({}, {"micro_batches": 2})
"""Layouts on one rank and on several."""
SHARED: Sequence[dict[str, int]] = ()
"""Layouts on several ranks only, with axes of two."""


def config_of(kind: str, hidden: int, graphs: int, layout: dict[str, int]) -> RunConfig:
    """Return a run on alloys, energies and forces."""
    model = {"kind": kind, "hidden_dim": hidden, "num_layers": 3, "cutoff": CUTOFF, **MODELS.get(kind, {})}
    return RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "split": {"train": 0.8, "valid": 0.1},
            "batch": {"max_graphs": graphs},
            "model": model,
            "heads": [{"kind": "energy", "field": "energy", "forces": "forces"}],
            "train": {"graphs": "off", "epochs": 1},
            "parallel": layout,
        }
    )


def assembled(config: RunConfig, ranks: Ranks, layout: dict[str, int]) -> tuple[Any, Assembly]:
    """Return plan and run of these ranks, or of one."""
    plan = replace(plan_run(config, crystals(4 * max(BATCH))), parallel=ParallelSettings.parse(layout))
    return plan, assemble(plan, DevicePlacement(device=CPU, dtype=torch.float32), ranks, lambda: None)


def costs_of(kind: str, hidden: int, graphs: int, ranks: Ranks) -> StepCosts:
    """Return costs as the command measures them."""
    plan, run = assembled(config_of(kind, hidden, graphs, {}), Ranks(), {})
    return measured_costs(run, plan, ranks)


def step_of(run: Assembly, rounds: int, ranks: Ranks) -> tuple[float, float]:
    """Return seconds of a step, and bytes of the largest rank."""
    least = np.full(BATCHES, np.inf)
    for _ in range(rounds):
        shares = run.data.epoch(0)
        for number in range(BATCHES):
            ranks.wait()
            begin = time.perf_counter()
            share = next(shares, None)
            if share is None:
                break
            take_step(run.state, share, run.context, 0.0)
            least[number] = min(least[number], time.perf_counter() - begin)
    seconds = float(least[np.isfinite(least)].mean())
    peak = 0.0
    for share in islice(run.data.epoch(0), BATCHES):
        given = sum(part.size for part in share.parts)
        changes = allocations(lambda share=share: take_step(run.state, share, run.context, 0.0), CPU)
        peak = max(peak, given + float(np.concatenate([[0], changes]).cumsum().max()))
    total = torch.tensor([seconds, peak + state_bytes(run)], dtype=torch.float64)
    return tuple(ranks.gather(total).max(0).values.tolist())


def state_bytes(run: Assembly) -> int:
    """Return the bytes that a rank keeps between steps."""
    parameters = run.state.parameters
    vectors = sum(value.nbytes for value in parameters.state().values())
    gradient = sum(weight.grad.nbytes for weight in run.state.model.parameters() if weight.grad is not None)
    valid = sum(part.size for branch in run.data.branches for part in branch.valid)
    return vectors + gradient + valid + sum(buffer.nbytes for buffer in run.state.model.buffers())


def rows_of(ranks: Ranks, rounds: int, only: str) -> Iterator[dict[str, Any]]:
    """Yield a row per configuration."""
    machine = MachineSize(nodes=1, ranks_per_node=ranks.size, cores=cores(), measured=ranks.size)
    for kind, widths in WIDTHS.items():
        for hidden in widths if only in kind else ():
            fabric = measured_fabric(ranks, CPU) if ranks.size > 1 else ALONE
            for graphs in BATCH:
                costs = costs_of(kind, hidden, graphs, ranks)
                for layout in (*LAYOUTS, *(SHARED if ranks.size > 1 else ())):
                    told = planned(costs, ParallelSettings.parse(layout), machine, fabric)
                    _, run = assembled(config_of(kind, hidden, graphs, layout), ranks, layout)
                    seconds, size = step_of(run, rounds, ranks)
                    yield {
                        "kind": kind,
                        "width": hidden,
                        "graphs": graphs,
                        "ranks": ranks.size,
                        "layout": json.dumps(layout),
                        "ms": 1e3 * seconds,
                        "MB": size / 1e6,
                        "time": told.seconds / seconds,
                        "memory": told.memory.total / size,
                    }


def work(folder: Path, rounds: int, only: str) -> None:
    """Measure as a rank; the first prints a line per row."""
    torch.set_num_threads(1)
    with join_ranks(folder, CPU) as ranks:
        for row in rows_of(ranks, rounds, only):
            if ranks.first:
                print(json.dumps(row), flush=True)


def main() -> None:
    """Print the rows and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="architectures whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.rounds, options.only)
        leave(0)
    columns = {"kind": "8", "width": "6d", "graphs": "7d", "ranks": "6d", "layout": "32"}
    figures = Figures({**columns, "ms": "8.1f", "MB": "8.1f", "time": "7.3f", "memory": "7.3f"}, options.json)
    for size in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--work", folder, "--rounds", str(options.rounds), "--only", options.only]
            start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
            command = [*start, "-m", "tests.benchmarks.bench_plan", *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("{"):
                        figures.add(*json.loads(line).values())
    for name, limit in (("time", 0.2), ("memory", 0.1)):
        errors = [abs(row[name] - 1) for row in figures.rows]
        within = sum(error <= limit for error in errors)
        print(
            f"{name}: {within} of {len(errors)} within {limit:.0%}, median {median(errors):.1%}, worst {max(errors):.1%}"
        )


if __name__ == "__main__":
    main()
