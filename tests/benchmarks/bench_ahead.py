"""Epochs whose batches a thread makes, beside epochs without one, and what padding costs.

    python -m tests.benchmarks.bench_ahead STORE.h5 [--device cpu] [--graphs 32] [--rounds 5] [--model schnet]

Both ways train the same run in turns, with batches read from the store. The ratio is the time without over the time with a thread, the
median over rounds. Padding is the share by which all nodes and edges of four epochs grow.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch

from hydragnn.config import RunConfig
from hydragnn.datasets import open_store
from hydragnn.distributed import Ranks
from hydragnn.graphs import GraphBatch
from hydragnn.graphs.padding import real_items
from hydragnn.models.replay import padding_of
from hydragnn.runs.assembly import assemble
from hydragnn.runs.plan import plan_run
from hydragnn.runs.recording import shapes_of
from hydragnn.training import uploading
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import train_epoch
from tests.benchmarks.bench_pipeline import Quiet


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="schnet")
    parser.add_argument("--field", default="energy")
    options = parser.parse_args()
    store = open_store(options.store)
    table = {
        "data": {"store": str(options.store), "window": len(store)},
        "batch": {"max_graphs": options.graphs},
        "model": {"kind": options.model, "hidden_dim": 32, "num_layers": 2},
        "heads": [{"kind": "energy" if options.field == "energy" else "scalar", "field": options.field}],
        "train": {"epochs": 1},
    }
    placement = DevicePlacement(device=torch.device(options.device), dtype=torch.float32)
    run = assemble(plan_run(RunConfig.parse(table), store), placement, Ranks(), lambda: None)
    pad = padding_of(run.state.of_branch(0), shapes_of(run.data.branches[0]))
    batches = [(part, pad(part)) for number in range(4) for share in run.data.epoch(number) for part in share.parts]
    for location in ("node", "edge"):
        padded, real = (
            sum(count(after, location) for _, after in batches) for count in (GraphBatch.num_items, real_items)
        )
        print(f"padding of {location}s: {100 * (padded / real - 1):.1f} %")
    sizes = {tuple(tensor.shape for tensor in after.tensors()) for _, after in batches}
    print(f"sizes of {len(batches)} batches: {len(sizes)}")
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.rounds):
        for way in seconds:
            uploading.AHEAD = frozenset({options.device} if way else ())
            start = time.perf_counter()
            train_epoch(run.state, run.data, run.context, Quiet())
            run.state.step = 0
            seconds[way].append(time.perf_counter() - start)
    ratios = [without / ahead for without, ahead in zip(*seconds.values())]
    print(f"without a thread over with one: {median(ratios):.3f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
