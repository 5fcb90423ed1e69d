"""How long the controller of a campaign takes for one event while 16,384 one-node trials run at once.

    PYTHONPATH=. python tests/benchmarks/bench_controller.py --slots 16384
    PYTHONPATH=. python tests/benchmarks/bench_controller.py --slots 16384 --slow 1 --pace 60 --ends 3000
    PYTHONPATH=. python tests/benchmarks/bench_controller.py --slots 16384 --packs 2048 --slow 1 --pace 60 --ends 3000

The controller is the real one: scheduler, journal with real flushes, folders of attempts, Optuna study, sampler, view. Only the
launcher is virtual: attempts begin at once, and end in a seeded order, as many at a time as one look may find (1 to 256), or
at random moments, ``--pace`` a second, with real records on disk. Prints median, 99th percentile and maximum for one event (the time of a look divided by its
events) and for whole looks, what they are made of, what an event may have to wait for besides, and the peak memory. With
``--slow`` every file that is opened, looked at, renamed, removed, listed or flushed takes so many milliseconds more, in the
thread that asks, as on a file system with many others. ``--packs`` takes the launcher of packs instead of the virtual one; the pipes
of so many packs lead to one process, in which nodes and attempts show every few seconds that they live.
"""

import argparse
import gc
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.files import digest
from hydragnn.base.terminal import PlainConsole
from hydragnn.hpo import CampaignView, campaign_settings, controller, journal
from hydragnn.hpo.controller import Controller
from hydragnn.hpo.journal import NAME, Journal
from hydragnn.hpo.launching.allocation_launcher import Launcher
from hydragnn.hpo.launching.launcher import Begun, Exit, Report, Task
from hydragnn.hpo.preflight import plan_on
from hydragnn.hpo.scheduling.events import Identity, Probed
from hydragnn.hpo.space.points import space_of
from tests.benchmarks.virtual_packs import virtual_packs

LARGEST = 256
"""Most ends that one look finds."""

TABLE: dict[str, Any] = {
    "data": {"store": "store.h5"},
    "model": {"kind": "painn"},
    "heads": [{"kind": "scalar", "field": "energy"}],
    "train": {"epochs": 9},
    "search": {
        "rungs": [1, 3],
        "space": {
            "train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
            "train.weight_decay": {"type": "float", "low": 1e-8, "high": 1e-1, "log": True},
            "model.hidden_dim": {"type": "int", "low": 16, "high": 512, "log": True},
            "model.num_layers": {"type": "int", "low": 1, "high": 8},
        },
    },
}


@Launcher.register
class Virtual:
    """Attempts that begin at once and end in a seeded order, from the moment on at which all slots are busy."""

    deadline = None
    beat_seconds, sizes, note = 1.0, dict[str, float](), ""

    def __init__(self, slots: int, seed: int, pace: float) -> None:
        self.slots = tuple(f"n{number:05d}" for number in range(slots))
        self.chance = random.Random(seed)
        self.begun: list[Report] = []
        self.running: list[Task] = []
        self.records: dict[int, Future[None]] = {}
        """The records that are being written, by trial."""
        self.trainings = ProcessPoolExecutor(1, multiprocessing.get_context("forkserver"))
        self.full = False
        self.pace, self.next_end = pace, 0.0
        self.due: dict[int, float] = {}
        """When the attempts ended that were reported last, by trial."""

    def recover(self, campaign: str, identities: Iterable[Identity]) -> None:
        """Nothing to do: processes of a virtual launcher end with it."""

    def start(self, task: Task) -> None:
        """Begin at once."""
        identity = {"host": task.slots[0], "job": "4711", "step": f"trial-{task.trial}-{task.attempt}"}
        self.begun.append(Begun(task=task, identity=identity))

    def go(self, task: Task) -> None:
        """Run; the record is there before the end, so that writing it is no time of the controller's."""
        self.running.append(task)
        self.records[task.trial] = self.trainings.submit(write_record, task, self.chance.random())
        self.full = self.full or len(self.running) == len(self.slots)

    def wake(self) -> None:
        """Nothing waits for long."""

    def poll(self, seconds: float) -> list[Report]:
        """What began, and some ends."""
        reports, self.begun = self.begun[:LARGEST], self.begun[LARGEST:]
        if self.full and self.running and self.pace:
            reports += self.due_ends(seconds if not reports else 0.0)
        elif self.full and self.running:
            count = min(len(self.running), int(LARGEST ** self.chance.random()))
            reports += [self.ended() for _ in range(count)]
        elif not reports:
            time.sleep(min(seconds, 0.001))
        return reports

    def due_ends(self, seconds: float) -> list[Report]:
        """The ends whose moment came, after waiting so long at most for the first."""
        now = time.perf_counter()
        self.next_end = self.next_end or now
        time.sleep(max(0.0, min(seconds, self.next_end - now)))
        ends: list[Report] = []
        while self.running and self.next_end <= time.perf_counter():
            report = self.ended()
            self.due[report.task.trial] = self.next_end
            self.next_end += self.chance.expovariate(self.pace)
            ends.append(report)
        return ends

    def ended(self) -> Exit:
        """The end of some attempt, with its record."""
        index = self.chance.randrange(len(self.running))
        self.running[index], self.running[-1] = self.running[-1], self.running[index]
        task = self.running.pop()
        self.records.pop(task.trial).result()
        return Exit(task=task, code=0)

    def cancel(self, trial: int, grace: float) -> None:
        """No trial is ever cancelled here."""
        raise AssertionError(trial)

    def probe(self, node: str) -> None:
        """All is well."""
        self.begun.append(Probed(node=node, healthy=True))

    def close(self) -> None:
        """Nothing is left."""
        self.trainings.shutdown(cancel_futures=True)


def write_record(task: Task, luck: float) -> None:
    """What a training process leaves, as long as a real one; flushing is the training's affair."""
    config = json.loads((task.folder / "config.json").read_text())
    curve = [1 / (epoch + 1) + luck for epoch in range(task.until)]
    names = [f"{part}/{name}" for part in ("train", "valid") for name in ("loss", "energy/mae", "energy/rmse")]
    record = {
        "version": 1,
        "config": config,
        "config_hash": digest(config),
        "data_hash": "d",
        "seed": 0,
        "attempt": task.attempt,
        "status": "finished" if task.until == TABLE["train"]["epochs"] else "paused",
        "epochs": task.until,
        "curves": dict.fromkeys(names, curve),
        "cost": {"seconds": 60.0 * task.until * (1 + luck), "peak_memory_mb": 900.0},
    }
    (task.folder / "record.json").write_text(json.dumps(record))


class Measured(Exception):
    """Enough ends were seen."""


class Timed(Controller):
    """The controller with a stopwatch at the ends of its methods."""

    looks: list[tuple[int, float, float]]
    """Reports, seconds and seconds of processor of each look."""
    rounds: list[float]
    due: Any
    waited: list[float]
    """Seconds from the moment when an attempt ended to what follows from it, on disk and under way."""

    ends = sys.maxsize
    """After so many the campaign is left."""
    most = 0
    """Attempts at once."""

    def handle(self, reports: list[Report]) -> None:
        """Time a look that found something."""
        begun, processor = time.perf_counter(), time.thread_time()
        super().handle(reports)
        if reports:
            self.looks.append((len(reports), time.perf_counter() - begun, time.thread_time() - processor))
            ended = [report.task.trial for report in reports if isinstance(report, Exit)] if self.due else []
            self.waited += [time.perf_counter() - self.due[trial] for trial in ended]
            if len(self.waited) >= self.ends:
                raise Measured

    def work(self) -> None:
        """Time a round of work between looks."""
        begun = time.perf_counter()
        super().work()
        self.rounds.append(time.perf_counter() - begun)
        self.most = max(self.most, len(self.state.active))


def slow_files(seconds: float) -> None:
    """Let operations on files take so much longer from now on, as a busy file system would."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in (
            "open",
            "os.rename",
            "os.remove",
            "os.mkdir",
            "os.listdir",
            "os.scandir",
            "os.truncate",
        ):
            time.sleep(seconds)

    def slower(inner: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            time.sleep(seconds)
            return inner(*arguments, **options)

        return call

    sys.addaudithook(hook)
    for name in ("stat", "lstat", "fsync", "write"):
        setattr(os, name, slower(getattr(os, name)))


class Stopwatch:
    """Adds up the seconds that functions take in the controller's own thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.processor: defaultdict[str, list[float]] = defaultdict(list)

    def around(self, owner: Any, name: str) -> None:
        """Time a function from now on."""
        inner, main = getattr(owner, name), threading.main_thread()

        def timed(*arguments: Any, **options: Any) -> Any:
            begun, processor = time.perf_counter(), time.thread_time()
            try:
                return inner(*arguments, **options)
            finally:
                if threading.current_thread() is main:
                    self.seconds[name].append(time.perf_counter() - begun)
                    self.processor[name].append(time.thread_time() - processor)

        setattr(owner, name, timed)


def collections() -> list[float]:
    """Seconds of every garbage collection from now on."""
    seconds: list[float] = []
    begun = [0.0]

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun[0] = time.thread_time()
        else:
            seconds.append(time.thread_time() - begun[0])

    gc.callbacks.append(note)
    return seconds


def main() -> int:
    """Run the campaign and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=16384)
    parser.add_argument("--trials", type=int, default=None, help="default: 1.1 times the slots")
    parser.add_argument("--sampler", default="tpe", choices=["tpe", "gp", "qmc", "random"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured (default: temporary)")
    parser.add_argument("--slow", type=float, default=0.0, help="milliseconds more for each operation on files")
    parser.add_argument("--pace", type=float, default=0.0, help="ends a second; 0: as many as a look may find")
    parser.add_argument("--ends", type=int, default=sys.maxsize, help="leave after so many ends, with --pace")
    parser.add_argument(
        "--packs",
        type=int,
        default=0,
        help="the launcher of packs, with so many, instead of a virtual one; with --pace",
    )
    options = parser.parse_args()
    trials = options.trials or int(1.1 * options.slots)
    table = {**TABLE, "search": {**TABLE["search"], "trials": trials, "sampler": options.sampler, "seed": options.seed}}
    settings = campaign_settings(table, Path("BENCHMARK.toml"))
    watch = Stopwatch()
    collected = collections()
    watch.around(controller, "decide")
    watch.around(journal.os, "fsync")
    with ExitStack() as stack:
        parent = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out = parent / "campaign"
        launcher, due = launcher_of(options, trials, out)
        stack.callback(launcher.close)
        log = stack.enter_context(Journal(out / NAME))
        view = CampaignView(out, PlainConsole(file=stack.enter_context(Path(os.devnull).open("w"))))
        timed = Timed(settings, space_of(settings.search.space), out, log, launcher, [], view)
        timed.looks, timed.rounds, timed.due, timed.waited = [], [], due, []
        timed.ends = options.ends
        if options.slow:
            slow_files(options.slow / 1000)
        begun = time.perf_counter()
        with suppress(Measured):
            timed.run(plan_on(launcher, settings))
        state = timed.state
        whole = time.perf_counter() - begun
        size = (out / NAME).stat().st_size / 2**20
    events = sum(count for count, _, _ in timed.looks)
    print(f"{len(state.trials)} trials, at most {timed.most} at once, {events} reports in {len(timed.looks)} looks")
    print(f"whole campaign {whole:.0f} s, journal {size:.0f} MiB, ending {state.ending}")
    each = [seconds / count for count, seconds, _ in timed.looks for _ in range(count)]
    print(line("one event, its share of the look", each))
    if timed.waited:
        print(line("from the end of an attempt to what follows", timed.waited))
    print(line("  of that the processor", [cpu / count for count, _, cpu in timed.looks for _ in range(count)]))
    for low, high in ((1, 1), (2, 16), (17, LARGEST), (LARGEST + 1, 10 * LARGEST)):
        some = [(seconds, processor) for count, seconds, processor in timed.looks if low <= count <= high]
        if some:
            print(line(f"a look with {low} to {high} reports", [seconds for seconds, _ in some]))
            print(line("  of that the processor", [processor for _, processor in some]))
    print(line("scheduler: one step", watch.seconds["decide"]))
    print(line("  of that the processor", watch.processor["decide"]))
    print(line("memory: one garbage collection, processor", collected))
    print(line("disk: one flush", watch.seconds["fsync"]))
    print(line("work between looks (an event may wait so long)", timed.rounds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.2f} GiB; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    return 0 if np.quantile(each, 0.99) < 0.005 and peak < 2 else 1


def launcher_of(options: argparse.Namespace, trials: int, out: Path) -> tuple[Launcher, Any]:
    """What starts the attempts, and when those of each trial ended that were reported last."""
    if options.packs:
        log = out / "packs.txt"
        return virtual_packs(options.packs, options.slots, trials, options.pace, options.seed, log, write_record)
    virtual = Virtual(options.slots, options.seed, options.pace)
    return virtual, virtual.due


def line(name: str, seconds: Iterable[float]) -> str:
    """Median, 99th percentile and maximum in milliseconds."""
    values = 1000 * np.array(list(seconds))
    median, high = np.quantile(values, [0.5, 0.99])
    return f"{name:48s} median {median:8.2f} ms   p99 {high:8.2f} ms   max {values.max():8.2f} ms   sum {values.sum() / 1000:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
