"""What samplers find with 1, 64 and 256 workers on synthetic conditional spaces, and what a proposal costs.

    PYTHONPATH=. python tests/benchmarks/bench_samplers.py --seeds 10
    PYTHONPATH=. python tests/benchmarks/bench_samplers.py --seeds 3 --samplers optuna
    bash tests/benchmarks/samplers.sh DIRECTORY     # an environment with DeepHyper, once; then, for the table beside its:
    PYTHONPATH=. DIRECTORY/bin/python tests/benchmarks/bench_samplers.py --workers 64 256 --trials 150 300 600 \\
        --samplers tpe optuna deephyper --results FILE --hours 1

Seven numbers, three of which belong to one choice each of a category; a sum of squares whose optimum is 0, seen with noise of
0.01. Trials last log-normally long; workers ask together where a sixteenth of them is free. Printed: the true value of the
trial that looks best after so many results, mean over the seeds that every sampler has, and the processor's time for one
proposal. Samplers are asked as a campaign asks them; ``optuna`` is Optuna's own TPE (5: joint, with constant liars), told all
trials, ``optuna-plain`` the same with its own settings, ``deephyper`` DeepHyper's CBO with its own settings, told together what
ended together (a minute of the processor for 70 trials). ``--results`` keeps what was found as it is found: the same command
goes on where it was stopped, and ``--hours`` begins no campaign after so long.
"""

import argparse
import heapq
import json
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

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


class Row(NamedTuple):
    """What a campaign found after so many results."""

    sampler: str
    workers: int
    trials: int
    seed: int
    regret: float
    """The true value of what looks best."""
    milliseconds: float
    """Of the processor, for one proposal."""


def campaign(name: str, seed: int, workers: int, marks: Sequence[int]) -> Iterator[Row]:
    """What a campaign with as many trials as the last mark found, at every mark."""
    value, noise = objective(seed), np.random.default_rng([seed, 7])
    asked = OTHERS.get(name, Asked)(name, seed, workers)
    running: list[tuple[float, int]] = []
    true: list[float] = []
    seen: dict[int, float] = {}
    now = seconds = 0.0
    while len(seen) < max(marks):
        begun = time.process_time()
        wanted = min(workers - len(running), max(marks) - len(true))
        points = asked.ask(wanted) if wanted else []
        seconds += time.process_time() - begun
        for point in points:
            heapq.heappush(running, (now + noise.lognormal(0, 0.5), len(true)))
            true.append(value(point))
        for _ in range(max(1, min(len(running), workers // 16))):
            now, number = heapq.heappop(running)
            seen[number] = true[number] + 0.01 * noise.normal()
            asked.tell(number, seen[number])
            if len(seen) in marks:
                best = true[min(seen, key=lambda number: seen[number])]
                yield Row(name, workers, len(seen), seed, best, 1000 * seconds / len(true))


def kept(file: Path | None) -> list[Row]:
    """The rows in a file; none where there is no file yet. A last line that was cut off is left out."""
    lines = file.read_text().splitlines(keepends=True) if file is not None and file.exists() else []
    return [Row(**json.loads(line)) for line in lines if line.endswith("\n")]


def table(rows: Sequence[Row], samplers: Sequence[str]) -> Iterator[str]:
    """A line for every width, length and sampler, of the seeds that all of these samplers have."""
    found: defaultdict[tuple[int, int], defaultdict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found[row.workers, row.trials][row.sampler][row.seed] = row
    for (workers, trials), of in sorted(found.items()):
        present = [name for name in samplers if of[name]]
        seeds = sorted(set.intersection(*(set(of[name]) for name in present))) if present else []
        for name in present if seeds else []:
            regrets = [of[name][seed].regret for seed in seeds]
            cost = np.mean([of[name][seed].milliseconds for seed in seeds])
            each = " ".join(f"{regret:.3f}" for regret in regrets)
            yield (
                f"{name:12s} {workers:4d} {trials:5d} {len(seeds):3d}  {np.mean(regrets):.4f} ({max(regrets):.3f})  "
                f"{np.median(regrets):.4f}  {cost:6.1f} ms  [{each}]"
            )


def main() -> None:
    """Run the campaigns that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", nargs="+", default=["random", "tpe"])
    parser.add_argument("--workers", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument(
        "--trials",
        nargs="+",
        type=int,
        help="results after which is looked, the last of which ends (default: by workers)",
    )
    parser.add_argument("--results", type=Path, help="keeps what is found, and has what need not be done again")
    parser.add_argument("--hours", type=float, default=np.inf, help="begin no campaign after so long")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers._is_valid = lambda *arguments: True  # these are points of a function, not runs
    rows, begun = kept(options.results), time.monotonic()
    for seed, workers, name in product(range(options.seeds), options.workers, options.samplers):
        marks = options.trials or [WIDTHS.get(workers, 600)]
        missing = {*marks} - {
            row.trials for row in rows if (row.sampler, row.workers, row.seed) == (name, workers, seed)
        }
        if missing and time.monotonic() - begun < 3600 * options.hours:
            for row in campaign(name, seed, workers, marks):
                rows.append(row)
                print(
                    f"  {name}, {workers} workers, {row.trials} results, seed {seed}: {row.regret:.4f}", file=sys.stderr
                )
                if options.results is not None:
                    with options.results.open("a") as file:
                        file.write(json.dumps(row._asdict()) + "\n")
    print(
        "sampler, workers, results, seeds, mean regret (worst seed), median, ms of the processor per proposal, [every seed]"
    )
    print("\n".join(table(rows, options.samplers)))


if __name__ == "__main__":
    main()
