"""Cost of measuring phases, work, busy share and energy.

    python -m tests.benchmarks.bench_clock [--rounds 1000] [--json FILE]

Times of equal steps scatter by more than is looked for, and counts of instructions do not show misses of caches. So the calls
that record a step are timed by themselves, each after a real step without records, which leaves caches as cold as training does.
In every round one step is recorded and one is not, in random order. The sampling thread reads stand-in files of RAPL; its own
processor time counts, for one sample a second. Cells: milliseconds of CPU time of a step, a fast one of ten; microseconds that the
recording adds, median, quartiles and mean of the rounds (a few steps are divided, so that the mean is larger; the largest
2 % do not count); the mean over the step; the thread's share; milliseconds that peaks cost once, for runs of over 20 s on a CPU.
"""

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from hydragnn.base.clock import Clock, phase, steps_of
from hydragnn.base.peaks import measured_peaks
from hydragnn.runs.attempt import keep_beating
from hydragnn.runs.counting import StepWork
from hydragnn.runs.energy import Meter
from hydragnn.training.data import Share
from tests.benchmarks.harness import Figures, parser
from tests.hydragnn.alloys import alloys, network_for

MODEL = {"kind": "schnet", "hidden_dim": 8, "num_layers": 1}
"""Smallest steps: forces and stress of four small structures. Larger models record as often."""


def sample_seconds() -> float:
    """Return the CPU seconds of the sampling thread per sample."""
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(("package-0", "dram")):
            zone = Path(folder) / f"sys/class/powercap/intel-rapl:{number}"
            zone.mkdir(parents=True)
            for file, text in {"name": name, "energy_uj": "1000", "max_energy_range_uj": "262143328850"}.items():
                (zone / file).write_text(text, encoding="ascii")
        (Path(folder) / "proc").symlink_to("/proc")
        meter, totals = Meter(torch.device("cpu"), root=Path(folder)), list[float]()
        assert meter.counter is not None

        def sample() -> None:
            meter.sample()
            totals.append(time.thread_time())

        with keep_beating(sample, every=0.02):
            time.sleep(4)
    own = totals[1:-1]  # the first and the last are of this thread
    return (own[-1] - own[0]) / (len(own) - 1)


def nothing() -> None:
    """Do nothing: what stands in a phase."""


class Recorded:
    """Calls of a training around its steps, with and without records."""

    def __init__(self, share: Share) -> None:
        self.share, self.work, Clock.running = share, StepWork(), Clock()
        self.work.rates[0] = 1.0, 1.0
        self.steps, self.plain, self.block = iter(steps_of(iter(int, None))), iter(int, None), nullcontext()
        self.phases = [phase(name)(nothing) for name in ("forward", "backward", "optimizer")]

    def on(self) -> None:
        """Record a step."""
        next(self.steps)
        with self.work.counting(self.share):
            for one in self.phases:
                one()

    def off(self) -> None:
        """Do the same without records."""
        next(self.plain)
        with self.block:
            for _ in self.phases:
                nothing()


def rounds_of(count: int) -> tuple[list[float], list[float]]:
    """Return CPU seconds of steps, and microseconds that recording adds in every round."""
    torch.set_num_threads(1)
    batch, draw, steps, added = alloys(), random.Random(0), list[float](), list[float]()
    model, recorded = network_for(batch, **MODEL).double(), Recorded(Share(branch=0, parts=(batch,)))

    def timed(calls: Callable[[], None]) -> float:
        begin = time.thread_time()
        predictions = model(batch)
        torch.stack([one.mean.square().sum() for one in predictions.values()]).sum().backward()  # type: ignore[attr-defined]
        steps.append(time.thread_time() - begin)
        start = time.perf_counter()
        calls()
        return 1e6 * (time.perf_counter() - start)

    for _ in range(count):
        first = draw.random() < 0.5
        one, other = (timed(recorded.on if on else recorded.off) for on in (first, not first))
        added.append((one - other) * (1 if first else -1))
    return steps, added


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for."""
    chosen = parser(__doc__, rounds=1000).parse_args(arguments)
    columns = {"step ms": "8.2f", **dict.fromkeys(("median us", "quarter", "three quarters", "mean"), "8.1f")}
    figures = Figures({**columns, "steps %": "8.3f", "thread %": "8.3f", "peaks ms": "8.1f"}, chosen.json)
    thread, begin = 100 * sample_seconds(), time.process_time()  # one sample a second
    measured_peaks("fp32")
    peaks = 1e3 * (time.process_time() - begin)
    steps, added = rounds_of(chosen.rounds)
    usual = np.sort(added)[chosen.rounds // 100 : -max(1, chosen.rounds // 100)]
    low, middle, high = np.quantile(added, [0.25, 0.5, 0.75])
    step = 1e3 * float(np.quantile(steps, 0.1))
    figures.add(step, middle, low, high, usual.mean(), 0.1 * usual.mean() / step, thread, peaks)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
