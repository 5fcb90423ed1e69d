"""Spherical harmonics and their couplings beside those of e3nn."""

import itertools
import math

import pytest
import torch

from hydragnn.layers import SphericalHarmonics, coupling

o3 = pytest.importorskip("e3nn.o3")

TIGHT = {"rtol": 1e-12, "atol": 1e-12}  # float64, some hundred terms of order 1


def directions(count: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    vectors = torch.randn(count, 3, dtype=torch.float64, generator=random)
    return vectors / vectors.norm(dim=1, keepdim=True)


@pytest.mark.parity("mace", "e3nn", "spherical harmonics of degrees 0 to 4")
def test_harmonics_are_those_of_e3nn() -> None:
    ours = SphericalHarmonics(4)(directions(20))
    for degree, values in enumerate(ours):
        expected = o3.spherical_harmonics(degree, directions(20), normalize=True, normalization="component")
        torch.testing.assert_close(values, expected, **TIGHT)


@pytest.mark.parity("mace", "e3nn", "couplings of degrees 0 to 4, but for their sign")
@pytest.mark.parametrize(("first", "second"), [*itertools.product(range(5), repeat=2)])
def test_couplings_are_those_of_e3nn_but_for_their_sign(first: int, second: int) -> None:
    for third in range(abs(first - second), min(first + second, 6) + 1):
        ours = torch.from_numpy(coupling(first, second, third))
        theirs = o3.wigner_3j(first, second, third, dtype=torch.float64) * math.sqrt(2 * third + 1)
        torch.testing.assert_close(ours * torch.sign((ours * theirs).sum()), theirs, **TIGHT)
