"""Recipes on tiny cuts of the real data: what the stores hold, the traps, the campaign files, and wrong inputs."""

import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.config import config_from_table
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.datasets.settings import SplitSettings
from hydragnn.datasets.split import make_split
from hydragnn.graphs import Field, graph_from_arrays
from hydragnn.hpo import read_campaign
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.trial_configs import check_space
from hydragnn.scripts import api
from hydragnn.scripts.recipes import acac, cantilever, fept, judging, terfenol
from hydragnn.scripts.recipes.__main__ import NAMES, recipe
from hydragnn.scripts.recipes.simp import Optimiser, first_density
from hydragnn.scripts.recipes.table import Figure
from hydragnn.scripts.recipes.training import recipe_table
from tests.scripts.raw_data import cut_file, microstructures, rows_of, values

# --- fept ---


def every_fiftieth_class(raw: dict[str, Any]) -> dict[str, Any]:
    """All configurations of one symmetry class in fifty, and the pure cells."""
    iron = (raw["Z"] == 26).sum(axis=1)
    return rows_of(raw, (raw["symmetry_class"] % 50 == 7) | np.isin(iron, (0, 32)))


def test_fept_keeps_every_symmetry_class_in_one_part(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fept, "COMMON", 10)  # the cut has a fiftieth of the cells
    raw = cut_file(real_data / "fept" / "fept_32atoms.npz", tmp_path, every_fiftieth_class)
    cells, _ = fept.read_cells(raw)
    with np.load(raw) as file:
        rows = {row.tobytes(): number for row, number in zip(file["Z"].astype(np.int64), file["symmetry_class"])}
    classes = np.array([rows[row.tobytes()] for row in cells.numbers])
    for number in np.unique(classes):
        assert len(set(cells.part[classes == number])) == 1
    training = classes[cells.part == 0]
    assert len(training) == len(set(training)), "equal labels up to symmetry are trained twice"
    assert set(cells.part) == {0, 1, 2, 3}
    assert (cells.part[np.isin(cells.iron, (*fept.LEFT_OUT, *fept.ENDS))] == 2).all()


def test_fept_store_holds_the_published_charges_and_the_enthalpy_of_mixing(real_data: Path, tmp_path: Path) -> None:
    raw = cut_file(real_data / "fept" / "fept_32atoms.npz", tmp_path, every_fiftieth_class)
    fept.write_store(raw, tmp_path / "fept.h5")
    cells, _ = fept.read_cells(raw)
    graphs = open_store(tmp_path / "fept.h5")
    assert len(graphs) == len(cells.numbers)
    np.testing.assert_array_equal(values(tmp_path / "fept.h5", "charge_transfer"), cells.charge_transfer.reshape(-1))
    pure = np.isin(cells.iron, (0, 32))
    assert np.abs(values(tmp_path / "fept.h5", "enthalpy").reshape(-1)[pure]).max() < 1e-9
    one = graphs.read([0])
    shells = np.bincount(one["shell"].numpy(), minlength=8) // 32
    assert shells.tolist() == [8, 4, 2, 4, 8, 16, 8, 4], "neighbours of every site in its eight shells"


# --- acac ---


def test_acac_store_holds_the_energies_and_forces_of_the_raw_file(real_data: Path, tmp_path: Path) -> None:
    lines = gzip.decompress((real_data / "acac" / "train_300K.xyz.gz").read_bytes()).decode().splitlines()
    frames = [lines[start : start + 17] for start in range(0, 17 * 6, 17)]
    with gzip.open(tmp_path / "train_300K.xyz.gz", "wt") as file:
        file.write("\n".join(itertools.chain(*frames)) + "\n")
    store = acac._store(tmp_path, tmp_path, "300K")
    energies = [float(frame[1].split(" energy=")[1].split()[0]) for frame in frames]
    table = np.array([[float(word) for word in line.split()[1:]] for frame in frames for line in frame[2:]])
    np.testing.assert_array_equal(values(store, "energy").reshape(-1), energies)
    np.testing.assert_allclose(values(store, "forces"), table[:, 3:], rtol=1e-7)
    batch = open_store(store).read(range(6))
    np.testing.assert_array_equal(batch.positions.numpy(), table[:, :3])
    assert not batch.periodic.any(), "a molecule in a large box is not a crystal"


def test_the_frames_that_judge_the_recipe_teach_no_other_configuration_of_acac(real_data: Path, tmp_path: Path) -> None:
    store = open_store(acac._store(real_data / "acac", tmp_path, "300K"))
    splits = [make_split(store, SplitSettings(**recipe_table(name)["split"])) for name in ("acac", "acac-mace")]
    np.testing.assert_array_equal(splits[1].test, splits[0].test)
    assert splits[1].counts == {"train": 425, "valid": 25, "calibration": 0, "test": 50}
    config = config_from_table(recipe_table("acac-mace"), tmp_path / "acac-mace.toml")
    assert config.targets == ["energy", "forces"]


# --- mlearn ---


@pytest.fixture
def grains(real_data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The first sixty microstructures: the raw cut and its store."""

    raw = cut_file(
        real_data / "terfenol" / "terfenol_394.npz",
        tmp_path,
        lambda arrays: microstructures(arrays, np.arange(len(arrays["n_grains"])) < 60),
    )
    terfenol.write_store(raw, tmp_path / "terfenol.h5")
    return raw, tmp_path / "terfenol.h5"


def test_terfenol_judges_every_microstructure_once_and_never_trains_on_it_there(grains: tuple[Path, Path]) -> None:
    _, store = grains
    assert len(open_store(store)) == 60, "one graph per microstructure, whatever the number of measured fields"
    parts = np.stack(
        [
            [values(store, terfenol.part_name(fold, member)).reshape(-1) for member in range(terfenol.MEMBERS)]
            for fold in range(terfenol.FOLDS)
        ]
    )
    held_out = parts == 2
    assert (held_out == held_out[:, :1]).all(), "all members of a fold judge the same microstructures"
    assert (held_out[:, 0].sum(axis=0) == 1).all()
    choosing = (parts == 1).sum(axis=1)
    assert choosing.max() == 1, "no two members of a fold choose their epoch on the same microstructure"


def test_terfenol_labels_are_the_measured_points_and_no_others(grains: tuple[Path, Path]) -> None:
    raw, store = grains
    with np.load(raw) as file:
        points = {
            (int(graph), float(field)): value
            for graph, field, value in zip(file["graph_index"], file["field_kA_per_m"], file["magnetostriction"])
        }
    measurements = {}
    for name, strength in zip(terfenol.TARGETS, terfenol.STRENGTHS):
        column = open_store(store).column(name)
        for graph in np.flatnonzero(column.present):
            measurements[int(graph), float(strength)] = column.values.reshape(-1)[graph]
    assert measurements.keys() == points.keys()
    np.testing.assert_allclose([measurements[key] for key in points], 1e3 * np.array([*points.values()]), rtol=1e-6)


def test_terfenol_orientations_do_not_tell_symmetry_equivalent_crystals_apart() -> None:
    angles = np.random.default_rng(0).uniform(0, 3, (20, 3))
    turned = angles + np.array([0.0, 0.0, np.pi / 2])
    np.testing.assert_allclose(terfenol.orientation_of(turned), terfenol.orientation_of(angles), atol=1e-12)
    assert terfenol.texture_index(np.repeat(angles[:1], 9, axis=0), np.arange(1.0, 10.0)) == pytest.approx(1.0)
    assert terfenol.texture_index(np.random.default_rng(1).uniform(0, 6, (5000, 3)), np.ones(5000)) < 0.3


@pytest.mark.slow
def test_terfenol_ends_in_one_ensemble_by_cross_validation(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_file(
        real_data / "terfenol" / "terfenol_394.npz",
        tmp_path,
        lambda arrays: microstructures(arrays, np.arange(len(arrays["n_grains"])) % 8 == 0),
    )
    parts = [terfenol.part_name(fold, 0) for fold in range(2)]
    fields = [field for field in terfenol.FIELDS if not field.name.startswith("part_") or field.name in parts]
    for name, value in (("FOLDS", 2), ("MEMBERS", 1), ("FIELDS", tuple(fields))):
        monkeypatch.setattr(terfenol, name, value)  # two models, and two without edges
    out = tmp_path / "out"
    terfenol.run(tmp_path, out, epochs=2)
    figures = {figure["what"]: figure["value"] for figure in read_json(out / "results.json")["figures"]}
    coverage = [figures[f"coverage at {strength} kA/m (90 nominal)"] for strength in terfenol.STRENGTHS]
    assert all(0 < value <= 100 for value in coverage)
    assert "CV+ over 2 folds" in (out / "report.html").read_text()
    predictions = api.load(out / "ensemble").predict(open_store(out / "terfenol.h5"))
    assert predictions.ok.all() and set(predictions.fields) == set(terfenol.TARGETS)
    for name in terfenol.TARGETS:
        one = predictions[name]
        assert (one["lower"] <= one["mean"]).all() and (one["mean"] <= one["upper"]).all()


# --- cantilever ---


def test_fresh_cantilevers_are_the_published_ones(real_data: Path) -> None:
    raw = real_data / "cantilever" / "cantilever_196.npz"
    _, solver = cantilever.read_mesh(raw)
    for sample in itertools.islice(cantilever.published_samples(raw), 0, 196, 65):
        ours = solver.displacement(sample.density)
        assert np.abs(ours - sample.displacement).max() < 1e-6 * np.abs(sample.displacement).max()


def test_the_optimiser_of_cantilevers_follows_its_gradient_and_keeps_the_volume(real_data: Path) -> None:
    _, solver = cantilever.read_mesh(real_data / "cantilever" / "cantilever_196.npz")
    density = np.random.default_rng(0).uniform(0.2, 0.9, len(solver.weights))
    slope = solver.slope(density, solver.displacement(density))

    def work(of: np.ndarray) -> float:
        return float(solver.force[solver.nodal[1]] @ solver.displacement(of)[:, 1])

    step = np.zeros(len(density))
    step[2000] = 1e-4
    assert slope[2000] == pytest.approx((work(density + step) - work(density - step)) / 2e-4, rel=1e-4)
    start = first_density(1, solver, 0.4, np.random.default_rng(0))
    states = [*itertools.islice(solver.optimise(start, Optimiser(volume=0.4, radius=0.02, move=0.1)), 4)]
    works = [work(w) for w, _ in states]
    assert works == sorted(works, reverse=True)
    assert all(solver.volume(w) == pytest.approx(0.4, abs=1e-6) for w, _ in states)


def test_cantilevers_that_carry_nothing_are_judged_but_not_trained_on(real_data: Path, tmp_path: Path) -> None:
    raw = real_data / "cantilever" / "cantilever_196.npz"
    mesh, _ = cantilever.read_mesh(raw)
    first = next(cantilever.published_samples(raw))
    broken = np.full_like(first.displacement, 1.0)
    samples = [
        first,
        cantilever.Sample(density=first.density, displacement=broken, part=0, origin=cantilever.TRAINING),
        cantilever.Sample(density=first.density, displacement=broken, part=2, origin=1),
        cantilever.Sample(density=first.density, displacement=first.displacement, part=2, origin=2),
    ]
    store = tmp_path / "cantilever.h5"
    cantilever.write_samples(samples, mesh, store)
    assert values(store, "part").reshape(-1).tolist() == [0, 2, 2]
    carries = judging.carries_load(values(store, "displacement").astype(np.float64).reshape(3, -1, 2))
    assert carries.tolist() == [True, False, True]


def test_many_runs_train_at_early_iterations_and_few_states_of_others_choose_and_calibrate(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {
        "TRAIN_RUNS": 0,
        "TRAIN_RANDOM": 0,
        "EARLY_RUNS": 2,
        "CHOOSING_RUNS": 1,
        "CALIBRATING_RUNS": 2,
        "TEST_RUNS": (),
    }
    for name, value in {**sizes, "TEST_ITERATIONS": 13}.items():
        monkeypatch.setattr(cantilever, name, value)
    _, solver = cantilever.read_mesh(real_data / "cantilever" / "cantilever_196.npz")
    samples = [*cantilever.fresh_samples(solver, seed=0)]
    assert [sample.part for sample in samples] == [0] * 2 * cantilever.EARLY_STATES + [1] * 5 + [3] * 2 * 5
    early, drawn = samples[: 2 * cantilever.EARLY_STATES], samples[2 * cantilever.EARLY_STATES :]
    assert all(sample.iteration < cantilever.EARLY for sample in early)
    assert all(len({sample.iteration for sample in half}) == cantilever.EARLY_STATES for half in (early[:4], early[4:]))
    assert all(len({sample.iteration for sample in drawn[of : of + 5]}) == 5 for of in (0, 5, 10))
    assert max(sample.iteration for sample in drawn) < 13
    for sample in samples[::3]:
        assert np.abs(solver.displacement(sample.density) - sample.displacement).max() < 1e-12


def test_cantilever_validation_rows_of_the_published_file_never_train(real_data: Path) -> None:
    raw = real_data / "cantilever" / "cantilever_196.npz"
    with np.load(raw) as file:
        expected = np.where(file["is_validation"], 2, 0)
    assert [sample.part for sample in cantilever.published_samples(raw)] == expected.tolist()


# --- all of them ---


@pytest.mark.parametrize("name", ["fept", "cantilever"])
def test_a_store_of_an_earlier_version_is_no_evidence(name: str, tmp_path: Path) -> None:
    """Its training part may hold graphs that judge today."""
    part = Field(name="part", on="graph", classes=3, dtype="int64", role="auxiliary")
    with StoreWriter(tmp_path / f"{name}.h5", [part], dim=0) as writer:
        writer.write(
            graph_from_arrays(np.zeros((1, 0)), [], [], fields=[part], graphs={"part": np.zeros(1, dtype=int)})
        )
    with pytest.raises(InputError, match="earlier version of this recipe"):
        {"fept": fept, "cantilever": cantilever}[name].run(tmp_path, tmp_path, None)
    assert not (tmp_path / "members").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_campaign_file_of_a_recipe_is_one(name: str, root: Path) -> None:
    path = root / "scripts" / "recipes" / f"{name}.toml"
    campaign = read_campaign(path)
    assert campaign.search.trials >= 12
    check_space(campaign, space_of(campaign.search.space, campaign.source))
    config = config_from_table(recipe_table(name), path)
    assert config.data.store.parent == path.parent
    fields = {"fept": fept.FIELDS, "terfenol": terfenol.FIELDS, "cantilever": cantilever.FIELDS}.get(name)
    if fields:
        assert set(config.targets) == {field.name for field in fields if field.role == "target"}


def test_a_figure_keeps_its_promise_from_the_right_side() -> None:
    assert Figure(what="error", value=2.9, unit="%", goal=3.0).reached
    assert not Figure(what="error", value=3.1, unit="%", goal=3.0).reached
    assert Figure(what="coverage", value=91.0, unit="%", goal=87.0, at_least=True).reached
    assert Figure(what="no promise", value=1e9, unit="%").reached


def test_unknown_recipes_and_raw_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recipe terfenl; did you mean terfenol"):
        recipe("terfenl", out=tmp_path / "out")
    with pytest.raises(InputError, match=r"the raw data of fept are not at .*--data"):
        recipe("fept", data=tmp_path, out=tmp_path / "out")
    for name in ("cantilever", "terfenol", "fept"):
        (tmp_path / name).mkdir()
        with pytest.raises(InputError, match=r"\.npz; give the folder"):
            recipe(name, data=tmp_path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"PK\x03\x04 cut short", "cannot be read"), (None, "has no array n_grains")]
)
def test_raw_files_that_are_broken_or_others_are_named(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "terfenol" / "terfenol_394.npz"
    path.parent.mkdir()
    if content is None:
        np.savez(path, something=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        recipe("terfenol", data=tmp_path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
