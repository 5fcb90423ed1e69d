"""Batch assembly: a MemoryStore against torch_geometric's Batch.from_data_list on graphs already in memory.

    python -m tests.benchmarks.bench_batching

20,000 graphs of 8 to 32 nodes, 12 edges per node, 8 fields; both sides give the same tensors (checked), on one thread, measured in
turns of twenty batches in one run. Figures are medians of process CPU time per graph; what counts is the ratio.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from hydragnn.datasets import MemoryStore, StoreWriter, open_store
from hydragnn.graphs import Field, GraphBatch, Topology

FIELDS = (
    Field(name="atomic_numbers", on="node", classes=119, dtype="int64"),
    Field(name="charge", on="node"),
    Field(name="magmom", on="node"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="bond", on="edge"),
    Field(name="energy", on="graph", dtype="float64", role="target"),
    Field(name="gap", on="graph", role="target"),
    Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target"),
)


def random_graphs(graphs: int, seed: int = 0) -> GraphBatch:
    """Random periodic graphs of 8 to 32 nodes with 12 edges per node and 8 fields."""
    rng = np.random.default_rng(seed)
    nodes = rng.integers(8, 33, graphs)
    edges = 12 * nodes
    node_offsets, edge_offsets = np.r_[0, nodes.cumsum()], np.r_[0, edges.cumsum()]
    total, total_edges = int(nodes.sum()), int(edges.sum())
    first, size = np.repeat(node_offsets[:-1], edges), np.repeat(nodes, edges)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.random(shape))

    return GraphBatch(
        positions=numbers(total, 3),
        topology=Topology.square(
            torch.from_numpy(first + (rng.random(total_edges) * size).astype(np.int64)),
            torch.from_numpy(np.sort(first + (rng.random(total_edges) * size).astype(np.int64))),
            total,
        ),
        edge_shifts=numbers(total_edges, 3),
        cell=numbers(graphs, 3, 3),
        periodic=torch.ones(graphs, 3, dtype=torch.bool),
        node_offsets=torch.from_numpy(node_offsets),
        edge_offsets=torch.from_numpy(edge_offsets),
        fields={field.name: field for field in FIELDS},
        nodes={
            "atomic_numbers": torch.from_numpy(rng.integers(1, 90, total)),
            "charge": numbers(total).float(),
            "magmom": numbers(total).float(),
            "forces": numbers(total, 3).float(),
        },
        edges={"bond": numbers(total_edges).float()},
        graphs={"energy": numbers(graphs), "gap": numbers(graphs).float(), "stress": numbers(graphs, 3, 3).float()},
    )


def alternating(first: Callable[[int], object], second: Callable[[int], object], repeats: int) -> tuple[float, float]:
    """Median CPU seconds of two functions, called with the numbers of the repeats, in turn, twenty calls at a time."""
    times: tuple[list[float], list[float]] = ([], [])
    for start in range(0, repeats, 20):
        for function, record in zip((first, second), times):
            for repeat in range(start, min(start + 20, repeats)):
                began = time.process_time()
                function(repeat)
                record.append(time.process_time() - began)
    return median(times[0]), median(times[1])


def check_equal(batch: GraphBatch, reference: object) -> None:
    """Both sides hold the same numbers."""
    pairs = {
        "pos": batch.positions,
        "edge_index": torch.stack([batch.senders, batch.receivers]),
        "edge_shifts": batch.edge_shifts,
        "cell": batch.cell,
        "periodic": batch.periodic,
        "batch": batch.owner("node"),
        "ptr": batch.node_offsets,
        **{field.name: batch[field.name] for field in FIELDS},
    }
    for name, value in pairs.items():
        other = getattr(reference, name)
        if not torch.equal(other.reshape(value.shape), value):
            raise SystemExit(f"{name} differs between the two sides")


def measure(graphs: int, batch_sizes: list[int], repeats: int) -> list[dict[str, float]]:
    """One row per batch size: microseconds per graph on both sides, and their ratio."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Batch

    from hydragnn.graphs.pyg import to_pyg

    torch.set_num_threads(1)
    everything = random_graphs(graphs)
    store = MemoryStore(everything)
    data = [graph.clone() for graph in to_pyg(everything)]
    order = np.random.default_rng(1).permutation(graphs)
    rows = []
    for size in batch_sizes:
        samples = [order[(k * size) % (graphs - size) :][:size] for k in range(repeats)]

        def listed(k: int) -> object:
            return Batch.from_data_list([data[i] for i in samples[k].tolist()])  # noqa: B023

        def flat(k: int) -> object:
            return store.read(samples[k])  # noqa: B023

        check_equal(store.read(samples[0]), listed(0))
        slow, fast = alternating(listed, flat, repeats)
        rows.append({"batch": size, "list_us": slow / size * 1e6, "store_us": fast / size * 1e6, "ratio": slow / fast})
    return rows


def measure_engines(graphs: int, repeats: int) -> list[dict[str, object]]:
    """Write and read speed of both engines, in microseconds per graph."""
    everything = MemoryStore(random_graphs(graphs))
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".h5", ".bp"):
            path = Path(folder) / f"store{suffix}"
            start = time.process_time()
            with StoreWriter(path, FIELDS, dim=3) as writer:
                for first in range(0, graphs, 1000):
                    writer.write(everything.read(range(first, min(first + 1000, graphs))))
            write = time.process_time() - start
            store = open_store(path)
            rng = np.random.default_rng(0)
            start = time.process_time()
            for _ in range(repeats):
                first = int(rng.integers(0, graphs - 1024))
                store.read(range(first, first + 1024))
            block = (time.process_time() - start) / repeats / 1024
            start = time.process_time()
            for _ in range(repeats):
                store.read(rng.permutation(graphs)[:128])
            scattered = (time.process_time() - start) / repeats / 128
            start = time.process_time()
            MemoryStore(open_store(path).read(range(graphs)))
            load = time.process_time() - start
            bytes_ = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            rows.append(
                {
                    "engine": suffix,
                    "write_us": write / graphs * 1e6,
                    "block_us": block * 1e6,
                    "random_us": scattered * 1e6,
                    "load_us": load / graphs * 1e6,
                    "mb": bytes_ / 1e6,
                }
            )
    return rows


def main() -> None:
    """Print the tables, or JSON with --json."""
    parser = argparse.ArgumentParser(description="batch assembly against torch_geometric's Batch.from_data_list")
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    batching = measure(arguments.graphs, [32, 128, 512], arguments.repeats)
    engines = measure_engines(arguments.graphs, 10)
    if arguments.json:
        print(json.dumps({"batching": batching, "engines": engines}))
        return
    print("batch size   list + from_data_list   MemoryStore.read   ratio")
    for row in batching:
        print(f"{row['batch']:10.0f}   {row['list_us']:18.2f} us   {row['store_us']:13.2f} us   {row['ratio']:4.1f}x")
    print("\nengine   write us/graph   block read us/graph   random batch us/graph   load us/graph   MB on disk")
    for entry in engines:
        print(
            f"{entry['engine']:6}   {entry['write_us']:14.1f}   {entry['block_us']:19.2f}   {entry['random_us']:21.1f}   {entry['load_us']:13.2f}   {entry['mb']:10.1f}"
        )


if __name__ == "__main__":
    main()
