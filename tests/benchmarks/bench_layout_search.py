"""How good a layout a search finds, beside the best of an exhaustive sweep.

    python -m tests.benchmarks.bench_layout_search [--table FILE] [--rounds 2] [--seeds 10]

The sweep measures every layout of four ranks (gloo, one thread each) with 1, 2 and 4 micro-batches and 4, 8, 16 and 24 graphs a batch: processor seconds of all ranks per graph
of training, over the number of cores, which ranks that outnumber the cores take on an idle machine. The model is a
small PaiNN on energies and forces. The table is kept in FILE and goes on where it was interrupted. Samplers of campaigns then search the table by throughput with a quarter
of its configurations as trials; they see what they ask for. The figure is the throughput found over the best of all.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from hydragnn.base.machine import cores
from hydragnn.config import RunConfig
from hydragnn.distributed import Ranks, join_ranks, leave
from hydragnn.hpo.sampling.sampler import History, num_random, proposals
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.points import Point, point_key, space_of
from hydragnn.runs.assembly import assemble
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import take_step
from tests.benchmarks.harness import Figures
from tests.benchmarks.step_times import CUTOFF, crystals

CPU, RANKS, STEPS = torch.device("cpu"), 4, 2
SIZES = {"shard": [1, 2, 4], "graph": [1, 2, 4], "tensor": [1, 2, 4], "micro_batches": [1, 2, 4]}
GRAPHS = [4, 8, 16, 24]
BASE: dict[str, Any] = {
    "data": {"store": "in memory"},
    "model": {"kind": "painn", "hidden_dim": 16, "num_layers": 2, "cutoff": CUTOFF},
    "heads": [{"kind": "energy", "field": "energy", "forces": "forces"}],
    "train": {"graphs": "off", "epochs": 1},
}


def points() -> list[Point]:
    """Return every configuration that four ranks can have."""
    found = []
    for *layout, graphs in product(*SIZES.values(), GRAPHS):
        values = {f"parallel.{axis}": size for axis, size in zip(SIZES, layout)}
        if RANKS % int(np.prod(layout[:-1])) == 0:
            found.append({**values, "batch.max_graphs": graphs})
    return found


def seconds_per_graph(point: Point, ranks: Ranks, rounds: int) -> float:
    """Return the processor time of all ranks over graphs and cores."""
    layout = {path.partition(".")[2]: size for path, size in point.items() if path.startswith("parallel.")}
    graphs = point["batch.max_graphs"]
    config = RunConfig.parse({**BASE, "batch": {"max_graphs": graphs}, "parallel": layout})
    run = assemble(
        plan_run(config, crystals(64)), DevicePlacement(device=CPU, dtype=torch.float32), ranks, lambda: None
    )
    least = np.inf
    for _ in range(rounds + 1):
        ranks.wait()
        begin = time.process_time()
        for share in islice(run.data.epoch(0), STEPS):
            take_step(run.state, share, run.context, 0.0)
        least = min(least, time.process_time() - begin)
    every = ranks.gather(torch.tensor(least, dtype=torch.float64))
    return float(every.sum()) / (min(cores(), RANKS) * STEPS * graphs)


def sweep(folder: Path, table: Path, rounds: int) -> None:
    """Measure what the table lacks, as a rank; the first writes it."""
    torch.set_num_threads(1)
    with join_ranks(folder, CPU) as ranks:
        known: dict[str, float] = json.loads(table.read_text()) if table.exists() else {}
        ranks.wait()
        for point in points():
            if point_key(point) not in known:
                known[point_key(point)] = seconds_per_graph(point, ranks, rounds)
                if ranks.first:
                    table.write_text(json.dumps(known))


def found(known: dict[str, float], sampler: str, seed: int, trials: int) -> float:
    """Return the least time of a search with so many trials."""
    space = {"parallel": SIZES, "batch.max_graphs": {"type": "categorical", "choices": GRAPHS}}
    search = {
        "trials": trials,
        "sampler": sampler,
        "objective": "throughput",
        "ranks_per_node": RANKS,
        "seed": seed,
        "launcher": "slurm",
    }
    settings = campaign_settings({**BASE, "search": {**search, "space": space}}, Path("CAMPAIGN.toml"))
    history = History(space=space_of(settings.search.space), seed=seed, startup=num_random(settings), rungs=(1,))
    done: list[Trial] = []
    for number in range(trials):
        seen = tuple(done) if len(done) >= history.startup else ()
        now = History(space=history.space, seed=seed, startup=history.startup, rungs=(1,), trials=seen)
        (point,) = proposals(settings, now, number, 1, {point_key(trial.values) for trial in done})
        done.append(Trial(number=number, status="finished", values=point, results=(known[point_key(point)],)))
    return min(trial.results[0] for trial in done)


def main() -> None:
    """Sweep, search, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=Path(tempfile.gettempdir()) / "layouts.json")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        sweep(options.work, options.table, options.rounds)
        leave(0)
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        words = ["--work", folder, "--table", str(options.table), "--rounds", str(options.rounds)]
        subprocess.run([*start, "-m", "tests.benchmarks.bench_layout_search", *words], check=True)
    known = json.loads(options.table.read_text())
    best, trials = min(known.values()), len(known) // 4
    print(
        f"{len(known)} configurations, {trials} trials; best {1 / best:.1f} graphs/s, worst {1 / max(known.values()):.1f}"
    )
    figures = Figures({"sampler": "8", "median": "7.3f", "worst": "7.3f", "within 5 %": "10d", "of": "3d"})
    for sampler in ("tpe", "gp", "random"):
        shares = [best / found(known, sampler, seed, trials) for seed in range(options.seeds)]
        figures.add(sampler, median(shares), min(shares), sum(share >= 0.95 for share in shares), len(shares))


if __name__ == "__main__":
    main()
