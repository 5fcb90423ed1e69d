"""Linear predictors are members of numbers of graphs."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.datasets import make_split, open_store
from hydragnn.ensemble import Ensemble, build_ensemble, rollout
from hydragnn.ensemble.building.weights import SECOND
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.training.baselines import Baselines, fitted_baselines
from tests.ensemble.conftest import Built, refused, written
from tests.ensemble.finished import arrays_of, edit_json
from tests.once import shared

FIELDS = (
    Field(name="mass", on="node", dtype="float64"),
    Field(name="load", on="graph", dtype="float64"),
    Field(name="stiffness", on="graph", role="target", dtype="float64"),
    Field(name="total", on="graph", role="target", dtype="float64"),
    Field(name="shift", on="node", role="target", dtype="float64"),
)
TABLE: dict[str, Any] = {
    "split": {"train": 0.5, "valid": 0.3},
    "model": {"kind": "gin", "hidden_dim": 4, "num_layers": 1},
    "heads": [
        {"field": "stiffness", "kind": "scalar"},
        {"field": "total", "kind": "scalar", "extensive": True},
        {"field": "shift", "kind": "scalar"},
    ],
    "train": {"epochs": 1, "checkpoint_seconds": 0},
}


def ring(generator: np.random.Generator) -> GraphBatch:
    """Return nodes on a ring, whose stiffness is linear in statistics."""
    count = int(generator.integers(4, 9))
    mass, load, around = generator.normal(size=count), float(generator.normal()), np.arange(count)
    graphs = {"load": load, "stiffness": 3 * mass.mean() + mass.max() - 2 * load, "total": mass.sum()}
    nodes = {"mass": mass, "shift": generator.normal(size=count)}
    return graph_from_arrays(
        generator.normal(size=(count, 3)), around, np.roll(around, 1), fields=FIELDS, nodes=nodes, graphs=graphs
    )


@shared
def linear(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Two models that hardly learned, and a ridge that is exact."""
    folder, generator = tmp_path_factory.mktemp("linear"), np.random.default_rng(3)
    store = written(folder / "rings.h5", concatenate([ring(generator) for _ in range(80)]), FIELDS)
    runs = [folder / str(seed) for seed in (0, 1)]
    for seed, run in enumerate(runs):
        hydragnn.train({**TABLE, "data": {"store": str(store)}}, run, overrides=[f"train.seed={seed}"])
    return folder / "ensemble", build_ensemble(runs, folder / "ensemble")


def store_beside(folder: Path) -> Path:
    return folder.with_name("rings.h5")


def test_the_ridge_carries_its_field_and_none_that_grows_with_graphs(linear: Built) -> None:
    folder, evaluation = linear
    ensemble, scores = Ensemble.load(folder), evaluation.parts["test"]["stiffness"]
    weights = ensemble.weights_of("stiffness")
    assert (
        set(ensemble.manifest.simple.fitted) == {"stiffness"} and evaluation.parts["test"]["total"].baselines["ridge"]
    )
    assert 1 > weights[-1] > 1 - SECOND and np.count_nonzero(weights) == 2 and len(ensemble.weights_of("shift")) == 2
    assert scores.ensemble["mae"] < 1.05 * (scores.baselines["ridge"]["mae"] or 0.0)
    assert ensemble.shown()["members"][-1]["member"] == "ridge of stiffness"
    assert evaluation.parts["test"]["stiffness"].ensemble["coverage"] > 0.5


def test_a_simple_member_predicts_what_the_fit_to_the_training_part_does(linear: Built) -> None:
    ensemble, store = Ensemble.load(linear[0]), open_store(store_beside(linear[0]))
    train = make_split(store, ensemble.members[0].config.split).train
    fitted, batch = fitted_baselines(store, train, ensemble.targets, ["mass", "load"]), store[:]
    target = next(one for one in ensemble.targets if one.name == "stiffness")
    expected = fitted.prediction("ridge", target, batch).tensors()["mean"].numpy()
    one = ensemble.predict(batch)["stiffness"]
    np.testing.assert_allclose(one.members[-1], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.mean, ensemble.weights_of("stiffness") @ one.members, atol=1e-12)
    module = ensemble.trainable()(batch)["stiffness"]
    np.testing.assert_allclose(module.detach().numpy(), one.mean, atol=1e-5)
    module.sum().backward()


def test_files_hold_the_same_bits_in_copies_and_however_many_predict(linear: Built, tmp_path: Path) -> None:
    store, copy = store_beside(linear[0]), shutil.copytree(linear[0], tmp_path / "copy")
    assert Ensemble.load(copy).digest == Ensemble.load(linear[0]).digest
    files = [tmp_path / name for name in ("one.h5", "two.h5")]
    hydragnn.predict(linear[0], store, files[0])
    hydragnn.predict(copy, store, files[1], workers=2)
    one, two = map(arrays_of, files)
    assert np.isfinite(one["fields/stiffness/mean"]).all()
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name], err_msg=name)


def test_a_graph_without_numbers_fails_alone(linear: Built) -> None:
    ensemble, batch = Ensemble.load(linear[0]), open_store(store_beside(linear[0]))[:6]
    load = batch["load"].clone()
    load[2] = torch.nan
    whole, damaged = ensemble.predict(batch), ensemble.predict(batch.with_fields({"load": load}))
    assert np.flatnonzero(~damaged.ok).tolist() == [2]
    others = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(damaged["stiffness"].mean[others], whole["stiffness"].mean[others], atol=1e-9)


def change_linear(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda value: value["simple"]["fitted"]["stiffness"]["ridge"].update(changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.pop("simple"), "damaged .*simple"),
        (lambda value: value.update(version=5), "damaged .*no shares of its members"),
        (lambda value: value["weights"].pop("stiffness"), "damaged .*no shares of its members"),
        (lambda value: value["simple"].update(inputs=["speed"]), "damaged .*speed"),
        (change_linear(intercept=[float("nan")]), "damaged .*not finite"),
        (change_linear(mean=[0.0]), "damaged .*other terms"),
        (lambda value: value["simple"].update(inputs=["mass"]), "fitted on other inputs"),
    ],
)
def test_damaged_predictors_are_refused(linear: Built, tmp_path: Path, change: Any, words: str) -> None:
    copy = shutil.copytree(linear[0], tmp_path / "copy")
    edit_json(copy / "ensemble.json", change)
    refused(words, lambda: Ensemble.load(copy).predict(open_store(store_beside(linear[0]))[:2]))


def test_what_computes_by_models_alone_refuses_a_simple_member(
    linear: Built, strained: tuple[Path, Any], tmp_path: Path
) -> None:
    ensemble, copper = Ensemble.load(linear[0]), Ensemble.load(strained[0])
    batch = open_store(store_beside(linear[0]))[:2]
    refused("only models roll out", rollout, ensemble, batch, 1, feedback={"load": "stiffness"})
    simple = Baselines(fitted={"energy": ensemble.manifest.simple.fitted["stiffness"]})
    mixed = copper.with_manifest(replace(copper.manifest, simple=simple))
    refused("exports carry models", hydragnn.export, mixed, tmp_path / "model.pt2", to="torch")
    alone = replace(ensemble.manifest, members=ensemble.manifest.members[:1], weights={"stiffness": (0.01, 0.99)})
    module = Ensemble(ensemble.members[:1], alone, "").trainable()
    refused("save takes what load", hydragnn.save, module, tmp_path / "run")


def test_weights_that_are_passed_leave_simple_predictors_out(linear: Built, tmp_path: Path) -> None:
    runs = [linear[0].with_name(name) for name in ("0", "1")]
    build_ensemble(runs, tmp_path / "passed", weights=[0.5, 0.5])
    assert not Ensemble.load(tmp_path / "passed").manifest.simple.fitted
