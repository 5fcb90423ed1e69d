"""The law of total variance against sampling from the mixture itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.ensemble.uncertainty import MixtureMoments, isotropic, total_variance


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
