"""Harmonics and products of many of them, held against the theory of characters and rotations; that they are e3nn's is in ``tests/parity``."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hydragnn.layers import SphericalHarmonics, SymmetricContraction, symmetric_polynomials

o3 = pytest.importorskip("e3nn.o3")


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    """The matrices of e3nn have the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_harmonics_of_a_vector_without_length_are_finite_and_have_no_direction() -> None:
    values = SphericalHarmonics(3)(torch.zeros(1, 3))
    assert [float(one.abs().sum()) for one in values] == [1.0, 0.0, 0.0, 0.0]


def characters(max_ell: int, order: int, angles: np.ndarray, inverted: bool) -> np.ndarray:
    """Trace of a rotation, inverted or not, among symmetric products of so many states of degrees 0 ... max_ell, by Newton's identity."""

    def power(times: int) -> np.ndarray:
        sign = (-1) ** times if inverted else 1
        return sum(sign**ell * turn(ell, times * angles) for ell in range(max_ell + 1))

    traces = [np.ones_like(angles)]
    for size in range(1, order + 1):
        traces.append(sum(power(times) * traces[size - times] for times in range(1, size + 1)) / size)
    return traces[order]


def turn(degree: int, angles: np.ndarray) -> np.ndarray:
    """Trace of a rotation on one degree."""
    return 1 + 2 * sum((np.cos(m * angles) for m in range(1, degree + 1)), np.zeros_like(angles))


@pytest.mark.parametrize(
    ("max_ell", "degree", "order"), [(3, 0, 3), (3, 1, 3), (2, 2, 3), (1, 1, 4), (2, 0, 4), (4, 1, 2)]
)
def test_there_are_as_many_polynomials_as_the_theory_of_characters_counts(
    max_ell: int, degree: int, order: int
) -> None:
    angles = (np.arange(64) + 0.5) * math.pi / 64  # the integrand is a polynomial in cosines of fewer terms
    weight = (1 - np.cos(angles)) * turn(degree, angles) / 64
    proper, improper = (
        float((weight * characters(max_ell, order, angles, inverted)).sum()) for inverted in (False, True)
    )
    count = (proper + (-1) ** degree * improper) / 2
    assert len(symmetric_polynomials(max_ell, degree, order).coefficients) == round(count)
    assert count == pytest.approx(round(count), abs=1e-9)


@pytest.mark.parametrize("correlation", [1, 2, 3, 4])
def test_contracted_states_turn_as_their_degree(correlation: int) -> None:
    max_ell, channels = 2, 3
    contraction = SymmetricContraction(channels, 2, max_ell, [0, 1, 2], correlation).double()
    random = torch.Generator().manual_seed(1)
    states = torch.randn(9, 4, channels, dtype=torch.float64, generator=random)
    rotation = o3.rand_matrix(dtype=torch.float64)
    matrices = [o3.Irrep(degree, (-1) ** degree).D_from_matrix(rotation) for degree in range(max_ell + 1)]
    whole = torch.block_diag(*matrices)
    kinds = torch.tensor([0, 1, 1, 0])
    before, after = contraction(states, kinds), contraction(torch.einsum("ij,jnc->inc", whole, states), kinds)
    for degree, matrix in enumerate(matrices):
        torch.testing.assert_close(
            after[degree], torch.einsum("ij,njc->nic", matrix, before[degree]), rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize(
    ("of", "mark"), [((2, 0, 3), 2.124976315006), ((3, 1, 3), 6.864827180835), ((2, 2, 2), -2.471188153063)]
)
def test_the_basis_that_weights_of_saved_models_belong_to_stays_what_it_is(
    of: tuple[int, int, int], mark: float
) -> None:
    """In this order and with these signs; a model from disk would say something else in another basis."""
    coefficients = symmetric_polynomials(*of).coefficients
    assert (coefficients.ravel() * np.cos(np.arange(coefficients.size))).sum() == pytest.approx(mark, abs=1e-10)
