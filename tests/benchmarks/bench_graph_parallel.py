"""Training steps on one mesh that ranks share, beside those of one rank.

    python -m tests.benchmarks.bench_graph_parallel [--rounds 3] [--nodes 100000] [--kind schnet] [--channels 64] [--ranks 1 2] [--nice 0]
    python -m tests.benchmarks.bench_graph_parallel --nodes 2000000 --channels 16 --ranks 1 4 --rounds 1 --steps 1 [--limit GIB]

A mesh of triangles on a square whose nodes have a field to learn, cut into boxes of a k-d tree or by METIS. Every rank is a process with one thread, and
takes the step of ``hydragnn train``: cut, predict, differentiate, sum gradients, move the weights. Ranks of all numbers take turns. The times, on the wall and of the CPU, are those of
the slowest rank; memory is the largest resident set of a rank, of which the whole mesh is a part, since every rank reads it and cuts it.
``--limit`` sets the limit of a rank's data (RLIMIT_DATA). Bytes are those that all ranks send in exchanges of a step, over rows of the cut times their width.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from hydragnn.architectures import ArchitectureSettings
from hydragnn.config import TrainSettings
from hydragnn.distributed.graph_ranks import GraphRanks, make_cutter, metis
from hydragnn.distributed.mesh import Mesh
from hydragnn.distributed.parallelize import parallelize
from hydragnn.distributed.ranks import Ranks
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.cutting import crossing
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.models import build_model, parse_head
from hydragnn.training.context import training_context
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.loop import take_step
from hydragnn.training.state import TrainState
from tests.benchmarks.harness import Figures

GIB = 2**30
FIELDS = (Field(name="source", on="node"), Field(name="answer", on="node", role="target"))
WAYS = ((0, 1), (1, 0), (1, 1))


def triangles(nodes: int) -> GraphBatch:
    """Return a mesh of a square with about so many nodes, in single precision."""
    side = round(nodes**0.5)
    number = np.arange(side * side).reshape(side, side)
    pairs = [(number[: side - i, : side - j].reshape(-1), number[i:, j:].reshape(-1)) for i, j in WAYS]
    ends = np.concatenate([np.stack([a, b]) for a, b in pairs] + [np.stack([b, a]) for a, b in pairs], axis=1)
    places = np.stack(np.divmod(np.arange(side * side), side), axis=1).astype(np.float32)
    values = np.sin(places.sum(1) / 7).astype(np.float32)
    return graph_from_arrays(
        places, ends[0], ends[1], fields=FIELDS, nodes={"source": values, "answer": np.cos(values)}
    ).to(dtype=torch.float32)


class CountedRanks(GraphRanks):
    """Peers that count the bytes that they send."""

    sent = 0

    def swap(self, rows: torch.Tensor, sent: tuple[int, ...], received: tuple[int, ...]) -> torch.Tensor:
        """Count and send."""
        CountedRanks.sent += rows.nbytes
        return super().swap(rows, sent, received)


def work(options: argparse.Namespace) -> None:
    """Take steps as one rank; print figures as the parent asks for them."""
    torch.set_num_threads(1)
    if options.limit:
        resource.setrlimit(resource.RLIMIT_DATA, (int(options.limit * GIB),) * 2)
    rank, size = options.rank, options.size
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{options.meeting}", rank=rank, world_size=size)
    mesh = Mesh(ranks=Ranks(rank=rank, size=size), sizes=(1, 1, 1, size, 1))
    device = torch.device("cpu")
    batch = triangles(options.nodes)
    settings = {"kind": options.kind, "hidden_dim": options.channels, "num_layers": options.layers, "num_radial": 8}
    table = {**settings, "cutoff": 3.0, "envelope": "none"}
    heads = [parse_head({"kind": "scalar", "field": "answer", "hidden_dims": [16]})]
    model = build_model(
        ArchitectureSettings.class_for(table).parse(table), heads, FIELDS, inputs=["source"], dim=2, seed=0
    )
    placement, figures = DevicePlacement(device=device, dtype=torch.float32), {}
    began = time.monotonic()
    if size > 1:
        cutter = make_cutter(mesh, 2)
        cutter = replace(cutter, partition=metis if options.metis else None)
        counted = CountedRanks(rank=rank, size=size, group=cutter.peers.group)  # type: ignore[attr-defined]
        cut = cutter.cut(batch)
        loads = torch.zeros(size, dtype=torch.int64).index_add_(0, cut, batch.topology.degrees + 2)
        figures = {"balance": float(loads.max() * size / loads.sum()), "rows": len(crossing(batch, cut)[1])}
        placement = replace(placement, cut=replace(cutter, peers=counted))
    share = Share(branch=0, parts=placement.parts(batch))
    figures["cut"] = time.monotonic() - began
    del batch
    train = TrainSettings(epochs=1, learning_rate=1e-3)
    parameters = parallelize(model, mesh, placement, train)
    targets = model.description.targets
    totals = torch.zeros(2, 1, dtype=torch.float64)
    state = TrainState(model=model, parameters=parameters, totals=totals)
    sums = {"reduce": mesh.sum_in_place, "reduce_all": mesh.ranks.sum_in_place}
    context = replace(training_context(train, [targets], state), rank=mesh.item, **sums)
    take_step(state, share, context, 1e-3)
    for _ in sys.stdin:
        CountedRanks.sent = 0
        began, busy = time.monotonic(), time.process_time()
        for _ in range(options.steps):
            loss = float(take_step(state, share, context, 1e-3).loss)
        figures["seconds"] = (time.monotonic() - began) / options.steps
        figures["cpu"] = (time.process_time() - busy) / options.steps
        figures["bytes"] = CountedRanks.sent / options.steps
        figures["loss"] = loss
        figures["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        print(json.dumps(figures), flush=True)


class RankGroup:
    """Processes that share the mesh."""

    def __init__(self, size: int, options: argparse.Namespace, folder: Path) -> None:
        words = [
            f"--{name}={getattr(options, name)}" for name in ("nodes", "kind", "channels", "layers", "steps", "limit")
        ]
        words += ["--metis"] * options.metis
        self.size = size
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.benchmarks.bench_graph_parallel",
                    *words,
                    f"--rank={rank}",
                    f"--size={size}",
                    f"--meeting={folder / str(size)}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: os.nice(options.nice),
            )
            for rank in range(size)
        ]

    def figures(self) -> list[dict[str, float]]:
        """Return the figures of a round of every rank; none where a process has died."""
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write("\n")
                process.stdin.flush()
            except BrokenPipeError:
                return []
        lines = [process.stdout.readline() for process in self.processes if process.stdout]
        return [json.loads(line) for line in lines if line]

    def end(self) -> None:
        """Let the processes end."""
        for process in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()


def measure(options: argparse.Namespace) -> None:
    """Print the table."""
    folder = Path(tempfile.mkdtemp(prefix="graph-parallel-"))
    one_by_one = options.rounds == 1
    rounds: dict[int, list[list[dict[str, float]]]] = {size: [] for size in options.ranks}
    groups = {} if one_by_one else {size: RankGroup(size, options, folder) for size in options.ranks}
    for _ in range(options.rounds):
        for size in options.ranks:
            group = RankGroup(size, options, folder) if one_by_one else groups[size]
            rounds[size].append(group.figures())
            if one_by_one:
                group.end()
    for group in groups.values():
        group.end()
    columns = {
        "ranks": "d",
        "seconds": ".2f",
        "times faster": ".2f",
        "CPU s": ".2f",
        "times less": ".2f",
        "GiB": ".2f",
        "cut": ".2f",
        "balance": ".3f",
        "rows": "d",
        "bytes": ".3g",
        "loss": ".6g",
    }
    table, first = Figures(columns), options.ranks[0]
    for size, of_rounds in rounds.items():
        if not all(len(one) == size for one in of_rounds):
            print(f"{size} ranks ended, with a limit of {options.limit} GiB of data each")
            continue
        last = of_rounds[-1]
        table.add(
            size,
            median(slowest(of_rounds, "seconds")),
            gain(rounds[first], of_rounds, "seconds"),
            median(slowest(of_rounds, "cpu")),
            gain(rounds[first], of_rounds, "cpu"),
            max(one["memory"] for one in last),
            max(one["cut"] for one in last),
            last[0].get("balance", 1.0),
            int(last[0].get("rows", 0)),
            sum(one["bytes"] for one in last),
            sum(one["loss"] for one in last),
        )


def slowest(rounds: Sequence[Sequence[Mapping[str, float]]], what: str) -> list[float]:
    """Return the largest figure of the ranks of every round."""
    return [max(one[what] for one in ranks) for ranks in rounds]


def gain(
    first: Sequence[Sequence[Mapping[str, float]]], own: Sequence[Sequence[Mapping[str, float]]], what: str
) -> float:
    """Return the median over rounds of the first time over the own one; NaN without."""
    if not all(first):
        return float("nan")
    return median(a / b for a, b in zip(slowest(first, what), slowest(own, what)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--kind", default="schnet")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--limit", type=float, default=0.0, help="GiB of data of a rank; 0: none")
    parser.add_argument("--metis", action="store_true")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        work(options)
    else:
        measure(options)


if __name__ == "__main__":
    main()
