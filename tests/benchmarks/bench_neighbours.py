"""Neighbours of rattled copper searched anew, in turns in one process: vesin alone, ours on the host, and ours where positions lie.

    python tests/benchmarks/bench_neighbours.py [--device cpu] [--cutoff 5.5] [--turns 9]

Vesin gives pairs, shifts and lengths without an order; ours are sorted by receiver, sender and shift. Wall milliseconds, medians over
the turns, and medians of ratios to vesin alone. On a GPU, "there" is what the calculator does: positions are uploaded, and pairs stay.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from bench_calculator import copper
from vesin import NeighborList

from hydragnn.graphs.atomic import REACH, neighbour_list
from hydragnn.graphs.device_search import DeviceSearch


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the time of one call."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def uploaded(search: DeviceSearch, places: np.ndarray, cell: np.ndarray, periodic: Any, device: torch.device) -> object:
    """Search positions that come from the host."""
    return search(torch.from_numpy(places).to(device), cell, periodic)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--cutoff", type=float, default=5.5)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reach, there = options.cutoff * REACH, DeviceSearch(options.cutoff * REACH)
    engine = NeighborList(cutoff=reach, full_list=True, n_threads=1)
    for count in (864, 10976):
        atoms = copper(count)
        crystal = atoms.positions, atoms.cell.array, np.asarray(atoms.pbc)
        ways: dict[str, Callable[[], object]] = {
            "vesin": partial(engine.compute, *crystal, "ijSd", copy=False),
            "host": partial(neighbour_list, *crystal, options.cutoff),
            "there": partial(uploaded, there, *crystal, options.device),
        }
        turns = [[seconds(way, options.device) for way in ways.values()] for _ in range(options.turns + 1)][1:]
        figures = [
            f"{name} {1e3 * median(times):.1f} ms ({median(own / alone for own, (alone, *_) in zip(times, turns)):.2f})"
            for name, times in zip(ways, zip(*turns))
        ]
        print(f"{count} atoms: {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
