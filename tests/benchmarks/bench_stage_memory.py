"""Peak memory of stages that train on forces beside fully sharded training, seen from outside the ranks.

    python -m tests.benchmarks.bench_stage_memory

Ranks are processes that train SchNet on energies, forces and stress of rattled crystals, in single precision. This program reads ``/proc/PID/status``
of each: the resident set after a training of a tiny model, and its peak over three steps and a validation. A figure is the largest difference of a
rank. Parts have equally many graphs: a rank of ``shard`` computes its share at once, or in halves, and stages compute as many parts as all of these.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

TINY = {"hidden_dim": 8, "num_layers": 4}
SIZES = {"activations": {"hidden_dim": 128, "num_layers": 8}, "weights": {"hidden_dim": 1024, "num_layers": 8}}
LAYOUTS: dict[str, tuple[str, int, bool]] = {
    "shard": ("shard", 1, False),
    "shard, computed twice": ("shard", 1, True),
    "pipeline": ("pipeline", 1, False),
    "pipeline, computed twice": ("pipeline", 1, True),
    "shard, halves": ("shard", 2, False),
    "pipeline, computed twice, halves": ("pipeline", 2, True),
}
"""Axis, parts of a rank's share, and ``checkpoint_activations``."""
GRAPHS = 8  # of a batch


def crystals(count: int, copies: int) -> Any:
    """Return rattled copper with labels drawn at random."""
    import numpy as np
    import torch
    from ase.build import bulk

    from hydragnn.datasets import MemoryStore
    from hydragnn.graphs import Field, concatenate
    from hydragnn.graphs.atomic import from_ase

    draw, graphs = np.random.default_rng(0), []
    for _ in range(count):
        atoms = bulk("Cu", cubic=True) * ((copies,) * 3)
        atoms.positions += draw.normal(0, 0.05, atoms.positions.shape)
        graphs.append(from_ase(atoms, cutoff=5.0))
    batch, own = concatenate(graphs), {"role": "target", "dtype": "float64"}
    fields = [
        Field(name="energy", on="graph", **own),
        Field(name="forces", on="node", shape=(3,), parity="vector", **own),
        Field(name="stress", on="graph", shape=(3, 3), parity="tensor", **own),
    ]
    labels = {one.name: torch.from_numpy(draw.normal(size=(batch.num_items(one.on), *one.shape))) for one in fields}
    labels["stress"] += labels["stress"].mT.clone()
    return MemoryStore(batch.with_fields(labels, fields=fields))


def configuration(size: dict[str, int], layout: str, ranks: int) -> Any:
    """Return the configuration of a row."""
    from hydragnn.config import RunConfig

    axis, parts, twice = LAYOUTS[layout]
    model = {"kind": "schnet", "num_radial": 8, "cutoff": 5.0, "envelope": "polynomial", **size}
    table = {
        "data": {"store": "in memory"},
        "split": {"train": 0.75, "valid": 0.25},
        "batch": {"max_graphs": GRAPHS},
        "model": {**model, "checkpoint_activations": twice},
        "heads": [{"kind": "energy", "field": "energy", "forces": "forces", "stress": "stress"}],
        "train": {"epochs": 1, "precision": "fp32", "ema_decay": 0.9},
        "parallel": {axis: ranks, "micro_batches": parts * (ranks if axis == "pipeline" else 1)},
    }
    return RunConfig.parse(json.loads(json.dumps(table)))


def train_as_rank(size: str, layout: str, ranks: int, folder: Path) -> None:
    """Train a tiny model, wait for a word, train, and wait for another."""
    import torch

    from hydragnn.distributed import join_ranks
    from hydragnn.runs import train

    torch.set_num_threads(1)
    store = crystals(4 * GRAPHS, 2 if size == "activations" else 1)
    with join_ranks(folder):
        train(configuration(TINY, layout, ranks), folder / "tiny", store=store)
        print("READY", flush=True)
        sys.stdin.readline()
        begin = time.process_time()
        record = train(configuration(SIZES[size], layout, ranks), folder / "run", store=store)
        found = [record.parameters, record.curves["train/loss"][-1], time.process_time() - begin]
        print("DONE", json.dumps(found), flush=True)
        sys.stdin.readline()


def wait_for(process: Any, word: str) -> str:
    """Return what follows a word in the output of a rank."""
    return str(next(line for line in process.stdout if line.startswith(word))).removeprefix(word)


def resident(process: Any, key: str) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def measured(size: str, layout: str, ranks: int) -> tuple[float, float, float, float]:
    """Return the largest peak in bytes, weights, loss and seconds of a layout."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
        free.close()
        common = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        common |= {"MALLOC_MMAP_THRESHOLD_": "200000", "MALLOC_TRIM_THRESHOLD_": "200000", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "tests.benchmarks.bench_stage_memory", size, layout, str(ranks), folder]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        own = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        processes = [subprocess.Popen(words, env=one, **pipes) for one in own]
        bases = [wait_for(process, "READY") and resident(process, "VmRSS") for process in processes]
        for process in processes:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            print(file=process.stdin, flush=True)
        weights, loss, seconds = max(json.loads(wait_for(process, "DONE")) for process in processes)
        peaks = [resident(process, "VmHWM") - base for process, base in zip(processes, bases)]
        for process in processes:
            print(file=process.stdin, flush=True)
        for process in processes:
            process.wait()
    return max(peaks), weights, loss, seconds


def main() -> None:
    """Print a table of layouts."""
    print("| size | weights | ranks | layout | peak, MiB | over shard | CPU s of a rank | loss |\n" + "|---" * 8 + "|")
    for size, ranks in product(SIZES, (2, 4)):
        baseline = 0.0
        for layout in LAYOUTS:
            peak, weights, loss, seconds = measured(size, layout, ranks)
            baseline = baseline or peak
            row = f"{peak / 2**20:.0f} | {peak / baseline:.2f} | {seconds:.1f} | {loss:.5f}"
            print(f"| {size} | {weights:,} | {ranks} | {layout} | {row} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] in SIZES:
        train_as_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
