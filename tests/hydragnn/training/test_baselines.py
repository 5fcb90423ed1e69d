"""Simple baselines: sets where they are exact, and what they may and may not see."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from hydragnn.datasets import MemoryStore
from hydragnn.graphs import Field, concatenate
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import unbatch
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.models import Categorical, Target
from hydragnn.training.baselines import AT_ONCE, BASELINES, baseline_errors, fitted_baselines, fitted_trees

SPECIES = Field(name=ATOMIC_NUMBERS, on="node", classes=119, dtype="int64")
MASS = Field(name="mass", on="node", dtype="float64")
AXIS = Field(name="axis", on="node", shape=(3,), parity="vector", dtype="float64")


def label(name: str, on: Any = "graph", **options: Any) -> Field:
    return Field(name=name, on=on, role="target", dtype="float64", **options)


SUM, MEAN, STIFFNESS, DIFFUSED = label("total"), label("mean"), label("stiffness"), label("diffused", "node")
TARGETS = (SUM, MEAN, STIFFNESS, DIFFUSED, label("push", "node", shape=(3,), parity="vector"))
INPUTS = ["atomic_numbers", "mass", "axis"]
TRAIN, TEST = np.arange(0, 200), np.arange(200, 260)
ENERGIES = {1: -13.6, 6: -1029.0, 8: -2041.0}


def graph(generator: np.random.Generator) -> GraphBatch:
    """Return nodes on a ring; ``stiffness`` is linear in statistics, ``diffused`` in the means of neighbours."""
    count = int(generator.integers(4, 12))
    species = generator.choice(list(ENERGIES), size=count)
    mass, energies = generator.normal(size=count), np.array([ENERGIES[number] for number in species.tolist()])
    ring = np.arange(count)
    senders, receivers = np.concatenate([ring, np.roll(ring, 1)]), np.concatenate([np.roll(ring, 1), ring])
    around = np.roll(mass, 1) + np.roll(mass, -1)
    positions, axis, push = (generator.normal(size=(count, 3)) for _ in range(3))
    nodes = {"atomic_numbers": species, "mass": mass, "axis": axis, "diffused": 0.5 * around - 3 * mass, "push": push}
    stiffness = 2 * mass.mean() - 0.3 * mass.std() + mass.max() + 0.1 * count
    graphs = {"total": energies.sum(), "mean": energies.mean(), "stiffness": stiffness}
    fields = [SPECIES, MASS, AXIS, *TARGETS]
    return graph_from_arrays(positions, senders, receivers, fields=fields, nodes=nodes, graphs=graphs)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    generator = np.random.default_rng(7)
    return MemoryStore([graph(generator) for _ in range(260)], {})


def targets(*fields: Field, **options: Any) -> list[Target]:
    return [Target(field=field, **options) for field in fields or TARGETS]


def errors_of(
    store: MemoryStore, wanted: list[Target], train: np.ndarray = TRAIN, inputs: list[str] = INPUTS
) -> dict[str, Any]:
    return baseline_errors([(fitted_baselines(store, train, wanted, inputs), TEST)], store, wanted)


def test_ridge_is_exact_where_labels_are_linear_in_statistics_of_inputs(store: MemoryStore) -> None:
    errors = errors_of(store, targets())
    for name in ("stiffness", "diffused"):
        assert errors[name]["ridge"]["rmse"] == pytest.approx(0.0, abs=1e-4)  # the smallest penalty is 1e-6
        assert 0.5 < errors[name]["boosting"]["r2"] < 1.0


@pytest.mark.parametrize(
    ("rows", "width", "scale"), [(12, 1, 1.0), (AT_ONCE + 7, 2, 1.0), (300, 1, 1e300), (300, 1, 0.0), (40, 3, -1e-300)]
)
def test_trees_as_arrays_predict_what_scikit_learn_does(rows: int, width: int, scale: float) -> None:
    generator = np.random.default_rng(rows)
    features = scale * generator.normal(size=(rows, 4)).round(1)
    values = generator.normal(size=(rows, width)) + 3 * np.sign(features[:, :1])
    trees = fitted_trees(features, values, np.zeros((0, width)))
    leaf = min(20, max(2, rows // 20))
    expected = [
        HistGradientBoostingRegressor(max_leaf_nodes=15, min_samples_leaf=leaf, early_stopping=False, random_state=0)
        .fit(features, column)
        .predict(features)
        for column in values.T
    ]
    np.testing.assert_allclose(trees(features, features[:, :0]), np.stack(expected, axis=1), rtol=0, atol=1e-12)


def test_the_linear_fit_to_composition_is_exact_for_sums_and_means_of_elements(store: MemoryStore) -> None:
    errors = errors_of(store, [*targets(SUM, extensive=True), *targets(MEAN)])
    for name in ("total", "mean"):
        assert errors[name]["composition"]["mae"] == pytest.approx(0.0, abs=1e-7)
        assert errors[name]["ridge"]["mae"] == pytest.approx(0.0, abs=1e-7)  # it learns what composition leaves
    of_references = errors_of(store, targets(SUM, extensive=True, references=True))  # the trivial predictor
    assert set(of_references["total"]) == {"ridge", "boosting"}


@pytest.mark.parametrize(
    ("wanted", "train"),
    [
        (targets(TARGETS[-1]), TRAIN),
        (targets(SUM, derivative="stress"), TRAIN),
        (targets(STIFFNESS), TRAIN[:9]),
        (targets(DIFFUSED), TRAIN[:0]),
    ],
    ids=["vectors", "derivatives", "nine labels", "no training part"],
)
def test_some_fields_have_none(store: MemoryStore, wanted: list[Target], train: np.ndarray) -> None:
    assert errors_of(store, wanted, train) == {}


def predictions(store: MemoryStore, train: np.ndarray, test: np.ndarray) -> dict[str, torch.Tensor]:
    fitted, batch, result = fitted_baselines(store, train, targets(), INPUTS), store.read(test), {}
    for one in BASELINES:
        some = [target for target in targets() if one in fitted.fitted.get(target.name, {})]
        result |= {f"{name}/{one}": point.mean for name, point in fitted.predictor(one, some)(batch).items()}
    return result


def test_two_fits_give_the_same_bits_in_whatever_order_the_training_part_is(store: MemoryStore) -> None:
    first, second = predictions(store, TRAIN, TEST), predictions(store, TRAIN[::-1].copy(), TEST)
    assert len(first) == 12 and all(torch.equal(first[name], second[name]) for name in first)


def changed(store: MemoryStore, graphs: np.ndarray, change: Any) -> MemoryStore:
    return MemoryStore([change(store.read([n])) if n in graphs else store.read([n]) for n in range(len(store))], {})


def test_held_out_graphs_are_never_used_in_fitting(store: MemoryStore) -> None:
    names = [field.name for field in TARGETS]
    other = changed(store, TEST, lambda one: one.with_fields({name: 1e6 + 0 * one[name] for name in (*names, "mass")}))
    before, after = predictions(store, TRAIN, TRAIN[:9]), predictions(other, TRAIN, TRAIN[:9])
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_missing_labels_are_neither_fitted_nor_judged(store: MemoryStore) -> None:
    lacking = np.concatenate([TRAIN[::2], TEST[::3]])
    other = changed(store, lacking, lambda one: one.with_fields(drop=["stiffness"]))
    wanted = targets(STIFFNESS)
    errors = errors_of(other, wanted)
    assert errors["stiffness"]["ridge"]["count"] == 40
    known = fitted_baselines(store, TRAIN[1::2], wanted, INPUTS)
    expected = baseline_errors([(known, np.setdiff1d(TEST, lacking))], store, wanted)
    assert errors["stiffness"]["ridge"]["rmse"] == pytest.approx(0.0, abs=1e-3)
    assert errors["stiffness"]["boosting"]["r2"] == pytest.approx(expected["stiffness"]["boosting"]["r2"], abs=0.1)


VOLUME, SHARE = Field(name="volume", on="node", dtype="float64"), Field(name="load", on="graph", dtype="float64")


def grains(generator: np.random.Generator, count: int) -> GraphBatch:
    """Return grains without contacts; ``stiffness`` is a product of means by volume."""
    volume, mass, load = generator.uniform(0.1, 2.0, count), generator.normal(size=(count, 2)), generator.normal()
    means = volume @ mass / volume.sum()
    none, fields = (
        np.zeros(0, dtype=np.int64),
        [VOLUME, replace(MASS, shape=(2,)), SHARE, STIFFNESS, label("own", "node")],
    )
    graphs = {"stiffness": means[0] * means[1] + means[0] * load - 2 * means[1] ** 2 + 1, "load": load}
    nodes = {"volume": volume, "mass": mass, "own": volume}
    return graph_from_arrays(generator.normal(size=(count, 3)), none, none, fields=fields, nodes=nodes, graphs=graphs)


def test_ridge_on_means_by_volume_is_exact_for_their_products_and_finds_larger_graphs_as_easy() -> None:
    generator, names = np.random.default_rng(5), ["volume", "mass", "load"]
    store = MemoryStore([grains(generator, int(generator.integers(4, 12)) * (1 + 4 * (n >= 200))) for n in range(260)])
    wanted = targets(STIFFNESS, label("own", "node"))
    errors = errors_of(store, wanted, inputs=names)
    assert errors["stiffness"]["mixture"]["rmse"] == pytest.approx(0.0, abs=1e-6)
    assert errors["stiffness"]["mixture"]["rmse"] < 0.05 * errors["stiffness"]["ridge"]["rmse"]
    assert set(errors["own"]) == {"ridge", "boosting"}  # nodes are no mixtures
    assert set(errors_of(store, wanted, inputs=names[1:])["stiffness"]) == {"ridge", "boosting"}


def test_features_do_not_change_under_rotations_and_neighbouring_graphs(store: MemoryStore) -> None:
    fitted = fitted_baselines(store, TRAIN, targets(), INPUTS)
    one, two = store.read([3]), store.read([4])
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    turned = replace(one, positions=one.positions @ turn.to(one.positions.dtype))
    turned = turned.with_fields({"axis": one["axis"] @ turn})
    for at in ("graph", "node", "edge"):
        alone = fitted.features.of(one, at)
        torch.testing.assert_close(fitted.features.of(turned, at), alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fitted.features.of(concatenate([one, two]), at)[: len(alone)], alone)


def test_folds_are_judged_together_each_by_the_baseline_that_has_not_seen_it(store: MemoryStore) -> None:
    wanted, half = targets(STIFFNESS), TRAIN[:100]
    seen = [(TRAIN[100:], half), (half, TEST)]
    folds = [(fitted_baselines(store, train, wanted, INPUTS), test) for train, test in seen]
    together = baseline_errors(folds, store, wanted)["stiffness"]["ridge"]
    alone = [baseline_errors([fold], store, wanted)["stiffness"]["ridge"] for fold in folds]
    mean = sum(one["mae"] * one["count"] for one in alone) / 160
    assert together["count"] == 160 and together["mae"] == pytest.approx(mean, rel=1e-12)


def test_classes_have_baselines_that_pass_over_missing_labels(store: MemoryStore) -> None:
    kind = Field(name="kind", on="node", role="target", classes=4, dtype="int64")
    batch = store.read(np.arange(len(store)))
    truth = torch.where(batch["mass"] > 0.5, 2, torch.where(batch["mass"] < -0.5, 0, 1))
    partly = truth.where(torch.arange(len(truth)) % 3 > 0, -1)  # class 3 has no label at all
    wanted = targets(kind, distribution=Categorical)
    for values, step in ((truth, 1), (partly, 3)):
        of_classes = MemoryStore(unbatch(batch.with_fields({"kind": values}, fields=[kind])), {})
        fitted = fitted_baselines(of_classes, TRAIN, wanted, INPUTS)
        errors = baseline_errors([(fitted, TEST)], of_classes, wanted)["kind"]
        assert set(errors) == {"logistic", "boosting"}
        assert errors["boosting"]["accuracy"] is not None and errors["boosting"]["accuracy"] > 0.97
        assert errors["logistic"]["accuracy"] is not None and errors["logistic"]["accuracy"] > 0.9
        labels = int((values[batch.owner("node") >= TEST[0]] >= 0).sum())
        assert errors["boosting"]["count"] == labels and (step == 1 or labels < len(truth))
        output = fitted.predictor("boosting", wanted)(batch)["kind"]
        assert isinstance(output, Categorical) and float(output.probabilities[:, 3].max()) < 1e-5
    alone = MemoryStore(unbatch(batch.with_fields({"kind": torch.ones_like(truth)}, fields=[kind])), {})
    assert errors_of(alone, wanted) == {}
