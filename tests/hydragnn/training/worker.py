"""A process that trains on graphs made on the spot; started by the tests, also under torchrun and mpirun.

``python worker.py RUN CONFIG.json [RUN CONFIG.json ...] [--until N] [--resume] [--micro-batches M] [--attempt A]``; CONFIG.json is of a run.
A store that is called "in memory" is made.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.config import parse_config
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import join_ranks, leave
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch, graph_from_arrays
from hydragnn.graphs.levels import with_contracted_levels
from hydragnn.runs import train
from hydragnn.runs.attempt import Fenced

CUTOFF = 3.0
FIELDS = (
    ATOMIC_NUMBERS_FIELD,
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target", dtype="float64"),
    Field(name="charge", on="node", unit="e", role="target", dtype="float64"),
    Field(name="length", on="edge", unit="Angstrom", dtype="float64"),
)
RELATION = Field(name="relation", on="edge", classes=2, dtype="int64")


def cluster(generator: np.random.Generator) -> GraphBatch:
    """Three to seven atoms of two kinds with a pair potential exp(-r) and charges from the neighbours."""
    count = int(generator.integers(3, 8))
    positions = generator.uniform(0.0, 3.0, (count, 3))
    numbers = generator.choice([1, 8], count)
    strength = np.where(numbers == 1, 1.0, 2.0)
    vectors = positions[None, :] - positions[:, None]
    lengths = np.linalg.norm(vectors, axis=-1) + np.eye(count) * 10 * CUTOFF
    pair = strength[:, None] * strength[None, :] * np.exp(-lengths)
    senders, receivers = np.nonzero(lengths < CUTOFF)
    forces = -(pair[..., None] * vectors / lengths[..., None]).sum(1)
    charge = (strength[None, :] * np.exp(-lengths)).sum(1)
    nodes = {"atomic_numbers": numbers, "forces": forces, "charge": charge}
    more = {"edges": {"length": lengths[senders, receivers]}, "graphs": {"energy": 0.5 * pair.sum() + strength.sum()}}
    return graph_from_arrays(positions, senders, receivers, fields=FIELDS, nodes=nodes, **more)


def clusters(count: int, seed: int = 0, *, related: bool = False) -> MemoryStore:
    """A store of clusters; every fifth has no charges. With ``related`` edges have a kind, short or long, and graphs a coarser level."""
    generator, graphs = np.random.default_rng(seed), []
    for number in range(count):
        graph = cluster(generator)
        graph = graph.with_fields(drop=["charge"]) if number % 5 == 4 else graph
        if related:
            kinds = (graph.edges["length"] > CUTOFF / 2).long()
            graph = with_contracted_levels(graph.with_fields({"relation": kinds}, fields=[RELATION]), 1)
        graphs.append(graph)
    return MemoryStore(graphs, {"cutoff": CUTOFF, "close_nuclei": True})


def main() -> int:
    """Train one run after the other in the same ranks; exit code 0 unless one failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--related", action="store_true")
    parser.add_argument("--until", type=int, default=None)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--attempt", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    try:
        with join_ranks(options.runs[0]):
            for out, path in zip(options.runs[::2], options.runs[1::2]):
                config = parse_config(json.loads(path.read_text()))
                in_memory = str(config.branches[0].data.store) == "in memory"
                store = clusters(options.graphs, related=options.related) if in_memory else None
                how = {"resume": options.resume and out.exists(), "micro_batches": options.micro_batches}
                how |= {"attempt": options.attempt}
                records.append(train(config, out, until=options.until, store=store, **how))
    except (Interrupted, Fenced, InputError) as note:
        print(f"FENCED: {note}" if isinstance(note, Fenced) else note)
        return 0 if isinstance(note, Interrupted) else 4 if isinstance(note, Fenced) else 2
    except Exception as error:
        print(f"rank failed with {error!r}")
        return 3
    return 3 if any(record.status == "failed" for record in records) else 0


if __name__ == "__main__":
    leave(main())
