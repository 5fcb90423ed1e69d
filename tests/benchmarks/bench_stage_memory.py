"""Peak memory of stages that train on forces beside fully sharded training, seen from outside the ranks.

    python -m tests.benchmarks.bench_stage_memory [--ranks 2 4] [--sizes activations weights] [--graphs 8]

Ranks are processes that train by the package's own loop, on energies, forces and stress of rattled crystals, in single precision. This program reads
``/proc/PID/status`` of each: the resident set when data and libraries are loaded, and its peak over three steps and a validation, reset in between.
A figure is the difference, of the rank with the largest. A part has equally many graphs in all layouts: a rank of ``shard`` computes its share of
the batch at once, or in halves, and stages compute as many parts as all of these.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SIZES = {"activations": {"hidden_dim": 64, "num_layers": 8}, "weights": {"hidden_dim": 600, "num_layers": 12}}
LAYOUTS: dict[str, tuple[str, int, bool]] = {
    "shard": ("shard", 1, False),
    "shard, halves": ("shard", 2, False),
    "shard, computed twice": ("shard", 1, True),
    "pipeline": ("pipeline", 1, False),
    "pipeline, halves": ("pipeline", 2, False),
    "pipeline, computed twice": ("pipeline", 1, True),
    "pipeline, computed twice, halves": ("pipeline", 2, True),
}
"""Axis, parts of a rank's share, and ``checkpoint_activations``."""
KEPT = {"MALLOC_MMAP_THRESHOLD_": "200000", "MALLOC_TRIM_THRESHOLD_": "200000", "OMP_NUM_THREADS": "1"}
"""Variables of glibc, so that the resident set is what is in use."""


def crystals(count: int) -> Any:
    """Return rattled copper of 32 atoms with labels drawn at random."""
    import numpy as np
    import torch
    from ase.build import bulk

    from hydragnn.datasets import MemoryStore
    from hydragnn.graphs import Field, concatenate
    from hydragnn.graphs.atomic import from_ase

    draw, graphs = np.random.default_rng(0), []
    for _ in range(count):
        atoms = bulk("Cu", cubic=True) * (2, 2, 2)
        atoms.positions += draw.normal(0, 0.05, atoms.positions.shape)
        graphs.append(from_ase(atoms, cutoff=5.0))
    batch = concatenate(graphs)
    places = {
        "energy": ("graph", (), "scalar"),
        "forces": ("node", (3,), "vector"),
        "stress": ("graph", (3, 3), "tensor"),
    }
    fields = [
        Field(name=n, on=on, shape=s, parity=p, role="target", dtype="float64") for n, (on, s, p) in places.items()
    ]
    labels = {one.name: torch.from_numpy(draw.normal(size=(batch.num_items(one.on), *one.shape))) for one in fields}
    labels["stress"] += labels["stress"].mT.clone()
    return MemoryStore(batch.with_fields(labels, fields=fields))


def configuration(size: str, layout: str, ranks: int, graphs: int, kind: str) -> Any:
    """Return the configuration of a row."""
    from hydragnn.config import RunConfig

    axis, parts, twice = LAYOUTS[layout]
    micro = {"micro_batches": parts * (ranks if axis == "pipeline" else 1)}
    table = {
        "data": {"store": "in memory"},
        "split": {"train": 0.75, "valid": 0.25},
        "batch": {"max_graphs": graphs},
        "model": {"kind": kind, "num_radial": 8, "cutoff": 5.0, **SIZES[size], "checkpoint_activations": twice},
        "heads": [{"kind": "energy", "field": "energy", "forces": "forces", "stress": "stress"}],
        "train": {"epochs": 1, "precision": "fp32", "ema_decay": 0.9},
        "parallel": {axis: ranks, **micro},
    }
    return RunConfig.parse(json.loads(json.dumps(table)))


def train_as_rank(options: argparse.Namespace) -> None:
    """Load, wait for a word, train, and wait for another."""
    import torch

    from hydragnn.distributed import join_ranks
    from hydragnn.runs import train

    torch.set_num_threads(1)
    (size,), (layout,), (ranks,) = options.sizes, options.layouts, options.ranks
    store = crystals(4 * options.graphs)
    with join_ranks(options.folder):
        print("READY", flush=True)
        sys.stdin.readline()
        begin = time.perf_counter()
        record = train(
            configuration(size, layout, ranks, options.graphs, options.kind), options.folder / "run", store=store
        )
        seconds = time.perf_counter() - begin
        print(f"DONE {json.dumps([record.parameters, record.status, record.curves['train/loss'][-1], seconds])}", flush=True)
        sys.stdin.readline()


def wait_for(process: "subprocess.Popen[str]", word: str) -> str:
    """Return what follows a word in the output of a rank."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word)
    raise SystemExit(f"a rank ended before {word}")


def resident(process: "subprocess.Popen[str]", key: str) -> int:
    """Return bytes of another process: VmRSS now, or VmHWM at most."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def measured(size: str, layout: str, ranks: int, graphs: int, kind: str) -> tuple[float, float, float, float]:
    """Return the largest peak in bytes, weights, loss and seconds of a layout."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.bench_stage_memory", "--folder", folder, "--kind", kind]
        command += ["--sizes", size, "--layouts", layout, "--ranks", str(ranks), "--graphs", str(graphs)]
        common = {**os.environ, **KEPT, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        own = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        processes = [subprocess.Popen(command, env=one, **pipes) for one in own]
        for process in processes:
            wait_for(process, "READY")
        bases = [resident(process, "VmRSS") for process in processes]
        for process in processes:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            print("", file=process.stdin, flush=True)
        weights, loss, seconds = max(json.loads(wait_for(process, "DONE")) for process in processes)
        peaks = [resident(process, "VmHWM") - base for process, base in zip(processes, bases)]
        for process in processes:
            process.communicate("\n")
    return max(peaks), weights, loss, seconds


def main() -> None:
    """Print a table, or train as a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--sizes", nargs="*", choices=[*SIZES], default=[*SIZES])
    parser.add_argument("--layouts", nargs="*", choices=[*LAYOUTS], default=[*LAYOUTS])
    parser.add_argument("--graphs", type=int, default=8, help="of a batch")
    parser.add_argument("--kind", default="painn")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        train_as_rank(options)
        return
    print(
        "| size | weights | ranks | layout | peak, MiB | over that of shard | s | validation loss |\n|---|---|---|---|---|---|---|---|"
    )
    for size in options.sizes:
        for ranks in options.ranks:
            baseline = 0.0
            for layout in options.layouts:
                peak, weights, loss, seconds = measured(size, layout, ranks, options.graphs, options.kind)
                baseline = baseline or peak
                row = f"{peak / 2**20:.0f} | {peak / baseline:.2f} | {seconds:.1f} | {loss:.6f}"
                print(f"| {size} | {weights:,} | {ranks} | {layout} | {row} |", flush=True)


if __name__ == "__main__":
    main()
