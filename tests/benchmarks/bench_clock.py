"""Cost of measuring phases, work, busy share and energy.

    python -m tests.benchmarks.bench_clock [--rounds 3] [--json FILE]

Wall times scatter by more than is looked for, so valgrind counts the instructions of a run, which repeat. Epochs with the recording
on and off alternate in one run; each with it is compared with the mean of those around, since steps get slowly longer. In further
epochs the work of every step is counted, as users' runs do in the first. The sampling thread reads stand-in files of RAPL; its own
processor time counts, for one sample a second. Cells: millions of instructions of a step, from end to end of an epoch; what the
recording adds, mean and largest of the rounds; the thread's share; steps that the count of work costs once; and milliseconds that
peaks cost once, for runs of over 20 s on a CPU. Needs valgrind and a C compiler.
"""

import argparse
import ctypes
import io
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from functools import wraps
from pathlib import Path
from statistics import mean
from typing import Any

from tests.benchmarks.harness import Figures, parser

MODEL = {"kind": "schnet", "hidden_dim": 8, "num_layers": 1, "cutoff": 3.0}
"""Smallest steps: forces on crystals, two in a batch. Larger models record as often."""

STEPS, WARM_UP = 16, 2
"""Steps of an epoch; epochs before anything is counted."""

REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void dump(const char *kind) { CALLGRIND_DUMP_STATS_AT(kind); }
"""


class Switch:
    """What is recorded in an epoch; its instructions go to a file that names the kind."""

    def __init__(self, kinds: list[str], library: Path) -> None:
        self.kinds, self.kind, self.steps, self.valgrind = kinds, "on", 0, ctypes.CDLL(str(library))

    @property
    def on(self) -> bool:
        """Return True where steps are recorded."""
        return self.kind != "off"

    def step(self) -> None:
        """A step begins; the one before has ended."""
        epoch, self.steps = self.steps // STEPS - WARM_UP, self.steps + 1
        if self.steps % STEPS != 1 or epoch < 0:
            return
        if epoch:
            self.valgrind.dump(self.kind.encode())
        else:
            self.valgrind.start()
        self.kind = self.kinds[epoch]


def instrument(switch: Switch) -> None:
    """Let a switch decide what is recorded, before anything imports the clock."""
    from hydragnn.base import clock

    phase, enter, nothing = clock.phase, clock.Clock.enter, nullcontext()

    class Switched(phase):  # type: ignore[misc, valid-type]
        def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
            counted = super().__call__(function)

            @wraps(function)
            def chosen(*arguments: Any, **named: Any) -> Any:
                return (counted if switch.on else function)(*arguments, **named)

            return chosen

    def phase_or_nothing(name: str) -> Any:
        if not switch.steps:
            return Switched(name)
        return phase(name) if switch.on else nothing

    clock.phase = phase_or_nothing  # type: ignore[assignment, misc]
    clock.Clock.enter = lambda self, name: enter(self, name) if switch.on else ""  # type: ignore[method-assign]
    from hydragnn.runs.counting import StepWork
    from hydragnn.training import loop

    counting, take_step = StepWork.counting, loop.take_step

    def counted(self: StepWork, share: Any) -> Any:
        if switch.kind == "counted":
            self.rates.clear()
        return counting(self, share) if switch.on else nothing

    def stepped(*arguments: Any) -> Any:
        switch.step()
        clock.Clock.running.phase = "step"  # also where the step before was not recorded
        return take_step(*arguments)

    StepWork.counting, loop.take_step = counted, stepped  # type: ignore[assignment, method-assign]


def sample_seconds() -> float:
    """Return the CPU seconds of the sampling thread per sample."""
    import torch

    from hydragnn.runs import energy
    from hydragnn.runs.attempt import keep_beating

    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(("package-0", "dram")):
            zone = Path(folder) / f"sys/class/powercap/intel-rapl:{number}"
            zone.mkdir(parents=True)
            for file, text in {"name": name, "energy_uj": "1000", "max_energy_range_uj": "262143328850"}.items():
                (zone / file).write_text(text, encoding="ascii")
        (Path(folder) / "proc").symlink_to("/proc")
        meter, totals = energy.Meter(torch.device("cpu"), root=Path(folder)), list[float]()
        assert meter.counter is not None

        def sample() -> None:
            meter.sample()
            totals.append(time.thread_time())

        with keep_beating(sample, every=0.02):
            time.sleep(4)
    own = totals[1:-1]  # the first and the last are of this thread
    return (own[-1] - own[0]) / (len(own) - 1)


def count(kinds: list[str], library: Path) -> None:
    """Train under valgrind, with epochs of these kinds."""
    instrument(Switch([*kinds, "off"], library))  # the last epoch ends the one before
    from hydragnn.config import RunConfig
    from hydragnn.runs import train
    from tests.benchmarks.step_times import DYNAMICS, crystals

    settings = {"epochs": WARM_UP + len(kinds) + 1, "checkpoint_seconds": 1e9}
    table = {**DYNAMICS, "batch": {"max_graphs": 2}, "model": MODEL, "train": settings}
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        train(RunConfig.parse(table), Path(folder) / "run", store=crystals(40))


def counts(kinds: list[str]) -> list[float]:
    """Return the instructions of a step in every epoch."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "requests.so"
        (Path(folder) / "requests.c").write_text(REQUESTS, encoding="ascii")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, f"{folder}/requests.c"], check=True)
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        own = [sys.executable, "-m", "tests.benchmarks.bench_clock", "--serve", str(library), *kinds]
        subprocess.run([*tool, *own], check=True)
        files = [Path(folder) / f"counts.{number}" for number in range(1, len(kinds) + 1)]
        found = [re.search(r"Client Request: (\w+)\n[\s\S]*?summary: (\d+)", file.read_text()) for file in files]
    assert [one and one[1] for one in found] == kinds
    return [int(one[2]) / STEPS for one in found if one]


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for."""
    options = parser(__doc__, rounds=3)
    options.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    chosen = options.parse_args(arguments)
    if chosen.serve:
        count(chosen.serve[1:], Path(chosen.serve[0]))
        return 0
    from hydragnn.base.peaks import measured_peaks

    shares = dict.fromkeys(("steps %", "most %", "thread %"), "8.3f")
    columns = {"millions": "8.2f", **shares, "once steps": "10.2f", "peaks ms": "8.1f"}
    figures = Figures(columns, chosen.json)
    thread, begin = 100 * sample_seconds(), time.process_time()  # one sample a second
    measured_peaks("fp32")
    peaks = 1e3 * (time.process_time() - begin)
    *alone, counted = counts([*["off", "on"] * chosen.rounds, "off", "counted"])
    off, on = alone[::2], alone[1::2]
    added = [100 * (2 * one / (before + after) - 1) for one, before, after in zip(on, off, off[1:], strict=False)]
    figures.add(mean(off) / 1e6, mean(added), max(added), thread, counted / off[-1] - 1, peaks)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
