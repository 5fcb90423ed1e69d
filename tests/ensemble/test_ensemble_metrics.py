"""Metrics against numerical integration and scipy, the law of total variance against sampling, and weights of members."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from hydragnn.ensemble.building.weights import (
    SECOND,
    SMALL,
    cautious,
    errors_alone,
    optimum,
    worst_ratio,
)
from hydragnn.ensemble.estimates import metrics
from hydragnn.ensemble.estimates.estimate import CandidateEvidence
from hydragnn.ensemble.estimates.metrics import gaussian_crps, gaussian_nll, point_metrics
from hydragnn.ensemble.estimates.moments import MixtureMoments, isotropic, total_variance
from hydragnn.ensemble.estimates.numbers import NumberEstimate
from hydragnn.graphs import Field
from hydragnn.models import Point, Target


@pytest.mark.parametrize("target, mean, std", [(0.0, 0.0, 1.0), (1.3, -0.4, 0.7), (5.0, 0.0, 0.1), (-2.0, 1.0, 30.0)])
def test_crps_is_the_integral_of_a_squared_difference(target: float, mean: float, std: float) -> None:
    far = 40 * std + abs(target - mean)
    numeric = 0.0
    for distribution, low, high in ((stats.norm.cdf, mean - far, target), (stats.norm.sf, target, mean + far)):
        points = [mean] if low < mean < high else []
        square = lambda y, of=distribution: of(y, mean, std) ** 2  # noqa: E731
        numeric += integrate.quad(square, low, high, limit=500, points=points)[0]
    closed = gaussian_crps(np.array([target]), np.array([mean]), np.array([std]))[0]
    assert closed == pytest.approx(numeric, rel=1e-6)


def test_crps_of_a_certain_prediction_is_its_absolute_error_and_nll_that_of_scipy() -> None:
    assert gaussian_crps(np.array([3.0]), np.array([1.0]), np.array([0.0]))[0] == 2.0
    target, mean, std = np.random.default_rng(0).uniform(0.1, 2, size=(3, 9))
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
    honest, small, large = (
        metrics.miscalibration_area(target, np.zeros(4000), factor * std) for factor in (1, 1e-6, 1e6)
    )
    assert honest < 0.02 and small > 0.45 and large > 0.45


def test_a_rank_correlation_with_a_constant_is_zero() -> None:
    assert metrics.rank_correlation(np.ones(4), np.arange(4.0)) == 0.0


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


def test_neither_copies_of_members_nor_the_axes_of_vectors_change_the_spread() -> None:
    generator = np.random.default_rng(1)
    vectors, weights = generator.normal(size=(4, 6, 3)), np.full(4, 0.25)
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    alone = total_variance(np.ones((1, 5)), np.full((1, 5), 0.3), np.ones(1))
    assert (alone.epistemic == 0).all() and alone.aleatoric == pytest.approx(np.full(5, 0.3))
    for axes, shape in (((-1,), (5, 3)), ((-2, -1), (5, 3, 3))):  # averaging over components keeps the total
        values, nothing = generator.uniform(size=shape), np.zeros(shape)
        moments = MixtureMoments(mean=nothing, epistemic=values, aleatoric=nothing)
        np.testing.assert_allclose(isotropic(moments, axes).epistemic.sum(), values.sum())
    here, turned = (isotropic(of_points(some, weights), axes=(-1,)) for some in (vectors, vectors @ turn.T))
    np.testing.assert_allclose(here.variance, turned.variance, atol=1e-12)
    once, again = of_points(vectors, weights), of_points(np.repeat(vectors, 3, axis=0), np.full(12, 1 / 12))
    np.testing.assert_allclose(once.mean, again.mean, atol=1e-12)
    np.testing.assert_allclose(once.variance, again.variance, atol=1e-12)


def evidence(errors: np.ndarray, seed: int = 0) -> CandidateEvidence:
    target = np.random.default_rng(seed).normal(size=errors.shape[1])
    return CandidateEvidence(target=target, values=target + errors)


def noise(*sizes: float, rows: int = 400, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(sizes), rows)) * np.array(sizes)[:, None]


def test_members_weigh_as_the_inverse_of_their_variance_and_one_that_only_hurts_weighs_nothing() -> None:
    weights = optimum({"energy": evidence(noise(0.1, 0.1, 3.0))}, np.full(3, 1 / 3))
    assert weights[2] == 0 and weights[:2] == pytest.approx([0.5, 0.5], abs=0.1)
    weights = optimum({"energy": evidence(noise(0.1, 0.2, rows=20_000))}, np.full(2, 0.5))
    assert weights == pytest.approx([0.8, 0.2], abs=0.02)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_fitted_weights_score_no_worse_than_each_member_and_the_base_weights(seed: int, members: int) -> None:
    sizes = np.random.default_rng(seed).uniform(0.05, 2.0, size=members)
    base = np.full(members, 1 / members)
    fields = {"energy": evidence(noise(*sizes, seed=seed)), "forces": evidence(noise(*sizes[::-1], seed=seed + 1))}
    weights, alone = optimum(fields, base), errors_alone(fields)
    best = min(worst_ratio(fields, alone, one) for one in (*np.eye(members), base))
    assert (weights >= 0).all() and weights.sum() == pytest.approx(1.0)
    assert worst_ratio(fields, alone, weights) <= best + 1e-9


def test_fields_that_share_weights_are_weighed_by_the_one_that_is_worst_beside_its_best_member() -> None:
    shared = noise(1.0)  # the second member has the first one's error and more, so it can only hurt the energy
    energy = evidence(np.concatenate([shared, 1.5 * shared]))
    forces = evidence(noise(1.0, 0.9, seed=1))
    both = optimum({"energy": energy, "forces": forces}, np.full(2, 0.5))
    alone = optimum({"forces": forces}, np.full(2, 0.5))
    assert both[0] > 0.8 and alone[0] < 0.6
    own = energy.row_errors(both).mean() / energy.row_errors(np.array([1.0, 0.0])).mean()
    assert own < 1.1 and forces.row_errors(both).mean() < forces.row_errors(np.array([0.0, 1.0])).mean() * 1.1


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(5, 60))
def test_no_member_alone_is_better_than_the_weights_on_validation_graphs(seed: int, members: int, rows: int) -> None:
    generator = np.random.default_rng(seed)
    fields = {"energy": evidence(noise(*generator.uniform(0.05, 2.0, size=members), rows=rows, seed=seed), seed)}
    base = np.append(np.full(members - 1, 1 / (members - 1)), 0.0)  # the last is a simple one
    weights = cautious(fields, generator.dirichlet(np.ones(members)), base)
    assert fields["energy"].row_errors(weights).mean() <= errors_alone(fields)["energy"].mean(axis=1).min() + 1e-12
    assert weights.sum() == pytest.approx(1.0) and (weights >= 0).all() and not 0 < weights[-1] < SMALL


def test_weights_move_no_further_than_they_must() -> None:
    errors = noise(1.0, 1.0)
    fields, base = {"energy": evidence(errors)}, np.full(2, 0.5)
    assert cautious(fields, np.array([0.4, 0.6]), base).tolist() == [0.4, 0.6]
    shared = {"energy": evidence(np.concatenate([errors[:1], 2 * errors[:1]]))}
    assert cautious(shared, np.array([0.4, 0.6]), base).tolist() == [1.0, 0.0]


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
    case = evidence(noise(*np.random.default_rng(7).uniform(0.2, 2.0, size=2), rows=60))
    of_members, of_ensemble = ((np.square(of - case.target)).mean() for of in (case.values, weights @ case.values))
    assert case.diversity(weights)["ambiguity"] == pytest.approx(1 - of_ensemble / of_members)
    independent = evidence(errors, seed=1).diversity(weights)
    assert abs(independent["error_correlation"]) < 0.06
    assert independent["ambiguity"] == pytest.approx(0.5, abs=0.03)


def test_diversity_on_a_single_labelled_vector_is_a_number() -> None:
    field = Field(name="dipole", on="graph", shape=(3,), parity="vector", role="target")
    target = Target(field=field, loss="mse", weight=1.0)
    members = [Point(mean=torch.tensor([row], dtype=torch.float64)) for row in ([0.1, 0.2, 0.3], [0.3, 0.1, 0.0])]
    found = NumberEstimate.evidence(target, np.array([[1.0, 2.0, 3.0]]), members).diversity(np.array([0.5, 0.5]))
    assert all(np.isfinite(value) for value in found.values()), found
