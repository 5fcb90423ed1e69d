"""Recipe mlearn: frames of six elements become a store, and are judged per cell and per atom."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from ase.io import read
from ase.units import GPa

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.base.settings import with_overrides
from hydragnn.config import config_from_table, stored_config
from hydragnn.datasets import make_split, open_store
from hydragnn.scripts.recipes import mlearn
from hydragnn.scripts.recipes.training import recipe_table
from tests.scripts.raw_data import values


def write_first_frames(real_data: Path, count: int, path: Path) -> list[str]:
    """Write the first frames of lithium as a file of the same layout; give its lines."""
    lines = gzip.decompress((real_data / "mlearn" / "Li_train.extxyz.gz").read_bytes()).decode().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("Lattice=")]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines[: starts[count] - 1]) + "\n")
    return lines[: starts[count] - 1]


def test_mlearn_store_holds_the_crystals_energies_forces_and_stress_of_the_raw_file(
    real_data: Path, tmp_path: Path
) -> None:
    lines = write_first_frames(real_data, 3, tmp_path / "Li_train.extxyz.gz")
    store = mlearn.make_store(tmp_path / "Li_train.extxyz.gz", tmp_path / "frames.h5")
    energies = [float(line.split(" energy=")[1].split()[0]) for line in lines if line.startswith("Lattice=")]
    atoms = np.array([[float(word) for word in line.split()[1:]] for line in lines if line.startswith("Li ")])
    np.testing.assert_array_equal(values(store, "energy").reshape(-1), energies)
    np.testing.assert_allclose(values(store, "forces"), atoms[:, 3:], rtol=1e-6)
    virials = [line.split('virial_kbar="')[1].split('"')[0].split() for line in lines if line.startswith("Lattice=")]
    stress = values(store, "stress")[:, [0, 1, 2, 0, 1, 0], [0, 1, 2, 1, 2, 2]]  # in the order of lithium's file
    np.testing.assert_allclose(stress, -0.1 * GPa * np.array(virials, dtype=float), rtol=1e-6)
    batch = open_store(store).read(range(3))
    assert batch.periodic.all() and batch.dim == 3
    assert open_store(store).attributes["cutoff"] == mlearn.cutoff_of("Li") > mlearn.cutoff_of("Cu")


@pytest.mark.parametrize("element", ["Mo", "Cu", "Ni", "Si", "Ge"])
def test_mlearn_gives_sheared_crystals_the_stress_of_their_own_shear(
    element: str, real_data: Path, tmp_path: Path
) -> None:
    store = mlearn.make_store(real_data / "mlearn" / f"{element}_train.extxyz.gz", tmp_path / "frames.h5")
    frames = read(tmp_path / f"{element}_train.extxyz", ":")
    sheared = 0
    for atoms, stress in zip(frames, values(store, "stress"), strict=True):
        strain = atoms.cell.array / np.cbrt(atoms.get_volume()) - np.eye(3)
        shears, off = (strain + strain.T)[[1, 0, 0], [2, 2, 1]], stress[[1, 0, 0], [2, 2, 1]]
        if np.abs(strain).max() < 0.3 and np.abs(shears).max() > 0.02 and np.count_nonzero(np.abs(shears) > 0.004) == 1:
            sheared += 1
            assert np.abs(off).argmax() == np.abs(shears).argmax()
            assert off[np.abs(off).argmax()] * shears[np.abs(shears).argmax()] > 0, "a crystal resists its shear"
    assert sheared > 9


@pytest.mark.parametrize(
    ("content", "sentence"), [(None, "give the folder"), (b"no gzip", "cannot be read"), (b"\x1f\x8b\x08", "cannot be")]
)
def test_mlearn_names_frames_that_are_absent_or_broken(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "Li_train.extxyz.gz"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        mlearn.make_store(file, tmp_path / "out" / "frames.h5")
    assert not (tmp_path / "out").exists()


def test_mlearn_trains_fewer_epochs_where_there_are_more_atoms(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlearn, "ATOMS", {"painn": 14000, "mace": 7000})
    epochs = {}
    for count in (10, 20):
        write_first_frames(real_data, count, tmp_path / "Li_train.extxyz.gz")
        store = mlearn.make_store(tmp_path / "Li_train.extxyz.gz", tmp_path / f"{count}.h5")
        epochs[count] = [mlearn.epochs_for(store, element) for element in ("Mo", "Cu")]
    assert epochs == {count: [round(atoms / (0.8 * count * 53)) for atoms in (7000, 14000)] for count in (10, 20)}


@pytest.mark.parametrize("element", mlearn.PUBLISHED)
def test_mlearn_has_a_form_for_every_element_that_can_be_trained(element: str, real_data: Path, tmp_path: Path) -> None:
    write_first_frames(real_data, 10, tmp_path / "Li_train.extxyz.gz")
    store = mlearn.make_store(tmp_path / "Li_train.extxyz.gz", tmp_path / "frames.h5")
    table = with_overrides(recipe_table("mlearn"), mlearn.form_of(element))
    config = config_from_table({**table, "data": {"store": str(store)}}, store)
    assert config.model.kind == ("mace" if element in mlearn.MACE else "painn")
    assert config.model.cutoff == mlearn.cutoff_of(element)


def test_mlearn_lets_one_of_ten_neighbouring_frames_judge_and_another_choose_the_epoch(
    real_data: Path, tmp_path: Path
) -> None:
    write_first_frames(real_data, 33, tmp_path / "Li_train.extxyz.gz")
    parts = values(mlearn.make_store(tmp_path / "Li_train.extxyz.gz", tmp_path / "frames.h5"), "part").reshape(-1)
    for start in (0, 10, 20):
        assert sorted(parts[start : start + 10]) == [0] * 8 + [1, 2]
    assert sorted(parts[30:]) == [0, 1, 2]
    assert len({tuple(parts[start : start + 10]) for start in (0, 10, 20)}) > 1, "places in the block are drawn"


def test_mlearn_counts_errors_per_cell_and_per_atom_of_frames_that_nobody_saw_and_resumes(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlearn, "PUBLISHED", {"Li": mlearn.PUBLISHED["Li"]})
    monkeypatch.setattr(mlearn, "MACE", ())  # whose compiled steps take a minute
    write_first_frames(real_data, 20, tmp_path / "Li_train.extxyz.gz")
    out = tmp_path / "out"
    mlearn.run(tmp_path, out, 2)
    first = read_json(out / "results.json")
    store = open_store(out / "Li" / mlearn.STORE)
    config = stored_config(out / "Li" / "members" / "0" / "config.json")
    assert config.model.cutoff == mlearn.cutoff_of("Li")
    held_out = make_split(store, config.branches[0].split).test
    energies = hydragnn.load(out / "Li" / "ensemble").predict(store)["energy"]["mean"].reshape(-1)
    errors = np.abs(energies - store.column("energy").values.reshape(-1))[held_out]
    per_cell, per_atom = first["figures"][:2]
    assert len(held_out) == 2 and per_cell["value"] == pytest.approx(errors.mean()) and per_cell["unit"] == "eV"
    assert per_atom["value"] == pytest.approx(1e3 * (errors / store.sizes().nodes[held_out]).mean())
    mlearn.run(tmp_path, out, 2)
    assert read_json(out / "results.json")["figures"] == first["figures"]
