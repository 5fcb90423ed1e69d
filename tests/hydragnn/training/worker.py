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
    return graph_from_arrays(
        positions,
        senders,
        receivers,
        fields=FIELDS,
        nodes={
            "atomic_numbers": numbers,
            "forces": -(pair[..., None] * vectors / lengths[..., None]).sum(1),
            "charge": (strength[None, :] * np.exp(-lengths)).sum(1),
        },
        edges={"length": lengths[senders, receivers]},
        graphs={"energy": 0.5 * pair.sum() + strength.sum()},
    )


def clusters(count: int, seed: int = 0, *, related: bool = False) -> MemoryStore:
    """A store of clusters; every fifth has no charges. With ``related`` edges have a kind, short or long, and graphs a coarser level."""
    generator = np.random.default_rng(seed)
    graphs = [_without_charges(cluster(generator), number % 5 == 4) for number in range(count)]
    return MemoryStore(
        [_related(graph) for graph in graphs] if related else graphs, {"cutoff": CUTOFF, "close_nuclei": True}
    )


def _related(graph: GraphBatch) -> GraphBatch:
    relation = Field(name="relation", on="edge", classes=2, dtype="int64")
    kinds = (graph.edges["length"] > CUTOFF / 2).long()
    return with_contracted_levels(graph.with_fields({"relation": kinds}, fields=[relation]), 1)


def _without_charges(graph: GraphBatch, really: bool) -> GraphBatch:
    return graph.with_fields(drop=["charge"]) if really else graph


def main() -> int:
    """Train one run after the other in the same ranks; exit code 0 unless one failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--related", action="store_true")
    parser.add_argument("--until", type=int, default=None)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--replayed", action="store_true", help="by the stand-in, at the first use of a size")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--attempt", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.replayed:
        from hydragnn.kernels.family import taken_for
        from hydragnn.models import replay
        from hydragnn.runs import recording
        from tests.hydragnn.training.recorder import StandIn

        recording.recorder_on, replay.USES = lambda device: StandIn(), 1
        forms = taken_for("cpu", "xpu")  # where the stand-in computes, to the end
        forms.__enter__()
    records = []
    try:
        with join_ranks(options.runs[0]):
            for out, path in zip(options.runs[::2], options.runs[1::2]):
                config = parse_config(json.loads(path.read_text()))
                in_memory = str(config.branches[0].data.store) == "in memory"
                store = clusters(options.graphs, related=options.related) if in_memory else None
                how = {"resume": options.resume, "micro_batches": options.micro_batches, "attempt": options.attempt}
                records.append(train(config, out, until=options.until, store=store, **how))
    except Interrupted as note:
        print(note)
        return 0
    except Fenced as note:
        print(f"FENCED: {note}")
        return 4
    except InputError as error:
        print(error)
        return 2
    except Exception as error:
        print(f"rank failed with {error!r}")
        return 3
    return 3 if any(record.status == "failed" for record in records) else 0


if __name__ == "__main__":
    leave(main())
