"""The training step of every architecture of version 1 against another checkout, in alternation on one thread.

    python tests/benchmarks/bench_step.py OTHER [--pairs 6] [--rounds 10] [--only painn]

OTHER is the folder of a checkout, with its own ``.venv`` if it has one. Both serve steps of ``bench_models.py`` as it stands in
their checkout; in every round each takes some, the first in turn. The ratio is their time over ours, the median over rounds
and over fresh pairs of processes, since a process keeps the luck of its memory for life: above 1 ours is faster. CPU time is
disturbed less by a busy machine than time on the wall. Both keep freed memory (``hydragnn/base/allocator.py``).
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import KEPT, Figures, Server, parser

STEPS = 4
HERE = Path(__file__).resolve().parent.parent.parent
KINDS = ("schnet", "painn", "egnn", "pna", "relational")


def serve(kind: str) -> None:
    """Take steps for every line that arrives; answer with CPU and wall seconds of one."""
    import torch

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("bench_models", "tests/benchmarks/bench_models.py")
    assert spec is not None and spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    step = step_of(models, kind)
    for _ in range(3):
        step()
    for _ in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(STEPS):
            step()
        seconds = [(time.process_time() - cpu) / STEPS, (time.perf_counter() - wall) / STEPS]
        print(json.dumps(seconds), flush=True)


def step_of(models: Any, kind: str) -> Any:
    """The step of ``bench_models.main`` for a kind: energies and forces of molecules, energies (PNA), a mesh (relational)."""
    common = {"hidden_dim": models.HIDDEN, "num_layers": models.LAYERS}
    radial = {**common, "num_radial": models.RADIAL, "cutoff": models.CUTOFF}
    if kind == "relational":
        mesh = models.grid(64, hops=3)
        settings = models.RelationalSettings(**common, reduce="sum")
        return models.our_step(settings, head(models, "scalar", "displacement"), mesh, ["load", "relation"])
    names = {"schnet": "SchNetSettings", "painn": "PaiNNSettings", "egnn": "EGNNSettings", "pna": "PNASettings"}
    settings = getattr(models, names[kind])(**radial)
    forces = {} if kind == "pna" else {"forces": "forces"}
    batch = models.concatenate([models.molecule(30, seed) for seed in range(8)])
    return models.our_step(settings, head(models, "energy", "energy", **forces), batch, ["atomic_numbers"])


def head(models: Any, kind: str, field: str, **keys: str) -> Any:
    """A head, also of checkouts in which heads had no kind."""
    if hasattr(models, "parse_head"):
        return models.parse_head({"kind": kind, "field": field, **keys})
    return models.HeadSettings(field=field, **({"pool": "sum"} if kind == "energy" else {}), **keys)


def server(checkout: Path, kind: str) -> Server:
    """A process that serves the steps of a checkout."""
    python = checkout / ".venv" / "bin" / "python"
    command = [python if python.exists() else sys.executable, Path(__file__).resolve(), "--serve", kind]
    return Server(command, {"PYTHONPATH": str(checkout), "GLIBC_TUNABLES": KEPT}, checkout)


def compared(other: Path, kind: str, rounds: int) -> list[tuple[list[float], list[float]]]:
    """Seconds of theirs and of ours in every round of one pair of processes."""
    processes = [server(other, kind), server(HERE, kind)]
    actual = []
    for number in range(rounds):
        order = processes if number % 2 else processes[::-1]
        seconds = {process: process.ask() for process in order}
        actual.append((seconds[processes[0]], seconds[processes[1]]))
    for process in processes:
        process.end()
    return actual


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__, rounds=10)
    arguments.add_argument("other", type=Path, nargs="?")
    arguments.add_argument("--pairs", type=int, default=6)
    arguments.add_argument("--only", choices=KINDS)
    arguments.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        return serve(options.serve)
    milliseconds = {"theirs ms": "10.1f", "ours ms": "10.1f"}
    figures = Figures({"step of": "12", **milliseconds, "ratio CPU": "10.3f", "ratio wall": "10.3f"}, options.json)
    for kind in [options.only] if options.only else KINDS:
        pairs = [compared(options.other.resolve(), kind, options.rounds) for _ in range(options.pairs)]
        theirs, ours = (median(turn[side][0] for pair in pairs for turn in pair) * 1e3 for side in (0, 1))
        cpu, wall = (median(median(t[clock] / o[clock] for t, o in pair) for pair in pairs) for clock in (0, 1))
        figures.add(kind, theirs, ours, cpu, wall)
    return None


if __name__ == "__main__":
    main()
