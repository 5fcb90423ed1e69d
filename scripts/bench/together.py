"""Runs trained together against one after the other: small models on small graphs, in one process."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.runs.assembly import assemble
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.loop import StepRequest
from hydragnn.training.stack import Stack
from hydragnn.training.together import Group, Member

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

    def seconds(take: Callable[[list[StepRequest]], object]) -> float:
        start = time.process_time()
        for _ in range(3):
            take(requests())
        return (time.process_time() - start) / 3

    for take in (group.take_each, group.take_stacked):
        seconds(take)
    pairs = [(seconds(group.take_each), seconds(group.take_stacked)) for _ in range(options.rounds)]
    assert group.way is None, "a stacked step failed"
    loop, stacked = (1e3 * median(column) for column in zip(*pairs))
    return loop, stacked, median(one / other for one, other in pairs)
