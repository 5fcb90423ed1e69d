"""Harmonics and products of many of them, held against the theory of characters and rotations; that they are e3nn's is in ``tests/parity``."""

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
    ("of", "count", "mark"),
    [
        ((2, 0, 3), 5, 2.124976315006),
        ((3, 0, 3), 8, -3.608076025170),
        ((3, 1, 3), 12, 6.864827180835),
        ((2, 2, 2), 3, -2.471188153063),
        ((2, 2, 3), 6, 9.349566249932),
        ((1, 1, 4), 2, 7.204936700011),
        ((2, 0, 4), 9, -0.112782511388),
        ((4, 1, 2), 4, 3.056190695120),
    ],
)
def test_the_basis_that_weights_of_saved_models_belong_to_stays_what_it_is(
    of: tuple[int, int, int], count: int, mark: float
) -> None:
    """As many polynomials as the theory of characters counts, in this order and with these signs; a model from disk would say something else in another basis."""
    coefficients = symmetric_polynomials(*of).coefficients
    assert len(coefficients) == count
    assert (coefficients.ravel() * np.cos(np.arange(coefficients.size))).sum() == pytest.approx(mark, abs=1e-10)
