"""Rates at which ranks read random graphs from the memory that they share and from the disk, and the memory of each.

    python -m tests.benchmarks.bench_memory_of_ranks [--ranks 4] [--graphs 40000] [--parts 16]

All ranks read at the same time, from both stores in turn, batches of the same graphs. Files are in the system's file cache before anything
is measured, so that the disk store never waits for a disk. Memory is the proportional set size of what the ranks share, summed over all of
them: pages that several ranks map count once. Its resident set size, which counts them once per rank, stands beside it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hydragnn.datasets import GraphStore, StoreWriter, finish_store, open_store
from hydragnn.distributed import Ranks, join_ranks, leave
from hydragnn.distributed.rank_store import kept_by_ranks
from tests.benchmarks.bench_data import FIELDS, small_graphs

BATCHES = (1, 32)
ROUNDS, SECONDS = 5, 0.4


def write(path: Path, graphs: int, parts: int) -> None:
    """A store of so many graphs in part files."""
    for part in range(parts):
        with StoreWriter(path, FIELDS, dim=3, part=part) as writer:
            writer.write(small_graphs(part, graphs // parts))
    finish_store(path, parts)


def shared_memory() -> tuple[float, float]:
    """MB of the shared memory that this process maps: proportional and resident."""
    ours, sizes = False, {"Pss:": 0, "Rss:": 0}
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        word = line.split()[0]
        ours = "memfd:hydragnn" in line if "-" in word else ours
        if ours and word in sizes:
            sizes[word] += int(line.split()[1])
    return sizes["Pss:"] / 1024, sizes["Rss:"] / 1024


def rate(store: GraphStore, batch: int, seed: int, ranks: Ranks) -> float:
    """Graphs per second of this rank, in a span in which all ranks read."""
    draws = np.random.default_rng(seed)
    chosen = draws.integers(0, len(store), (4096, batch))
    ranks.wait()
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        store.read(chosen[done % len(chosen)])
        done += 1
    return done * batch / (time.perf_counter() - begin)


def measure(path: Path, folder: Path, nodes: int) -> None:
    """Print the table, on the first rank."""
    torch.set_num_threads(1)
    with join_ranks(folder) as ranks:
        disk = open_store(path)
        disk.read(np.arange(len(disk)))

        def total(value: float) -> float:
            return float(ranks.sum_in_place(torch.tensor(value, dtype=torch.float64)))

        names = [field.name for field in disk.fields()]
        where: dict[str, Any] = {"group": ranks.size, "machine": f"n{ranks.rank * nodes // ranks.size}"}
        kept = kept_by_ranks(
            disk, np.arange(len(disk)), names, ranks, torch.device("cpu"), **(where if nodes > 1 else {})
        )
        kept.read(np.arange(len(kept)))
        ranks.wait()
        own, resident = (total(value) for value in shared_memory())
        ranks.wait()
        rows = []
        for batch in BATCHES:
            rates = {name: [0.0] for name in ("memory", "disk")}
            for number in range(ROUNDS):
                for name, store in (("memory", kept), ("disk", disk)):
                    rates[name].append(total(rate(store, batch, 100 * number + ranks.rank, ranks)))
            best = {name: float(np.median(values[1:])) for name, values in rates.items()}
            rows.append((batch, best["memory"], best["disk"]))
        if ranks.first:
            size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
            print(
                f"{ranks.size} ranks on {nodes} node(s), {len(disk)} graphs, {len(disk.parts)} part files of {size:.0f} MB together"
            )
            print(f"shared memory of all ranks: {own:.0f} MB proportional, {resident:.0f} MB resident")
            table = Table("graphs per batch", "memory of ranks, graphs/s", "disk, graphs/s", "ratio")
            for batch, fast, slow in rows:
                table.add_row(str(batch), f"{fast:,.0f}", f"{slow:,.0f}", f"{fast / slow:.1f}")
            Console(width=100).print(table)


def main() -> None:
    """Write the store and start the ranks."""
    parser = argparse.ArgumentParser(description="random reads from the memory of ranks and from the disk")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=1, help="above 1: ranks of mpirun, declared to be on so many")
    parser.add_argument("--graphs", type=int, default=40_000)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--store", type=Path, help="measure as one rank on this store")
    arguments = parser.parse_args()
    if arguments.store:
        measure(arguments.store, arguments.store.parent, arguments.nodes)
        leave(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.h5"
        write(store, arguments.graphs, arguments.parts)
        mpirun = str(Path(sys.executable).with_name("mpirun"))
        rank = [sys.executable, "-m", "tests.benchmarks.bench_memory_of_ranks", "--store", str(store)]
        command = [mpirun, "-n", str(arguments.ranks), *rank, "--nodes", str(arguments.nodes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPIR_CVAR_NOLOCAL": "1"}
        subprocess.run(command, check=True, cwd=Path(__file__).parents[2], env=environment)


if __name__ == "__main__":
    main()
