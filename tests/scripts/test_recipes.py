"""Recipes: published files become stores on which the recipe's model trains; other files are refused in a sentence."""

import gzip
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store

Arrays = dict[str, Any]
FRAMES = 16
"""Graphs that a test takes of a published file."""
ROWS = "euler_size_nnb"


def cut(published: Path, folder: Path) -> Path:
    path = folder / published.name.removesuffix(".gz")
    if published.suffix == ".gz":
        lines = gzip.decompress(published.read_bytes()).decode().splitlines(keepends=True)
        end = 0
        for _ in range(FRAMES):
            end += int(lines[end]) + 2
        path.write_text("".join(lines[:end]))
        return path
    with np.load(published, allow_pickle=False) as file:
        arrays: Arrays = {name: file[name] for name in file.files}
    np.savez(path, **first_graphs(arrays))
    return path


def first_graphs(arrays: Arrays) -> Arrays:
    """Return the arrays of the first graphs; flat rows go with their counts."""
    if "symmetry_class" in arrays:
        classes, sizes = np.unique(arrays["symmetry_class"], return_counts=True)
        rows = np.isin(arrays["symmetry_class"], classes[sizes == 2][: FRAMES // 2])
        return {name: array[rows] if len(array) == len(arrays["Z"]) else array for name, array in arrays.items()}
    counted = {"n_grains": ("euler_size_nnb",), "n_edges": ("edge",), "n_atoms": ("z", "pos", "mulliken")}
    graphs = max(len(array) for name, array in arrays.items() if name in ("n_atoms", "n_grains", "x"))
    ends = {name: arrays[count][:FRAMES].sum() for count, names in counted.items() if count in arrays for name in names}
    few = {name: array[: ends.get(name, FRAMES if len(array) == graphs else None)] for name, array in arrays.items()}
    if "graph_index" in few:
        measured = few["graph_index"] < FRAMES
        few |= {name: few[name][measured] for name in ("graph_index", "field_kA_per_m", "magnetostriction")}
    return few


@pytest.mark.parametrize(
    ("name", "published", "targets"),
    [
        ("acac", "acac/train_300K.xyz.gz", {"energy", "forces"}),
        ("mlearn", "mlearn/Mo_train.extxyz.gz", {"energy", "forces"}),
        ("qm9", "qm9/qm9_dev_12000.npz", {"energy", "gap", "charge"}),
        ("fept", "fept/fept_32atoms.npz", {"energy", "charge_transfer", "moment"}),
        ("darcy", "darcy/darcy_train_16.npz", {"pressure"}),
        ("terfenol", "terfenol/terfenol_394.npz", {f"magnetostriction_{field}" for field in (200, 400, 600, 800)}),
    ],
)
def test_a_recipe_builds_a_store_on_which_its_model_trains(
    root: Path, real_data: Path, tmp_path: Path, name: str, published: str, targets: set[str]
) -> None:
    recipes = root / "scripts" / "recipes"
    build = tomllib.loads((recipes / f"{name}-build.toml").read_text())
    hydragnn.build_store({**build, "files": [str(cut(real_data / published, tmp_path))]}, tmp_path / "store.h5")
    fields = {field.name: field for field in open_store(tmp_path / "store.h5").fields()}
    assert len(open_store(tmp_path / "store.h5")) == FRAMES
    assert targets <= {field.name for field in fields.values() if field.role == "target"}
    table = tomllib.loads((recipes / f"{name}.toml").read_text())
    assert table.pop("search")["space"]
    table["heads"] = [head for head in table["heads"] if head["field"] in targets]
    table["data"]["store"] = str(tmp_path / "store.h5")
    parts = ["split.train=0.5", "split.valid=0.25", "split.calibration=0.0"]
    small = [*parts, "train.epochs=1", "train.warmup_epochs=0", "model.hidden_dim=8"]
    record = hydragnn.train(table, tmp_path / "run", overrides=small)
    assert record.failure is None
    assert all(np.isfinite(value) for value in record.best.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: {name: a[name] for name in a if name != "edge"}, "edge"),
        (lambda a: {**a, ROWS: a[ROWS][:, :4]}, r"shape \[\d+, 4\], not \[\d+, 5\] as n_grains"),
        (lambda a: {**a, "n_grains": a["n_grains"][:-1]}, "as n_grains says"),
        (lambda a: {**a, "n_edges": np.append(a["n_edges"], 0)}, "n_grains counts 16 microstructures, n_edges 17"),
        (lambda a: {**a, ROWS: 0 * a[ROWS]}, "microstructure 0: every grain needs .* a positive size"),
    ],
)
def test_other_microstructures_are_refused(
    root: Path, real_data: Path, tmp_path: Path, change: Callable[[Arrays], Arrays], words: str
) -> None:
    path = cut(real_data / "terfenol" / "terfenol_394.npz", tmp_path)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **change(arrays))
    build = tomllib.loads((root / "scripts" / "recipes" / "terfenol-build.toml").read_text())
    with pytest.raises(InputError, match=words):
        hydragnn.build_store({**build, "files": [str(path)]}, tmp_path / "store.h5")
