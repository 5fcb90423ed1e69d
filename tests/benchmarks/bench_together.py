"""Runs trained together against one after the other: small models on small graphs, in one process, on one thread.

    python tests/benchmarks/bench_together.py [--members 8] [--rounds 10] [--only painn]

Members of one shape, each with its own seed and learning rate. In every round all members take a step stacked and another one
after the other, each with its batch read anew; the ratio is CPU time one after the other over CPU time stacked, the median of
the rounds. With ``--whole`` also whole runs with validation, checkpoints and records: ``train`` for each against ``train_together``;
with ``--campaigns`` whole searches by one worker, with a process for each trial and with as many in one as ``together = "auto"`` chooses.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hydragnn.base.allocator import keep_memory
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.distributed import Ranks
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.hpo import campaign_settings, run_search
from hydragnn.runs import train, train_together
from hydragnn.runs.assembly import assemble
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.loop import StepRequest
from hydragnn.training.stack import Stack
from hydragnn.training.together import Group, Member
from tests.benchmarks.harness import in_turns

FIELDS = [
    Field(name="atomic_numbers", on="node", role="input", classes=10, dtype="int64"),
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), role="target", parity="vector"),
]
CUTOFF = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSettings:
    """Runs of one shape: how many, how wide, graphs in a batch; rounds of steps that are timed, and epochs of whole runs."""

    members: int = 8
    hidden: int = 32
    graphs: int = 4
    rounds: int = 10
    epochs: int = 10


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


def config_of(kind: str, seed: int, options: GroupSettings) -> RunConfig:
    """A run of an architecture with hidden width 32 and 3 layers."""
    forces = {} if kind == "pna" else {"forces": "forces"}
    return RunConfig.parse(
        {
            "data": {"store": "in memory", "inputs": ["atomic_numbers"]},
            "split": {"train": 0.8, "valid": 0.1},
            "batch": {"max_graphs": options.graphs},
            "model": {"kind": kind, "hidden_dim": options.hidden, "num_layers": 3, "cutoff": CUTOFF},
            "heads": [{"kind": "energy", "field": "energy", "hidden_dims": [options.hidden], **forces}],
            "train": {"epochs": options.epochs, "learning_rate": 1e-3 / (1 + seed), "seed": seed},
        }
    )


def ratio_of_steps(kind: str, store: MemoryStore, options: GroupSettings) -> tuple[float, float, float]:
    """Milliseconds of a step of all members one after the other and stacked, and the ratio of CPU times."""
    placement = DevicePlacement(device=torch.device("cpu"), dtype=torch.float32)
    runs = [
        assemble(plan_run(config_of(kind, seed, options), store), placement, Ranks(), lambda: None)
        for seed in range(options.members)
    ]
    members = tuple(Member(state=run.state, context=run.context, note=print) for run in runs)
    group = Group(members=members, stack=Stack([member.state for member in members]))
    epochs: list[Iterator[Share]] = [iter(()) for _ in runs]
    number = 0

    def requests() -> list[StepRequest]:
        nonlocal epochs, number
        try:
            return [StepRequest(share=next(epoch), rate=1e-4) for epoch in epochs]
        except StopIteration:
            number += 1
            epochs = [run.data.epoch(number) for run in runs]
            return [StepRequest(share=next(epoch), rate=1e-4) for epoch in epochs]

    works = {
        "loop": lambda: [group.take_each(requests()) for _ in range(3)],
        "stacked": lambda: [group.take_stacked(requests()) for _ in range(3)],
    }
    turns = in_turns(works, options.rounds)
    assert group.way is None, "a stacked step failed"
    return turns.milliseconds("loop") / 3, turns.milliseconds("stacked") / 3, turns.ratio("loop", "stacked")


KINDS = ("painn", "schnet", "egnn", "pna")


def group_of(options: argparse.Namespace) -> GroupSettings:
    """The members that the options describe."""
    return GroupSettings(
        **{name: getattr(options, name) for name in ("members", "hidden", "graphs", "rounds", "epochs")}
    )


def ratio_of_runs(kind: str, store: MemoryStore, options: argparse.Namespace) -> tuple[float, str]:
    """CPU seconds of whole runs one after the other over those together, and how their steps were taken."""
    configs = [config_of(kind, seed, group_of(options)) for seed in range(options.members)]
    with tempfile.TemporaryDirectory() as place:
        start = time.process_time()
        for number, config in enumerate(configs):
            train(config, Path(place) / f"alone-{number}", store=store)
        middle = time.process_time()
        records = train_together(configs, [Path(place) / f"{number}" for number in range(len(configs))], store=store)
        end = time.process_time()
    return (middle - start) / (end - middle), records[0].notes[-1]


def ratio_of_campaigns(kind: str, graphs: list[GraphBatch], options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a search over learning rates on one worker, with a process for each trial and with as many in one as is chosen."""
    rates = {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}
    with tempfile.TemporaryDirectory() as place:
        with StoreWriter(Path(place) / "molecules.h5", FIELDS, dim=3, attributes={"cutoff": CUTOFF}) as writer:
            for graph in graphs:
                writer.write(graph)
        table = config_of(kind, 0, group_of(options)).to_json()
        table["data"]["store"] = str(Path(place) / "molecules.h5")
        seconds = []
        for together in (1, "auto"):
            table["search"] = {
                "trials": 3 * options.members,
                "sampler": "random",
                "rungs": [options.epochs // 3],
                "finalists": options.members,
                "together": together,
                "space": {"train.learning_rate": rates},
            }
            start = time.perf_counter()
            result = run_search(campaign_settings(table, Path(place) / "CAMPAIGN.toml"), Path(place) / f"{together}")
            seconds.append(time.perf_counter() - start)
            assert result.failed == 0
    return seconds[0], seconds[1]


def main() -> None:
    """Print a line per architecture and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--graphs", type=int, default=4)
    parser.add_argument("--atoms", type=int, default=8, help="smallest molecule; the largest has half as many more")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--campaigns", action="store_true")
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    sizes = [options.atoms + seed % (options.atoms // 2 + 1) for seed in range(100)]
    graphs = [molecule(size, seed) for seed, size in enumerate(sizes)]
    store = MemoryStore(graphs, {"cutoff": CUTOFF})
    print(
        f"{options.members} members, hidden {options.hidden}, batches of {options.graphs} graphs of {sizes[0]} to {max(sizes)} atoms"
    )
    for kind in [options.only] if options.only else KINDS:
        loop, stacked, ratio = ratio_of_steps(kind, store, group_of(options))
        print(f"{kind:8s} loop {loop:8.2f} ms  stacked {stacked:8.2f} ms  {ratio:5.2f}x", flush=True)
        if options.whole:
            whole, note = ratio_of_runs(kind, store, options)
            print(f"{kind:8s} whole runs {whole:5.2f}x; {note}", flush=True)
        if options.campaigns:
            alone, shared = ratio_of_campaigns(kind, graphs, options)
            print(
                f"{kind:8s} campaign {alone:6.1f} s, in one process {shared:6.1f} s, {alone / shared:5.2f}x", flush=True
            )


if __name__ == "__main__":
    main()
