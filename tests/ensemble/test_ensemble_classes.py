"""Classes from training to prediction files: mixtures, temperature, conformal sets, and the report."""

import csv
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import Ensemble, Evaluation, build_ensemble, predict_to_file
from hydragnn.ensemble.estimates.calibration.classes import fit_classes, temper
from hydragnn.ensemble.estimates.classes import ClassEstimate, auroc
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.models import Categorical, Target
from hydragnn.scripts.report import write_report
from hydragnn.scripts.report.page import summary
from tests.ensemble.conftest import members_in
from tests.once import shared

PHASE = Field(name="phase", on="graph", classes=3, dtype="int64", role="target")
SITE = Field(name="site", on="node", classes=2, dtype="int64", role="target")
FIELDS = (Field(name="load", on="node"), PHASE, SITE)


def draw(
    generator: np.random.Generator, rows: int, classes: int = 4, sharpness: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels drawn from them: a predictor that is exactly right about its doubt."""
    p = torch.from_numpy(generator.normal(size=(rows, classes)) * sharpness).softmax(1).numpy()
    labels = (p.cumsum(1) < generator.uniform(size=(rows, 1))).sum(1).clip(max=classes - 1)
    return p, labels.astype(np.float64)


def test_a_mixture_of_members_is_normalised_and_its_doubt_has_two_parts() -> None:
    generator = np.random.default_rng(0)
    members = [Categorical(logits=torch.from_numpy(generator.normal(size=(9, 3)))) for _ in range(4)]
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    target = Target(field=PHASE, loss="cross_entropy", distribution=Categorical)
    one = ClassEstimate.of(target, members, weights, None, np.ones(len(members[0].probabilities), dtype=np.int64))
    expected = sum(w * member.probabilities.numpy() for w, member in zip(weights, members))
    np.testing.assert_allclose(one.probability, expected)
    np.testing.assert_allclose(one.probability.sum(-1), 1.0)
    np.testing.assert_allclose(one.epistemic + one.aleatoric, one.entropy)
    alone = ClassEstimate.of(
        target, members[:1], np.ones(1), None, np.ones(len(members[0].probabilities), dtype=np.int64)
    )
    assert np.isnan(alone.epistemic).all()  # nobody to disagree with
    np.testing.assert_allclose(alone.aleatoric, alone.entropy)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("items", [1, 20, 1000])
@pytest.mark.parametrize("gap", [0.3, 16.0, 600.0])
def test_labels_that_are_all_right_make_nobody_surer_than_their_count(items: int, classes: int, gap: float) -> None:
    """Equal members on every item: the rule of succession gives log(n + 1) for the gap of two classes, which has lost nothing to the others."""
    field = Field(name="phase", on="graph", classes=classes, dtype="int64")
    labels = np.arange(items) % classes
    logits = np.where(np.eye(classes)[labels] == 1, gap, 0.0)
    fitted = fit_classes(field, labels.astype(np.float64), softmax(logits, axis=1), np.arange(items), nominal=0.9)
    temperature = gap / np.log((items + 1) * (classes - 1))
    assert fitted.temperature == pytest.approx(max(temperature, 1 / 20), rel=1e-3)  # 1 / 20: the least that is tried


@given(seed=st.integers(0, 2**32 - 1), items=st.integers(1, 60), wrong=st.floats(0, 0.5), scale=st.floats(0.1, 50))
@settings(max_examples=40, deadline=None)
def test_probabilities_promise_no_more_right_labels_than_were_seen_and_are_those_of_least_nll_below(
    seed: int, items: int, wrong: float, scale: float
) -> None:
    random = np.random.default_rng(seed)
    field = Field(name="phase", on="graph", classes=3, dtype="int64")
    p = softmax(scale * random.normal(size=(items, 3)), axis=1)
    labels = np.where(random.random(items) < wrong, random.integers(3, size=items), p.argmax(axis=1))
    temperature = fit_classes(field, labels.astype(np.float64), p, np.arange(items), nominal=0.9).temperature
    mean = temper(p, temperature).max(axis=1).mean()
    assert mean <= (items + 1) / (items + 2) + 1e-9
    if mean < (items + 1) / (items + 2) - 1e-6:
        true = np.arange(items), labels
        nll = [-log_softmax(np.log(p) / t, axis=1)[true].mean() for t in [temperature, *np.geomspace(0.05, 20, 100)]]
        assert nll[0] <= min(nll) + 1e-4


@pytest.mark.parametrize("factor", [0.3, 3.0], ids=["too timid", "too sure"])
def test_the_temperature_is_found_and_lowers_the_nll_on_other_data(factor: float) -> None:
    field = Field(name="x", on="graph", classes=4, dtype="int64")
    generator = np.random.default_rng(1)
    (p, labels), (q, others) = draw(generator, 4000), draw(generator, 4000)
    fitted = fit_classes(field, labels, temper(p, 1 / factor), np.arange(4000), nominal=0.9)
    assert fitted.temperature == pytest.approx(factor, rel=0.1)  # four standard errors of 4000 rows

    def nll(probabilities: np.ndarray) -> float:
        return -np.log(probabilities[np.arange(4000), others.astype(int)]).mean()

    skewed = temper(q, 1 / factor)
    assert nll(temper(skewed, fitted.temperature)) < nll(skewed) - 0.01


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0], ids=["unsure", "mixed", "nearly always right"])
@pytest.mark.parametrize("nominal", [0.8, 0.9])
def test_conformal_sets_hold_the_label_as_often_as_promised(sharpness: float, nominal: float) -> None:
    field = Field(name="x", on="graph", classes=4, dtype="int64")
    generator = np.random.default_rng(2)
    (p, labels), (q, others) = draw(generator, 1500, sharpness=sharpness), draw(generator, 1500, sharpness=sharpness)
    fitted = fit_classes(field, labels, p, np.arange(1500), nominal=nominal)
    members = [Categorical(logits=torch.from_numpy(np.log(q)))]
    one = ClassEstimate.of(
        Target(field=field, distribution=Categorical), members, np.ones(1), fitted, np.ones(1500, dtype=np.int64)
    )
    covered = int(one.set[np.arange(1500), others.astype(int)].sum())
    # binomial error of 1500 fresh labels and as much again from the 1500 that set the threshold, at 1 in 10,000
    low, high = binom.ppf([5e-5, 1 - 5e-5], 750, nominal) / 750
    assert low <= covered / 1500 <= high


def test_too_few_graphs_for_the_level_promise_nothing() -> None:
    p, labels = draw(np.random.default_rng(3), 5)
    field = Field(name="x", on="graph", classes=4, dtype="int64")
    assert not fit_classes(field, labels, p, np.arange(5), nominal=0.9).guaranteed
    with pytest.raises(InputError, match="no labelled graph to calibrate on"):
        fit_classes(field, labels[:0], p[:0], np.arange(0), nominal=0.9)


def test_auroc_agrees_with_scikit_learn() -> None:
    p, labels = draw(np.random.default_rng(4), 300)
    p = p.round(2) + 1e-3  # with ties
    p /= p.sum(1, keepdims=True)
    expected = roc_auc_score(labels.astype(int), p, multi_class="ovr")
    assert auroc(p, labels.astype(np.int64)) == pytest.approx(expected)


def chain(generator: np.random.Generator, labelled: bool) -> GraphBatch:
    """The phase says in which third the summed load lies; a node's class is the sign of what its neighbours carry."""
    nodes = int(generator.integers(5, 9))
    receivers = np.repeat(np.arange(nodes), 2)
    senders = (receivers + np.tile([1, nodes - 1], nodes)) % nodes
    load = generator.normal(size=nodes).astype(np.float32)
    around = load[(np.arange(nodes) + 1) % nodes] + load[np.arange(nodes) - 1]
    phase = int(np.digitize(load.mean() + 0.1 * generator.normal(), [-0.2, 0.2]))
    return graph_from_arrays(
        generator.normal(size=(nodes, 2)),
        senders,
        receivers,
        fields=[field for field in FIELDS if labelled or field is not PHASE],
        nodes={"load": load, "site": (around > 0).astype(np.int64)},
        graphs={"phase": phase} if labelled else {},
    )


@shared
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chains") / "chains.h5"
    generator = np.random.default_rng(0)
    with StoreWriter(path, FIELDS, dim=2) as writer:
        writer.write(concatenate([chain(generator, labelled=i % 4 != 0) for i in range(300)]))
    return path


@shared
def ensemble(tmp_path_factory: pytest.TempPathFactory, chains: Path) -> tuple[Path, Evaluation]:
    """Two members, its folder and its evaluation."""
    root = tmp_path_factory.mktemp("class-members")
    table = {
        "data": {"store": str(chains)},
        "split": {"train": 0.4, "valid": 0.3},
        "batch": {"max_graphs": 16},
        "model": {"kind": "pna", "hidden_dim": 12, "num_layers": 2, "num_radial": 4, "envelope": "none"},
        "heads": [
            {"kind": "classes", "field": "phase", "hidden_dims": [12], "class_weights": "balanced"},
            {"kind": "classes", "field": "site", "hidden_dims": [12]},
        ],
        "train": {"epochs": 12, "learning_rate": 5e-3},
    }
    return root / "ensemble", build_ensemble(members_in(root, [table] * 2), root / "ensemble")


def test_classes_are_learned_and_judged_beside_the_trivial_predictor(ensemble: tuple[Path, Evaluation]) -> None:
    folder, evaluation = ensemble
    assert read_sealed(folder / "evaluation.json") == evaluation.to_json()
    for name in ("phase", "site"):
        scores = evaluation.parts["test"][name]
        assert scores.ensemble["nll"] < 0.8 * scores.trivial["nll"]
        assert scores.ensemble["auroc"] > 0.8
        assert {"accuracy", "balanced_accuracy", "brier", "ece"} <= set(scores.ensemble)
    confusion = np.array(evaluation.parts["test"]["site"].confusion)
    assert np.trace(confusion) / confusion.sum() == pytest.approx(scores.ensemble["accuracy"])


def test_prediction_files_hold_probabilities_labels_and_sets(
    ensemble: tuple[Path, Evaluation], chains: Path, tmp_path: Path
) -> None:
    folder, _ = ensemble
    predictions = Ensemble.load(folder).predict(open_store(chains))
    predict_to_file(folder, chains, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        for quantity in ("probability", "label", "set", "entropy", "epistemic", "aleatoric"):
            np.testing.assert_allclose(file[f"fields/phase/{quantity}"][:], predictions["phase"][quantity])
        np.testing.assert_allclose(file["fields/site/probability"][:].sum(1), 1.0)
    predict_to_file(folder, chains, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["phase_label"]) for row in rows] == predictions["phase"].label.tolist()
    assert float(rows[0]["phase_2_probability"]) == pytest.approx(predictions["phase"].probability[0, 2])


def test_graphs_that_fail_have_no_label_and_an_empty_set(ensemble: tuple[Path, Evaluation]) -> None:
    predictions = Ensemble.load(ensemble[0]).nothing(3, 0, "for a test")
    assert predictions["site"].label.tolist() == [-1, -1, -1] and not predictions["site"].set.any()
    assert np.isnan(predictions["phase"].probability).all()


def test_the_report_shows_confusions_and_reliability(ensemble: tuple[Path, Evaluation], tmp_path: Path) -> None:
    folder, _ = ensemble
    page = write_report(folder, tmp_path / "report.html").read_text()
    for words in ("Confusion matrix", "Reliability", "classes in a set", "balanced"):
        assert words in page
    assert len(summary(folder).table or ()) == 2
