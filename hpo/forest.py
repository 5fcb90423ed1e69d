"""A sampler for many workers: a forest that predicts the objective, and one fit of it that serves many requests.

As DeepHyper's centralised Bayesian optimisation does (Egele et al. 2023, arXiv:2207.00479), extremely randomised trees (Geurts et al. 2006) learn the logarithm of
the objective, their spread says what is not known, and every request takes the candidate with the lowest mean - kappa spread, with a kappa of
its own, drawn from an exponential distribution: some requests refine what is good, others look where nobody was. Trials
without a result count with what the trees expect of them. Where trials stop at several rungs, the epochs of a rung are an input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import ExtraTreeRegressor

from hydragnn.hpo.parameters import Choices, Parameter
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.space import Point, Space, allowed_values, grid_of, value_at

Matrix = NDArray[np.float64]

CANDIDATES = 2000
"""So many points are looked at; half of them are drawn at random, the others are good ones changed a little."""

TREES = 50
EXPECTING = 30
"""Trees that say what is expected of trials without a result."""

KAPPA = 1.96
"""Mean of the weight of what is not known."""

CHOICES_KEPT = 0.2
"""Share of the requests that look at one choice only, drawn at random, so that none is given up after a few bad results."""

PER_FIT = 32
"""Requests that one fit serves."""

ABSENT = -1.0
"""Input of a parameter that is not active."""

FINE = 4096
"""Fractions of a range at which it is looked up which of a grid's values lies there."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A parameter as the trees see it: a place in [0, 1), or one column for each of its choices."""

    path: str
    parameter: Parameter
    grid: list[Any] | None
    table: NDArray[np.int64] | None
    """Which of the grid's values lies at each of ``FINE`` fractions."""
    middles: Matrix | None
    """The middle of the fractions at which each of the grid's values lies."""

    @classmethod
    def of(cls, path: str, parameter: Parameter) -> "Axis":
        """The axis of a parameter."""
        grid, places = grid_of(parameter), (np.arange(FINE) + 0.5) / FINE
        table = np.array([grid.index(value_at(parameter, place)) for place in places.tolist()]) if grid else None
        if grid is None or table is None or len(np.unique(table)) < len(grid):  # as good as continuous
            return cls(path, parameter, None, None, None)
        middles = np.array([places[table == index].mean() for index in range(len(grid))])
        return cls(path, parameter, grid, table, middles)

    def fraction(self, value: Any) -> float:
        """Where a value lies: the middle of its share of [0, 1)."""
        if self.grid is not None and self.middles is not None:
            numbers = value not in self.grid and not isinstance(self.parameter, Choices)  # but for rounding
            nearest = int(np.argmin(np.abs(np.array(self.grid) - value))) if numbers else self.grid.index(value)
            return float(self.middles[nearest])
        assert not isinstance(self.parameter, Choices)
        low, high = float(self.parameter.low), float(self.parameter.high)
        scale: Callable[[Any], Any] = np.log if self.parameter.log else float
        return float(np.clip((scale(value) - scale(low)) / (scale(high) - scale(low)), 0.0, 1.0 - 1e-12))

    def index(self, fractions: Matrix) -> NDArray[np.int64]:
        """Which of the grid's values lies at each fraction."""
        assert self.table is not None
        return self.table[(fractions * FINE).astype(np.int64)]

    def columns(self, fractions: Matrix) -> Matrix:
        """The inputs of points with these fractions, where the parameter is active: [points, columns]."""
        if self.grid is None:
            return fractions[:, None]
        if isinstance(self.parameter, Choices):
            return np.eye(len(self.grid))[self.index(fractions)]
        return self.index(fractions)[:, None] / max(1, len(self.grid) - 1)

    def equals(self, fractions: Matrix, allowed: Sequence[Any]) -> NDArray[np.bool_]:
        """At which fractions the value is one of those ``allowed``."""
        if self.grid is None:
            return np.array([value_at(self.parameter, place) in allowed for place in fractions.tolist()], dtype=bool)
        return np.array([value in allowed for value in self.grid])[self.index(fractions)]


class Axes:
    """Points as numbers in [0, 1) for every parameter, active or not, and what trees are given of them."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._axes = {path: Axis.of(path, parameter) for path, parameter in space.parameters.items()}

    def fractions(self, points: Sequence[Point], generator: np.random.Generator) -> Matrix:
        """The numbers of points, random ones for parameters that are not active: [points, parameters]."""
        numbers = generator.random((len(points), len(self._axes)))
        for row, point in enumerate(points):
            for column, (path, axis) in enumerate(self._axes.items()):
                if path in point:
                    numbers[row, column] = axis.fraction(point[path])
        return numbers

    def inputs(self, fractions: Matrix) -> Matrix:
        """What trees are given: [points, columns]."""
        active: dict[str, NDArray[np.bool_]] = {}
        columns = []
        for column, (path, axis) in enumerate(self._axes.items()):
            active[path] = np.ones(len(fractions), dtype=bool)
            for parent, condition in axis.parameter.when.items():
                place = fractions[:, list(self._axes).index(parent)]
                active[path] &= active[parent] & self._axes[parent].equals(place, allowed_values(condition))
            columns.append(np.where(active[path][:, None], axis.columns(fractions[:, column]), ABSENT))
        return np.concatenate(columns, axis=1)

    def one_choice(self, fractions: Matrix, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Which points have one choice of one categorical parameter, both drawn at random; all where there is no such parameter."""
        categorical = [column for column, axis in enumerate(self._axes.values()) if isinstance(axis.parameter, Choices)]
        if not categorical:
            return np.ones(len(fractions), dtype=bool)
        column = categorical[generator.integers(len(categorical))]
        axis = list(self._axes.values())[column]
        return axis.index(fractions[:, column]) == generator.integers(len(axis.grid or ()))

    def point(self, fractions: Matrix) -> Point:
        """The point at one row of numbers."""
        by_path = dict(zip(self._axes, fractions.tolist()))
        return self._space.point(lambda path, parameter: value_at(parameter, by_path[path]))


@dataclass(frozen=True, slots=True)
class Lessons:
    """What trees learn from: rows of numbers, the share of all epochs at which each was judged, and its objective."""

    rows: NDArray[np.int64]
    stage: Matrix
    values: Matrix


def forest_points(
    space: Space,
    trials: Sequence[Trial],
    rungs: Sequence[int],
    seed: Sequence[int],
    count: int,
    accept: Callable[[Point, int], bool],
) -> list[Point]:
    """``count`` points for the next trials, fewer where too few candidates are accepted; the same for the same history and seed.

    ``accept`` is told a point and how many were accepted before it.
    """
    axes, generator = Axes(space), np.random.default_rng(list(seed))
    told = [trial for trial in trials if trial.results or trial.status == "failed"]
    known = axes.fractions([trial.values for trial in told], generator)
    judged = {trial.number for trial in told}
    pending = axes.fractions([trial.values for trial in trials if trial.number not in judged], generator)
    lessons = lessons_of(told, rungs)
    points: list[Point] = []
    while len(points) < count:
        candidates = candidates_near(known, lessons, generator)
        order = ranked(axes, known, lessons, pending, candidates, generator, min(PER_FIT, count - len(points)))
        chosen = []
        for choices in order:
            for choice in choices:
                if choice not in chosen and accept(point := axes.point(candidates[choice]), len(points)):
                    chosen.append(choice)
                    points.append(point)
                    break
        if not chosen:
            break
        pending = np.concatenate([pending, candidates[chosen]])
    return points


def lessons_of(trials: Sequence[Trial], rungs: Sequence[int]) -> Lessons:
    """Every result of every trial; one that failed counts as bad as the worst."""
    worst = max(value for trial in trials for value in trial.results)
    rows, stage, values = [], [], []
    for row, trial in enumerate(trials):
        for level, value in enumerate(trial.results):
            rows.append(row)
            stage.append(rungs[level])
            values.append(value)
        if trial.status == "failed":
            rows.append(row)
            stage.append(rungs[-1])
            values.append(worst)
    stages = np.log(np.array(stage, dtype=np.float64)) / max(1.0, np.log(rungs[-1]))
    return Lessons(np.array(rows), stages, on_a_scale(np.array(values, dtype=np.float64)))


def on_a_scale(values: Matrix) -> Matrix:
    """The logarithm of how far values lie above the lowest, so that differences count among the best as much as among the bad."""
    above = values - values.min()
    return np.log(above + max(float(np.quantile(above, 0.1)), 1e-9 * max(1.0, float(above.max()))))


def candidates_near(known: Matrix, lessons: Lessons, generator: np.random.Generator) -> Matrix:
    """Random points, and the best ones with some of their numbers changed, a little or more."""
    half, width = CANDIDATES // 2, known.shape[1]
    order = list(dict.fromkeys(lessons.rows[np.lexsort((lessons.values, -lessons.stage))].tolist()))
    best = np.array(order[: min(50, max(5, len(order) // 20))])
    parents = known[best[(len(best) * generator.random(half) ** 2).astype(np.int64)]]
    step = 10 ** generator.uniform(-2.5, -0.7, (half, 1)) * generator.normal(size=(half, width))
    changed = generator.random((half, width)) < np.maximum(0.3, generator.random((half, 1)))
    changed[np.arange(half), generator.integers(width, size=half)] = True
    near = np.clip(parents + np.where(changed, step, 0.0), 0.0, 1.0 - 1e-12)
    return np.concatenate([generator.random((CANDIDATES - half, width)), near])


def ranked(
    axes: Axes,
    known: Matrix,
    lessons: Lessons,
    pending: Matrix,
    candidates: Matrix,
    generator: np.random.Generator,
    count: int,
) -> list[list[int]]:
    """For each of ``count`` requests the candidates, best first, by a weight of the unknown that is its own."""

    def staged(fractions: Matrix, stage: Matrix | float) -> NDArray[np.float32]:
        stages = np.broadcast_to(stage, (len(fractions),))[:, None]
        return np.concatenate([axes.inputs(fractions), stages], axis=1).astype(np.float32)

    top = float(lessons.stage.max())
    inputs, values = staged(known[lessons.rows], lessons.stage), lessons.values
    if len(pending):
        expected = staged(pending, top)
        values = np.concatenate([values, said_by_trees(EXPECTING, inputs, values, expected, generator).mean(axis=0)])
        inputs = np.concatenate([inputs, expected])
    said = said_by_trees(TREES, inputs, values, staged(candidates, top), generator)
    mean, spread = said.mean(axis=0), said.std(axis=0)
    order = []
    for _ in range(count):
        score = mean - generator.exponential(KAPPA) * spread
        if generator.random() < CHOICES_KEPT:
            score = np.where(axes.one_choice(candidates, generator), score, np.inf)
        order.append(np.argsort(score, kind="stable").tolist())
    return order


def said_by_trees(
    count: int,
    inputs: NDArray[np.float32],
    values: Matrix,
    asked: NDArray[np.float32],
    generator: np.random.Generator,
) -> Matrix:
    """What each of ``count`` trees, that learned ``values`` at ``inputs``, says of other inputs: [trees, asked]."""
    seeds = generator.integers(2**31, size=count).tolist()
    trees = (ExtraTreeRegressor(max_features=1.0, random_state=seed) for seed in seeds)
    return np.stack([tree.fit(inputs, values, check_input=False).tree_.predict(asked)[:, 0] for tree in trees])
