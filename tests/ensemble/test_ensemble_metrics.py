"""Metrics against numerical integration and scipy, the law of total variance against sampling, and weights of members."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from hydragnn.base.errors import InputError
from hydragnn.ensemble.building.weights import SECOND, errors_alone, errors_of, mixed, optimum, worst_ratio
from hydragnn.ensemble.estimates.metrics import (
    coverage,
    gaussian_crps,
    gaussian_nll,
    miscalibration_area,
    point_metrics,
    rank_correlation,
)
from hydragnn.ensemble.estimates.moments import MixtureMoments, isotropic, total_variance
from hydragnn.ensemble.estimates.numbers import NumberEstimate, NumberEvidence
from hydragnn.graphs import Field
from hydragnn.models import Point, Target


@pytest.mark.parametrize("target, mean, std", [(0.0, 0.0, 1.0), (1.3, -0.4, 0.7), (5.0, 0.0, 0.1), (-2.0, 1.0, 30.0)])
def test_crps_is_the_integral_of_the_squared_difference_of_distributions(
    target: float, mean: float, std: float
) -> None:
    far = 40 * std + abs(target - mean)
    numeric = 0.0
    for distribution, low, high in ((stats.norm.cdf, mean - far, target), (stats.norm.sf, target, mean + far)):
        points = [mean] if low < mean < high else []
        square = lambda y, of=distribution: of(y, mean, std) ** 2  # noqa: E731
        numeric += integrate.quad(square, low, high, limit=500, points=points)[0]
    closed = gaussian_crps(np.array([target]), np.array([mean]), np.array([std]))[0]
    assert closed == pytest.approx(numeric, rel=1e-6)


def test_crps_of_a_certain_prediction_is_its_absolute_error() -> None:
    assert gaussian_crps(np.array([3.0]), np.array([1.0]), np.array([0.0]))[0] == 2.0


def test_nll_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    target, mean, std = generator.normal(size=9), generator.normal(size=9), generator.uniform(0.1, 2, size=9)
    np.testing.assert_allclose(gaussian_nll(target, mean, std), -stats.norm.logpdf(target, mean, std))


def test_r2_of_the_mean_predictor_and_of_a_constant_target_is_zero() -> None:
    target = np.random.default_rng(1).normal(size=50)
    metrics = point_metrics(target[:, None], np.full((50, 1), target.mean()))
    assert metrics["r2"] == pytest.approx(0.0, abs=1e-12) and metrics["rmse"] == pytest.approx(target.std())
    assert point_metrics(np.ones((3, 1)), np.zeros((3, 1)))["r2"] == 0.0


def test_miscalibration_area_is_small_for_honest_and_near_half_for_absurd_errors() -> None:
    generator = np.random.default_rng(2)
    std = generator.uniform(0.5, 2.0, size=4000)
    target = generator.normal(0.0, std)
    assert miscalibration_area(target, np.zeros(4000), std) < 0.02
    assert miscalibration_area(target, np.zeros(4000), 1e-6 * std) > 0.45
    assert miscalibration_area(target, np.zeros(4000), 1e6 * std) > 0.45


def test_rank_correlation_is_spearmans_with_ties_and_zero_with_a_constant() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.integers(0, 6, 40).astype(float), generator.integers(0, 6, 40).astype(float)
    assert rank_correlation(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert rank_correlation(np.ones(4), np.arange(4.0)) == 0.0


def test_coverage_counts_the_ends() -> None:
    target, lower, upper = np.array([1.0, 2.0, 9.0]), np.ones(3), np.array([1.5, 2.0, 3.0])
    assert coverage(target, lower, upper) == pytest.approx(2 / 3)


def test_metrics_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="labelled graphs"):
        point_metrics(np.zeros((0, 1)), np.zeros((0, 1)))


def of_points(means: np.ndarray, weights: np.ndarray) -> MixtureMoments:
    return total_variance(means, np.zeros_like(means), weights)


def test_total_variance_is_that_of_samples_from_the_mixture() -> None:
    generator = np.random.default_rng(0)
    means, variances = generator.normal(size=(3, 4)), generator.uniform(0.1, 2.0, size=(3, 4))
    weights = np.array([0.5, 0.3, 0.2])
    moments = total_variance(means, variances, weights)
    member = generator.choice(3, size=400_000, p=weights)
    samples = generator.normal(means[member], np.sqrt(variances[member]))
    # five standard errors of a mean and of a variance over 400,000 samples of order one
    np.testing.assert_allclose(moments.mean, samples.mean(axis=0), atol=0.015)
    np.testing.assert_allclose(moments.variance, samples.var(axis=0), atol=0.03)


def test_one_member_has_no_epistemic_part() -> None:
    moments = total_variance(np.ones((1, 5)), np.full((1, 5), 0.3), np.ones(1))
    assert (moments.epistemic == 0).all()
    np.testing.assert_allclose(moments.aleatoric, 0.3)


@given(st.integers(1, 5), st.integers(1, 4))
def test_copies_of_one_member_change_nothing(copies: int, items: int) -> None:
    values = np.random.default_rng(items).normal(size=(2, items))
    once = of_points(values, np.array([0.5, 0.5]))
    again = of_points(np.repeat(values, copies, axis=0), np.full(2 * copies, 0.5 / copies))
    np.testing.assert_allclose(once.mean, again.mean, atol=1e-12)
    np.testing.assert_allclose(once.variance, again.variance, atol=1e-12)


def test_the_spread_of_a_vector_does_not_depend_on_how_the_axes_lie() -> None:
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(4, 6, 3))
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    weights = np.full(4, 0.25)
    here = isotropic(of_points(vectors, weights), axes=1)
    turned = isotropic(of_points(vectors @ turn.T, weights), axes=1)
    np.testing.assert_allclose(here.variance, turned.variance, atol=1e-12)


@pytest.mark.parametrize("axes, shape", [(1, (5, 3)), (2, (5, 3, 3))], ids=["vector", "tensor"])
def test_averaging_over_components_keeps_the_total(axes: int, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(2).uniform(size=shape)
    moments = MixtureMoments(mean=np.zeros(shape), epistemic=values, aleatoric=np.zeros(shape))
    np.testing.assert_allclose(isotropic(moments, axes).epistemic.sum(), values.sum())


def evidence(errors: np.ndarray, seed: int = 0) -> NumberEvidence:
    target = np.random.default_rng(seed).normal(size=errors.shape[1])
    return NumberEvidence(target=target, values=target + errors)


def noise(*sizes: float, rows: int = 400, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(sizes), rows)) * np.array(sizes)[:, None]


def test_a_member_that_only_hurts_weighs_nothing() -> None:
    weights = optimum({"energy": evidence(noise(0.1, 0.1, 3.0))}, np.full(3, 1 / 3))
    assert weights[2] == 0 and weights[:2] == pytest.approx([0.5, 0.5], abs=0.1)


def test_members_weigh_as_the_inverse_of_their_variance() -> None:
    weights = optimum({"energy": evidence(noise(0.1, 0.2, rows=20_000))}, np.full(2, 0.5))
    assert weights == pytest.approx([0.8, 0.2], abs=0.02)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_fitted_weights_score_no_worse_than_each_member_and_the_base_weights(seed: int, members: int) -> None:
    sizes = np.random.default_rng(seed).uniform(0.05, 2.0, size=members)
    base = np.full(members, 1 / members)
    fields = {"energy": evidence(noise(*sizes, seed=seed)), "forces": evidence(noise(*sizes[::-1], seed=seed + 1))}
    weights, alone = optimum(fields, base), errors_alone(fields)
    best = min(worst_ratio(errors_of(fields, one), alone) for one in (*np.eye(members), base))
    assert (weights >= 0).all() and weights.sum() == pytest.approx(1.0)
    assert worst_ratio(errors_of(fields, weights), alone) <= best + 1e-9


def test_fields_that_share_weights_are_weighed_by_the_one_that_is_worst_beside_its_best_member() -> None:
    shared = noise(1.0)  # the second member has the first one's error and more, so it can only hurt the energy
    energy = evidence(np.concatenate([shared, 1.5 * shared]))
    forces = evidence(noise(1.0, 0.9, seed=1))
    both = optimum({"energy": energy, "forces": forces}, np.full(2, 0.5))
    alone = optimum({"forces": forces}, np.full(2, 0.5))
    assert both[0] > 0.8 and alone[0] < 0.6
    own = energy.row_errors(both).mean() / energy.row_errors(np.array([1.0, 0.0])).mean()
    assert own < 1.1 and forces.row_errors(both).mean() < forces.row_errors(np.array([0.0, 1.0])).mean() * 1.1


def test_mixtures_keep_members_out_that_have_no_fitted_weight() -> None:
    base, fitted = np.array([0.5, 0.3, 0.2]), np.array([0.9, 0.1, 0.0])
    assert mixed(fitted, base, 1.0).tolist() == base.tolist()
    assert mixed(fitted, base, 0.0).tolist() == fitted.tolist()
    half = mixed(fitted, base, 0.5)
    assert half[2] == 0 and half.sum() == pytest.approx(1.0)


def test_the_member_beside_a_much_better_one_costs_two_percent_at_most() -> None:
    shared = noise(1.0)
    energy = evidence(np.concatenate([shared, 3.0 * shared]))
    weights = np.array([1 - SECOND, SECOND])
    assert energy.row_errors(weights).mean() <= 1.02 * energy.row_errors(np.array([1.0, 0.0])).mean() + 1e-12


def test_diversity_of_copies_is_none_and_of_independent_members_half() -> None:
    errors, weights = noise(1.0, 1.0, rows=4000, seed=3), np.array([0.5, 0.5])
    copies = evidence(errors[[0, 0]]).diversity(weights)
    assert copies["error_correlation"] == pytest.approx(1.0)
    assert copies["ambiguity"] == pytest.approx(0.0)
    independent = evidence(errors, seed=1).diversity(weights)
    assert abs(independent["error_correlation"]) < 0.06
    assert independent["ambiguity"] == pytest.approx(0.5, abs=0.03)


def test_ambiguity_is_what_averaging_takes_off_the_squared_error() -> None:
    case = evidence(noise(*np.random.default_rng(7).uniform(0.2, 2.0, size=5), rows=60))
    weights = np.full(5, 0.2)
    mean_of_members = np.mean((case.values - case.target) ** 2)
    of_ensemble = np.mean((weights @ case.values - case.target) ** 2)
    assert case.diversity(weights)["ambiguity"] == pytest.approx(1 - of_ensemble / mean_of_members)


def test_diversity_on_a_single_labelled_vector_is_a_number() -> None:
    field = Field(name="dipole", on="graph", shape=(3,), parity="vector", role="target")
    target = Target(field=field, loss="mse", weight=1.0)
    members = [Point(mean=torch.tensor([row], dtype=torch.float64)) for row in ([0.1, 0.2, 0.3], [0.3, 0.1, 0.0])]
    found = NumberEstimate.evidence(target, np.array([[1.0, 2.0, 3.0]]), members).diversity(np.array([0.5, 0.5]))
    assert all(np.isfinite(value) for value in found.values()), found
