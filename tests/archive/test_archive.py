"""What version 1 wrote is read for ever: these files are never made anew."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig, read_config
from hydragnn.datasets import check_store, open_store
from hydragnn.graphs import volumes
from hydragnn.hpo import campaign_history, read_campaign
from hydragnn.models import load_model
from hydragnn.record import read_record
from hydragnn.runs import train

HERE = Path(__file__).resolve().parent
EXPECTED = json.loads((HERE / "expected-v1.json").read_text())
STORE = HERE / "graphs-v1.h5"
CONFIGURATIONS = sorted(path.stem for path in (HERE / "configurations-v1").glob("*.toml") if path.stem != "campaign")
MODELS = sorted(path.name for path in (HERE / "models-v1").iterdir())
FOLDERS = {name: HERE / "models-v1" / name for name in MODELS} | {
    "run": HERE / "run-v1",
    "interrupted run": HERE / "interrupted-run-v1",
    "ensemble": HERE / "ensemble-v1",
}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
"""Other processors and libraries round double precision differently, by less than this."""


@pytest.fixture(scope="module")
def predictions() -> dict[str, dict[str, np.ndarray]]:
    """What version 1 said about its store, by folder and then by field and quantity; a stress without a volume was zero then."""
    graphs = open_store(STORE)
    flat = (volumes(graphs.read(range(len(graphs)))) == 0).numpy()
    actual: dict[str, dict[str, np.ndarray]] = {}
    with np.load(HERE / "predictions-v1.npz") as arrays:
        for name in arrays.files:
            folder, _, rest = name.partition("/")
            values = actual.setdefault(folder, {})[rest] = arrays[name]
            if rest.startswith("stress/"):
                assert not values[flat].any()
                values[flat] = np.nan
    return actual


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A copy of the campaign whose runs find the store in this folder; they were trained on /data/graphs-v1.h5."""
    copy = tmp_path / "campaign-v1"
    shutil.copytree(HERE / "campaign-v1", copy)
    for path in copy.rglob("*.json"):
        path.write_text(path.read_text().replace("/data/graphs-v1.h5", str(STORE)))
    return copy


@pytest.mark.parametrize("name", ["store-v1.h5", "store-v1.bp"])
def test_stores_of_version_1_hold_the_same_graphs(name: str) -> None:
    store = open_store(HERE / name)
    assert check_store(HERE / name) == []
    assert store.fingerprint == EXPECTED["fingerprint"]
    batch = store.read(range(12))
    assert not batch.present("charge")[3] and batch.counts("edge")[5] == 0
    assert batch.periodic[1].tolist() == [True, False, False]


def test_models_of_version_1_predict_the_same_numbers() -> None:
    model = load_model(HERE / "model-v1", dtype=torch.float64)
    output = model.predict(open_store(HERE / "store-v1.h5").read(range(12)))
    for name, values in (
        ("energy", output["energy"].mean),
        ("charge", output["charge"].mean),
        ("charge_variance", output["charge"].variance),
    ):
        # other processors and libraries round differently; a changed format or formula is not a matter of rounding
        torch.testing.assert_close(values, torch.tensor(EXPECTED[name], dtype=torch.float64), rtol=1e-7, atol=1e-9)


def test_the_store_of_version_1_is_the_one_that_its_runs_were_trained_on() -> None:
    assert check_store(STORE) == []
    assert open_store(STORE).fingerprint == read_record(HERE / "run-v1").data_hash


@pytest.mark.parametrize("name", FOLDERS)
def test_runs_and_ensembles_of_version_1_predict_the_same_numbers(
    name: str, predictions: dict[str, dict[str, np.ndarray]]
) -> None:
    output = hydragnn.load(FOLDERS[name]).predict(open_store(STORE))
    assert output.ok.all()
    assert {key.split("/")[0] for key in predictions[name]} == set(output.fields)
    for key, expected in predictions[name].items():
        field, quantity = key.split("/")
        if claims_nothing_today(key, expected):
            expected = np.full_like(expected, np.nan)
        assert_allclose(output[field][quantity], expected, **CLOSE, err_msg=key)


def claims_nothing_today(key: str, values: np.ndarray) -> bool:
    """Return True for the standard deviation of 0 that single runs claimed."""
    return key.endswith("/std") and not np.nan_to_num(values).any()


def test_runs_of_version_1_say_how_they_ended() -> None:
    assert {name: read_record(HERE / "models-v1" / name).status for name in MODELS} == dict.fromkeys(MODELS, "finished")
    finished, interrupted = read_record(HERE / "run-v1"), read_record(HERE / "interrupted-run-v1")
    assert (finished.status, finished.epochs, len(finished.curves["valid/loss"])) == ("finished", 3, 3)
    assert (interrupted.status, interrupted.epochs) == ("paused", 2)
    # both were begun alike, and the curve of the one that was interrupted is the beginning of the other's
    assert interrupted.curves["valid/loss"] == finished.curves["valid/loss"][:2]


@pytest.mark.parametrize("name", ["ensemble", "interrupted run"])
def test_predict_writes_what_version_1_said(
    name: str, tmp_path: Path, predictions: dict[str, dict[str, np.ndarray]]
) -> None:
    summary = hydragnn.predict(FOLDERS[name], STORE, tmp_path / "said.npz")
    assert (summary.graphs, summary.failed) == (16, 0)
    with np.load(tmp_path / "said.npz") as output:
        for key, expected in predictions[name].items():
            if claims_nothing_today(key, expected):
                assert f"fields/{key}" not in output
            else:
                assert_allclose(output[f"fields/{key}"], expected, **CLOSE, err_msg=key)


def test_status_reads_a_journal_of_version_1() -> None:
    actual = hydragnn.status(HERE / "campaign-v1")
    counts = {name: count for name, count in actual.trials.items() if count}
    assert (actual.status, actual.planned) == ("stopped", 9)
    assert counts == {"finished": 3, "paused": 3, "failed": 2, "waiting": 1}
    assert [(rung.epochs, rung.reached) for rung in actual.rungs] == [(2, 6), (4, 3)]


def test_the_history_of_a_campaign_of_version_1_is_unchanged() -> None:
    trials = campaign_history(HERE / "campaign-v1").trials
    content = [(trial.number, trial.status, trial.attempts, (trial.failure or "").split(":")[0]) for trial in trials]
    assert content == [
        (0, "finished", 2, ""),
        (1, "failed", 1, "diverged"),
        (2, "finished", 3, ""),
        (3, "failed", 1, "diverged"),
        (4, "paused", 1, ""),
        (5, "finished", 2, ""),
        (6, "paused", 1, ""),
        (7, "paused", 1, ""),
        (8, "waiting", 1, "preempted"),
    ]
    assert all(trial.rungs == {} for trial in trials if trial.status in ("failed", "waiting"))


def test_an_ensemble_is_made_of_a_campaign_of_version_1_as_it_was_then(
    campaign: Path, tmp_path: Path, predictions: dict[str, dict[str, np.ndarray]]
) -> None:
    hydragnn.build_ensemble(campaign, tmp_path / "ensemble", top_k=3)
    output = hydragnn.load(tmp_path / "ensemble").predict(open_store(STORE))
    for key, expected in predictions["ensemble"].items():
        field, quantity = key.split("/")
        assert_allclose(output[field][quantity], expected, **CLOSE, err_msg=key)


@pytest.mark.parametrize("name", ["run-v1", "interrupted-run-v1"])
def test_a_run_of_version_1_is_not_resumed_because_its_checkpoints_are_pickles(name: str, tmp_path: Path) -> None:
    run = tmp_path / name
    shutil.copytree(HERE / name, run)
    config = RunConfig.parse(json.loads((run / "config.json").read_text()))
    sentence = r"as a pickle, .* is not read any more; .*\(hydragnn predict .*new run in another folder"
    with pytest.raises(InputError, match=sentence):
        train(config, run, resume=True, store=open_store(STORE))


def test_a_campaign_of_version_1_goes_on_and_the_trial_with_a_pickled_checkpoint_begins_anew(
    campaign: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(HERE / "campaign-v1.toml", tmp_path)
    (tmp_path / "graphs-v1.h5").symlink_to(STORE)
    for path in campaign.rglob("*.json"):
        path.write_text(path.read_text().replace(str(STORE), str(tmp_path / "graphs-v1.h5")))
    actual = hydragnn.search(tmp_path / "campaign-v1.toml", campaign, resume=True, workers=1, quiet=False)
    assert actual.ending == "finished" and actual.failed == 2  # those two had diverged before
    assert "trial(s) 8 will begin anew when they go on" in capfd.readouterr().err
    trial = campaign / "trials" / "0008"
    assert "they are in checkpoints.pickled-1 now, and training begins anew" in (trial / "log.txt").read_text()
    assert (trial / "checkpoints.pickled-1" / "000001-000001" / ".metadata").exists()
    assert (
        read_record(trial).epochs in (2, 4)
        and len(read_record(trial).curves["valid/loss"]) == read_record(trial).epochs
    )
    assert json.loads((campaign / "campaign.json").read_text())["version"] == 1
    models = [json.loads(path.read_text())["model"] for path in campaign.glob("trials/*/config.json")]
    assert {model.get("norm", "paper") for model in models if model["kind"] == "painn"} == {"paper"}


@pytest.mark.parametrize("name", ["campaign-v1", "ensemble-v1", "run-v1", "interrupted-run-v1"])
def test_reports_are_written_of_what_version_1_left(name: str, tmp_path: Path) -> None:
    page = hydragnn.report(HERE / name, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "energy" in page and "</html>" in page


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_every_key_of_a_configuration_of_version_1_is_understood(kind: str) -> None:
    path = HERE / "configurations-v1" / f"{kind}.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    content["data"]["store"] = str(path.parent / content["data"]["store"])
    assert_contains(read_config(path).to_json(), content)


def test_every_key_of_a_search_of_version_1_is_understood() -> None:
    path = HERE / "configurations-v1" / "campaign.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    content["data"]["store"] = str(path.parent / content["data"]["store"])
    content["search"]["warm_start"] = [str(path.parent / folder) for folder in content["search"]["warm_start"]]
    assert_contains(read_campaign(path).to_json(), content)


def assert_contains(actual: Any, content: Any, where: str = "") -> None:
    """Everything that ``content`` says is in ``actual``, which may say more."""
    if isinstance(content, dict):
        for key, value in content.items():
            assert_contains(actual[key], value, f"{where}.{key}")
    elif isinstance(content, list):
        assert len(actual) == len(content), where
        for number, value in enumerate(content):
            assert_contains(actual[number], value, f"{where}.{number}")
    else:
        assert actual == content, where
