"""How much processor time one decision takes with many trials at once: percentiles of ``decide`` in a campaign without faults, or with some.

    python tests/benchmarks/bench_scheduler.py --slots 16384 --trials 20000

Each running trial ends its segment in random order; every hundredth attempt fails with its node. Prints a table, and ends
with 1 where the 99th percentile exceeds ``--limit`` milliseconds.
"""

import argparse
import random
import sys
import time

import numpy as np

from hydragnn.hpo.scheduling.events import (
    Event,
    Failed,
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


def campaign(plan: Plan, slots: int, faults: float, seed: int) -> dict[str, list[float]]:
    """Seconds of every call of ``decide``, by kind of event."""
    generator = random.Random(seed)
    names = tuple(f"n{k}" for k in range(slots))
    state, now = State(), 1000.0
    seconds: dict[str, list[float]] = {}
    running: list[Start] = []
    urgent: list[Event] = [Opened(plan=plan, slots=names, deadline=1e9)]
    while not state.closed:
        if urgent:
            event = urgent.pop()
        elif not running or generator.random() < 0.2:
            now += 0.0 if running else 60.0
            event = Tick()
        else:
            event = ended(state, running, generator, faults)
            now += 0.01
        begin = time.thread_time()
        _, actions = decide(state, event, now)
        seconds.setdefault(type(event).__name__, []).append(time.thread_time() - begin)
        for action in actions:
            if isinstance(action, Propose):
                urgent.append(Proposed(trial=action.trial, values={"x": 0.5}, work=generator.uniform(1, 9)))
            elif isinstance(action, Start):
                running.append(action)
            elif isinstance(action, Probe):
                urgent.append(Probed(node=action.node, healthy=generator.random() < 0.9))
    return seconds


def ended(state: State, running: list[Start], generator: random.Random, faults: float) -> Event:
    """One of the running attempts, drawn at random, comes to its end."""
    at = generator.randrange(len(running))
    running[at], running[-1] = running[-1], running[at]
    start = running.pop()
    if generator.random() < faults:
        return Failed(trial=start.trial, attempt=start.attempt, kind="lost_node", message="why")
    seconds = state.trials[start.trial].seconds + 5.0 * start.until / len(start.slots)
    return Reached(
        trial=start.trial, attempt=start.attempt, epochs=start.until, value=generator.random(), seconds=seconds
    )


def main() -> int:
    """Run one campaign and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=16384)
    parser.add_argument("--trials", type=int, default=20000)
    parser.add_argument("--faults", type=float, default=0.01)
    parser.add_argument("--most", type=int, default=1, help="largest number of slots of one trial")
    parser.add_argument("--limit", type=float, default=1.0, help="milliseconds")
    options = parser.parse_args()
    plan = Plan(trials=options.trials, rungs=(1, 3, 9), max_slots=options.most, timeout=1e8)
    seconds = campaign(plan, options.slots, options.faults, seed=0)
    print(f"{'event':12}{'calls':>9}{'median ms':>11}{'p99 ms':>9}{'longest ms':>12}")
    every = [value for values in seconds.values() for value in values]
    for name, values in [*sorted(seconds.items()), ("all", every)]:
        median, high = (1e3 * float(q) for q in np.quantile(values, [0.5, 0.99]))
        print(f"{name:12}{len(values):9d}{median:11.3f}{high:9.3f}{1e3 * max(values):12.1f}")
    return int(1e3 * float(np.quantile(every, 0.99)) > options.limit)


if __name__ == "__main__":
    sys.exit(main())
