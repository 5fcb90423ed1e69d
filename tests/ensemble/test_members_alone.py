"""Members of an ensemble are models, and load as the runs that they were."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import Ensemble, build_ensemble, calculator


def energy_of(model: Any, atoms: Atoms) -> float:
    copy = atoms.copy()
    copy.calc = calculator(model, outside="record")
    return float(copy.get_potential_energy())


@pytest.mark.parametrize(
    "door",
    [
        lambda folder, atoms: energy_of(folder, atoms),
        lambda folder, atoms: energy_of(str(folder), atoms),
        lambda folder, atoms: energy_of(hydragnn.load(folder), atoms),
        lambda folder, atoms: energy_of(Ensemble.load(folder, dtype=torch.float64), atoms),
    ],
    ids=["calculator", "calculator of a text", "load", "load in double precision"],
)
def test_a_member_has_the_energy_of_its_run(
    door: Callable[[Path, Atoms], float], ensemble: Path, runs: list[Path], frames: list[Atoms]
) -> None:
    for number, run in enumerate(runs):
        assert door(ensemble / "members" / str(number), frames[3]) == pytest.approx(door(run, frames[3]), abs=1e-6)


def test_a_member_predicts_a_store_as_its_run(ensemble: Path, runs: list[Path], store: MemoryStore) -> None:
    own, other = (hydragnn.predict(one, store)["forces"]["mean"] for one in (ensemble / "members" / "1", runs[1]))
    np.testing.assert_allclose(own, other, atol=1e-6)


def test_members_become_an_ensemble_again(
    ensemble: Path, store: MemoryStore, frames: list[Atoms], tmp_path: Path
) -> None:
    members = [ensemble / "members" / number for number in "02"]
    build_ensemble(members, tmp_path / "again", store=store)
    energies = [energy_of(member, frames[0]) for member in members]
    assert min(energies) - 1e-6 <= energy_of(tmp_path / "again", frames[0]) <= max(energies) + 1e-6


def test_a_member_without_its_weights_is_damaged(received: Path) -> None:
    (received / "members" / "0" / "weights.safetensors").unlink()
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        calculator(received / "members" / "0")
    shutil.copyfile(received / "members" / "1" / "weights.safetensors", received / "members" / "0" / "model.json")
    with pytest.raises(InputError, match=r"model\.json"):
        calculator(received / "members" / "0")
