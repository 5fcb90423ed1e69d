"""Diversity of members."""

import numpy as np
import pytest
import torch

from hydragnn.ensemble.numbers import NumberEstimate, NumberEvidence
from hydragnn.graphs import Field
from hydragnn.models import Point, Target


def evidence(seed: int, candidates: int = 5, rows: int = 60) -> NumberEvidence:
    generator = np.random.default_rng(seed)
    target = generator.normal(size=rows)
    errors = generator.normal(size=(candidates, rows)) * generator.uniform(0.2, 2.0, size=(candidates, 1))
    return NumberEvidence(target=target, means=target + errors)


def test_diversity_of_copies_is_none_and_of_independent_members_half() -> None:
    generator = np.random.default_rng(3)
    target = generator.normal(size=4000)
    errors = generator.normal(size=(2, 4000))
    weights = np.array([0.5, 0.5])
    copies = NumberEvidence(target=target, means=target + errors[[0, 0]]).diversity(weights)
    assert copies["error_correlation"] == pytest.approx(1.0)
    assert copies["ambiguity"] == pytest.approx(0.0)
    independent = NumberEvidence(target=target, means=target + errors).diversity(weights)
    assert abs(independent["error_correlation"]) < 0.06
    assert independent["ambiguity"] == pytest.approx(0.5, abs=0.03)


def test_ambiguity_is_what_averaging_takes_off_the_squared_error() -> None:
    case = evidence(7)
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
