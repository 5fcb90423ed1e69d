"""Recipe darcy: grids with levels, fields that train seen both ways round, and an ensemble that predicts new files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.datasets import open_store
from hydragnn.errors import InputError
from hydragnn.files import read_json
from hydragnn.graphs import CLUSTERS
from hydragnn.scripts.recipes import darcy

FIELDS = 30


@pytest.fixture
def few(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the first fields of the published file: 16 train, 4 choose, 4 calibrate, 6 judge."""
    for name, count in {"TRAINING": 16, "VALID": 4, "CALIBRATION": 4}.items():
        monkeypatch.setattr(darcy, name, count)
    with np.load(real_data / "darcy" / darcy.RAW, allow_pickle=False) as file:
        arrays = {name: file[name][:FIELDS] for name in ("x", "y")}
    (tmp_path / "raw").mkdir()
    np.savez(tmp_path / "raw" / darcy.RAW, **arrays)
    return tmp_path / "raw"


def test_darcy_store_has_every_training_field_twice_and_no_other(few: Path, tmp_path: Path) -> None:
    darcy.write_store(few / darcy.RAW, tmp_path / "darcy.h5")
    store = open_store(tmp_path / "darcy.h5")
    with np.load(few / darcy.RAW, allow_pickle=False) as raw:
        x, y = raw["x"], raw["y"]
    assert len(store) == FIELDS + 16
    part = store.column("part").values.reshape(-1)
    assert np.bincount(part, minlength=4).tolist() == [32, 4, 6, 4] and (part[FIELDS:] == 0).all()
    for number, graph in ((0, store.read([0])), (FIELDS - 1, store.read([FIELDS - 1]))):
        np.testing.assert_array_equal(graph["permeability"].reshape(16, 16) > 0, x[number])
        np.testing.assert_array_equal(graph["pressure"].reshape(16, 16), y[number])
    np.testing.assert_array_equal(store.read([FIELDS + 3])["pressure"].reshape(16, 16).T, y[3])
    graph = store.read([0])
    counts = [len(graph[CLUSTERS][:, level].unique()) for level in range(darcy.LEVELS)]
    assert counts == [64, 16, 4] and graph.num_edges == 2 * (2 * 15 * 16 + 2 * 15 * 15)


def test_darcy_ends_in_an_ensemble_that_predicts_new_fields(few: Path, tmp_path: Path) -> None:
    darcy.run(few, tmp_path / "out", epochs=1)
    figures = read_json(tmp_path / "out" / "results.json")["figures"]
    assert [figure["unit"] for figure in figures] == ["%"] * 3 and figures[0]["goal"] == darcy.GOAL
    simple = darcy.error_of_mean(tmp_path / "out" / "darcy.h5")
    assert f"mean field {simple:.3g} %" in figures[0]["beside"]
    assert (tmp_path / "out" / "report.html").exists()
    new = tmp_path / "new.npz"
    np.savez(new, x=np.random.default_rng(0).random((3, 16, 16)) < 0.5)
    hydragnn.predict(tmp_path / "out" / "ensemble", new, tmp_path / "said.npz")
    with np.load(tmp_path / "said.npz") as said:
        assert said["status"].astype(str).tolist() == ["ok"] * 3
        assert (said["fields/pressure/lower"] < said["fields/pressure/upper"]).all()


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
    with np.load(few / darcy.RAW, allow_pickle=False) as raw:
        arrays = {name: raw[name] for name in raw.files}
    change(arrays)
    np.savez(few / darcy.RAW, **arrays)
    with pytest.raises(InputError, match=sentence):
        darcy.write_store(few / darcy.RAW, tmp_path / "darcy.h5")
    assert not (tmp_path / "darcy.h5").exists()
