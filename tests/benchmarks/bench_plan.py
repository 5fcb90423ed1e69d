"""Predictions of ``hydragnn plan`` beside measured memory and time of steps.

    python -m tests.benchmarks.bench_plan [--ranks 1 2 4] [--rounds 5] [--only painn] [--clock processor] [--json FILE]

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
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch

from hydragnn.base.machine import cores
from hydragnn.config import RunConfig
from hydragnn.distributed import Ranks, join_ranks, leave, this_launch
from hydragnn.distributed.fabric import Fabric, Link, alike, measured_fabric
from hydragnn.parallel import ParallelSettings
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.layout_plan import MachineSize, planned
from hydragnn.runs.plan import RunPlan, plan_run
from hydragnn.runs.step_costs import BATCHES, Clock, RunCosts, costs_of_layouts
from hydragnn.scripts.step_bench import CUTOFF, MODELS, crystals
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import take_step
from hydragnn.training.memory import allocations
from hydragnn.training.parameters import FlatParameters
from tests.benchmarks.harness import Figures

CPU = torch.device("cpu")
ALONE = Fabric(
    within=alike(Link(latency=0.0, bandwidth=1e12)), between=Link(latency=0.0, bandwidth=1e12), source="one rank"
)
WIDTHS = {"painn": (32, 192), "schnet": (64, 256), "mace": (16, 32)}
"""Of the wider, weights of PaiNN and SchNet are more than a bucket, so that copies share states."""
BATCH = 12
LAYOUTS: Mapping[int, Sequence[dict[str, int]]] = {
    1: ({}, {"micro_batches": 2}, {"micro_batches": 3}),
    2: ({}, {"micro_batches": 2}, {"shard": 2}, {"shard": 2, "micro_batches": 2}, {"tensor": 2}),
    4: ({}, {"shard": 2}, {"shard": 4}, {"tensor": 2}, {"shard": 2, "tensor": 2}),
}
"""By number of ranks."""


def config_of(kind: str, hidden: int, layout: dict[str, int]) -> RunConfig:
    """Return a run on alloys, energies and forces."""
    model = {"kind": kind, "hidden_dim": hidden, "num_layers": 3, "cutoff": CUTOFF, **MODELS.get(kind, {})}
    return RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "split": {"train": 0.8, "valid": 0.1},
            "batch": {"max_graphs": BATCH},
            "model": model,
            "heads": [{"kind": "energy", "field": "energy", "forces": "forces"}],
            "train": {"graphs": "off", "epochs": 1},
            "parallel": layout,
        }
    )


def assembled(config: RunConfig, ranks: Ranks) -> tuple[RunPlan, Assembly]:
    """Return plan and run of these ranks."""
    plan = plan_run(config, crystals(5 * BATCH))
    return plan, assemble(plan, DevicePlacement(device=CPU, dtype=torch.float32), ranks, lambda: None)


def costs_of(kind: str, hidden: int, layouts: Sequence[dict[str, int]], clock: Clock) -> RunCosts:
    """Return costs as the command measures them."""
    plan, run = assembled(config_of(kind, hidden, {}), Ranks())
    return costs_of_layouts(run, plan, map(ParallelSettings.parse, layouts), clock=clock)


def step_of(run: Assembly, rounds: int, ranks: Ranks, clock: Clock) -> tuple[float, float]:
    """Return seconds of a step, and bytes of the largest rank."""
    least = np.full(BATCHES, np.inf)
    for _ in range(rounds):
        shares = run.data.epoch(0)
        for number in range(BATCHES):
            ranks.wait()
            begin = clock()
            share = next(shares)
            take_step(run.state, share, run.context, 0.0)
            least[number] = min(least[number], clock() - begin)
    peak = 0.0
    for share in islice(run.data.epoch(0), BATCHES):
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


def work(folder: Path, rounds: int, only: str, clock: Clock) -> None:
    """Measure as a rank; the first prints a line per row.

    Costs come first, since they need processes without peers.
    """
    torch.set_num_threads(1)
    size = this_launch().size
    models = [(kind, hidden) for kind, widths in WIDTHS.items() if only in kind for hidden in widths]
    told = [costs_of(kind, hidden, LAYOUTS[size], clock) for kind, hidden in models]
    machine = MachineSize(nodes=1, ranks_per_node=size, cores=cores(), measured=size)
    with join_ranks(folder, CPU) as ranks:
        fabric = measured_fabric(ranks, CPU) if size > 1 else ALONE
        for (kind, hidden), costs in zip(models, told):
            for layout in LAYOUTS[size]:
                one = planned(costs, ParallelSettings.parse(layout), machine, fabric)
                _, run = assembled(config_of(kind, hidden, layout), ranks)
                seconds, peak = step_of(run, rounds, ranks, clock)
                row = {"kind": kind, "width": hidden, "ranks": size, "layout": json.dumps(layout)}
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
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        clock = time.process_time if options.clock == "processor" else time.perf_counter
        work(options.work, options.rounds, options.only, clock)
        leave(0)
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
    for name, limit in (("time", 0.2), ("memory", 0.1)):
        errors = [abs(row[name] - 1) for row in figures.rows]
        within = sum(error <= limit for error in errors)
        print(
            f"{name}: {within} of {len(errors)} within {limit:.0%}, median {median(errors):.1%}, worst {max(errors):.1%}"
        )


if __name__ == "__main__":
    main()
