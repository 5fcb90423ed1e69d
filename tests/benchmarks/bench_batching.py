"""Batch assembly: a MemoryStore against torch_geometric's Batch.from_data_list on graphs already in memory.

    python -m tests.benchmarks.bench_batching

20,000 graphs of 8 to 32 nodes, 12 edges per node, 8 fields; both sides give the same tensors (checked), on one thread, measured in
turns in one run. Figures are medians of process CPU time per graph; what counts is the ratio.
"""

import itertools
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from hydragnn.datasets import MemoryStore, StoreWriter, open_store
from hydragnn.graphs import Field, GraphBatch, Topology
from tests.benchmarks.harness import Figures, in_turns, parser, seconds

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

    cells = rng.random((graphs, 3, 3)) + np.eye(3)
    shifts = np.einsum("ei,eij->ej", rng.integers(-1, 2, (total_edges, 3)), np.repeat(cells, edges, axis=0))
    return GraphBatch(
        positions=numbers(total, 3),
        topology=Topology.square(
            torch.from_numpy(first + (rng.random(total_edges) * size).astype(np.int64)),
            torch.from_numpy(np.sort(first + (rng.random(total_edges) * size).astype(np.int64))),
            total,
        ),
        edge_shifts=torch.from_numpy(shifts),
        cell=torch.from_numpy(cells),
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


def measure(graphs: int, batch_sizes: list[int], rounds: int, figures: Figures) -> None:
    """Add a row per batch size: microseconds per graph on both sides, and their ratio."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Batch

    from hydragnn.graphs.pyg import to_pyg

    torch.set_num_threads(1)
    everything = random_graphs(graphs)
    store = MemoryStore(everything)
    data = [graph.clone() for graph in to_pyg(everything)]
    order = np.random.default_rng(1).permutation(graphs)
    for size in batch_sizes:
        samples = [order[(k * size) % (graphs - size) :][:size] for k in range(rounds + 1)]
        first, second = itertools.cycle(samples), itertools.cycle(samples)

        def listed(each: Iterator[np.ndarray] = first) -> object:
            return Batch.from_data_list([data[i] for i in next(each).tolist()])

        def flat(each: Iterator[np.ndarray] = second) -> object:
            return store.read(next(each))

        check_equal(store.read(samples[0]), Batch.from_data_list([data[i] for i in samples[0].tolist()]))
        turns = in_turns({"list": listed, "store": flat}, rounds)
        slow, fast = (1e3 * turns.milliseconds(name) / size for name in ("list", "store"))
        figures.add(size, slow, fast, slow / fast)


def measure_engines(graphs: int, rounds: int, figures: Figures) -> None:
    """Add a row per engine: writing and reading, in microseconds per graph."""
    everything = MemoryStore(random_graphs(graphs))
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".h5", ".bp"):
            path = Path(folder) / f"store{suffix}"

            def write(path: Path = path) -> None:
                with StoreWriter(path, FIELDS, dim=3) as writer:
                    for first in range(0, graphs, 1000):
                        writer.write(everything.read(range(first, min(first + 1000, graphs))))

            written = seconds(write) / graphs
            store, random = open_store(path), np.random.default_rng(0)
            firsts = iter(random.integers(0, graphs - 1024, rounds).tolist())
            block = seconds(lambda: store.read(range(first := next(firsts), first + 1024)), rounds) / 1024  # noqa: B023
            scattered = seconds(lambda: store.read(random.permutation(graphs)[:128]), rounds) / 128  # noqa: B023
            load = seconds(lambda: MemoryStore(open_store(path).read(range(graphs)))) / graphs  # noqa: B023
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            figures.add(suffix, *(1e6 * value for value in (written, block, scattered, load)), size / 1e6)


def main() -> None:
    """Print the tables."""
    arguments = parser(__doc__, rounds=100)
    arguments.add_argument("--graphs", type=int, default=20_000)
    options = arguments.parse_args()
    columns = {"batch size": "d", "list + from_data_list, us": ".2f", "MemoryStore.read, us": ".2f", "ratio": "6.1f"}
    measure(options.graphs, [32, 128, 512], options.rounds, Figures(columns, options.json))
    print("\nmicroseconds per graph")
    each = dict.fromkeys(("write", "read a block", "read a random batch", "load"), "8.2f")
    measure_engines(options.graphs, 30, Figures({"engine": "6", **each, "MB on disk": ".1f"}))


if __name__ == "__main__":
    main()
