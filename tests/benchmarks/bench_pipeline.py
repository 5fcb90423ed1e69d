"""Training on two ranks, loader and all-reduce included, beside a plain pipeline of PyTorch Geometric.

    python -m tests.benchmarks.bench_pipeline [--rounds 7] [--graphs 512] [painn schnet egnn]

Ours is the training loop of ``hydragnn train``. Theirs is ``MessagePassing`` layers (``geometric_layers.py``), a ``DataLoader`` of graphs in memory with
their edges, ``DistributedDataParallel`` over gloo and fused AdamW, as the documentation of PyTorch Geometric has it. Both train on energies and
forces of the same rattled alloys, 32 graphs per rank and step, one thread per rank. They take epochs in turns; the time of an epoch
is that of the slower rank, on the wall, and beside it the CPU time of both, which a busy machine disturbs less. Ratios are theirs
over ours, the median over rounds. ``same`` is the largest difference of energies and forces from the same weights, as a share of the largest.
"""

import argparse
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from hydragnn.base.allocator import keep_memory
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from tests.benchmarks.geometric_layers import Potential, with_weights
from tests.benchmarks.harness import KEPT, Figures, Server, parser
from tests.benchmarks.peer_worker import CUTOFF, HIDDEN, LAYERS, RADIAL
from tests.benchmarks.structures import structures

ROOT = Path(__file__).parents[2]
RANKS, PER_RANK = 2, 32
SIZES = {
    "hidden_dim": HIDDEN,
    "num_layers": LAYERS,
    "num_radial": RADIAL,
    "cutoff": CUTOFF,
    "radial": "bessel",
    "envelope": "cosine",
}
HEAD = {"kind": "energy", "field": "energy", "forces": "forces"}
Epoch = Callable[[int], object]


def labelled(count: int) -> GraphBatch:
    """Alloys, all neighbours within 5 A, with energies and forces drawn at random."""
    batch = concatenate([from_ase(atoms, cutoff=CUTOFF) for atoms in structures(count)])
    random = torch.Generator().manual_seed(0)
    energies = torch.randn(batch.num_graphs, generator=random, dtype=torch.float64)
    forces = torch.randn(batch.num_nodes, 3, generator=random, dtype=torch.float64)
    fields = [
        Field(name="energy", on="graph", role="target", dtype="float64"),
        Field(name="forces", on="node", shape=(3,), parity="vector", role="target", dtype="float64"),
    ]
    return batch.with_fields({"energy": energies, "forces": forces}, fields=fields)


def our_epochs(kind: str, batch: GraphBatch, ranks: Any) -> Epoch:
    """An epoch of the training loop."""
    from hydragnn.config import RunConfig
    from hydragnn.datasets import MemoryStore
    from hydragnn.runs.assembly import assemble
    from hydragnn.runs.plan import plan_run
    from hydragnn.training.data import DevicePlacement
    from hydragnn.training.loop import train_epoch

    config = RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "split": {"train": 0.98, "valid": 0.01},
            "batch": {"max_graphs": RANKS * PER_RANK},
            "model": {"kind": kind, **SIZES},
            "heads": [HEAD],
        }
    )
    placement = DevicePlacement(device=torch.device("cpu"), dtype=torch.float32)
    store = MemoryStore(batch)
    run = assemble(plan_run(config, store), placement, ranks, lambda: None)

    def epoch(number: int) -> None:
        run.state.epoch, run.state.step = number, 0
        run.state.totals.zero_()
        train_epoch(run.state, run.data, run.context, Quiet())

    return epoch


class Quiet:
    """Hears nothing."""

    interrupted = False

    def heartbeat(self) -> None:
        """Nothing."""

    def on_step_end(self, *arguments: object) -> None:
        """Nothing."""

    def on_epoch_end(self, state: object) -> None:
        """Nothing."""

    def save(self, state: object) -> None:
        """Nothing."""


def as_data(batch: GraphBatch) -> list[Any]:
    """The graphs as PyTorch Geometric has them."""
    from torch_geometric.data import Data

    graphs, batch = [], batch.to(dtype=torch.float32)
    for graph in (batch.select([number]) for number in range(batch.num_graphs)):
        graphs.append(
            Data(
                z=graph.nodes["atomic_numbers"],
                pos=graph.positions,
                edge_index=torch.stack([graph.senders, graph.receivers]),
                shift=graph.edge_shifts,
                energy=graph.graphs["energy"],
                forces=graph.nodes["forces"],
            )
        )
    return graphs


def potential_of(kind: str) -> Potential:
    """A potential of the sizes that all have."""
    torch.manual_seed(0)
    return Potential(kind, channels=HIDDEN, layers=LAYERS, radial=RADIAL, cutoff=CUTOFF)


def their_epochs(kind: str, batch: GraphBatch) -> Epoch:
    """An epoch of the plain pipeline; joins its process group."""
    import torch.distributed as dist
    from torch.nn.functional import mse_loss
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler
    from torch_geometric.loader import DataLoader

    dist.init_process_group("gloo")
    graphs = as_data(batch)[: int(0.98 * batch.num_graphs)]
    sampler: Any = DistributedSampler(graphs)
    loader = DataLoader(graphs, batch_size=PER_RANK, sampler=sampler)
    model = DistributedDataParallel(potential_of(kind))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def epoch(number: int) -> None:
        sampler.set_epoch(number)
        for data in loader:
            optimizer.zero_grad()
            energies, forces = model(data)
            (mse_loss(energies, data.energy) + mse_loss(forces, data.forces)).backward()
            optimizer.step()

    return epoch


def serve(options: argparse.Namespace) -> None:
    """Take the epoch that each line of stdin names, and answer with its seconds on the wall and of CPU."""
    from hydragnn.distributed.ranks import join_ranks

    torch.set_num_threads(1)
    batch, (kind,) = labelled(options.graphs), options.kinds
    if options.serve == "theirs":
        answer(their_epochs(kind, batch))
        return
    keep_memory()
    with join_ranks(options.folder) as ranks:
        answer(our_epochs(kind, batch, ranks))


def answer(epoch: Epoch) -> None:
    """Take the epochs that are asked for."""
    for line in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        epoch(int(line))
        print(json.dumps([time.perf_counter() - wall, time.process_time() - processor]), flush=True)


class Pipeline:
    """The ranks of one way to train."""

    def __init__(self, way: str, kind: str, options: argparse.Namespace, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        name = "theirs" if way.startswith("PyTorch Geometric") else way
        command = [sys.executable, "-m", "tests.benchmarks.bench_pipeline", kind, "--serve", name, "--folder", folder]
        command += ["--graphs", options.graphs]
        common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        common |= {"GLIBC_TUNABLES": KEPT} if "kept" in way else {}
        self.way = way
        self.seconds: list[tuple[float, float]] = []
        self.ranks = [
            Server(command, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, ROOT) for rank in range(RANKS)
        ]

    def epoch(self, number: int) -> None:
        """Take an epoch with all ranks."""
        for rank in self.ranks:
            rank.send(number)
        answers = [rank.answer() for rank in self.ranks]
        self.seconds.append((max(wall for wall, _ in answers), sum(cpu for _, cpu in answers)))

    def end(self) -> None:
        """End its ranks."""
        for rank in self.ranks:
            rank.process.kill()
            rank.end()


def difference(kind: str) -> float:
    """Of energies and forces, from the same weights."""
    from torch_geometric.data import Batch

    from hydragnn.architectures import architecture_of
    from hydragnn.models import build_model, parse_head

    batch, norm = labelled(8).to(dtype=torch.float32), {"norm": "paper"} if kind == "painn" else {}
    settings = architecture_of(kind).Settings.parse({"kind": kind, **SIZES, **norm})
    fields = list(batch.fields.values())
    model = build_model(settings, [parse_head(HEAD)], fields, inputs=["atomic_numbers"], dim=3, seed=0)
    ours = [prediction.mean.detach() for prediction in model(batch).values()]
    theirs = with_weights(potential_of(kind), model.state_dict())(Batch.from_data_list(as_data(batch)))
    return max(float((a - b.detach()).abs().max() / a.abs().max()) for a, b in zip(ours, theirs))


def compare(kind: str, options: argparse.Namespace, figures: Figures) -> None:
    """Add the rows of one architecture."""
    ways = ["ours", "PyTorch Geometric", "PyTorch Geometric, memory kept"]
    with tempfile.TemporaryDirectory() as name:
        pipelines = [Pipeline(way, kind, options, Path(name) / str(n)) for n, way in enumerate(ways)]
        for number in range(options.rounds + 1):
            for pipeline in pipelines:
                pipeline.epoch(number)
    ours = pipelines[0]
    for pipeline in pipelines:
        pipeline.end()
        wall, cpu = (np.array(column[1:]) for column in zip(*pipeline.seconds))  # the first epoch warms up
        our_wall, our_cpu = (np.array(column[1:]) for column in zip(*ours.seconds))
        ratios = median(wall / our_wall), median(cpu / our_cpu)
        figures.add(kind, pipeline.way, median(wall), ratios[0], median(cpu), ratios[1], difference(kind))


def main() -> None:
    """Print the table, or serve."""
    arguments = parser(__doc__, rounds=7)
    arguments.add_argument("kinds", nargs="*", default=["painn", "schnet", "egnn"])
    arguments.add_argument("--graphs", type=int, default=512)
    arguments.add_argument("--serve", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        serve(options)
        return
    print(f"{RANKS} ranks, {PER_RANK} graphs of each per step, {options.graphs} graphs; an epoch, theirs over ours")
    columns = {"kind": "7", "way": "32", "s": "7.2f", "ratio": "5.2f", "CPU s": "7.2f", "CPU ratio": "5.2f"}
    figures = Figures({**columns, "same": "6.0e"}, options.json)
    for kind in options.kinds:
        compare(kind, options, figures)


if __name__ == "__main__":
    main()
