"""Simple predictors are members of numbers."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

import hydragnn
from hydragnn.datasets import make_split, open_store
from hydragnn.ensemble import Ensemble, build_ensemble, rollout
from hydragnn.ensemble.building.weights import SECOND
from hydragnn.ensemble.manifest import SIMPLE
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.training.baselines import Baselines, fitted_baselines
from tests.ensemble.conftest import Built, refused, written
from tests.ensemble.finished import arrays_of, edit_json
from tests.once import shared

FIELDS = (
    Field(name="mass", on="node", unit="g", dtype="float64"),
    Field(name="load", on="graph", dtype="float64"),
    Field(name="stiffness", on="graph", role="target", dtype="float64"),
    Field(name="total", on="graph", role="target", dtype="float64"),
    Field(name="shift", on="node", unit="mm", role="target", dtype="float64"),
    Field(name="bend", on="node", unit="mm", role="target", dtype="float64"),
    Field(name="next", on="node", role="target", dtype="float64"),
    Field(name="heat", on="node", dtype="float64"),
)
TABLE: dict[str, Any] = {
    "split": {"train": 0.5, "valid": 0.3},
    "model": {"kind": "gin", "hidden_dim": 4, "num_layers": 1},
    "heads": [
        {"field": "stiffness", "kind": "scalar"},
        {"field": "total", "kind": "scalar", "extensive": True},
        *({"field": name, "kind": "scalar"} for name in ("shift", "bend", "next")),
    ],
    "train": {"epochs": 1, "checkpoint_seconds": 0},
}


def ring(generator: np.random.Generator) -> GraphBatch:
    """Return nodes on a ring, whose stiffness is linear in statistics and whose bend is a step."""
    count = int(generator.integers(4, 9))
    mass, load, around = generator.normal(size=count), float(generator.normal()), np.arange(count)
    graphs = {"load": load, "stiffness": 3 * mass.mean() + mass.max() - 2 * load, "total": mass.sum()}
    nodes = {"mass": mass, "shift": generator.normal(size=count), "bend": np.sign(mass) + (mass > 1)}
    nodes |= {"heat": generator.normal(size=count), "next": mass}
    return graph_from_arrays(
        generator.normal(size=(count, 3)), around, np.roll(around, 1), fields=FIELDS, nodes=nodes, graphs=graphs
    )


@shared
def linear(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Two models that hardly learned, and a ridge and trees that are exact."""
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
    assert {"stiffness", "bend"} <= set(ensemble.manifest.simple.fitted) <= {"stiffness", "bend", "shift"}
    assert evaluation.parts["test"]["total"].baselines["ridge"] and evaluation.parts["test"]["next"].baselines["ridge"]
    assert 1 > weights[-1] > 1 - SECOND and np.count_nonzero(weights) == 2 and len(ensemble.weights_of("next")) == 2
    assert scores.ensemble["mae"] < 1.05 * (scores.baselines["ridge"]["mae"] or 0.0)
    assert {"ridge of stiffness", "boosting of bend"} <= {one["member"] for one in ensemble.shown()["members"]}
    assert evaluation.parts["test"]["stiffness"].ensemble["coverage"] > 0.5


def test_no_member_and_no_simple_predictor_is_better_on_validation_graphs(linear: Built) -> None:
    """But for the share of the second best member, which costs two percent at most."""
    part, simple = linear[1].parts["valid"], Ensemble.load(linear[0]).manifest.simple.fitted
    for field in ("stiffness", "shift", "bend"):
        alone = [*part[field].members.values(), *(part[field].baselines.values() if field in simple else ())]
        assert part[field].ensemble["mae"] <= 1.02 * min(one["mae"] or 0.0 for one in alone) + 1e-12


@pytest.mark.parametrize(("field", "name"), [("stiffness", "ridge"), ("bend", "boosting")])
def test_a_simple_member_predicts_what_the_fit_to_the_training_part_does(linear: Built, field: str, name: str) -> None:
    ensemble, store = Ensemble.load(linear[0]), open_store(store_beside(linear[0]))
    train = make_split(store, ensemble.members[0].config.split).train
    fitted, batch = fitted_baselines(store, train, ensemble.targets, ensemble.members[0].model.inputs), store[:]
    target = next(one for one in ensemble.targets if one.name == field)
    expected = fitted.prediction(name, target, batch).tensors()["mean"].numpy()
    one = ensemble.predict(batch)[field]
    np.testing.assert_allclose(one.members[-1], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.mean, ensemble.weights_of(field) @ one.members, atol=1e-12)
    module = ensemble.trainable()(batch)[field]
    np.testing.assert_allclose(module.detach().numpy(), one.mean, atol=1e-5)
    module.sum().backward()


def test_files_hold_the_same_bits_in_copies_and_however_many_predict(linear: Built, tmp_path: Path) -> None:
    store, copy = store_beside(linear[0]), shutil.copytree(linear[0], tmp_path / "copy")
    assert Ensemble.load(copy).digest == Ensemble.load(linear[0]).digest
    hydragnn.predict(linear[0], store, tmp_path / "one.h5")
    hydragnn.predict(copy, store, tmp_path / "two.h5", workers=2)
    one, two = (arrays_of(tmp_path / name) for name in ("one.h5", "two.h5"))
    assert np.isfinite(one["fields/stiffness/mean"]).all() and np.isfinite(one["fields/bend/mean"]).all()
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name], err_msg=name)


def test_a_graph_without_numbers_fails_alone(linear: Built) -> None:
    ensemble, batch = Ensemble.load(linear[0]), open_store(store_beside(linear[0]))[:6]
    load = batch["load"].clone()
    load[2] = torch.nan
    whole, damaged = ensemble.predict(batch), ensemble.predict(batch.with_fields({"load": load}))
    assert np.flatnonzero(~damaged.ok).tolist() == [2]
    np.testing.assert_allclose(damaged["stiffness"].mean[3:], whole["stiffness"].mean[3:], atol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.pop("simple"), "damaged .*simple"),
        (lambda value: value.update(version=5), "damaged .*no shares of its members"),
        (lambda value: value["weights"].pop("stiffness"), "damaged .*no shares of its members"),
        (lambda value: value["simple"].update(inputs=["speed"]), "damaged .*speed"),
        (lambda value: value["simple"].update(inputs=["mass"]), "fitted on other inputs"),
        (lambda value: value["simple"].update(kinds={"mass": [1e308]}), "damaged .*too large"),
        (lambda value: value["simple"].update(sha256="0"), "differs from what was saved"),
        (lambda value: value.update(version=7), "made by an earlier version"),
        (lambda value: value["simple"]["fitted"]["bend"].update(boosting={}), "damaged .*features"),
        (lambda value: value["simple"]["fitted"]["bend"].update(ridge={}), "damaged .*several simple members"),
        (lambda value: value["simple"]["fitted"].update(bend={}), "damaged .*no shares of its members"),
        (lambda value: value["simple"]["fitted"].update(bend=7), "damaged"),
    ],
)
def test_damaged_descriptions_of_predictors_are_refused(linear: Built, tmp_path: Path, change: Any, words: str) -> None:
    copy = shutil.copytree(linear[0], tmp_path / "copy")
    edit_json(copy / "ensemble.json", change)
    refused(words, lambda: Ensemble.load(copy).predict(open_store(store_beside(linear[0]))[:2]))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("stiffness/ridge/intercept", lambda values: values * np.nan, "intercept of ridge of stiffness is not finite"),
        ("stiffness/ridge/mean", lambda values: values[1:], "scale of ridge .*another shape"),
        ("stiffness/ridge/scale", lambda values: 0 * values, "not above 0"),
        ("stiffness/ridge/slopes", lambda values: values.astype(np.float32), "slopes of ridge"),
        ("stiffness/ridge/slopes", lambda values: values[:, [0, 0]], "slopes of ridge"),
        ("stiffness/ridge/shares", None, "shares"),
        ("bend/boosting/value", lambda values: values + np.inf, "value of boosting"),
        ("bend/boosting/feature", lambda values: values + 1_000, "lead nowhere"),
        ("bend/boosting/feature", lambda values: values - 1, "lead nowhere"),
        ("bend/boosting/tree", lambda values: values + 100, "lead nowhere"),
        ("bend/boosting/tree", lambda values: values - 1, "lead nowhere"),
        ("bend/boosting/rest", lambda values: values[1:], "rest of boosting .*another shape"),
        ("bend/boosting/threshold", lambda values: values.astype(np.int64), "threshold of boosting"),
    ],
)
def test_damaged_arrays_of_predictors_are_refused(
    linear: Built, tmp_path: Path, name: str, change: Any, words: str
) -> None:
    copy = shutil.copytree(linear[0], tmp_path / "copy")
    arrays = load((copy / SIMPLE).read_bytes())
    values = arrays.pop(name)
    content = save(arrays if change is None else {**arrays, name: np.ascontiguousarray(change(values))})
    (copy / SIMPLE).write_bytes(content)
    refused("differs from what was saved", Ensemble.load, copy)
    checksum = hashlib.sha256(content).hexdigest()
    edit_json(copy / "ensemble.json", lambda value: value["simple"].update(sha256=checksum))
    refused(f"ensemble.json is damaged .*{words}", Ensemble.load, copy)


@pytest.mark.parametrize("name", ["stiffness/ridge/slopes", "stiffness/ridge/intercept", "bend/boosting/value"])
@pytest.mark.parametrize("size", [1e308, 1e200])  # beyond all numbers itself, or by its square
def test_what_is_beyond_all_numbers_has_failed(linear: Built, tmp_path: Path, name: str, size: float) -> None:
    copy, field = shutil.copytree(linear[0], tmp_path / "copy"), name.partition("/")[0]
    arrays = load((copy / SIMPLE).read_bytes())
    content = save({**arrays, name: np.where(arrays[name] < 0, -size, size)})
    (copy / SIMPLE).write_bytes(content)
    edit_json(copy / "ensemble.json", lambda value: value["simple"].update(sha256=hashlib.sha256(content).hexdigest()))
    predictions = Ensemble.load(copy).predict(open_store(store_beside(linear[0]))[:4])
    assert {*predictions.status} == {f"the prediction of {field} is not finite"}
    assert all(np.isnan(predictions[field][one]).all() for one in ("mean", "std", "lower"))


def test_what_computes_by_models_alone_refuses_a_simple_member(
    linear: Built, strained: tuple[Path, Any], tmp_path: Path
) -> None:
    ensemble, copper = Ensemble.load(linear[0]), Ensemble.load(strained[0])
    batch = open_store(store_beside(linear[0]))[:2]
    refused("only models roll out", rollout, ensemble, batch, 1, feedback={"load": "stiffness"})
    moving = batch.with_fields({"load": batch["load"].requires_grad_()})
    refused("no gradients by inputs", ensemble.trainable(), moving)
    np.testing.assert_array_equal(ensemble.predict(moving)["bend"].mean, ensemble.predict(batch)["bend"].mean)
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
