"""The Gaussian process of wide campaigns says what an independent implementation says, and gives up no choice."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from hydragnn.hpo.sampling.gaussian import Coordinates, Kernel, Outlook, likely_kernel, normal_scores
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.space.parameters import Choices, FloatRange, IntRange
from hydragnn.hpo.space.points import Point, Space, is_point, point_key, random_point, space_of

SPACE = space_of(
    {
        "kind": Choices(choices=["a", "b"]),
        "rate": FloatRange(low=1e-4, high=1e-1, log=True),
        "layers": IntRange(low=1, high=9, when={"kind": "a"}),
        "flag": Choices(choices=[True, False], when={"kind": "b"}),
        "fixed": FloatRange(low=2.0, high=2.0),
    }
)


def error(point: Point) -> float:
    return (math.log10(point["rate"]) + 2.5) ** 2 + 0.1 * abs(point.get("layers", 9) - 4) + (point["kind"] == "b")


def trials_of(space: Space, count: int, open_ones: int = 0) -> list[Trial]:
    """Random trials, the last of which run."""
    draw = np.random.default_rng(3)
    points = [random_point(space, draw) for _ in range(count + open_ones)]
    done = [Trial(number=n, status="paused", values=p, results=(error(p),)) for n, p in enumerate(points[:count])]
    return [*done, *(Trial(number=n + count, status="running", values=p) for n, p in enumerate(points[count:]))]


def test_places_in_the_cube_follow_the_scale_and_inactive_parameters_do_not_tell_points_apart() -> None:
    points = [
        {"kind": "a", "rate": 1e-4, "layers": 9, "fixed": 2.0},
        {"kind": "b", "rate": 1e-1, "flag": False, "fixed": 2.0},
    ]
    rows = Coordinates(SPACE).of(points)
    half = math.sqrt(0.5)
    assert rows == pytest.approx(np.array([[half, 0, 0, 0.5, 1, 0, 0], [0, half, 1, 0.5, 0.5, 0, half]]))


def test_mean_and_deviation_are_those_of_scikit_learn_also_after_requests_of_the_same_answer() -> None:
    trials = trials_of(SPACE, 40, open_ones=5)
    outlook = Outlook(SPACE, trials, np.random.default_rng(0))
    kernel, rows = outlook._kernel, outlook._rows
    expected = [outlook.ranked(np.random.default_rng(n))[0] for n in range(3)]
    for point in expected:
        outlook.expect(point)
    coordinates = Coordinates(SPACE)

    def regressor(points: list[Point], scores: np.ndarray) -> GaussianProcessRegressor:
        covariance = ConstantKernel(kernel.variance) * Matern(nu=2.5)
        regression = GaussianProcessRegressor(covariance, alpha=kernel.noise, optimizer=None)
        return regression.fit(coordinates.of(points) * kernel.scales, scores)

    done, everyone = [t.values for t in trials[:40]], [t.values for t in trials] + expected
    means = regressor(done, normal_scores(trials[:40])).predict(rows)
    _, deviations = regressor(everyone, np.zeros(len(everyone))).predict(rows, return_std=True)
    assert outlook._means == pytest.approx(means, abs=1e-8)
    assert np.sqrt(outlook._variances) == pytest.approx(deviations, abs=1e-6)


def test_lengths_are_short_where_something_changes() -> None:
    points = np.random.default_rng(0).random((60, 3))
    scores = np.sin(6 * points[:, 1])
    kernel = likely_kernel(points, (scores - scores.mean()) / scores.std(), np.arange(3))
    assert kernel.scales[1] > 3 * max(kernel.scales[0], kernel.scales[2])
    assert kernel.noise < 0.01


def test_the_gradient_that_lengths_are_found_by_is_that_of_the_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy import optimize

    from hydragnn.hpo.sampling import gaussian

    differences = []

    def spy(improbability: Any, start: Any, **options: Any) -> Any:
        at = start + np.linspace(-0.3, 0.3, len(start))
        gradient = improbability(at)[1]
        differences.append(optimize.approx_fprime(at, lambda logs: improbability(logs)[0], 1e-6) - gradient)
        return optimize.minimize(improbability, start, **options)

    monkeypatch.setattr(gaussian, "minimize", spy)
    points = np.random.default_rng(1).random((30, 4))
    assert isinstance(likely_kernel(points, points[:, 0] - 0.5, np.array([0, 1, 1, 2])), Kernel)
    assert differences[0] == pytest.approx(0.0, abs=1e-3)


def test_trials_count_by_their_place_the_highest_rung_first_and_failed_ones_last() -> None:
    def trial(*results: float, status: str = "paused") -> Trial:
        return Trial(number=0, status=status, results=results)  # type: ignore[arg-type]

    scores = normal_scores(
        [trial(9.0, 5.0), trial(1.0), trial(3.0, 4.0), trial(math.nan), trial(0.1, status="failed"), trial(1.0)]
    )
    assert np.argsort(scores, kind="stable").tolist() == [2, 0, 1, 5, 3, 4]
    assert scores[1] == scores[5]
    assert scores.std() == pytest.approx(1.0)
    assert normal_scores([trial(1.0), trial(1.0)]).tolist() == [0.0, 0.0]


def test_candidates_are_new_points_of_the_space_and_no_choice_is_given_up() -> None:
    trials = trials_of(SPACE, 60)
    outlook = Outlook(SPACE, trials, np.random.default_rng(0))
    first = [outlook.ranked(np.random.default_rng(n))[0] for n in range(100)]
    known = {point_key(trial.values) for trial in trials}
    everyone = outlook.ranked(np.random.default_rng(0))
    keys = [point_key(point) for point in everyone]
    assert all(is_point(SPACE, point) for point in everyone)
    assert len(set(keys)) == len(keys) and not known & set(keys)
    worse = sum(point["kind"] == "b" for point in first)
    assert 2 <= worse <= 30, "kind b is worse everywhere, and is looked at all the same"
    outlook.expect(everyone[0])
    assert everyone[0] not in outlook.ranked(np.random.default_rng(0))
