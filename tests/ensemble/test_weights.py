"""Weights of members per field, and their diversity."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.ensemble.building.weights import SECOND, errors_alone, errors_of, mixed, optimum, worst_ratio
from hydragnn.ensemble.estimates.numbers import NumberEstimate, NumberEvidence
from hydragnn.graphs import Field
from hydragnn.models import Point, Target


def evidence(errors: np.ndarray, seed: int = 0) -> NumberEvidence:
    target = np.random.default_rng(seed).normal(size=errors.shape[1])
    return NumberEvidence(target=target, means=target + errors)


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
    mean_of_members = np.mean((case.means - case.target) ** 2)
    of_ensemble = np.mean((weights @ case.means - case.target) ** 2)
    assert case.diversity(weights)["ambiguity"] == pytest.approx(1 - of_ensemble / mean_of_members)


def test_diversity_on_a_single_labelled_vector_is_a_number() -> None:
    field = Field(name="dipole", on="graph", shape=(3,), parity="vector", role="target")
    target = Target(field=field, loss="mse", weight=1.0)
    members = [Point(mean=torch.tensor([row], dtype=torch.float64)) for row in ([0.1, 0.2, 0.3], [0.3, 0.1, 0.0])]
    found = NumberEstimate.evidence(target, np.array([[1.0, 2.0, 3.0]]), members).diversity(np.array([0.5, 0.5]))
    assert all(np.isfinite(value) for value in found.values()), found
