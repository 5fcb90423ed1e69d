"""What MACE asks of its settings and of the training part, and its harmonics and products; that these are e3nn's is in ``tests/parity``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

from hydragnn.architectures import GraphStatistics
from hydragnn.datasets import Normalisation
from hydragnn.graphs import from_ase
from hydragnn.graphs.joining import concatenate
from hydragnn.layers import SphericalHarmonics, SymmetricContraction, symmetric_polynomials
from hydragnn.models import GraphModel, load_model, save_model
from hydragnn.models.trained import tabulated
from tests.hydragnn.small import ENERGY, small_model


def test_species_of_the_training_part_have_weights_of_their_own_and_others_share_one_set(tmp_path: Path) -> None:
    model = atoms_model((8, 26), ["atomic_numbers"]).float()
    kinds = model.encoder.layers[0].kinds
    assert kinds.count == 3 and kinds.rows[torch.tensor([8, 26, 1, 27])].tolist() == [0, 1, 2, 2]
    save_model(tmp_path, model, Normalisation())
    assert load_model(tmp_path).model.description.statistics == model.description.statistics


def atoms_model(species: tuple[int, ...], inputs: list[str], **changes: Any) -> GraphModel:
    statistics = GraphStatistics(mean_log_degree=1.0, mean_degree=2.0, species=species)
    table = {"hidden_dim": 4, "max_ell": 1, "cutoff": 4.0, **changes}
    return small_model("mace", ENERGY, inputs=inputs, statistics=statistics, **table).double()


@pytest.mark.parametrize("kind, radial", [("agnesi", "chebyshev"), ("soft", "bessel")])
def test_energies_of_transformed_distances_have_two_derivatives(kind: str, radial: str) -> None:
    """Positions of water and a lone argon; the order of atoms and what else is in the batch change nothing."""
    model = atoms_model((1, 8, 18), ["atomic_numbers"], distance_transform=kind, radial=radial)
    water, argon = (from_ase(atoms, 4.0).to(dtype=torch.float64) for atoms in (molecule("H2O"), Atoms("Ar")))

    def energy(positions: torch.Tensor) -> torch.Tensor:
        return model(replace(water, positions=positions))["energy"].mean

    positions = water.positions.clone().requires_grad_()
    assert torch.autograd.gradcheck(energy, positions) and torch.autograd.gradgradcheck(energy, positions)
    both = model(concatenate([argon, water]))["energy"].mean
    torch.testing.assert_close(both[1:], energy(water.positions), rtol=1e-10, atol=1e-10)
    turned = from_ase(molecule("H2O")[[2, 0, 1]], 4.0).to(dtype=torch.float64)
    torch.testing.assert_close(model(turned)["energy"].mean, both[1:], rtol=1e-10, atol=1e-10)


def test_filters_that_depend_on_atoms_too_are_not_taken_from_tables_of_lengths() -> None:
    of_atoms, of_lengths = (
        atoms_model((1, 8), ["atomic_numbers"], distance_transform=kind).float() for kind in ("soft", None)
    )
    assert tabulated(of_atoms) is of_atoms
    assert tabulated(of_lengths) is not of_lengths


def test_harmonics_of_a_vector_without_length_are_finite_and_have_no_direction() -> None:
    values = SphericalHarmonics(3)(torch.zeros(1, 3))
    assert [float(one.abs().sum()) for one in values] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.usefixtures("in_double")  # that of the matrices of e3nn
@pytest.mark.parametrize("correlation", [1, 2, 3, 4])
def test_contracted_states_turn_as_their_degree(correlation: int) -> None:
    o3 = pytest.importorskip("e3nn.o3")
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
        turned = torch.einsum("ij,njc->nic", matrix, before[degree])
        torch.testing.assert_close(after[degree], turned, rtol=1e-10, atol=1e-10)


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
def test_the_basis_of_weights_of_saved_models_stays(of: tuple[int, int, int], count: int, mark: float) -> None:
    """As many polynomials as the theory of characters counts, in this order and with these signs; a model from disk would say something else in another basis."""
    coefficients = symmetric_polynomials(*of).coefficients
    assert len(coefficients) == count
    assert (coefficients.ravel() * np.cos(np.arange(coefficients.size))).sum() == pytest.approx(mark, abs=1e-10)
