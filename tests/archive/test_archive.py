"""Files of earlier versions are read for ever: they are never made anew."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import adios2
import h5py
import numpy as np
import pytest
from ase.io import read

import hydragnn
from hydragnn.datasets import check_store, open_store
from hydragnn.ensemble import Ensemble
from hydragnn.hpo import campaign_history, campaign_records
from hydragnn.runs.folder import name_store
from hydragnn.scripts.report.collect import collect
from hydragnn.scripts.report.facts import error, is_categorical
from tests.ensemble.finished import arrays_of

HERE = Path(__file__).resolve().parent
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/expected.json"))
FINGERPRINT = "14dec59ac01015593c2fb9c690cddcb5"
DIGITS = {"rtol": 1e-7, "atol": 1e-9}  # double precision, on other processors and other versions of torch


@pytest.fixture(scope="module", params=VERSIONS)
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("archive") / request.param
    shutil.copytree(HERE / request.param, place)
    return place


@pytest.fixture
def expected(archive: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((archive / "expected.json").read_text())
    return values


@pytest.fixture(scope="module")
def predictions(archive: Path) -> dict[str, np.ndarray]:
    hydragnn.predict(archive / "ensemble", archive / "store.h5", archive / "today.h5")
    return arrays_of(archive / "today.h5")


@pytest.mark.parametrize("name", ["store-v1.h5", "store-v1.bp"])
def test_stores_of_version_1_hold_the_same_graphs(name: str) -> None:
    store = open_store(HERE / name)
    assert check_store(HERE / name) == []
    assert store.fingerprint == FINGERPRINT
    batch = store.read(range(12))
    assert not batch.present("charge")[3] and batch.counts("edge")[5] == 0
    assert batch.periodic[1].tolist() == [True, False, False]


@pytest.mark.parametrize("name", ["store.h5", "store.bp"])
def test_stores_hold_the_structures_that_they_were_built_of(archive: Path, expected: dict[str, Any], name: str) -> None:
    store, frames = open_store(archive / name), read(archive / "structures.xyz", ":")
    assert check_store(archive / name) == []
    assert store.fingerprint == expected["fingerprint"]
    for key in ("name", "config_type"):
        assert list(store.texts[key]) == [atoms.info[key] for atoms in frames]
    batch = store.read(range(len(frames)))
    np.testing.assert_array_equal(batch.positions, np.concatenate([atoms.positions for atoms in frames]))
    np.testing.assert_array_equal(batch["energy"], [atoms.calc.results["energy"] for atoms in frames])
    assert batch.present("forces").tolist() == ["forces" in atoms.calc.results for atoms in frames]


def test_build_files_give_the_same_store(archive: Path, expected: dict[str, Any]) -> None:
    hydragnn.build_store(archive / "BUILD.toml", archive / "again.h5", quiet=True)
    assert open_store(archive / "again.h5").fingerprint == expected["fingerprint"]


def test_a_run_predicts_and_continues_to_the_losses_of_a_whole_one(archive: Path, expected: dict[str, Any]) -> None:
    energies = hydragnn.load(archive / "run").predict(open_store(archive / "store.h5"))["energy"].mean
    np.testing.assert_allclose(energies, expected["paused"], **DIGITS)
    name_store([archive / "run"], archive / "store.h5")
    record = hydragnn.train(archive / "run", resume=True)
    assert record.status == "finished" and record.curves.keys() == expected["curves"].keys()
    for name, curve in record.curves.items():
        np.testing.assert_allclose(curve, expected["curves"][name], err_msg=name, **DIGITS)


def test_a_branch_of_a_model_predicts_the_same_energies(archive: Path, expected: dict[str, Any]) -> None:
    branch = hydragnn.load(archive / "branches", branch="h5").predict(open_store(archive / "store.h5"))
    np.testing.assert_allclose(branch["energy@h5"].mean, expected["branch"], **DIGITS)


def test_a_campaign_is_read_whole_and_goes_on(archive: Path, expected: dict[str, Any]) -> None:
    campaign = archive / "campaign"
    status = hydragnn.status(campaign)
    assert status.best is not None and [status.best.trial, status.best.value] == expected["best"]
    assert status.trials == expected["statuses"]
    assert {trial.status for trial in campaign_history(campaign).trials} == {"finished", "paused"}
    records = [record for _, record, _ in campaign_records(campaign)]
    assert [record.status for record in records].count("finished") == 2
    result = hydragnn.search(archive / "CAMPAIGN.toml", campaign, resume=True, workers=1, overrides=["search.trials=4"])
    assert sum(result.trials.values()) == 4


def test_an_ensemble_predicts_what_its_files_say(archive: Path, predictions: dict[str, np.ndarray]) -> None:
    for name in ("predictions.npz", "predictions.h5", "view.h5"):
        archived = arrays_of(archive / name)
        assert archived.keys() == predictions.keys()
        for key, values in archived.items():
            if key.startswith("domain"):  # flags of version 1, whose scores were no p-values
                continue
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values, predictions[key], err_msg=f"{name} {key}", **DIGITS)
            else:
                np.testing.assert_array_equal(values, predictions[key], err_msg=f"{name} {key}")


def test_an_ensemble_keeps_its_identity(archive: Path) -> None:
    with h5py.File(archive / "predictions.h5") as file:
        assert Ensemble.load(archive / "ensemble").digest == json.loads(file.attrs["heading"])["ensemble"]


def test_an_ensemble_without_scores_flags_what_is_foreign(archive: Path, predictions: dict[str, np.ndarray]) -> None:
    archived = arrays_of(archive / "predictions.npz")
    alike = np.array(["kinds" not in text and "neighbourhoods" not in text for text in archived["domain"]])
    assert np.isnan(predictions["domain_score"]).all() and all(predictions["domain"][~alike])
    assert "only foreign elements and contacts are flagged" in Ensemble.load(archive / "ensemble").caveat


def test_every_other_file_has_the_same_numbers(archive: Path, predictions: dict[str, np.ndarray]) -> None:
    energies = predictions["fields/energy/mean"]
    with adios2.FileReader(str(archive / "predictions.bp")) as file:
        np.testing.assert_allclose(file.read("fields/energy/mean", step_selection=[0, 1]), energies, **DIGITS)
    with (archive / "predictions.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    np.testing.assert_allclose([float(row["energy_mean"]) for row in rows], energies, **DIGITS)
    assert [row["name"] for row in rows] == predictions["name"].tolist()
    frames = read(archive / "predictions.xyz", ":")
    np.testing.assert_allclose([atoms.calc.results["energy"] for atoms in frames], energies, **DIGITS)
    np.testing.assert_allclose(
        np.concatenate([atoms.calc.results["forces"] for atoms in frames]), predictions["fields/forces/mean"], atol=1e-6
    )


def test_the_evaluation_of_an_ensemble_is_read_as_it_was_written(archive: Path, expected: dict[str, Any]) -> None:
    facts = collect(archive / "ensemble", store=archive / "store.h5")
    for part, fields in expected["evaluation"].items():
        for name, scores in facts.parts[part].scores.items():
            assert [error(scores.ensemble), error(scores.trivial)] == [
                fields[name][who]["error_rate" if is_categorical(scores) else "mae"] for who in ("ensemble", "trivial")
            ]
