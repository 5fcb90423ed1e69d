"""What a training costs before its first step, and what it keeps in memory, on a store of many small graphs.

    python -m tests.benchmarks.bench_data [--graphs 1000000]

Graphs of 8 to 12 nodes with 3 edges per node; PNA, one energy with reference values, 256 graphs per step. Every start is a process of
its own, from the plan to the first batch: alone in memory, the first and the second of a campaign's trials. Memory is what belongs to
the process (RssAnon) beside the files that the system keeps in memory once for all, and the peak of both (ru_maxrss); the line
"imports" is what Python and torch take before.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hydragnn.config import RunConfig
from hydragnn.datasets import StoreWriter
from hydragnn.distributed import Ranks
from hydragnn.graphs import Field, GraphBatch, Topology
from hydragnn.runs.assembly import assemble
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import DevicePlacement

FIELDS = (
    Field(name="atomic_numbers", on="node", classes=119, dtype="int64"),
    Field(name="charge", on="node"),
    Field(name="energy", on="graph", dtype="float64", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
)
BLOCK = 4096


def small_graphs(first: int, graphs: int) -> GraphBatch:
    """Graphs of 8 to 12 nodes with 3 edges per node, their energy a sum over elements and noise."""
    rng = np.random.default_rng(first)
    nodes = rng.integers(8, 13, graphs)
    edges = 3 * nodes
    node_offsets, edge_offsets = np.r_[0, nodes.cumsum()], np.r_[0, edges.cumsum()]
    total, begin = int(nodes.sum()), np.repeat(node_offsets[:-1], edges)
    receivers = np.repeat(np.arange(total), 3)
    senders = begin + (receivers - begin + np.tile([1, 2, 3], total)) % np.repeat(nodes, edges)
    numbers = rng.choice([1, 6, 7, 8], total)
    energies = np.add.reduceat(-1.5 * numbers, node_offsets[:-1]) + rng.normal(size=graphs)
    return GraphBatch(
        positions=torch.from_numpy(rng.normal(scale=2.0, size=(total, 3))),
        topology=Topology.square(torch.from_numpy(senders), torch.from_numpy(receivers), total),
        edge_shifts=torch.zeros(len(senders), 3, dtype=torch.float64),
        cell=torch.zeros(graphs, 3, 3, dtype=torch.float64),
        periodic=torch.zeros(graphs, 3, dtype=torch.bool),
        node_offsets=torch.from_numpy(node_offsets),
        edge_offsets=torch.from_numpy(edge_offsets),
        fields={field.name: field for field in FIELDS},
        nodes={
            "atomic_numbers": torch.from_numpy(numbers),
            "charge": torch.from_numpy(rng.normal(size=total)).float(),
            "forces": torch.from_numpy(rng.normal(size=(total, 3))).float(),
        },
        graphs={"energy": torch.from_numpy(energies)},
        edges={},
    )


def write(path: Path, graphs: int) -> None:
    """A store of so many graphs at ``path``."""
    with StoreWriter(path, FIELDS, dim=3, attributes={"close_nuclei": True}) as writer:
        for first in range(0, graphs, BLOCK):
            writer.write(small_graphs(first, min(BLOCK, graphs - first)))


def memory() -> tuple[float, float]:
    """MB of this process alone, and the peak with its share of files."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    anonymous = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    return anonymous / 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start(store: Path, shared: bool) -> dict[str, float]:
    """One start in this process, to its first batch."""
    torch.set_num_threads(1)
    table = {
        "data": {"store": str(store)},
        "model": {"kind": "pna", "hidden_dim": 16, "num_layers": 2},
        "heads": [{"kind": "energy", "field": "energy", "references": True}],
        "batch": {"max_graphs": 256},
    }
    imports, wall, cpu = memory(), time.perf_counter(), time.process_time()
    placement = DevicePlacement(device=torch.device("cpu"), dtype=torch.float32)
    run = assemble(plan_run(RunConfig.parse(table)), placement, Ranks(), lambda: None, shared=shared)
    next(iter(run.data.epoch(0)))
    wall, cpu, own = time.perf_counter() - wall, time.process_time() - cpu, memory()
    return {"wall": wall, "cpu": cpu, "own": own[0], "peak": own[1], "imports": imports[0]}


def started(store: Path, *, shared: bool) -> dict[str, float]:
    """What ``start`` tells in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.bench_data",
        "--start",
        str(store),
        *(["--shared"] if shared else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="starting a training on a large store")
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="where the store is made")
    parser.add_argument("--start", type=Path, help="measure one start on this store and print it as JSON")
    parser.add_argument("--shared", action="store_true", help="with --start: as a trial of a campaign")
    arguments = parser.parse_args()
    if arguments.start:
        print(json.dumps(start(arguments.start, arguments.shared)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = Path(folder) / "store.h5"
        write(store, arguments.graphs)
        bytes_ = sum(file.stat().st_size for file in store.iterdir())
        table = Table(f"{arguments.graphs} graphs, {bytes_ / 1e6:.0f} MB", "s", "CPU s", "MB own", "MB peak")
        for name, shared in (("first trial", True), ("second trial", True), ("alone, in memory", False)):
            row = started(store, shared=shared)
            table.add_row(
                name, *(f"{row[key]:.1f}" for key in ("wall", "cpu")), *(f"{row[key]:.0f}" for key in ("own", "peak"))
            )
        table.add_row("imports", "", "", f"{row['imports']:.0f}", "")
        Console().print(table)


if __name__ == "__main__":
    main()
