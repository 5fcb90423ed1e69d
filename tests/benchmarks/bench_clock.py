"""Cost of measuring phases, busy share and energy.

    python -m tests.benchmarks.bench_clock [--rounds 40] [--json FILE]

Two processes train the same runs in turn; in one of them phases are plain calls and nothing looks at counters. Cells are what
measuring adds to the CPU seconds of a run: the phases of its steps alone, the difference of the fastest runs, which other programs
disturbed least, and quartiles of the rounds.
"""

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from tests.benchmarks.harness import Figures, Server, parser

RUNS: dict[str, dict[str, Any]] = {
    "smallest steps": {"model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1, "cutoff": 3.0}, "epochs": 8},
    "quickstart": {"model": {"kind": "painn", "hidden_dim": 32, "num_layers": 3, "cutoff": 5.0}, "epochs": 1},
}
"""Runs with forces on crystals, two in a batch."""


class Plain:
    """Phase that is not measured."""

    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

    def __call__(self, function: Any) -> Any:
        """Return the function itself."""
        return function


def serve(*, measured: bool) -> None:
    """Train runs that stdin names; answer with their CPU seconds."""
    from hydragnn.base import clock

    if not measured:
        clock.phase, clock.steps_of = Plain, iter  # type: ignore[assignment, misc]
    from hydragnn.config import RunConfig
    from hydragnn.runs import train
    from hydragnn.runs.energy import Meter
    from tests.benchmarks.step_times import DYNAMICS, crystals

    if not measured:
        Meter.sample = lambda self: None  # type: ignore[method-assign]
    store = crystals(40)
    for line in sys.stdin:
        run = RUNS[line.strip()]
        settings = {"epochs": run["epochs"], "checkpoint_seconds": 1e9}
        table = {**DYNAMICS, "batch": {"max_graphs": 2}, "model": run["model"], "train": settings}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            begin = time.process_time()
            record = train(RunConfig.parse(table), Path(folder) / "run", store=store)
            seconds = time.process_time() - begin
        assert bool(record.usage.phases.get("forward")) == measured
        steps = record.epochs * record.parts["train"] / 2
        print(json.dumps({"seconds": seconds, "steps": steps, "loss": record.curves["valid/loss"][-1]}), flush=True)


def phases_of_a_step(count: int = 20_000) -> float:
    """Return the CPU seconds that the phases of one step take alone."""
    from hydragnn.base.clock import phase, steps_of

    add = phase("backward")(lambda: None)
    begin = time.process_time()
    for _ in steps_of(range(count)):
        with phase("forward"):
            add()
        with phase("optimizer"):
            pass
    return (time.process_time() - begin) / count


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for."""
    options = parser(__doc__, rounds=40)
    options.add_argument("--serve", choices=["plain", "measured"], help="train what stdin names")
    chosen = options.parse_args(arguments)
    if chosen.serve:
        serve(measured=chosen.serve == "measured")
        return 0
    command = [sys.executable, "-m", "tests.benchmarks.bench_clock", "--serve"]
    servers = {name: Server([*command, name], {"PYTHONPATH": "."}) for name in ("plain", "measured")}
    figures = Figures(
        {
            "run": "16",
            "ms": "7.2f",
            "phases %": "8.3f",
            "fastest %": "9.2f",
            "lower %": "8.2f",
            "middle %": "8.2f",
            "upper %": "8.2f",
        },
        chosen.json,
    )
    for run in RUNS:
        taken: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(-1, chosen.rounds):
            order = list(servers) if number % 2 else list(reversed(servers))
            answers = {name: servers[name].ask(run) for name in order}
            assert answers["plain"]["loss"] == answers["measured"]["loss"], "the same bits"
            for name in servers if number >= 0 else ():
                taken[name].append(answers[name]["seconds"] / answers[name]["steps"])
        ratios = [one / other for one, other in zip(taken["measured"], taken["plain"], strict=True)]
        ratios = [min(taken["measured"]) / min(taken["plain"]), *quantiles(ratios, n=4)]
        alone = 100 * phases_of_a_step() / min(taken["plain"])
        figures.add(run, 1e3 * min(taken["plain"]), alone, *(100 * (one - 1) for one in ratios))
    for server in servers.values():
        server.end()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
