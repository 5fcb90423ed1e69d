"""Evaluation of an ensemble on any labelled store, and runs of which none can be built."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.ensemble import Ensemble, build_ensemble, evaluate_ensemble


def test_an_ensemble_is_evaluated_on_any_labelled_store(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    evaluation = build_ensemble(runs, tmp_path / "ensemble")
    ensemble = Ensemble.load(tmp_path / "ensemble")
    assert set(ensemble.manifest.selection["diversity"]) == {"energy", "forces"}
    test = make_split(store, ensemble.members[0].config.split).test
    again = evaluate_ensemble(ensemble, store, test)
    assert again.parts["all"]["forces"].ensemble == pytest.approx(evaluation.parts["test"]["forces"].ensemble)
    assert again.parts["all"]["forces"].trivial["rmse"] is None
    with pytest.raises(InputError, match="a run alone has no calibrated uncertainty"):
        evaluate_ensemble(Ensemble.load(runs[0]), store, test)


@pytest.mark.parametrize(
    "run, options, words",
    [
        ("whole", {"nominal": 90.0}, "fraction between 0 and 1"),
        ("without a model", {}, "holds no trained model"),
        ("nowhere", {}, r"record\.json does not exist"),
    ],
)
def test_impossible_ensembles_are_refused_and_leave_nothing(
    run: str, options: dict[str, Any], words: str, runs: list[Path], tmp_path: Path
) -> None:
    if run != "nowhere":
        shutil.copytree(runs[0], tmp_path / run)
    if run == "without a model":
        shutil.rmtree(tmp_path / run / "model")
    with pytest.raises(InputError, match=words):
        build_ensemble([tmp_path / run], tmp_path / "ensemble", **options)
    assert {path.name for path in tmp_path.iterdir()} <= {run}
