"""Stages of a pipeline: how long they wait by 1F1B and by the interleaved schedule.

    python -m tests.benchmarks.bench_stages [--rounds 9] [--parts 2 4 8] [--wait 20]

First the share of a step in which stages wait, on a virtual clock without latency: simulated. Then steps of two ranks with gloo, in turns, whose
eight layers of PaiNN wait 20 ms forward and 40 ms back, in which no core is busy: what is above the waits of the own layers is the pipeline's.
With ``--wait 0`` layers only compute, ``--hidden`` channels wide.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydragnn.config import RunConfig
from hydragnn.distributed.pipeline import Absent
from hydragnn.distributed.pipeline_schedule import stage_schedule
from hydragnn.layers import MessageGraph, States
from tests.benchmarks.bench_layouts import assembled, configuration, take_steps
from tests.hydragnn.distributed.virtual_clock import course_of

LAYERS, RANKS = 8, 2
CHUNKS = (1, 2, 4)


class Wait(torch.autograd.Function):
    """Pass that takes a time forward, and twice as much back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class WaitingLayer(nn.Module):
    """A layer that takes a time besides its own."""

    def __init__(self, layer: nn.Module, seconds: float) -> None:
        super().__init__()
        self.layer, self.seconds = layer, seconds

    def forward(self, states: States, graph: MessageGraph) -> States:
        states = self.layer(states, graph)
        return {**states, 0: Wait.apply(states[0], self.seconds)}


def as_rank(options: argparse.Namespace, rank: int, store: str, results: Any) -> None:
    """Take steps of all layouts in turns; put the seconds of each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    runs = {}
    for parts in options.parts:
        for chunks in CHUNKS:
            layout = {"pipeline": RANKS, "chunks": chunks, "micro_batches": parts}
            config: RunConfig = configuration(options.hidden, LAYERS, layout, 1, False, max(options.parts) * 2)
            run = runs[parts, chunks] = assembled(config)
            layers = run.state.model.encoder.layers  # type: ignore[union-attr]
            for number, layer in enumerate(layers):  # type: ignore[arg-type]
                if options.wait and not isinstance(layer, Absent):
                    layers[number] = WaitingLayer(layer, 1e-3 * options.wait)  # type: ignore[index,operator]
    seconds: dict[tuple[int, int], list[float]] = {key: [] for key in runs}
    for turn in range(options.rounds + 1):
        for key, run in runs.items():
            took = take_steps(run, 1)[0]
            seconds[key] += [took] if turn else []  # the first round warms up
    dist.barrier()
    if rank == 0:
        results.put(json.dumps([[*key, *sorted(values)] for key, values in seconds.items()]))


def simulated(stages: int, chunks: int, parts: int) -> float:
    """Return the share of a step in which a stage waits; backward passes take twice as long."""
    course = course_of([stage_schedule(stage, stages, chunks, parts) for stage in range(stages)], chunks, 1.0, 2.0)
    return course.idle / course.seconds


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--wait", type=float, default=20.0, help="milliseconds of a layer forward; twice as long back")
    parser.add_argument("--hidden", type=int, default=16)
    options = parser.parse_args()
    print("| stages | parts | " + " | ".join(f"chunks = {chunks}" for chunks in CHUNKS) + " |")
    print("|---" * (2 + len(CHUNKS)) + "|")
    for stages in (2, 4, 8):
        for parts in (stages, 2 * stages, 4 * stages):
            shares = [f"{100 * simulated(stages, chunks, parts):.1f} %" for chunks in CHUNKS]
            print(f"| {stages} | {parts} | {' | '.join(shares)} |")
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="bench-stages-") as folder:
        ranks = [fork.Process(target=as_rank, args=(options, rank, f"{folder}/s", results)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        found = json.loads(results.get())
        for process in ranks:
            process.join()
    print(
        "\n| parts | chunks | ms of a step, median | least | largest | of layers | waiting, 1F1B's formula / chunks |"
    )
    print("|---|---|---|---|---|---|---|")
    for parts, chunks, *values in found:
        own = 3 * options.wait * LAYERS / RANKS * parts
        bubble = 3 * options.wait * LAYERS / RANKS * (RANKS - 1) / chunks
        times = " | ".join(f"{1e3 * one:.0f}" for one in (median(values), values[0], values[-1]))
        print(f"| {parts} | {chunks} | {times} | {own:.0f} | {bubble:.0f} |", flush=True)


if __name__ == "__main__":
    main()
