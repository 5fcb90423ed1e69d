"""Equivariant attention around architectures: what it reaches, where it ends, and what it is refused for."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from ase import Atoms
from ase.build import fcc111
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import make_graph, make_model
from hydragnn.conformance.network import SLOPE, force_gaps
from hydragnn.conformance.smoothness import atoms_graph, energies_and_forces, energy_model
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.layers.stacked import NotStackable
from hydragnn.models import GraphModel
from hydragnn.models.trained_stack import check_alike

REACH = 6.0
"""Angstrom; the edges of the structures end at ``NEAR``."""
NEAR = 2.5
KINDS = ("painn", "tensornet")


def attention(cutoff: float | None = None) -> dict[str, Any]:
    return {"global_attention": {"kind": "equivariant", "heads": 2, **({} if cutoff is None else {"cutoff": cutoff})}}


def molecules() -> GraphBatch:
    batch = concatenate([make_graph(1, 5), make_graph(4, 1, edges=0), make_graph(2, 7)])
    return replace(batch, periodic=torch.zeros_like(batch.periodic))


def chain(distance: float, pbc: bool = False) -> GraphBatch:
    """Two pairs of atoms so far apart that no edge joins them."""
    places = [[0, 0, 0], [1.1, 0, 0], [1.1 + distance, 0.2, 0], [2.2 + distance, 0, 0.3]]
    return atoms_graph(Atoms("HClNaH", places, cell=[40, 40, 40], pbc=pbc), NEAR)


def energies(model: GraphModel, batch: GraphBatch) -> Tensor:
    return model(batch)["energy"].mean.detach()


@pytest.mark.parametrize("kind", KINDS)
def test_forces_of_all_pairs_are_minus_the_gradient(kind: str) -> None:
    errors = force_gaps(make_model(kind, **attention()), molecules())
    assert max(error for error, _ in errors) <= SLOPE


@pytest.mark.parametrize("pbc", [False, True])
@pytest.mark.parametrize("cutoff", [REACH, None])
def test_atoms_beyond_all_edges_are_seen_up_to_the_cutoff_of_attention(cutoff: float | None, pbc: bool) -> None:
    if pbc and cutoff is None:
        cutoff = 60.0  # images, too
    attending, blind = energy_model("painn", cutoff=NEAR, **attention(cutoff)), energy_model("painn", cutoff=NEAR)
    parts = [chain(distance, pbc) for distance in (4.0, 4.5, 9.0, 9.5)]
    assert all(part.num_edges == 4 for part in parts)
    assert len({round(float(energies(blind, part)), 12) for part in parts}) == 1
    with_attention = [float(energies(attending, part)) for part in parts]
    assert abs(with_attention[0] - with_attention[1]) > 1e-6
    assert (abs(with_attention[2] - with_attention[3]) > 1e-9) == (cutoff != REACH)


def test_a_slab_is_periodic_along_its_own_directions_alone() -> None:
    """Repeated along the slab it is so many times the slab; more vacuum changes nothing."""
    model = energy_model("painn", cutoff=NEAR, **attention(REACH))

    def slab(vacuum: float, *, pbc: bool = False, repeat: tuple[int, int, int] = (1, 1, 1)) -> Tensor:
        atoms = fcc111("Al", (1, 1, 3), a=4.05, vacuum=vacuum, periodic=True)
        atoms.pbc = [True, True, pbc]
        return energies(model, atoms_graph(atoms.repeat(repeat), NEAR))

    for energy, times in ((slab(9.0), 1), (slab(1.5, repeat=(3, 2, 1)), 6)):
        torch.testing.assert_close(energy, times * slab(1.5), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(slab(1.5, pbc=True), slab(1.5), rtol=1e-6)


def test_huge_states_and_weights_stay_finite() -> None:
    """Scores are capped: no weights make a sum of exponentials overflow or vanish in single precision."""
    model = energy_model("painn", cutoff=NEAR, **attention(REACH)).float()
    for name, weight in model.named_parameters():
        if "queries" in name or "keys" in name or "itself" in name:
            weight.data.mul_(1e6).sub_(50)
    batch = chain(4.0).to(dtype=torch.float32)
    energy, forces, _ = energies_and_forces(model, batch)
    assert energy.isfinite().all() and forces.isfinite().all()


def test_a_periodic_graph_needs_a_cutoff() -> None:
    words = r"graph 0 of the batch is periodic.*give a cutoff \(model.global_attention.cutoff\)"
    with pytest.raises(InputError, match=words):
        make_model("painn", **attention())(make_graph(0, 6))


def test_its_steps_are_not_stacked() -> None:
    model = energy_model("painn", **attention(REACH))
    with pytest.raises(NotStackable):
        check_alike([model])
