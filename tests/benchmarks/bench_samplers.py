"""What samplers find with 1, 64 and 256 workers on synthetic conditional spaces, and what a proposal costs.

    PYTHONPATH=. python tests/benchmarks/bench_samplers.py --seeds 10
    PYTHONPATH=. python tests/benchmarks/bench_samplers.py --seeds 3 --samplers optuna
    bash tests/benchmarks/samplers.sh DIRECTORY     # an environment with DeepHyper, once; then, for the table beside its:
    PYTHONPATH=. DIRECTORY/bin/python tests/benchmarks/bench_samplers.py --seeds 3 --workers 64 --samplers tpe optuna deephyper

Seven numbers, three of which belong to one choice each of a category; a sum of squares whose optimum is 0, seen with noise of
0.01. Trials last log-normally long; workers ask together where a sixteenth of them is free. Printed: the true value of the
trial that looks best, mean over seeds, and the processor's time for one proposal. Samplers are asked as a campaign asks them;
``optuna`` is Optuna's own TPE (5: joint, with constant liars), told all trials, ``optuna-plain`` the same with its own
settings, ``deephyper`` DeepHyper's CBO with its own settings, told together what ended together (a minute of the processor for 70 trials).
"""

import argparse
import heapq
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from hydragnn.hpo import sampler as samplers
from hydragnn.hpo.sampler import distribution, history_of, proposals
from hydragnn.hpo.scheduling.events import Opened, Plan, Proposed, Reached
from hydragnn.hpo.scheduling.scheduler import State, transition
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space import Point, Space, point_key, space_of

KINDS = ["a", "b", "c"]
NUMBER = {"type": "float", "low": 0.0, "high": 1.0}
SPACE: dict[str, Any] = {
    "kind": {"type": "categorical", "choices": KINDS},
    **{f"x{number}": NUMBER for number in range(4)},
    **{f"only_{kind}": {**NUMBER, "when": {"kind": kind}} for kind in KINDS},
}
WIDTHS = {1: 300, 64: 600, 256: 1500}
"""Trials of a campaign by its workers."""


def objective(seed: int) -> Callable[[Point], float]:
    """A bowl for each kind, of which one reaches 0, and the others 0.1 and 0.2."""
    draw = np.random.default_rng([seed, 99])
    centres, floors = draw.uniform(0.2, 0.8, (3, 5)), np.array([0.0, 0.1, 0.2])[draw.permutation(3)]
    weights = draw.uniform(0.5, 2.0, 5)

    def value(point: Point) -> float:
        kind = KINDS.index(point["kind"])
        row = np.array([*(point[f"x{number}"] for number in range(4)), point[f"only_{point['kind']}"]])
        return float(floors[kind] + (weights * (row - centres[kind]) ** 2).sum())

    return value


class Asked:
    """A sampler of ours, asked as the controller asks."""

    def __init__(self, name: str, seed: int, workers: int) -> None:
        search = {"space": SPACE, "trials": 100_000, "sampler": name, "seed": seed}
        self.settings = campaign_settings({"search": search}, Path("BENCHMARK.toml"))
        self.space = space_of(self.settings.search.space)
        self.known: set[str] = set()
        self.state, _ = transition(
            State(),
            Opened(plan=Plan(trials=100_000, rungs=(1,), reduction=1), slots=tuple(map(str, range(workers)))),
            0.0,
        )

    def ask(self, count: int) -> list[Point]:
        """Configurations for free workers."""
        history, first = history_of(self.settings, self.state), len(self.known)
        points = proposals(self.settings, self.space, history, first, count, self.known)
        for number, point in enumerate(points, first):
            self.state, _ = transition(self.state, Proposed(trial=number, values=point), 0.0)
            self.known.add(point_key(point))
        return points

    def tell(self, number: int, value: float) -> None:
        """A result."""
        attempt = self.state.trials[number].attempt
        self.state, _ = transition(self.state, Reached(trial=number, attempt=attempt, epochs=1, value=value), 0.0)


class Optuna:
    """Optuna's TPE, told all."""

    def __init__(self, name: str, seed: int, workers: int) -> None:
        joint = {} if name == "optuna-plain" else {"multivariate": True, "group": True, "constant_liar": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, **joint)
        self.space: Space = space_of(campaign_settings({"search": {"space": SPACE}}, Path("B.toml")).search.space)
        self.study = optuna.create_study(sampler=sampler)
        self.trials: list[optuna.Trial] = []

    def ask(self, count: int) -> list[Point]:
        """Configurations for free workers."""
        return [self._one() for _ in range(count)]

    def tell(self, number: int, value: float) -> None:
        """A result."""
        self.study.tell(self.trials[number], value)

    def _one(self) -> Point:
        trial = self.study.ask()
        self.trials.append(trial)
        return self.space.point(
            lambda path, parameter: (
                trial.suggest_categorical(path, distribution(parameter).choices)
                if path == "kind"
                else trial.suggest_float(path, 0.0, 1.0)
            )
        )


class DeepHyper:
    """DeepHyper's centralised Bayesian optimisation (randomised trees, upper confidence bounds), which maximises."""

    def __init__(self, name: str, seed: int, workers: int) -> None:
        from ConfigSpace import EqualsCondition
        from deephyper.hpo import CBO, HpProblem

        problem = HpProblem()
        kind = problem.add_hyperparameter(KINDS, "kind")
        for path, given in SPACE.items():
            if path != "kind":
                number = problem.add_hyperparameter((0.0, 1.0), path)
                if "when" in given:
                    problem.add_condition(EqualsCondition(number, kind, given["when"]["kind"]))
        self.search = CBO(problem, random_state=seed, log_dir=tempfile.mkdtemp(), checkpoint_history_to_csv=False)
        self.given: list[dict[str, Any]] = []
        self.ended: list[tuple[dict[str, Any], float]] = []

    def ask(self, count: int) -> list[Point]:
        """Configurations for free workers, after one fit to all that ended."""
        if self.ended:
            self.search.tell(self.ended)
            self.ended = []
        asked = self.search.ask(count)
        self.given += asked
        return [{path: one[path] for path in SPACE if meant(path, one)} for one in asked]

    def tell(self, number: int, value: float) -> None:
        """A result."""
        self.ended.append((self.given[number], -value))


def meant(path: str, values: Mapping[str, Any]) -> bool:
    """True where a parameter has a meaning beside the others."""
    return "when" not in SPACE[path] or SPACE[path]["when"]["kind"] == values["kind"]


OTHERS = {"optuna": Optuna, "optuna-plain": Optuna, "deephyper": DeepHyper}
"""Samplers that are none of ours."""


def campaign(name: str, seed: int, workers: int, trials: int) -> tuple[float, float]:
    """The true value of what looks best in the end, and milliseconds of the processor for one proposal."""
    value, noise = objective(seed), np.random.default_rng([seed, 7])
    asked = OTHERS.get(name, Asked)(name, seed, workers)
    running: list[tuple[float, int]] = []
    true: list[float] = []
    seen: dict[int, float] = {}
    now = seconds = 0.0
    while len(seen) < trials:
        begun = time.process_time()
        wanted = min(workers - len(running), trials - len(true))
        points = asked.ask(wanted) if wanted else []
        seconds += time.process_time() - begun
        for point in points:
            heapq.heappush(running, (now + noise.lognormal(0, 0.5), len(true)))
            true.append(value(point))
        for _ in range(max(1, min(len(running), workers // 16))):
            now, number = heapq.heappop(running)
            seen[number] = true[number] + 0.01 * noise.normal()
            asked.tell(number, seen[number])
    return true[min(seen, key=lambda number: seen[number])], 1000 * seconds / trials


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", nargs="+", default=["random", "tpe"])
    parser.add_argument("--workers", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--trials", type=int, default=None, help="of each campaign (default: by its workers)")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers._is_valid = lambda *arguments: True  # these are points of a function, not runs
    print(
        f"mean of {options.seeds} seeds; sampler, workers, trials, regret (worst seed), ms of the processor per proposal"
    )
    for name in options.samplers:
        for workers in options.workers:
            trials, rows = options.trials or WIDTHS.get(workers, 600), list[tuple[float, float]]()
            for seed in range(options.seeds):
                rows.append(campaign(name, seed, workers, trials))
                print(f"  {name}, {workers} workers, seed {seed}: {rows[-1][0]:.4f}", file=sys.stderr, flush=True)
            regrets, cost = [row[0] for row in rows], np.mean([row[1] for row in rows])
            each = " ".join(f"{regret:.3f}" for regret in regrets)
            print(
                f"{name:12s} {workers:4d} {trials:5d}  {np.mean(regrets):.4f} ({max(regrets):.3f})  {cost:6.1f} ms  [{each}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
