"""Metrics against numerical integration, closed forms and scipy."""

import numpy as np
import pytest
from scipy import integrate, stats

from hydragnn.base.errors import InputError
from hydragnn.ensemble.metrics import (
    coverage,
    gaussian_crps,
    gaussian_nll,
    miscalibration_area,
    point_metrics,
    rank_correlation,
)


@pytest.mark.parametrize("target, mean, std", [(0.0, 0.0, 1.0), (1.3, -0.4, 0.7), (5.0, 0.0, 0.1), (-2.0, 1.0, 30.0)])
def test_crps_is_the_integral_of_the_squared_difference_of_distributions(
    target: float, mean: float, std: float
) -> None:
    def below(y: float) -> float:
        return stats.norm.cdf(y, mean, std) ** 2

    def above(y: float) -> float:
        return stats.norm.sf(y, mean, std) ** 2

    far = 40 * std + abs(target - mean)
    numeric = (
        integrate.quad(below, mean - far, target, limit=500, points=[p for p in (mean,) if mean - far < p < target])[0]
        + integrate.quad(above, target, mean + far, limit=500, points=[p for p in (mean,) if target < p < mean + far])[
            0
        ]
    )
    closed = gaussian_crps(np.array([target]), np.array([mean]), np.array([std]))[0]
    assert closed == pytest.approx(numeric, rel=1e-6)


def test_crps_of_a_certain_prediction_is_its_absolute_error() -> None:
    assert gaussian_crps(np.array([3.0]), np.array([1.0]), np.array([0.0]))[0] == 2.0


def test_nll_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    target, mean, std = generator.normal(size=9), generator.normal(size=9), generator.uniform(0.1, 2, size=9)
    np.testing.assert_allclose(gaussian_nll(target, mean, std), -stats.norm.logpdf(target, mean, std))


def test_the_mean_predictor_has_no_r2() -> None:
    target = np.random.default_rng(1).normal(size=50)
    metrics = point_metrics(target[:, None], np.full((50, 1), target.mean()))
    assert metrics["r2"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["rmse"] == pytest.approx(target.std())


def test_r2_of_a_constant_target_is_zero_and_not_infinite() -> None:
    assert point_metrics(np.ones((3, 1)), np.zeros((3, 1)))["r2"] == 0.0


def test_miscalibration_area_is_small_for_honest_and_near_half_for_absurd_errors() -> None:
    generator = np.random.default_rng(2)
    std = generator.uniform(0.5, 2.0, size=4000)
    target = generator.normal(0.0, std)
    assert miscalibration_area(target, np.zeros(4000), std) < 0.02
    assert miscalibration_area(target, np.zeros(4000), 1e-6 * std) > 0.45
    assert miscalibration_area(target, np.zeros(4000), 1e6 * std) > 0.45


def test_rank_correlation_is_spearmans_with_ties() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.integers(0, 6, 40).astype(float), generator.integers(0, 6, 40).astype(float)
    assert rank_correlation(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)


def test_rank_correlation_with_a_constant_is_zero() -> None:
    assert rank_correlation(np.ones(4), np.arange(4.0)) == 0.0


def test_coverage_counts_the_ends() -> None:
    assert coverage(np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 1.0]), np.array([1.5, 2.0, 3.0])) == pytest.approx(
        2 / 3
    )


def test_metrics_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="labelled graphs"):
        point_metrics(np.zeros((0, 1)), np.zeros((0, 1)))
