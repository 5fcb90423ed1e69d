"""A Gaussian process over a conditional space, for many workers.

A trial is a point of the unit cube, where an inactive range lies in its middle. Its result counts by its place among all
results, as a quantile of the normal distribution, so that neither the objective's scale nor what diverged matters
(Salinas et al. 2020, arXiv:1909.13595). The kernel is a sum: what each parameter does alone, and what all do together (Duvenaud et al.
2011, arXiv:1112.4394). Both are Matern's with nu = 5/2 and a length for every parameter. Lengths, the two variances and a noise for every
rung are found by the maximum of the posterior (Rasmussen and Williams 2006, sections 4.2, 5.4). A request takes the candidate with the lowest
mean - kappa deviation, with a kappa of its own from an exponential distribution (Egele et al. 2023, arXiv:2207.00479): some
refine what is good, others look where nobody was. What runs narrows the deviation around itself and leaves the mean
(Desautels et al. 2014, JMLR 15).

Several objectives have a process each, and a request takes the candidate with the largest expected gain of hypervolume
(Emmerich et al. 2006, doi:10.1109/TEVC.2005.859463): the mean over random directions (Zhang and Golovin 2020,
arXiv:2006.04655), each with an outcome of its own, with deviations times such a kappa. What runs counts with its mean (Ginsbourger et al. 2010,
doi:10.1007/978-3-642-10701-6_6). A bound ends the volume.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist, pdist, squareform
from scipy.special import ndtri
from scipy.stats import rankdata

from hydragnn.hpo.fronts import Bounds, front_of
from hydragnn.hpo.sampling.sampler import History, RandomSampler, Sampler, foreseen
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.space.parameters import Choices, Parameter
from hydragnn.hpo.space.points import Point, Space, fractions_of, point_key, random_point, value_at

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

FITTED = 200
"""Most results that decide on lengths and noise: the better half, and others spread evenly over the rest."""

STEPS = 15
"""Iterations of the search for lengths and noise."""

CANDIDATES = 400
"""Points that are drawn at random; as many lie near good trials, and as many near the best of all in each ascent."""

ASCENTS = 2
"""Times that points near the best candidates are drawn."""

PARENTS = 20
"""Good points that are changed."""

KAPPA = 1.0
"""Mean of the weight of what is not known; half with every further objective, each of which may gain."""

FOCUSED = 0.2
"""Share of the requests that look at one choice only, drawn at random, so that none is given up after a few bad results."""

LEAST_NOISE = 1e-6

LIKELY = (-2.0, 0.0, -4.0)
"""Logarithms of variances before there are results: of all parameters together, of each alone, of the noise."""

DRAWS = 64
"""Directions, each with an outcome of its own, that a request draws for several objectives."""

REACH, FAR = 0.2, 2.0
"""Distances beyond the front at which objectives still count, for most requests and for few.

They are logarithms, in widths of the front. A front that is narrow at first stays so with the near one alone."""

FEW = 0.2
"""Share of the requests with two objectives that look far; with three, such requests found less."""


class Coordinates:
    """Encoding of points: one column per range, one per choice."""

    def __init__(self, space: Space) -> None:
        self._places: list[tuple[str, Parameter, int]] = []
        parameter_of: list[int] = []
        for number, (path, parameter) in enumerate(space.parameters.items()):
            self._places.append((path, parameter, len(parameter_of)))
            parameter_of += [number] * (len(parameter.choices) if isinstance(parameter, Choices) else 1)
        self.parameter_of = np.array(parameter_of)
        """The number of the parameter that each column belongs to."""
        self.first = [column for _, _, column in self._places]
        """The first column of each parameter, which for a range is its position."""
        picks = (number for number, (_, one, _) in enumerate(self._places) if isinstance(one, Choices))
        self.choices = np.flatnonzero(np.isin(self.parameter_of, list(picks)))
        """The columns of choices."""

    def of(self, points: Sequence[Point]) -> Matrix:
        """Return the rows of points; different choices have distance 1."""
        rows = np.zeros((len(points), len(self.parameter_of)))
        for path, parameter, column in self._places:
            active = np.array([path in point for point in points], dtype=bool)
            values = [point[path] for point in points if path in point]
            if isinstance(parameter, Choices):
                rows[active, [column + parameter.index(value) for value in values]] = math.sqrt(0.5)
            else:
                rows[:, column] = 0.5
                rows[active, column] = fractions_of(parameter, np.array(values, dtype=np.float64))
        return rows


@dataclass(frozen=True, slots=True)
class Kernel:
    """Matern's kernel of all parameters, plus one of each alone, with noise."""

    scales: Matrix
    """One over the length of each column's parameter: [columns]."""
    columns: Sequence[Indices]
    """Columns of each parameter."""
    joint: float
    """Variance of what all parameters do together."""
    alone: float
    """Variance of what each does alone, summed over them."""
    noises: Matrix
    """Variance of the noise by level; 0 is the highest rung."""

    def between(self, rows: Matrix, others: Matrix) -> Matrix:
        """The covariance of scaled points: [rows, others]."""
        whole, alone = np.zeros((2, len(rows), len(others)))
        for columns in self.columns:
            squares = cdist(rows[:, columns], others[:, columns], "sqeuclidean")
            whole += squares
            alone += matern(squares * len(self.columns))
        return np.asarray(self.joint * matern(whole) + self.alone / len(self.columns) * alone)


def matern(squares: Matrix) -> Matrix:
    """Return Matern's correlation at squared distances in lengths."""
    distances = np.sqrt(5 * squares)
    return np.asarray((1 + distances + distances * distances / 3) * np.exp(-distances))


def likely_kernel(points: Matrix, scores: Matrix, levels: Indices, parameter_of: Indices) -> Kernel:
    """Return the kernel with the largest posterior, by some of many results."""
    few, count = _some(scores), int(levels.max()) + 1
    points, scores, levels = points[few], scores[few], levels[few]
    columns = [np.flatnonzero(parameter_of == number) for number in range(int(parameter_of[-1]) + 1)]
    parameters, diagonal, identity = len(columns), np.diag_indices(len(points)), np.eye(len(points))
    pairs = np.stack([pdist(points[:, own], "sqeuclidean") for own in columns])
    # lengths grow with the square root of the dimension, as distances do (Hvarfner et al. 2024, arXiv:2402.02229)
    length = math.log(0.5) + 0.5 * math.log(parameters)
    likely = np.array([length] * parameters + [*LIKELY, *LIKELY[-1:] * (count - 1)])
    spread = np.array([1.0] * parameters + [1.0, 1.0] + [1.5] * count)

    def improbability(logs: Matrix) -> tuple[float, Matrix]:
        """Minus the logarithm of the posterior, and its gradient."""
        weights, (joint, alone) = np.exp(-2 * logs[:parameters]), np.exp(logs[parameters : parameters + 2])
        noises = np.exp(logs[parameters + 2 :])[levels]
        whole, each = weights @ pairs, parameters * weights[:, None] * pairs
        together, mean = matern(whole), matern(each).mean(0)
        covariance = squareform(joint * together + alone * mean)
        covariance[diagonal] = joint + alone + noises + LEAST_NOISE
        factor = np.linalg.cholesky(covariance)
        inverse = cho_solve((factor, True), identity, check_finite=False)
        explained = inverse @ scores
        surprise = np.outer(explained, explained) - inverse  # R. & W. eq. 5.9
        of_pairs, of_points = squareform(surprise, checks=False), surprise[diagonal]
        away = (logs - likely) / spread
        gradient = away / spread
        slopes = joint * _slope(whole) + alone * _slope(each)
        gradient[:parameters] -= weights * ((slopes * pairs) @ of_pairs)
        gradient[parameters] -= joint * (of_pairs @ together + 0.5 * of_points.sum())
        gradient[parameters + 1] -= alone * (of_pairs @ mean + 0.5 * of_points.sum())
        gradient[parameters + 2 :] -= 0.5 * np.bincount(levels, noises * of_points, count)
        value = 0.5 * scores @ explained + np.log(np.diag(factor)).sum() + 0.5 * away @ away
        return float(value), gradient

    bounds = [(-4.0, 4.0)] * parameters + [(-8.0, 3.0)] * 2 + [(-9.0, 1.0)] * count
    options = {"maxiter": STEPS}
    logs = minimize(improbability, likely, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    joint, alone, *noises = np.exp(logs[parameters:]).tolist()
    return Kernel(np.exp(-logs[:parameters])[parameter_of], columns, joint, alone, np.array(noises) + LEAST_NOISE)


def _slope(squares: Matrix) -> Matrix:
    """Return minus twice the derivative of Matern's correlation by a square."""
    distances = np.sqrt(5 * squares)
    return np.asarray(5 / 3 * (1 + distances) * np.exp(-distances))


def normal_scores(trials: Sequence[Trial]) -> Matrix:
    """Return the rank of each trial as a normal quantile.

    Those at the highest rung come first, as TPE has it; those that failed, last.
    """
    values = [trial.results[-1] if trial.results else math.inf for trial in trials]
    keys = [(t.status == "failed", -len(t.results), math.inf if math.isnan(v) else v) for t, v in zip(trials, values)]
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    ranks = rankdata([places[key] for key in keys])
    scores = np.asarray(ndtri((ranks - 0.5) / len(ranks)))
    return np.asarray(scores / (scores.std() or 1.0))


def goal_scores(trials: Sequence[Trial], bounds: Bounds, reach: float = REACH) -> tuple[Matrix, Matrix]:
    """Return scores of trials by objective, and the largest that count.

    Objectives go from 0 to 1 along the front, and beyond it by their logarithm; what failed is as bad as the worst.
    """
    if len(bounds) < 2:
        return normal_scores(trials)[:, None], np.zeros(1)
    values = foreseen(trials)
    numbers = [trial.number for trial in trials if trial.number in values and trial.status != "failed"]
    front = np.array(
        [values[numbers[index]] for index in front_of([values[n] for n in numbers], bounds)] or [*values.values()]
    )
    least, width = front.min(0), np.where(np.ptp(front, axis=0) > 0, np.ptp(front, axis=0), 1.0)
    rows = [values[t.number] if t.number in numbers else (math.inf,) * len(bounds) for t in trials]
    scaled = (np.array([[math.inf if bound is None else bound for bound in bounds], *rows]) - least) / width
    scaled = np.minimum(scaled, 1.0) + np.log(np.maximum(scaled, 1.0))
    ends, scaled = np.minimum(scaled[0], 1 + reach), scaled[1:]
    worst = np.max(scaled, axis=0, initial=1 + reach, where=np.isfinite(scaled))
    scaled = np.where(np.isfinite(scaled), scaled, worst)
    mean, spread = scaled.mean(0), np.where(scaled.std(0) > 0, scaled.std(0), 1.0)
    return (scaled - mean) / spread, (ends - mean) / spread


class Posterior:
    """Posterior of one objective, which running trials narrow."""

    def __init__(self, points: Matrix, scores: Matrix, levels: Indices, pending: Matrix, parameter_of: Indices) -> None:
        self.kernel = likely_kernel(points, scores, levels, parameter_of)
        self._observed = points * self.kernel.scales
        self._known = np.concatenate([points, pending]) * self.kernel.scales
        covariance = self.kernel.between(self._known, self._known)
        covariance[np.diag_indices_from(covariance)] += self.kernel.noises[np.pad(levels, (0, len(pending)))]
        self._factor = cholesky(covariance, lower=True, check_finite=False)
        half = (self._factor[: len(points), : len(points)], True)
        self._explained: Matrix = cho_solve(half, scores, check_finite=False)  # what runs says nothing of the mean

    def mean(self, points: Matrix) -> Matrix:
        """Return the means at points."""
        return np.asarray(self.kernel.between(points * self.kernel.scales, self._observed) @ self._explained)

    def look_at(self, points: Matrix) -> None:
        """Take the candidates."""
        self.rows = points * self.kernel.scales
        shared = self.kernel.between(self._known, self.rows)
        self.means = shared[: len(self._explained)].T @ self._explained
        self._seen: Matrix = solve_triangular(self._factor, shared, lower=True, check_finite=False)
        self.variances = np.maximum(self.kernel.joint + self.kernel.alone - (self._seen**2).sum(0), 1e-12)

    def expect(self, index: int) -> None:
        """Narrow the deviation around a candidate."""
        shared = self.kernel.between(self.rows, self.rows[index : index + 1])[:, 0]
        residual = shared - self._seen.T @ self._seen[:, index]
        row = residual / math.sqrt(float(self.variances[index]) + self.kernel.noises[0])
        self._seen = np.concatenate([self._seen, row[None]])
        self.variances = np.maximum(self.variances - row * row, 1e-12)


class Outlook:
    """Posterior of a campaign, fitted once for many requests."""

    def __init__(
        self, space: Space, trials: Sequence[Trial], generator: np.random.Generator, bounds: Bounds = ()
    ) -> None:
        """``trials``: with results, failed, or still without."""
        self._space, self._coordinates = space, Coordinates(space)
        finished = [trial for trial in trials if trial.results or trial.status == "failed"]
        observed = self._coordinates.of([trial.values for trial in finished])
        pending = self._coordinates.of([t.values for t in trials if not t.results and t.status != "failed"])
        far = len(bounds) == 2 and generator.random() < FEW
        scores, self._ends = goal_scores(finished, bounds, FAR if far else REACH)
        parameter_of = self._coordinates.parameter_of
        passed = np.array([len(trial.results) for trial in finished])
        levels = np.where([trial.status == "finished" for trial in finished], 0, passed.max() - passed)
        self._goals = [Posterior(observed, column, levels, pending, parameter_of) for column in scores.T]
        self._choices = self._coordinates.choices
        self._directions = _directions(len(self._goals), PARENTS, generator)
        parents = [finished[index].values for index in self._leaders(observed, self._means(observed))]
        self._points, self._rows = points, rows = self._candidates(parents, generator)
        keys = {point_key(trial.values) for trial in trials}
        self._index = {key: index for index, key in enumerate(map(point_key, points))}  # of equal ones, the last
        self._free = np.zeros(len(points), dtype=bool)
        self._free[[index for key, index in self._index.items() if key not in keys]] = True
        for goal in self._goals:
            goal.look_at(rows)
        self._reached = self._means(np.concatenate([observed, pending]))

    def ranked(self, generator: np.random.Generator) -> list[Point]:
        """Return the free candidates, the most promising first."""
        means = np.stack([goal.means for goal in self._goals], 1)
        kappa = generator.exponential(KAPPA / 2 ** (len(self._goals) - 1))
        deviations = kappa * np.sqrt(np.stack([goal.variances for goal in self._goals], 1))
        several = len(self._goals) > 1
        ratings = -self._improvements(means, deviations, generator) if several else (means - deviations)[:, 0]
        focused, choice = generator.random() < FOCUSED, generator.choice(self._choices) if len(self._choices) else None
        of_choice = self._rows[:, choice] > 0 if focused and choice is not None else self._free
        order = np.lexsort((ratings, ~of_choice))  # those of the choice first
        return [self._points[index] for index in order if self._free[index]]

    def _improvements(self, means: Matrix, deviations: Matrix, generator: np.random.Generator) -> Matrix:
        """Return the expected gain of hypervolume, by random directions."""
        directions, power = _directions(means.shape[1], DRAWS, generator), means.shape[1]
        gains = np.zeros(len(means))
        for direction, draw in zip(directions, generator.normal(size=directions.shape)):
            best = float(self._along(self._reached, direction).max(initial=0.0))
            gains += np.maximum(self._along(means + deviations * draw, direction), best) ** power - best**power
        return gains + 1e-9 * self._along(means - deviations, directions.mean(0))

    def _along(self, values: Matrix, direction: Matrix) -> Matrix:
        """Return how far values lie before the ends in a direction."""
        return np.asarray(((self._ends - values) / direction).min(1))

    def expect(self, point: Point) -> None:
        """Note that a candidate is being trained."""
        index = self._index.get(point_key(point))
        if index is None:
            return
        self._free[index] = False
        for goal in self._goals:
            goal.expect(index)
        self._reached = np.concatenate([self._reached, [[goal.means[index] for goal in self._goals]]])

    def _means(self, rows: Matrix) -> Matrix:
        return np.stack([goal.mean(rows) for goal in self._goals], 1)

    def _leaders(self, rows: Matrix, means: Matrix) -> list[int]:
        """Return the rows with the best means, overall and per choice."""
        orders = np.argsort([-self._along(means, one) for one in self._directions], axis=1, kind="stable").T
        each = -(-PARENTS // orders.shape[1])
        best = [*orders[:each].flatten().tolist()]
        of_choices = (orders[rows[orders[:, 0], column] > 0, 0][:1] for column in self._choices)
        return list(dict.fromkeys([*best, *(int(index) for few in of_choices for index in few)]))

    def _candidates(self, parents: Sequence[Point], generator: np.random.Generator) -> tuple[list[Point], Matrix]:
        """Return random points, points near good ones, and their rows."""
        drawn = [random_point(self._space, generator) for _ in range(CANDIDATES)]
        drawn += self._changed(parents, CANDIDATES, (-2.0, -0.5), generator)
        rows = self._coordinates.of(drawn)
        means = self._means(rows)
        order = np.argsort(-np.max([self._along(means, one) for one in self._directions], axis=0), kind="stable")
        others = generator.permutation(len(drawn))[: CANDIDATES // 2]
        selection = list(dict.fromkeys([*order[:CANDIDATES].tolist(), *others.tolist()]))
        for _ in range(ASCENTS):
            leaders = self._leaders(rows, means)
            near = self._changed([drawn[index] for index in leaders], CANDIDATES, (-2.3, -0.8), generator)
            near_rows = self._coordinates.of(near)
            selection += range(len(drawn), len(drawn) + CANDIDATES)
            drawn, rows = drawn + near, np.concatenate([rows, near_rows])
            means = np.concatenate([means, self._means(near_rows)])
        return [drawn[index] for index in selection], rows[selection]

    def _changed(
        self, parents: Sequence[Point], count: int, exponents: tuple[float, float], generator: np.random.Generator
    ) -> list[Point]:
        """Return points near parents, more of the first ones."""
        numbers = {path: number for number, path in enumerate(self._space.parameters)}
        picks = (len(parents) * generator.random(count) ** 2).astype(int)
        steps = 10 ** generator.uniform(*exponents, (count, 1)) * generator.normal(size=(count, len(numbers)))
        draws, others = generator.random((2, count, len(numbers)))
        change = draws < generator.random((count, 1))
        change[np.arange(count), generator.integers(len(numbers), size=count)] = True
        moved = np.clip(self._coordinates.of(parents)[:, self._coordinates.first][picks] + steps, 0.0, 1.0 - 1e-9)

        def changed(row: int) -> Point:
            parent, new = parents[picks[row]], change[row]

            def value_of(path: str, parameter: Parameter) -> Any:
                number = numbers[path]
                if path in parent and not new[number]:
                    return parent[path]
                fresh = path not in parent or isinstance(parameter, Choices)
                return value_at(parameter, float((others if fresh else moved)[row, number]))

            return self._space.point(value_of)

        return [changed(row) for row in range(count)]


def _directions(goals: int, count: int, generator: np.random.Generator) -> Matrix:
    """Return directions in which several objectives gain; the first has equal parts."""
    if goals == 1:
        return np.ones((1, 1))
    parts = np.abs(generator.normal(size=(count, goals)))
    parts[0] = 1.0
    return np.asarray(parts / np.linalg.norm(parts, axis=1, keepdims=True))


class GaussianProcess(Sampler):
    """A Gaussian process, fitted once per answer."""

    def __init__(self) -> None:
        self._learned: tuple[Trial, ...] | None = None

    def propose(self, history: History, number: int) -> Point:
        """Return the best free candidate; at further draws the next."""
        if not any(trial.results for trial in history.trials):
            return RandomSampler().propose(history, number)
        self._learn(history, number)
        if history.draw == 0:
            self._ranked = self._outlook.ranked(history.generator(number, 1))
        if history.draw < len(self._ranked):
            return self._ranked[history.draw]
        return RandomSampler().propose(history, number)

    def _learn(self, history: History, number: int) -> None:
        if self._learned is None or history.trials[: len(self._learned)] != self._learned:
            generator = history.generator(number, 0)
            self._outlook = Outlook(history.space, history.trials, generator, history.bounds)
        else:
            for trial in history.trials[len(self._learned) :]:
                self._outlook.expect(trial.values)
        self._learned = history.trials


def _some(scores: Matrix) -> NDArray[np.int64]:
    """Return the results that decide on the kernel."""
    order = np.argsort(scores, kind="stable")
    half = FITTED // 2
    rest = order[half:]
    return order if len(order) <= FITTED else np.concatenate([order[:half], rest[:: -(-len(rest) // half)]])
