"""torch-sim's model gives the numbers of the ASE calculator, for many structures at once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn.base.errors import InputError, MissingPackageError
from hydragnn.ensemble import OutsideDomain, calculator, torch_sim_model
from hydragnn.graphs.atomic import neighbour_list
from hydragnn.graphs.many_skins import ManySkins
from hydragnn.graphs.search import completed_cell

NEEDED = "torch-sim is not installed: pip install 'hydragnn-ensemble[simulation]'"


def rattled(count: int, seed: int) -> list[Atoms]:
    """Cells of one to eight atoms, some with an open side and some far from their origin."""
    random = np.random.default_rng(seed)
    structures = []
    for number in range(count):
        atoms = bulk("Cu", cubic=bool(number % 2)) * (1, 1, 1 + number % 3 // 2)
        atoms.positions += 0.1 * random.normal(size=atoms.positions.shape)
        atoms.pbc[2] = number % 4 != 3
        atoms.positions += 60.0 * (number % 5 == 4)
        structures.append(atoms)
    return structures


def moved_edges(skins: ManySkins, structures: list[Atoms]) -> list[tuple[int, int, float]]:
    edges = skins(
        torch.from_numpy(np.concatenate([atoms.positions for atoms in structures])),
        torch.from_numpy(np.stack([atoms.cell.array for atoms in structures])),
        torch.from_numpy(np.stack([atoms.pbc for atoms in structures])),
        torch.tensor([len(atoms) for atoms in structures]),
    )
    senders, receivers = edges.topology.senders, edges.topology.receivers
    lengths = (edges.positions[senders] + edges.shifts - edges.positions[receivers]).norm(dim=1)
    return sorted(zip(senders.tolist(), receivers.tolist(), lengths.round(decimals=9).tolist()))


@pytest.mark.parametrize("most", [None, 5])
def test_many_lists_are_those_of_each_structure_while_atoms_and_cells_move(most: int | None) -> None:
    structures, random, skins = rattled(9, seed=0), np.random.default_rng(1), ManySkins(4.0, most)
    for step in range(12):
        expected, first = [], 0
        for atoms in structures:
            cell = completed_cell(atoms.cell.array, atoms.pbc, "")
            senders, receivers, images = neighbour_list(atoms.positions, cell, atoms.pbc, 4.0, most)
            lengths = np.linalg.norm(atoms.positions[senders] + images @ cell - atoms.positions[receivers], axis=1)
            expected += zip((senders + first).tolist(), (receivers + first).tolist(), lengths.tolist())
            first += len(atoms)
        found = moved_edges(skins, structures)
        assert [one[:2] for one in found] == [one[:2] for one in sorted(expected)]
        np.testing.assert_allclose([one[2] for one in found], [one[2] for one in sorted(expected)], atol=1e-8)
        for number, atoms in enumerate(structures):
            atoms.positions += 0.02 * random.normal(size=atoms.positions.shape) * (number < 4)
            atoms.set_cell(atoms.cell.array * (1 + 0.004 * (number == 5)), scale_atoms=True)
        structures = structures[1:] if step == 10 else structures
    assert skins.searches < 9 + 8 + 30  # of 108


def test_a_structure_that_is_impossible_is_named_by_its_number() -> None:
    structures = rattled(3, seed=0)
    structures[1].positions[1] = structures[1].positions[0] + 1e-5
    with pytest.raises(InputError, match=r"structure 1: nodes 0 and 1 are 1\.7e-05 apart"):
        moved_edges(ManySkins(4.0), structures)
    structures[2].positions[0, 0] = np.nan
    with pytest.raises(InputError, match="structure 2 has positions that are not finite"):
        moved_edges(ManySkins(4.0), structures)


def test_all_structures_have_the_calculators_energies_forces_and_stress(strained: tuple[Path, Atoms]) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    model, potential = torch_sim_model(strained[0]), calculator(strained[0], outside="record")
    structures = [atoms for atoms in rattled(9, seed=2) if atoms.pbc.all()]
    results = model(torch_sim.initialize_state(structures, model.device, model.dtype))
    assert (model.compute_forces, model.compute_stress) == (True, True)
    first = 0
    for number, atoms in enumerate(structures):
        atoms.calc = potential
        own = slice(first, first := first + len(atoms))
        assert results["energy"][number].item() == pytest.approx(atoms.get_potential_energy(), rel=1e-9)
        np.testing.assert_allclose(results["forces"][own], atoms.get_forces(), atol=1e-9)
        np.testing.assert_allclose(results["stress"][number], atoms.get_stress(voigt=False), atol=1e-9)
        np.testing.assert_allclose(results["forces_std"][own], potential.results["forces_std"], atol=1e-9)
        assert results["domain_score"][number].item() == pytest.approx(potential.results["domain_score"])
        assert model.domain[number] == potential.results["domain"]


def test_clusters_are_relaxed_at_once_to_the_energies_of_one_after_the_other(
    ensemble: Path, frames: list[Atoms]
) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    from ase.optimize import FIRE

    model, potential, energies = torch_sim_model(ensemble, outside="record"), calculator(ensemble, outside="record"), []
    for frame in frames[:4]:
        atoms = frame.copy()
        atoms.calc = potential
        FIRE(atoms, logfile=None).run(1e-9, 6)
        energies.append(atoms.get_potential_energy())
    state = torch_sim.initialize_state([frame.copy() for frame in frames[:4]], model.device, model.dtype)
    state.pbc = False
    start, step = torch_sim.optimizers.fire(model, md_flavor="ase_fire")
    fire = start(state)
    for _ in range(6):
        fire = step(fire)
    np.testing.assert_allclose(fire.energy, energies, rtol=1e-6)


def test_a_state_outside_the_training_domain_stops_by_name(ensemble: Path, frames: list[Atoms]) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    far = frames[1].copy()
    far.positions *= 0.6
    model = torch_sim_model(ensemble, outside="stop")
    state = torch_sim.initialize_state([frames[0].copy(), far], model.device, model.dtype)
    with pytest.raises(OutsideDomain, match="structure 1: "):
        model(state)


def test_models_that_read_more_than_states_hold_and_a_missing_package_get_a_sentence(
    charged: tuple[Path, Atoms], ensemble: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_sim", reason=NEEDED)
    with pytest.raises(InputError, match="reads charge, tags beside elements and positions"):
        torch_sim_model(charged[0])
    monkeypatch.setattr("hydragnn.ensemble.exporting.package_calculator.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"hydragnn-ensemble\[simulation\]"):
        torch_sim_model(ensemble)
