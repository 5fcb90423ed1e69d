"""What the memory of a batch is foretold to be, against what it is, and whether a limit ever overflows.

    python -m tests.benchmarks.bench_memory [--pairs 120] [--batches 1000] [--only foretold|limit|process] [--json]

foretold: random configurations (architecture, width, layers, heads, attention, checkpointing, precision) each with a random batch, in
training with double backward where the architecture has forces, and in prediction; foretold peak over measured peak. limit: batches made to
be awkward (one giant graph, many tiny ones, dense, without edges, all mixed) trained in parts under a limit, and batches that
fill it; the largest of the measured peaks over the limit. A measured peak is the largest sum of all allocations less all
releases that torch's allocator reports, so it is exact and the same in every run. process: the growth of this process
(resident size, malloc's trimming at once) beside that peak, for one large batch.
"""

import argparse
import ctypes
import json
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from hydragnn.config import RunConfig
from hydragnn.conformance.cases import loss_of, make_graph, make_model
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.memory import size_of_state, within_memory
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.loop import take_step
from hydragnn.training.memory import allocations, footprint_of, probe_batch

KINDS = ("schnet", "painn", "egnn", "pna", "gatv2", "gin", "cgcnn")
CPU = torch.device("cpu")
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"global_attention": {"kind": "multihead", "heads": 4}},
    {"global_attention": {"kind": "linear", "heads": 4}},
    {"checkpoint_activations": True},
    {"conditioning": "film"},
)


def peak_of(compute: Callable[[GraphBatch], object], batch: GraphBatch) -> int:
    """The bytes of a batch and of all that computing it allocates, at their most."""
    batch = replace(batch)
    return batch.size + int(np.concatenate([[0], allocations(lambda: compute(batch), CPU)]).cumsum().max())


def train_on(model: GraphModel, batch: GraphBatch) -> None:
    """Gradients of everything that the model gives."""
    loss_of(model(batch)).backward(inputs=list(model.parameters()))


def predict_on(model: GraphModel, batch: GraphBatch) -> None:
    """Predictions alone."""
    with torch.no_grad():
        model(batch)


def foretold_pairs(count: int) -> list[dict[str, Any]]:
    """Foretold and measured peaks of random configurations with random batches."""
    random, rows = np.random.default_rng(0), []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        settings = {
            **EXTRAS[random.integers(len(EXTRAS))],
            "hidden_dim": int(4 * random.integers(1, 25)),
            "num_layers": int(random.integers(1, 5)),
        }
        dtype = (torch.float32, torch.float32, torch.float64)[random.integers(3)]
        model = make_model(kind, dtype=dtype, **settings)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)

        training = number % 3 < 2
        compute = partial(train_on if training else predict_on, model)
        some = concatenate([small_graph(seed, 3 + seed) for seed in range(5)]).to(dtype=dtype)
        begin = time.process_time()
        footprint = footprint_of(compute, some)
        seconds = time.process_time() - begin
        nodes, graphs = int(10 ** random.uniform(0, 2)), int(10 ** random.uniform(0, 1.7))
        edges = 2 * int(nodes * random.uniform(0, 15))
        batch = probe_batch(some, (graphs, nodes, edges))
        amounts = [1.0, graphs, batch.num_nodes, batch.num_edges, graphs * nodes**2]
        foretold = float(np.max(np.array(footprint.forms) @ np.array(amounts)))
        measured = peak_of(compute, batch)
        rows.append(
            {
                "kind": kind,
                "training": training,
                "ratio": foretold / measured,
                "measured": measured,
                "seconds": seconds,
            }
        )
    return rows


def small_graph(seed: int, nodes: int) -> GraphBatch:
    """A graph of the conformance suite, whose edges all have a reverse."""
    return probe_batch(make_graph(seed, nodes), (1, nodes, 4 * nodes))


FIELDS = (
    Field(name="species", on="node", classes=5, dtype="int64"),
    Field(name="energy", on="graph", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target", dtype="float64"),
)


def awkward_size(random: np.random.Generator, kind: int) -> tuple[int, int]:
    """Nodes and edges of a graph: a giant, a tiny one, a dense one, one without edges, or any."""
    sizes = [(300, 2400), (int(random.integers(1, 4)), 2), (24, 1200), (int(random.integers(1, 200)), 0)]
    return sizes[kind] if kind < 4 else (int(random.integers(2, 80)), 2 * int(random.integers(0, 500)))


def awkward_graph(random: np.random.Generator, size: tuple[int, int]) -> GraphBatch:
    """A graph of so many nodes and edges."""
    like = GraphBatch(
        positions=torch.zeros(1, 3, dtype=torch.float64),
        topology=probe_topology(),
        edge_shifts=torch.zeros(1, 3, dtype=torch.float64),
        cell=4 * torch.eye(3, dtype=torch.float64).unsqueeze(0),
        periodic=torch.ones(1, 3, dtype=torch.bool),
        node_offsets=torch.tensor([0, 1]),
        edge_offsets=torch.tensor([0, 1]),
        fields={field.name: field for field in FIELDS},
        nodes={"species": torch.tensor([int(random.integers(5))]), "forces": torch.randn(1, 3, dtype=torch.float64)},
        graphs={"energy": torch.randn(1, dtype=torch.float64)},
    )
    return probe_batch(like, (1, *size))


def probe_topology() -> Any:
    """A node that is its own neighbour."""
    from hydragnn.graphs.topology import Topology

    return Topology.square(torch.tensor([0]), torch.tensor([0]), 1)


def make_run(store: MemoryStore, batch: dict[str, Any], kind: str) -> Assembly:
    """A run on a store, within the memory that the batch settings say."""
    config = RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "split": {"train": 0.98, "valid": 0.01},
            "batch": batch,
            "model": {"kind": kind, "hidden_dim": 32, "num_layers": 3, "cutoff": 6.0},
            "heads": [
                {
                    "kind": "energy",
                    "loss": "mse",
                    "stage_two_factor": 1.0,
                    "per_node": False,
                    "field": "energy",
                    **({} if kind == "pna" else {"forces": "forces"}),
                }
            ],
        }
    )
    plan = plan_run(config, store)
    run = assemble(plan, DevicePlacement(device=CPU, dtype=torch.float32), Ranks(), lambda: None)
    return within_memory(run, plan, Ranks(), {}, lambda: None)


def measured_share(run: Assembly, share: Share, limit: int) -> float:
    """The measured peak of a step, over the limit."""
    given = size_of_state(run) + sum(part.size for part in share.parts)
    changes = allocations(lambda: take_step(run.state, share, run.context, 0.0), CPU)
    return (given + int(np.concatenate([[0], changes]).cumsum().max())) / limit


def filling(limit: int = 96_000_000) -> list[float]:
    """What batches of ordinary graphs of 8 to 64 nodes that fill memory take of it, all but the last of an epoch."""
    random, shares = np.random.default_rng(2), []
    nodes = np.clip(random.lognormal(np.log(16), 0.55, 700), 8, 64).astype(int)
    store = MemoryStore(concatenate([awkward_graph(random, (int(n), int(n) * 26)) for n in nodes]))
    for kind in ("painn", "schnet"):
        run = make_run(store, {"budget": "auto", "memory": str(limit)}, kind)
        *full, _ = run.data.epoch(0)
        shares += [measured_share(run, share, limit) for share in full]
    return shares


def under_limit(count: int, limit: int) -> list[dict[str, Any]]:
    """Measured peaks of steps on awkward batches, over the limit that they had."""
    random, rows = np.random.default_rng(1), []
    for kind in ("painn", "schnet", "egnn", "pna"):
        for batch in ({"max_graphs": 24}, {"budget": "auto"}):
            done, mixture = 0, 0
            while done < count // 8:
                kinds = [(mixture + k) % 5 for k in (0, 1)] if mixture % 3 else range(5)
                graphs = [awkward_graph(random, awkward_size(random, int(random.choice([*kinds])))) for _ in range(400)]
                run = make_run(MemoryStore(concatenate(graphs)), {**batch, "memory": str(limit)}, kind)
                mixture += 1
                for share in islice(run.data.epoch(0), count // 8 - done):
                    ratio = measured_share(run, share, limit)
                    rows.append({"kind": kind, **batch, "parts": len(share.parts), "ratio": ratio})
                    done += 1
    return rows


def process_growth() -> dict[str, float]:
    """Peak of a step by the allocator and by the growth of the process, in MB."""
    trim = ctypes.CDLL(None).mallopt
    trim(-3, 65536), trim(-1, 65536)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD: what is freed goes back
    train = partial(train_on, make_model("painn", dtype=torch.float32, hidden_dim=64))
    some = concatenate([small_graph(seed, 3 + seed) for seed in range(5)]).to(dtype=torch.float32)
    train(some)
    batch = probe_batch(some, (64, 64, 2400))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    given = batch.size
    train(replace(batch))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"allocator_mb": (peak_of(train, batch) - given) / 1e6, "process_mb": (after - before) * 1.024}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=24_000_000, help="bytes")
    parser.add_argument("--only", choices=("foretold", "limit", "process"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    if options.only in (None, "process"):
        result["process"] = process_growth()
    if options.only in (None, "foretold"):
        rows = foretold_pairs(options.pairs)
        ratios = np.array([row["ratio"] for row in rows])
        result["foretold"] = {
            "pairs": len(rows),
            "within 10 %": int((np.abs(ratios - 1) <= 0.1).sum()),
            "least": float(ratios.min()),
            "median": float(np.median(ratios)),
            "most": float(ratios.max()),
            "seconds": float(np.median([row["seconds"] for row in rows])),
            "measured MB": [
                round(min(row["measured"] for row in rows) / 1e6, 2),
                round(max(row["measured"] for row in rows) / 1e6, 1),
            ],
        }
    if options.only in (None, "limit"):
        rows = under_limit(options.batches, options.limit)
        filled = filling()
        result["limit"] = {
            "batches": len(rows),
            "above": sum(row["ratio"] > 1 for row in rows),
            "largest": max(row["ratio"] for row in rows),
            "in parts": sum(row["parts"] > 1 for row in rows),
            "filled, least": min(filled),
            "filled, mean": float(np.mean(filled)),
        }
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
