"""Members of an ensemble computed as one against one after the other: predictions with forces, on one thread.

    python -m tests.benchmarks.bench_committee [--members 8] [--hidden 32] [--graphs 1 16 32] [--only painn]

In every round each way predicts the same batch, copied anew, with uncertainty as the ensemble gives it; the ratio is CPU time as one over CPU time one after
the other, the median of the rounds. Batches are computed as one whatever their size.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydragnn.base.allocator import keep_memory
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import committee
from hydragnn.ensemble.ensemble import ensemble_of
from hydragnn.ensemble.members import Member, load_run, outcome, outcome_alone
from hydragnn.ensemble.screening import without_screening
from hydragnn.graphs import GraphBatch, concatenate
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.runs import train
from tests.benchmarks.harness import in_turns

FIELDS = [
    Field(name="atomic_numbers", on="node", role="input", classes=10, dtype="int64"),
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), role="target", parity="vector"),
]
CUTOFF = 3.0
KINDS = ("painn", "schnet", "egnn", "pna")


def molecule(atoms: int, seed: int) -> GraphBatch:
    """Atoms in a ball at the density of a small molecule, with random labels."""
    random = torch.Generator().manual_seed(seed)
    positions = torch.rand(atoms, 3, generator=random) * 1.5 * atoms ** (1 / 3)
    near = (torch.cdist(positions, positions) < CUTOFF) & ~torch.eye(atoms, dtype=torch.bool)
    receivers, senders = near.nonzero().T.contiguous()
    values = {
        "atomic_numbers": torch.randint(1, 9, (atoms,), generator=random),
        "energy": torch.randn(1, generator=random),
        "forces": torch.randn(atoms, 3, generator=random),
    }
    return graph_from_arrays(positions, senders, receivers).with_fields(values, fields=FIELDS)


def config_of(kind: str, seed: int, hidden: int) -> RunConfig:
    """An epoch of an architecture with 3 layers."""
    forces = {} if kind == "pna" else {"forces": "forces"}
    return RunConfig.parse(
        {
            "data": {"store": "in memory", "inputs": ["atomic_numbers"]},
            "split": {"train": 0.8, "valid": 0.1},
            "batch": {"max_graphs": 4},
            "model": {"kind": kind, "hidden_dim": hidden, "num_layers": 3, "cutoff": CUTOFF},
            "heads": [{"kind": "energy", "field": "energy", "hidden_dims": [hidden], **forces}],
            "train": {"epochs": 1, "learning_rate": 1e-3 / (1 + seed), "seed": seed},
        }
    )


def members_of(kind: str, options: argparse.Namespace, store: MemoryStore) -> list[Member]:
    """Train the members for an epoch."""
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / str(seed) for seed in range(options.members)]
        for seed, folder in enumerate(folders):
            train(config_of(kind, seed, options.hidden), folder, store=store)
        return [load_run(folder, dtype=getattr(torch, options.dtype)) for folder in folders]


def line(kind: str, members: list[Member], batch: GraphBatch, rounds: int) -> str:
    """Return a line of the table: times of a batch."""
    ensemble = ensemble_of(members)

    def predictions(of: Any) -> object:
        read = without_screening(batch.mapped(Tensor.clone))
        return ensemble.combine(read, [of(member, read.whole) for member in ensemble.members])

    works = {"alone": lambda: predictions(outcome_alone), "as one": lambda: predictions(outcome)}
    turns = in_turns(works, rounds)
    work = batch.num_edges * members[0].model.settings.hidden_dim
    times = f"one after the other {turns.milliseconds('alone'):7.2f} ms, as one {turns.milliseconds('as one'):7.2f} ms"
    return f"{kind:8s} {len(batch):4d} graphs, {work:8,d} edges x channels: {times}, ratio {turns.ratio('as one', 'alone'):.2f}"


def main() -> None:
    """Print a line per architecture and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--graphs", type=int, nargs="+", default=[1, 16, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--only", choices=KINDS)
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    committee.WORK_OF_CPU = 1 << 62
    graphs = [molecule(10 + seed % 3, seed) for seed in range(max(60, *options.graphs))]
    store = MemoryStore(graphs[:60], {"cutoff": CUTOFF})
    for kind in [options.only] if options.only else KINDS:
        members = members_of(kind, options, store)
        for count in options.graphs:
            print(line(kind, members, concatenate(graphs[:count]), options.rounds), flush=True)


if __name__ == "__main__":
    main()
