"""Recipes on tiny cuts of the real data, from the raw file to an ensemble with intervals, a report, and predictions of new files."""

from pathlib import Path

import numpy as np
import pytest

import hydragnn
from hydragnn.base.files import read_json
from hydragnn.scripts.recipes import cantilever, fept
from tests.ensemble.finished import arrays_of
from tests.scripts.raw_data import Arrays, cut_file, rows_of


def check_predictions(ensemble: Path, new: Path, field: str, graphs: int) -> None:
    """A new file, as raw as can be, is predicted with intervals."""
    hydragnn.predict(ensemble, new, new.with_name("predictions.h5"))
    said = arrays_of(new.with_name("predictions.h5"))
    assert said["status"].tolist() == ["ok"] * graphs
    lower, upper = said[f"fields/{field}/lower"], said[f"fields/{field}/upper"]
    assert ((lower < upper) | (np.isnan(lower) & np.isnan(upper))).all()  # unknown far outside the training data
    assert np.isfinite(said["domain_score"]).all()


def check_end(out: Path, rows: tuple[str, ...], field: str) -> None:
    """The ensemble is calibrated on a part of its own and evaluated row by row, and there is a report."""
    calibration = read_json(out / "ensemble" / "ensemble.json")["calibration"][field]
    assert calibration["part"] == "calibration"
    evaluation = read_json(out / "ensemble" / "evaluation.json")
    scores = [evaluation["parts"][row][field]["ensemble"] for row in rows]
    assert all(0 <= one["coverage"] <= 1 if one["unknown"] < 1 else "coverage" not in one for one in scores)
    assert set(rows) < set(evaluation["domain"]["flagged"])
    figures = [figure["what"] for figure in read_json(out / "results.json")["figures"]]
    assert all(any(row in figure and "coverage" in figure for figure in figures) for row in rows)
    assert all(any(row in figure and "flagged" in figure for figure in figures) for row in rows)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(row in page for row in rows)


@pytest.mark.slow
def test_fept_ends_in_an_ensemble_that_predicts_new_cells(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def classes(arrays: Arrays) -> Arrays:
        ends = np.isin((arrays["Z"] == 26).sum(axis=1), (0, 32))
        return rows_of(arrays, (arrays["symmetry_class"] % 60 == 7) | ends)

    data = cut_file(real_data / "fept" / "fept_32atoms.npz", tmp_path / "fept", classes).parent
    monkeypatch.setattr(fept, "COMMON", 10)
    monkeypatch.setattr(fept, "MEMBERS", 2)
    monkeypatch.setattr(fept, "sharing_costs", lambda *_: ({}, []))
    fept.run(data, tmp_path / "out", epochs=1)
    check_end(tmp_path / "out", fept.SUBSETS, "moment")
    cells = np.random.default_rng(0).choice([26, 78], size=(5, 32))
    np.savez(tmp_path / "new.npz", Z=cells)
    check_predictions(tmp_path / "out" / "ensemble", tmp_path / "new.npz", "enthalpy", graphs=5)


@pytest.mark.slow
def test_cantilever_ends_in_an_ensemble_that_predicts_new_densities(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = cut_file(
        real_data / "cantilever" / "cantilever_196.npz",
        tmp_path / "cantilever",
        lambda arrays: rows_of(arrays, np.arange(196) % 28 == 4),
    ).parent
    small = {"TRAIN_RUNS": 1, "CHOOSING_RUNS": 1, "CALIBRATING_RUNS": 1, "TRAIN_RANDOM": 1, "EARLY_RUNS": 1}
    for name, value in {**small, "ITERATIONS": (4, 6), "TEST_ITERATIONS": 13, "MEMBERS": 2}.items():
        monkeypatch.setattr(cantilever, name, value)
    cantilever.run(data, tmp_path / "out", epochs=1)
    check_end(tmp_path / "out", cantilever.COVERED, "displacement")
    np.savez(tmp_path / "new.npz", w=np.random.default_rng(0).uniform(0.3, 0.9, (2, 4961)))
    check_predictions(tmp_path / "out" / "ensemble", tmp_path / "new.npz", "displacement", graphs=2)
