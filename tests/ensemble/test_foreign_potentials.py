"""Foundation potentials whose wheels hold their weights, as baselines beside a run; the extra ``foreign`` installs them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT

from hydragnn.base import imports
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs.atomic import from_ase
from hydragnn.runs import train
from tests.ensemble.conftest import STRESS, TARGETS, config_of

HERE = "tests.benchmarks.foreign_potentials"


def crystals(count: int) -> list[Any]:
    """Rattled and strained cells of four copper atoms with energy, forces and stress."""
    generator = np.random.default_rng(5)
    frames = []
    for _ in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell @ (np.eye(3) + 0.03 * generator.normal(size=(3, 3))), scale_atoms=True)
        atoms.positions += 0.08 * generator.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_stress()
        frames.append(atoms)
    return frames


def test_foundation_potentials_are_compared_in_the_units_and_zeros_of_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of stress, too; zeros of energies differ by volts."""
    pytest.importorskip("chgnet", reason="the extra foreign is not installed")
    pytest.importorskip("sevenn", reason="the extra foreign is not installed")
    monkeypatch.setattr(imports, "_allowed", {HERE})
    frames = crystals(120)
    graphs = [from_ase(atoms, 4.5, fields=(*TARGETS, STRESS), name=f"{i}") for i, atoms in enumerate(frames)]
    with StoreWriter(tmp_path / "cu.h5", MemoryStore(graphs).fields(), dim=3, attributes={"cutoff": 4.5}) as writer:
        for graph in graphs:
            writer.write(graph)
    config = config_of(tmp_path / "cu.h5", split__train=0.4, train__epochs=10)
    table = config.to_json()
    table["heads"][0] |= {"stress": "stress", "stress_weight": 0.1}
    train(type(config).parse(table), tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their own
        evaluation = build_ensemble(
            [tmp_path / "run"], tmp_path / "ensemble", baselines=[f"{HERE}:chgnet", f"{HERE}:sevennet"]
        )
    for name in ("chgnet", "sevennet"):
        scores = {field: one.baselines[name] for field, one in evaluation.parts["test"].items()}
        assert scores["energy"]["mae"] < 0.5  # eV of four atoms; the zeros are 14 eV away
        assert scores["stress"]["r2"] > 0.5
