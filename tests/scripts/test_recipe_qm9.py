"""Recipe qm9: molecules become a store with parts, and the composition alone is the predictor to beat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.io import read, write
from ase.units import Hartree

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.datasets import open_store
from hydragnn.scripts.recipes import qm9
from tests.ensemble.finished import arrays_of
from tests.scripts.raw_data import cut_file

MOLECULES = 60


@pytest.fixture
def few(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the first molecules of the published file; 48 of them train or choose or calibrate, 12 judge."""
    for name, count in {"TRAINING": 30, "VALID": 8, "CALIBRATION": 10}.items():
        monkeypatch.setattr(qm9, name, count)
    with np.load(real_data / "qm9" / qm9.RAW, allow_pickle=False) as file:
        arrays = {name: file[name] for name in qm9.ARRAYS}
    atoms = arrays["n_atoms"][:MOLECULES].sum()
    lengths = {len(arrays["y"]): MOLECULES, len(arrays["z"]): atoms}
    cut = {name: values[: lengths.get(len(values), len(values))] for name, values in arrays.items()}
    (tmp_path / "raw").mkdir()
    np.savez(tmp_path / "raw" / qm9.RAW, **cut)
    return tmp_path / "raw"


def test_qm9_store_holds_labels_in_electronvolts_and_the_last_molecules_judge(few: Path, tmp_path: Path) -> None:
    reader = open_store(qm9.make_store(few / qm9.RAW, tmp_path / "out"))
    batch = reader.read(range(MOLECULES))
    with np.load(few / qm9.RAW, allow_pickle=False) as raw:
        np.testing.assert_allclose(batch["energy"].numpy().reshape(-1), raw["y"][:, 7] * Hartree, rtol=1e-12)
        np.testing.assert_allclose(batch["gap"].numpy().reshape(-1), raw["y"][:, 4] * Hartree, rtol=1e-6)
        np.testing.assert_allclose(batch["charge"].numpy().reshape(-1), raw["mulliken"], atol=1e-6)
        np.testing.assert_allclose(batch.positions, raw["pos"], atol=1e-6)
    part = batch["part"].numpy().reshape(-1)
    assert np.bincount(part, minlength=4).tolist() == [30, 8, 12, 10] and (part[48:] == 2).all()
    assert not batch.periodic.any()


def test_qm9_composition_alone_predicts_what_is_a_sum_over_elements(few: Path, tmp_path: Path) -> None:
    with np.load(few / qm9.RAW, allow_pickle=False) as raw:
        arrays = {name: raw[name] for name in raw.files}
    owner = np.repeat(np.arange(MOLECULES), arrays["n_atoms"])
    arrays["y"][:, 7] = np.bincount(owner, weights=arrays["z"]) - 3.0
    arrays["mulliken"] = np.where(arrays["z"] == 8, -0.5, 0.1).astype(np.float32)
    np.savez(few / qm9.RAW, **arrays)
    errors = qm9.errors_of_composition(qm9.make_store(few / qm9.RAW, tmp_path / "out"))
    assert errors["energy"] < 1e-6 and errors["charge"] < 1e-6 and errors["gap"] > 0.1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda arrays: arrays.pop("mulliken"), "no array mulliken"),
        (lambda arrays: arrays.update(y_names=np.array(["a"] * 15)), "no column InternalEnergy_0K_au"),
        (lambda arrays: arrays.update(z=arrays["z"][:-1]), "z has shape"),
        (lambda arrays: arrays.update(n_atoms=arrays["n_atoms"][:-1]), "n_atoms has shape"),
    ],
)
def test_qm9_names_what_is_wrong_with_the_raw_file(
    change: Callable[[dict[str, Any]], object], sentence: str, few: Path, tmp_path: Path
) -> None:
    cut_file(few / qm9.RAW, few, change)
    with pytest.raises(InputError, match=sentence):
        qm9.make_store(few / qm9.RAW, tmp_path / "out")
    assert not (tmp_path / "out" / "qm9.h5").exists()


def test_qm9_says_that_a_short_file_has_none_to_judge(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qm9, "TRAINING", MOLECULES)
    with pytest.raises(InputError, match="leave none to judge"):
        qm9.make_store(few / qm9.RAW, tmp_path / "out")


def test_qm9_ends_in_a_table_a_report_and_predictions_of_any_molecule(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    qm9.run(few, out, 2)
    first = read_json(out / "results.json")
    assert [figure["unit"] for figure in first["figures"]] == ["meV", "%", "meV", "%", "e", "%"]
    assert (out / "report.html").exists()
    molecule = read(out / "molecules.xyz", index=0)
    molecule.info, molecule.calc = {}, None
    del molecule.arrays["mulliken"]
    write(tmp_path / "new.xyz", molecule)
    hydragnn.predict(out / "ensemble", tmp_path / "new.xyz", tmp_path / "new.h5")
    assert arrays_of(tmp_path / "new.h5")["status"].tolist() == ["ok"]
    qm9.run(few, out, 2)
    assert read_json(out / "results.json")["figures"] == first["figures"]
