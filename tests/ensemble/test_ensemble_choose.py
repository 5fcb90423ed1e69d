"""From the runs of a campaign to an ensemble in one call."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json, write_sealed
from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import Ensemble, ensemble_from_runs, evaluate_ensemble
from hydragnn.record import read_record


def test_the_best_runs_become_members_best_first(runs: list[Path], tmp_path: Path) -> None:
    evaluation = ensemble_from_runs(runs, tmp_path / "ensemble", top_k=2)
    manifest = read_json(tmp_path / "ensemble" / "ensemble.json")
    losses = {run.name: read_record(run).best["valid/loss"] for run in runs}
    assert [member["name"] for member in manifest["members"]] == sorted(losses, key=losses.__getitem__)[:2]
    assert [member["weight"] for member in manifest["members"]] == [0.5, 0.5]
    assert set(manifest["selection"]["diversity"]) == {"energy", "forces"}
    assert set(evaluation.parts) == {"valid", "test"}


def test_runs_of_a_campaign_keep_the_order_of_its_objective(runs: list[Path], tmp_path: Path) -> None:
    ensemble_from_runs(runs[::-1], tmp_path / "ensemble", top_k=2, campaign=tmp_path / "campaign")
    manifest = read_json(tmp_path / "ensemble" / "ensemble.json")
    assert [member["name"] for member in manifest["members"]] == ["0002", "0001"]
    assert manifest["selection"]["campaign"] == "campaign"


def test_greedy_selection_weighs_its_members(runs: list[Path], tmp_path: Path) -> None:
    ensemble_from_runs(runs, tmp_path / "ensemble", top_k=3, method="greedy")
    ensemble = Ensemble.load(tmp_path / "ensemble")
    assert ensemble.weights.sum() == pytest.approx(1.0)
    trace = ensemble.manifest.selection["trace"]
    assert min(trace) <= trace[0]


def test_an_ensemble_is_judged_on_any_labelled_store(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    evaluation = ensemble_from_runs(runs, tmp_path / "ensemble", top_k=3)
    ensemble = Ensemble.load(tmp_path / "ensemble")
    with_arrays = evaluation.parts["test"]["forces"].ensemble
    from hydragnn.datasets import make_split

    test = make_split(store, ensemble.members[0].config.split).test
    again = evaluate_ensemble(ensemble, store, test)
    assert again.parts["all"]["forces"].ensemble == pytest.approx(with_arrays)
    assert again.parts["all"]["forces"].trivial["rmse"] is None
    with pytest.raises(InputError, match="a run alone has no calibrated uncertainty"):
        evaluate_ensemble(Ensemble.load(runs[0]), store, test)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"top_k": 4}, "exceeds the 3 finished runs"),
        ({"top_k": 4, "method": "greedy"}, "exceeds the 3 finished runs"),
        ({"method": "gredy"}, "did you mean greedy"),
        ({"by": "valid/energy/rms", "top_k": 1}, "did you mean valid/energy/rmse"),
        ({"nominal": 90.0, "top_k": 1}, "fraction between 0 and 1"),
    ],
    ids=["k above the runs", "k above the runs, greedy", "misspelled method", "misspelled metric", "level in percent"],
)
def test_impossible_wishes_are_refused_and_leave_nothing(
    runs: list[Path], tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        ensemble_from_runs(runs, tmp_path / "ensemble", **options)
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_model_is_refused(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(InputError, match="holds no trained model"):
        ensemble_from_runs([tmp_path / "run"], tmp_path / "ensemble", top_k=1)


def test_a_run_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"record\.json does not exist"):
        ensemble_from_runs([tmp_path / "nowhere"], tmp_path / "ensemble", top_k=1)


def test_runs_that_did_not_finish_do_not_count(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    write_sealed(tmp_path / "run" / "record.json", {**record, "status": "paused"})
    with pytest.raises(InputError, match="exceeds the 1 finished runs of 2"):
        ensemble_from_runs([runs[1], tmp_path / "run"], tmp_path / "ensemble", top_k=2)
