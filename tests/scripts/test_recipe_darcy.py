"""Recipe darcy: grids with levels, fields that train seen both ways round, fresh fields like them, and an ensemble that predicts new files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.datasets import open_store
from hydragnn.graphs import CLUSTERS
from hydragnn.scripts.recipes import darcy, porous
from tests.ensemble.finished import arrays_of
from tests.scripts.raw_data import cut_file

FIELDS = 30


@pytest.fixture
def few(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the first fields of the published file: 16 train, 4 choose, 4 calibrate, 6 judge; 3 fresh ones on finer points."""
    for name, count in {"TRAINING": 16, "VALID": 4, "CALIBRATION": 4, "FRESH": 2, "UNSEEN": 3}.items():
        monkeypatch.setattr(darcy, name, count)
    raw = real_data / "darcy" / darcy.RAW
    return cut_file(raw, tmp_path / "raw", lambda arrays: {name: arrays[name][:FIELDS] for name in "xy"}).parent


def test_darcy_store_has_every_training_field_twice_fresh_ones_and_no_other(few: Path, tmp_path: Path) -> None:
    darcy.write_store(few / darcy.RAW, tmp_path / "darcy.h5")
    store = open_store(tmp_path / "darcy.h5")
    with np.load(few / darcy.RAW, allow_pickle=False) as raw:
        x, y = raw["x"], raw["y"]
    assert len(store) == FIELDS + 16 + 2
    part = store.column("part").values.reshape(-1)
    assert np.bincount(part, minlength=4).tolist() == [34, 4, 6, 4] and (part[FIELDS:] == 0).all()
    for number, graph in ((0, store.read([0])), (FIELDS - 1, store.read([FIELDS - 1]))):
        np.testing.assert_array_equal(graph["permeability"].reshape(16, 16) > 0, x[number])
        np.testing.assert_array_equal(graph["pressure"].reshape(16, 16), y[number])
        coarse = porous.pressure(x[number]).reshape(-1)
        np.testing.assert_allclose(graph["coarse_pressure"].reshape(-1), coarse, rtol=1e-6)
    np.testing.assert_array_equal(store.read([FIELDS + 3])["pressure"].reshape(16, 16).T, y[3])
    graph = store.read([0])
    counts = [len(graph[CLUSTERS][:, level].unique()) for level in range(darcy.LEVELS)]
    assert counts == [64, 16, 4] and graph.num_edges == 2 * (2 * 15 * 16 + 2 * 15 * 15)


def test_darcy_ends_in_an_ensemble_that_predicts_new_fields(few: Path, tmp_path: Path) -> None:
    darcy.run(few, tmp_path / "out", epochs=1)
    figures = read_json(tmp_path / "out" / "results.json")["figures"]
    assert [figure["unit"] for figure in figures] == ["%"] * 5 and figures[0]["goal"] == darcy.GOAL
    for name, error in darcy.simple_errors(tmp_path / "out" / "darcy.h5").items():
        assert f"{name} {error:.3g} %" in figures[0]["beside"]
    assert [figure["what"][-14:] for figure in figures[2:4]] == [
        "16 x 16 points",
        "32 x 32 points",
    ]  # one model, unseen points
    assert all(
        figure["beside"].startswith(start) for figure, start in zip(figures[2:4], ("coarse solve", "solve on these"))
    )
    assert (tmp_path / "out" / "report.html").exists()
    new = tmp_path / "new.npz"
    np.savez(new, x=np.random.default_rng(0).random((3, 16, 16)) < 0.5)
    hydragnn.predict(tmp_path / "out" / "ensemble", new, tmp_path / "said.h5")
    said = arrays_of(tmp_path / "said.h5")
    assert said["status"].tolist() == ["ok"] * 3
    lower, upper = (said[f"fields/pressure/{end}"].reshape(3, -1) for end in ("lower", "upper"))
    outside = said["domain"] != ""  # noise of single points is no porous medium
    assert (lower < upper)[~outside].all() and not (lower >= upper).any()


def test_relative_errors_are_those_of_whole_fields() -> None:
    labels = torch.tensor([[3.0, 4.0], [6.0, 8.0]]).double().numpy()
    assert darcy.relative_l2(labels + np.diag([5.0, 5.0]), labels).tolist() == [100.0, 50.0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda arrays: arrays.pop("x"), "no array x"),
        (lambda arrays: arrays.update(x=arrays["x"][:, :8]), r"x has shape \[30, 8, 16\]"),
        (lambda arrays: arrays.update(x=arrays["x"].astype(float)), "x holds float64 values; give True and False"),
        (lambda arrays: arrays.update(y=arrays["y"][:-1]), "y has shape"),
        (lambda arrays: arrays.update(x=arrays["x"][:10], y=arrays["y"][:10]), "leave none to judge"),
    ],
)
def test_darcy_names_what_is_wrong_with_the_raw_file(
    change: Callable[[dict[str, Any]], object], sentence: str, few: Path, tmp_path: Path
) -> None:
    cut_file(few / darcy.RAW, few, change)
    with pytest.raises(InputError, match=sentence):
        darcy.write_store(few / darcy.RAW, tmp_path / "darcy.h5")
    assert not (tmp_path / "darcy.h5").exists()


def test_pressure_of_one_phase_is_that_of_the_torsion_of_a_square_bar() -> None:
    middle = porous.pressure(np.zeros((64, 64), dtype=bool))[32, 32]
    assert middle == pytest.approx(
        0.0736713 * porous.RATE, rel=1e-3
    )  # Timoshenko and Goodier, Theory of Elasticity, 109
    np.testing.assert_allclose(porous.pressure(np.ones((64, 64), dtype=bool))[32, 32] * porous.CONTRAST, middle)


def test_pressure_turns_with_rows_and_columns_exchanged_and_is_positive() -> None:
    phases = porous.random_phases(32, np.random.default_rng(1))
    values = porous.pressure(phases)
    np.testing.assert_allclose(porous.pressure(phases.T), values.T, rtol=1e-9)
    assert (values > 0).all()


def test_random_phases_are_the_same_field_on_any_number_of_points() -> None:
    fine, coarse = (porous.random_phases(points, np.random.default_rng(3)) for points in (128, 16))
    np.testing.assert_array_equal(fine[::8, ::8], coarse)


def test_fresh_squares_have_the_statistics_of_the_published_ones_that_train(real_data: Path) -> None:
    with np.load(real_data / "darcy" / darcy.RAW, allow_pickle=False) as file:
        x, y = file["x"][: darcy.TRAINING], file["y"][: darcy.TRAINING].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5), axis=(1, 2)).mean(axis=(3, 4))
    middle = y[:, 2:-2, 2:-2]
    around = y[:, 1:-3, 2:-2] + y[:, 3:-1, 2:-2] + y[:, 2:-2, 1:-3] + y[:, 2:-2, 3:-1]
    curvature = (around - 4 * middle) * darcy.POINTS**2
    low, high = -np.median(curvature[windows == 0]), -np.median(curvature[windows == 1])
    assert low == pytest.approx(porous.RATE, rel=2e-3) and low / high == pytest.approx(porous.CONTRAST, rel=2e-3)
    generator = np.random.default_rng(0)
    fresh = np.stack([porous.random_phases(darcy.POINTS, generator) for _ in range(700)])
    for distance in range(1, 5):
        alike = [(fields[..., distance:] == fields[..., :-distance]).mean() for fields in (x, fresh)]
        assert alike[0] == pytest.approx(alike[1], abs=0.015)  # scatter of 700 fields
