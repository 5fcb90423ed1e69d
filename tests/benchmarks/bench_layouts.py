"""Layouts of ranks: peak memory of each, and the communication that a backward pass hides.

    python -m tests.benchmarks.bench_layouts [--ranks 4] [--millions 50] [--parts memory hiding states] [--forces 0 1]

Ranks are processes with one thread and gloo. Memory is the peak of the resident set above that before the model is built, in steps, a
validation with averaged weights, and the copy of the best; baseline: copies with all states on every rank. A collective is delayed
by a time of its bytes, in which no processor is busy.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hydragnn.config import RunConfig
from hydragnn.distributed import join_ranks, parallelize
from hydragnn.distributed.parallelize import TorchPeers
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import take_step
from hydragnn.training.parameters import FlatParameters, Sharing
from tests.hydragnn.training.conftest import ENERGY
from tests.hydragnn.training.worker import clusters

LAYOUTS: dict[str, dict[str, Any]] = {
    "copies": {"states": "whole"},
    "copies that share states": {"states": "shared"},
    "shards": {"shard": -1},
    "two copies of shards": {"shard": -2, "states": "shared"},
    "shards of channels": {"shard": -2, "tensor": 2},
}
"""Settings by name; -1 is the number of ranks, and -2 half of it."""
KEPT = "MALLOC_MMAP_THRESHOLD_"
"""Variable of glibc: larger allocations are mappings of their own."""


def configuration(
    hidden: int, layers: int, layout: dict[str, Any], ranks: int, forces: bool = True, graphs: int = 2
) -> RunConfig:
    head = ENERGY if forces else {**ENERGY, "forces": None, "forces_weight": 1.0}
    sizes = {key: ranks // -value if value in (-1, -2) else value for key, value in layout.items()}
    table = {
        "data": {"store": "in memory", "inputs": ["atomic_numbers"]},
        "split": {"train": 0.7, "valid": 0.2},
        "batch": {"max_graphs": graphs * ranks},
        "model": {"kind": "painn", "hidden_dim": hidden, "num_layers": layers, "num_radial": 6, "cutoff": 3.0},
        "heads": [head],
        "train": {"epochs": 100, "learning_rate": 1e-4, "precision": "fp32", "ema_decay": 0.9},
        "parallel": sizes,
    }
    return RunConfig.parse(json.loads(json.dumps(table)))


@contextmanager
def sharing(change: Callable[[Sharing], Sharing]) -> Iterator[None]:
    """Make runs in the block with another sharing of weights."""
    before = parallelize.sharing_of
    parallelize.sharing_of = lambda *arguments: change(before(*arguments))
    try:
        yield
    finally:
        parallelize.sharing_of = before


def assembled(config: RunConfig) -> Assembly:
    store = clusters(40)
    with join_ranks(Path()) as ranks:
        placement = DevicePlacement(device=torch.device("cpu"), dtype=torch.float32)
        return assemble(plan_run(config, store), placement, ranks, lambda: None)


def resident(key: str) -> int:
    """Return bytes of this process: VmRSS now, or VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def take_steps(run: Assembly, steps: int) -> list[float]:
    """Take the first steps; return the seconds of each."""
    seconds = []
    for _, share in zip(range(steps), run.data.epoch(0)):
        dist.barrier()
        begin = time.perf_counter()
        take_step(run.state, share, run.context, 1e-4)
        seconds.append(time.perf_counter() - begin)
    return seconds


def memory(options: argparse.Namespace, rank: int, ranks: int) -> dict[str, Any] | None:
    """Measure one layout."""
    config = configuration(
        options.hidden, options.layers, LAYOUTS[options.layout], ranks, options.forces, options.graphs
    )
    gc.collect()
    before = resident("VmRSS")
    run = assembled(config)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    seconds = take_steps(run, options.steps)
    stepping = resident("VmHWM") - before
    weights, valid = run.state.parameters, next(iter(run.data.branches[0].valid), None)
    run.state.model.eval()
    with torch.no_grad(), weights.swap_in_eval_parameters(), weights.in_use():
        run.state.of_branch(0)(run.data.branches[0].train.stand_in if weights.in_step or valid is None else valid)
    weights.keep_best()
    peaks = torch.tensor([resident("VmHWM") - before, stepping], dtype=torch.float64)
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    if rank:
        return None
    one = 4 * weights.count
    return {
        "weights": weights.count,
        "peak": peaks[0].item(),
        "in steps": peaks[1].item(),
        "over weights": peaks[0].item() / one,
        "seconds": median(seconds[1:]),
    }


class Delayed(TorchPeers):
    """Peers whose collectives take a time by their bytes, one after the other."""

    def __init__(self, peers: TorchPeers) -> None:
        super().__init__(peers.group)
        self.queue, self.per_byte = ThreadPoolExecutor(1), 0.0

    def _later(self, values: Tensor, begin: Callable[[], Callable[[], object]]) -> Callable[[], object]:
        if not self.per_byte:
            return begin()

        def work() -> None:
            time.sleep(values.nbytes * self.per_byte)
            begin()()

        return self.queue.submit(work).result

    def begin_sum(self, values: Tensor) -> Callable[[], object]:
        return self._later(values, lambda: TorchPeers.begin_sum(self, values))

    def begin_scatter(self, values: Tensor, own: Tensor) -> Callable[[], object]:
        return self._later(values, lambda: TorchPeers.begin_scatter(self, values, own))


def hiding(options: argparse.Namespace, rank: int, ranks: int) -> dict[str, Any] | None:
    """Time steps without delay, with it after the backward pass, and with it meanwhile."""
    delayed: list[Delayed] = []

    def change(one: Sharing) -> Sharing:
        assert isinstance(one.copies, TorchPeers)
        delayed.append(Delayed(one.copies))
        return replace(one, copies=delayed[0])

    with sharing(change):
        run = assembled(
            configuration(options.hidden, options.layers, LAYOUTS["copies"], ranks, options.forces, options.graphs)
        )
    weights = run.state.parameters
    assert isinstance(weights, FlatParameters) and weights.buckets
    peers, expect = delayed[0], weights.buckets.expect
    spent: dict[str, list[float]] = {"none": [], "after": [], "meanwhile": []}
    take_steps(run, 2)
    share = next(iter(run.data.epoch(0)))
    begin = time.perf_counter()
    take_step(run.state, share, run.context, 1e-4)
    total = torch.tensor(options.delay * (time.perf_counter() - begin), dtype=torch.float64)
    dist.broadcast(total, 0)
    for _ in range(options.rounds):
        for name, seconds in spent.items():
            peers.per_byte = 0.0 if name == "none" else total.item() / weights.gradient.nbytes
            weights.buckets.expect = expect if name != "after" else lambda: None
            dist.barrier()
            begin = time.perf_counter()
            take_step(run.state, share, run.context, 1e-4)
            seconds.append(time.perf_counter() - begin)
    if rank:
        return None
    none, after, meanwhile = (median(seconds) for seconds in spent.values())
    return {
        "weights": weights.count,
        "delay": total.item(),
        "none": none,
        "after": after,
        "meanwhile": meanwhile,
        "hidden": (after - meanwhile) / (after - none),
    }


def states(options: argparse.Namespace, rank: int, ranks: int) -> dict[str, Any] | None:
    """Time steps of copies with all states, and of copies that share them, in turns."""
    whole, shared = (
        assembled(configuration(options.hidden, options.layers, LAYOUTS[name], ranks, options.forces, options.graphs))
        for name in ("copies", "copies that share states")
    )
    ratios = []
    for _ in range(options.rounds):
        seconds = [take_steps(run, 1)[0] for run in (whole, shared)]
        ratios.append(seconds[1] / seconds[0])
    return None if rank else {"weights": whole.state.parameters.count, "shared over whole": median(ratios[1:])}


PARTS = {"memory": memory, "hiding": hiding, "states": states}


def on_ranks(ranks: int, options: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """Return what the first of so many forked ranks measures."""
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="bench-layouts-") as folder:
        own = argparse.Namespace(**{**vars(options), **changes, "ranks": ranks})
        processes = [
            fork.Process(target=as_rank, args=(own, rank, f"{folder}/store", results)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    assert not any(process.exitcode for process in processes)
    found: dict[str, Any] = json.loads(results.get())
    return found


def as_rank(options: argparse.Namespace, rank: int, store: str, results: Any) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, options.ranks), rank=rank, world_size=options.ranks)
    result = PARTS[options.part](options, rank, options.ranks)
    dist.barrier()
    if result is not None:
        results.put(json.dumps(result))


def hidden_dim(millions: float, layers: int) -> int:
    """Return a width with about so many weights."""
    from hydragnn.models import build_from_description

    def count(hidden: int) -> int:
        branch = plan_run(configuration(hidden, layers, {}, 1), clusters(40)).branches[0]
        model = build_from_description(branch.model, 0)
        return sum(parameter.numel() for parameter in model.parameters())

    return 8 * round((64 * (1e6 * millions / count(64)) ** 0.5) / 8)


def main() -> None:
    """Print a table of layouts, what is hidden, and what sharing of states costs."""
    if KEPT not in os.environ:  # freed tensors go back to the system, so that the resident set is what is in use
        command = [sys.executable, "-m", "tests.benchmarks.bench_layouts", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, KEPT: "1000000", "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--millions", type=float, default=50)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--graphs", type=int, default=2, help="of a batch for each rank")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--delay", type=float, default=0.3, help="of a step")
    parser.add_argument("--parts", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--layouts", nargs="*", choices=[*LAYOUTS], default=[*LAYOUTS])
    parser.add_argument("--forces", nargs="*", type=int, choices=[0, 1], default=[0, 1])
    options = parser.parse_args()
    hidden = hidden_dim(options.millions, options.layers)
    if "memory" in options.parts:
        print("| layout | forces | weights | peak over that of copies | peak over the weights | seconds per step |")
        print("|---|---|---|---|---|---|")
        for forces in options.forces:
            baseline = 0.0
            for name in options.layouts:
                how = {"part": "memory", "layout": name, "hidden": hidden, "forces": bool(forces)}
                one = on_ranks(options.ranks, options, **how)
                baseline = baseline or one["peak"]
                ratios = f"{one['peak'] / baseline:.3f} | {one['over weights']:.2f} | {one['seconds']:.1f}"
                print(f"| {name} | {'yes' if forces else 'no'} | {one['weights']:,} | {ratios} |", flush=True)
    hidden = hidden_dim(options.millions / 5, options.layers)
    for part in [part for part in options.parts if part != "memory"]:
        for forces in options.forces:
            found = on_ranks(2, options, part=part, hidden=hidden, forces=bool(forces))
            print(part, "with forces" if forces else "without forces", found, flush=True)


if __name__ == "__main__":
    main()
