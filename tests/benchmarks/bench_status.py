"""The processor's time of ``hydragnn status`` for a campaign of very many trials, whose journal is made first.

    PYTHONPATH=. python tests/benchmarks/bench_status.py FOLDER --trials 100000

FOLDER keeps the campaign (206 MB): who calls again, with this version or another, reads the same.
"""

import argparse
import random
import resource
import time
from pathlib import Path

import numpy as np

from hydragnn.hpo import campaign_settings, campaign_status, preflight
from hydragnn.hpo.journal import NAME, Entry, Journal, young_garbage_only
from hydragnn.hpo.scheduling.events import (
    Action,
    Event,
    Failed,
    Launched,
    Opened,
    Plan,
    Probe,
    Probed,
    Propose,
    Proposed,
    Reached,
    Start,
    Tick,
)
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.space.points import random_point, space_of
from tests.benchmarks.bench_controller import TABLE

FLUSH = 2_000


class Course:
    """A campaign that goes its way, attempts ending in a random order, one in a hundred through the loss of its node."""

    def __init__(self, trials: int, slots: int) -> None:
        self.settings = campaign_settings(
            {**TABLE, "search": {**TABLE["search"], "trials": trials}}, Path("BENCH.toml")
        )
        self.space = space_of(self.settings.search.space)
        self.chance, self.generator = random.Random(1), np.random.default_rng(1)
        names = tuple(f"n{number:05d}" for number in range(slots))
        self.urgent: list[Event] = [Opened(plan=Plan(trials=trials, rungs=(1, 3, 9)), slots=names)]
        self.running: list[Start] = []
        self.state, self.now = State(), 1.7e9

    def entry(self) -> Entry | None:
        """The next event with what was decided about it; None where nothing follows from it."""
        event = self._event()
        changes, actions = decide(self.state, event, self.now)
        for action in actions:
            self._act(action)
        return None if changes is None else Entry(self.now, event, changes)

    def _event(self) -> Event:
        if self.urgent:
            return self.urgent.pop()
        if not self.running or self.chance.random() < 0.05:
            self.now += 0.0 if self.running else 60.0
            return Tick()
        at = self.chance.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        start, self.now = self.running.pop(), self.now + 0.05
        if self.chance.random() < 0.01:
            return Failed(trial=start.trial, attempt=start.attempt, kind="lost_node", message="", suspects=start.slots)
        luck, until = self.chance.random(), start.until
        return Reached(
            trial=start.trial,
            attempt=start.attempt,
            epochs=until,
            value=1 / (1 + until) + luck,
            seconds=60.0 * until * (1 + self.chance.random()),
            memory_mb=900.0,
        )

    def _act(self, action: Action) -> None:
        match action:
            case Propose():
                self.urgent.append(Proposed(trial=action.trial, values=random_point(self.space, self.generator)))
            case Start():
                self.running.append(action)
                identity = {"host": action.slots[0], "job": "4711", "step": f"trial-{action.trial}-{action.attempt}"}
                self.urgent.append(Launched(trial=action.trial, attempt=action.attempt, identity=identity))
            case Probe():
                self.urgent.append(Probed(node=action.node, healthy=self.chance.random() < 0.9))


def make(folder: Path, trials: int, slots: int) -> None:
    """Write a campaign's folder."""
    folder.mkdir(parents=True)
    course, entries = Course(trials, slots), list[Entry]()
    with Journal(folder / NAME) as journal, young_garbage_only():
        while not course.state.closed:
            entry = course.entry()
            entries += [] if entry is None else [entry]
            if len(entries) >= FLUSH or course.state.closed:
                journal.extend(entries)
                entries.clear()
    vars(preflight)["fingerprints_of"] = lambda settings: {}  # there is no store
    preflight.write_settings(course.settings, [], folder)


def main() -> None:
    """Make the campaign where it is not there, and read it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--slots", type=int, default=4096)
    options = parser.parse_args()
    if not options.folder.exists():
        make(options.folder, options.trials, options.slots)
    begun = time.process_time()
    status = campaign_status(options.folder)
    seconds = time.process_time() - begun
    size = (options.folder / NAME).stat().st_size / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{status}\n{size:.0f} MiB read in {seconds:.2f} s of the processor, peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
