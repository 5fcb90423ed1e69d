"""What samplers find on synthetic conditional spaces and on a surrogate of recorded trials, and what a proposal costs.

    bash tests/benchmarks/samplers.sh DIRECTORY     # the table beside DeepHyper's CBO and Optuna's own, in an environment that it makes
    PYTHONPATH=. python tests/benchmarks/bench_samplers.py --problems bowls --seeds 10
    PYTHONPATH=. python tests/benchmarks/bench_samplers.py --seeds 3 --samplers optuna

The problems are those of ``sampler_problems.py``, seen with noise of 0.01. Trials last log-normally long; workers ask together where a
sixteenth of them is free. Printed: the true value of the trial that looks best after so many results, mean over the seeds that
every sampler has, and the processor's time for one proposal. Samplers are asked as a campaign asks them; ``optuna`` is Optuna's
own TPE (5: joint, with constant liars), told all trials, ``optuna-plain`` the same with its own settings, ``deephyper``
DeepHyper's CBO with its own settings, told together what ended together (a minute of the processor for 70 trials).
``--results`` keeps what was found as it is found: the same command goes on where it was stopped, and ``--hours`` begins no
campaign after so long.
"""

import argparse
import heapq
import json
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna

from hydragnn.hpo.sampling import sampler as samplers
from hydragnn.hpo.sampling.sampler import history_of, proposals
from hydragnn.hpo.sampling.tpe import distribution
from hydragnn.hpo.scheduling.events import Opened, Plan, Proposed, Reached
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.parameters import Choices, IntRange, Parameter
from hydragnn.hpo.space.points import Point, point_key, space_of
from tests.benchmarks.sampler_problems import PROBLEMS, Problem

WIDTHS = {1: 300, 64: 600, 256: 1500}
"""Trials of a campaign by its workers."""


class Asked:
    """A sampler of ours, asked as the controller asks."""

    def __init__(self, name: str, problem: Problem, seed: int, workers: int) -> None:
        search = {"space": problem.table, "trials": 100_000, "sampler": name, "seed": seed}
        self.settings = campaign_settings({"search": search}, Path("BENCHMARK.toml"))
        self.space = space_of(self.settings.search.space)
        self.known: set[str] = set()
        self.state = State()
        decide(
            self.state,
            Opened(plan=Plan(trials=100_000, rungs=(1,), reduction=1), slots=tuple(map(str, range(workers)))),
            0.0,
        )

    def ask(self, count: int) -> list[Point]:
        """Configurations for free workers."""
        history, first = history_of(self.settings, self.space, self.state), len(self.known)
        points = proposals(self.settings, history, first, count, self.known)
        for number, point in enumerate(points, first):
            decide(self.state, Proposed(trial=number, values=point), 0.0)
            self.known.add(point_key(point))
        return points

    def tell(self, number: int, value: float) -> None:
        """A result."""
        attempt = self.state.trials[number].attempt
        decide(self.state, Reached(trial=number, attempt=attempt, epochs=1, value=value), 0.0)


class Optuna:
    """Optuna's TPE, told all."""

    def __init__(self, name: str, problem: Problem, seed: int, workers: int) -> None:
        joint = {} if name == "optuna-plain" else {"multivariate": True, "group": True, "constant_liar": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, **joint)
        self.space = problem.space
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
        return self.space.point(lambda path, parameter: suggested(trial, path, parameter))


def suggested(trial: optuna.Trial, path: str, parameter: Parameter) -> Any:
    """What a trial of Optuna has for a parameter."""
    if isinstance(parameter, Choices):
        return trial.suggest_categorical(path, distribution(parameter).choices)
    suggest = trial.suggest_int if isinstance(parameter, IntRange) else trial.suggest_float
    return suggest(path, parameter.low, parameter.high, log=parameter.log)


class DeepHyper:
    """DeepHyper's centralised Bayesian optimisation (randomised trees, upper confidence bounds), which maximises."""

    def __init__(self, name: str, problem: Problem, seed: int, workers: int) -> None:
        from ConfigSpace import EqualsCondition
        from deephyper.hpo import CBO, HpProblem

        self.space, described = problem.space, HpProblem()
        theirs: dict[str, Any] = {}
        for path, parameter in self.space.parameters.items():
            if isinstance(parameter, Choices):
                theirs[path] = described.add_hyperparameter(parameter.choices, path)
            else:
                scale = ("log-uniform",) if parameter.log else ()
                theirs[path] = described.add_hyperparameter((parameter.low, parameter.high, *scale), path)
            for parent, value in parameter.when.items():
                described.add_condition(EqualsCondition(theirs[path], theirs[parent], value))
        self.search = CBO(described, random_state=seed, log_dir=tempfile.mkdtemp(), checkpoint_history_to_csv=False)
        self.given: list[dict[str, Any]] = []
        self.ended: list[tuple[dict[str, Any], float]] = []

    def ask(self, count: int) -> list[Point]:
        """Configurations for free workers, after one fit to all that ended."""
        if self.ended:
            self.search.tell(self.ended)
            self.ended = []
        asked = self.search.ask(count)
        self.given += asked
        return [self._point(one) for one in asked]

    def tell(self, number: int, value: float) -> None:
        """A result."""
        self.ended.append((self.given[number], -value))

    def _point(self, asked: dict[str, Any]) -> Point:
        return self.space.point(lambda path, _: plain(asked[path]))


def plain(value: Any) -> Any:
    """A value of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


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
    problem: str = "bowls"


def campaign(name: str, on: str, seed: int, workers: int, marks: Sequence[int]) -> Iterator[Row]:
    """What a campaign with as many trials as the last mark found on a problem, at every mark."""
    problem, noise = PROBLEMS[on](), np.random.default_rng([seed, 7])
    value = problem.of_seed(seed)
    asked = OTHERS.get(name, Asked)(name, problem, seed, workers)
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
            seen[number] = true[number] + problem.noise * noise.normal()
            asked.tell(number, seen[number])
            if len(seen) in marks:
                best = true[min(seen, key=lambda number: seen[number])]
                yield Row(name, workers, len(seen), seed, best, 1000 * seconds / len(true), on)


def kept(file: Path | None) -> list[Row]:
    """The rows in a file; none where there is no file yet. A last line that was cut off is left out."""
    lines = file.read_text().splitlines(keepends=True) if file is not None and file.exists() else []
    return [Row(**json.loads(line)) for line in lines if line.endswith("\n")]


def table(rows: Sequence[Row], samplers: Sequence[str]) -> Iterator[str]:
    """A line for every problem, width, length and sampler, of the seeds that all of these samplers have."""
    found: defaultdict[tuple[str, int, int], defaultdict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found[row.problem, row.workers, row.trials][row.sampler][row.seed] = row
    for (problem, workers, trials), of in sorted(found.items()):
        present = [name for name in samplers if of[name]]
        seeds = sorted(set.intersection(*(set(of[name]) for name in present))) if present else []
        for name in present if seeds else []:
            regrets = [of[name][seed].regret for seed in seeds]
            cost = np.mean([of[name][seed].milliseconds for seed in seeds])
            each = " ".join(f"{regret:.3f}" for regret in regrets)
            yield (
                f"{problem:6s} {name:12s} {workers:4d} {trials:5d} {len(seeds):3d}  {np.mean(regrets):.4f} ({max(regrets):.3f})  "
                f"{np.median(regrets):.4f}  {cost:6.1f} ms  [{each}]"
            )


def main() -> None:
    """Run the campaigns that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
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
    samplers.problem_of = lambda *arguments: ""  # these are points of a function, not runs
    rows, begun = kept(options.results), time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for seed, workers, on, name in product(seeds, options.workers, options.problems, options.samplers):
        marks = options.trials or [WIDTHS.get(workers, 600)]
        done = {
            row.trials for row in rows if (row.problem, row.sampler, row.workers, row.seed) == (on, name, workers, seed)
        }
        if {*marks} - done and time.monotonic() - begun < 3600 * options.hours:
            for row in campaign(name, on, seed, workers, marks):
                rows.append(row)
                print(
                    f"  {on}, {name}, {workers} workers, {row.trials} results, seed {seed}: {row.regret:.4f}",
                    file=sys.stderr,
                )
                if options.results is not None:
                    with options.results.open("a") as file:
                        file.write(json.dumps(row._asdict()) + "\n")
    print(
        "problem, sampler, workers, results, seeds, mean regret (worst seed), median, ms of the processor per proposal, [every seed]"
    )
    print("\n".join(table([row for row in rows if row.seed in seeds], options.samplers)))


if __name__ == "__main__":
    main()
