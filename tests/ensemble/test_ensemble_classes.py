"""Classes, edges, tensors and what else is not atoms, from training to files and report, with labels that graphs lack."""

import csv
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from scipy.stats import binom

from hydragnn.base.files import read_sealed
from hydragnn.datasets import open_store, without_edges
from hydragnn.ensemble import Ensemble, build_ensemble, predict_to_file
from hydragnn.ensemble.estimates.calibration.classes import fit_classes, temper
from hydragnn.ensemble.estimates.classes import ClassEstimate
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.models import Categorical, Target
from hydragnn.scripts.report import write_report
from hydragnn.scripts.report.page import summary
from tests.ensemble.conftest import Built, members_in, refused, written
from tests.once import shared

PHASE = Field(name="phase", on="graph", classes=3, dtype="int64", role="target")
SITE = Field(name="site", on="node", classes=2, dtype="int64", role="target")
PULL = Field(name="pull", on="node", shape=(2,), unit="mm", role="target")
STIFFNESS = Field(name="stiffness", on="graph", unit="N/mm", role="target")
FIELDS = (Field(name="load", on="node"), PHASE, SITE, PULL, STIFFNESS)
FOUR = Field(name="x", on="graph", classes=4, dtype="int64")


def draw(generator: np.random.Generator, rows: int, sharpness: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels drawn from them: a predictor that is exactly right about its doubt."""
    p = torch.from_numpy(generator.normal(size=(rows, 4)) * sharpness).softmax(1).numpy()
    labels = (p.cumsum(1) < generator.uniform(size=(rows, 1))).sum(1).clip(max=3)
    return p, labels.astype(np.float64)


def test_a_mixture_of_members_is_normalised_and_its_doubt_has_two_parts() -> None:
    generator = np.random.default_rng(0)
    members = [Categorical(logits=torch.from_numpy(generator.normal(size=(9, 3)))) for _ in range(4)]
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    target, nodes = Target(field=PHASE, loss="cross_entropy", distribution=Categorical), np.ones(9, dtype=np.int64)
    one = ClassEstimate.of(target, members, weights, None, nodes)
    expected = sum(w * member.probabilities.numpy() for w, member in zip(weights, members))
    np.testing.assert_allclose(one.probability, expected)
    np.testing.assert_allclose(one.probability.sum(-1), 1.0)
    np.testing.assert_allclose(one.epistemic + one.aleatoric, one.entropy)
    alone = ClassEstimate.of(target, members[:1], np.ones(1), None, nodes)
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
def test_probabilities_promise_no_more_than_was_seen(seed: int, items: int, wrong: float, scale: float) -> None:
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
    generator = np.random.default_rng(1)
    (p, labels), (q, others) = draw(generator, 4000), draw(generator, 4000)
    fitted = fit_classes(FOUR, labels, temper(p, 1 / factor), np.arange(4000), nominal=0.9)
    assert fitted.temperature == pytest.approx(factor, rel=0.1)  # four standard errors of 4000 rows

    def nll(probabilities: np.ndarray) -> float:
        return -np.log(probabilities[np.arange(4000), others.astype(int)]).mean()

    skewed = temper(q, 1 / factor)
    assert nll(temper(skewed, fitted.temperature)) < nll(skewed) - 0.01


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0], ids=["unsure", "mixed", "nearly always right"])
@pytest.mark.parametrize("nominal", [0.8, 0.9])
def test_conformal_sets_hold_the_label_as_often_as_promised(sharpness: float, nominal: float) -> None:
    generator = np.random.default_rng(2)
    (p, labels), (q, others) = draw(generator, 1500, sharpness), draw(generator, 1500, sharpness)
    fitted = fit_classes(FOUR, labels, p, np.arange(1500), nominal=nominal)
    members, target = [Categorical(logits=torch.from_numpy(np.log(q)))], Target(field=FOUR, distribution=Categorical)
    one = ClassEstimate.of(target, members, np.ones(1), fitted, np.ones(1500, dtype=np.int64))
    covered = int(one.set[np.arange(1500), others.astype(int)].sum())
    # binomial error of 1500 fresh labels and as much again from the 1500 that set the threshold, at 1 in 10,000
    low, high = binom.ppf([5e-5, 1 - 5e-5], 750, nominal) / 750
    assert low <= covered / 1500 <= high


def test_too_few_graphs_for_the_level_promise_nothing() -> None:
    p, labels = draw(np.random.default_rng(3), 5)
    assert not fit_classes(FOUR, labels, p, np.arange(5), nominal=0.9).guaranteed
    refused("no labelled graph to calibrate on", fit_classes, FOUR, labels[:0], p[:0], np.arange(0), nominal=0.9)


def chain(generator: np.random.Generator, labelled: bool) -> GraphBatch:
    """The phase says in which third the summed load lies; a node's class is the sign of what its neighbours carry."""
    nodes = int(generator.integers(5, 9))
    receivers = np.repeat(np.arange(nodes), 2)
    senders = (receivers + np.tile([1, nodes - 1], nodes)) % nodes
    load = generator.normal(size=nodes).astype(np.float32)
    next_load, noise = load[(np.arange(nodes) + 1) % nodes], generator.normal()
    phase = int(np.digitize(load.mean() + 0.1 * noise, [-0.2, 0.2]))
    site = (next_load + load[np.arange(nodes) - 1] > 0).astype(np.int64)
    return graph_from_arrays(
        generator.normal(size=(nodes, 2)),
        senders,
        receivers,
        fields=[field for field in FIELDS if labelled or field not in (PHASE, STIFFNESS)],
        nodes={"load": load, "site": site, "pull": np.stack([load + next_load, 10 * load], axis=1)},
        graphs={"phase": phase, "stiffness": float(load.sum() + 0.3 * noise)} if labelled else {},
    )


@shared
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator, path = np.random.default_rng(0), tmp_path_factory.mktemp("chains") / "chains.h5"
    return written(path, concatenate([chain(generator, labelled=i % 4 != 0) for i in range(240)]), FIELDS)


@shared
def members(tmp_path_factory: pytest.TempPathFactory, chains: Path) -> list[Path]:
    """With edges and variances, with edges, and without edges."""
    how = {"distribution": "gaussian", "loss": "nll"}
    tables = [
        {
            "data": {"store": str(chains), "edges": edges},
            "split": {"train": 0.4, "valid": 0.3},
            "batch": {"max_graphs": 16},
            "model": {"kind": "pna", "hidden_dim": 12, "num_layers": 2, "num_radial": 4, "envelope": "none"},
            "heads": [
                {"kind": "classes", "field": "phase", "hidden_dims": [12], "class_weights": "balanced"},
                {"kind": "classes", "field": "site", "hidden_dims": [12]},
                {"kind": "scalar", "field": "pull", "hidden_dims": [8]},
                {"kind": "scalar", "field": "stiffness", "hidden_dims": [8], **(how if gaussian else {})},
            ],
            "train": {"epochs": epochs, "learning_rate": 5e-3},
        }
        for edges, gaussian, epochs in [(True, True, 12), (True, False, 12), (False, True, 1)]
    ]
    return members_in(tmp_path_factory.mktemp("members"), tables)


@shared
def ensemble(tmp_path_factory: pytest.TempPathFactory, members: list[Path]) -> Built:
    out = tmp_path_factory.mktemp("chains-ensemble") / "ensemble"
    return out, build_ensemble(members, out)


def test_classes_are_learned_and_judged_beside_the_trivial_predictor(ensemble: Built) -> None:
    folder, evaluation = ensemble
    assert read_sealed(folder / "evaluation.json") == evaluation.to_json()
    for name in ("phase", "site"):
        scores = evaluation.parts["test"][name]
        assert scores.ensemble["nll"] < 0.8 * scores.trivial["nll"]
        assert scores.ensemble["auroc"] > 0.8
        assert {"accuracy", "balanced_accuracy", "brier", "ece"} <= set(scores.ensemble)
    confusion = np.array(evaluation.parts["test"]["site"].confusion)
    assert np.trace(confusion) / confusion.sum() == pytest.approx(scores.ensemble["accuracy"])


def test_files_hold_probabilities_and_sets(ensemble: Built, chains: Path, tmp_path: Path) -> None:
    folder, _ = ensemble
    predictions = Ensemble.load(folder).predict(open_store(chains))
    predict_to_file(folder, chains, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        for quantity in ("probability", "label", "set", "entropy", "epistemic", "aleatoric"):
            np.testing.assert_allclose(file[f"fields/phase/{quantity}"][:], predictions["phase"][quantity])
        np.testing.assert_allclose(file["fields/site/probability"][:].sum(1), 1.0)
    assert predict_to_file(folder, chains, tmp_path / "out.csv").graphs == 240
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["phase_label"]) for row in rows] == predictions["phase"].label.tolist()
    assert float(rows[0]["phase_2_probability"]) == pytest.approx(predictions["phase"].probability[0, 2])
    header = (tmp_path / "out.nodes.csv").read_text().splitlines()[0].split(",")
    assert {"pull_0_mean", "pull_1_upper"} <= set(header)
    refused("extended XYZ holds atoms", predict_to_file, folder, chains, tmp_path / "out.xyz")


def test_graphs_that_fail_have_no_label_and_an_empty_set(ensemble: Built) -> None:
    predictions = Ensemble.load(ensemble[0]).nothing(3, 0, "for a test")
    assert predictions["site"].label.tolist() == [-1, -1, -1] and not predictions["site"].set.any()
    assert np.isnan(predictions["phase"].probability).all()


@pytest.mark.usefixtures("undrawn")
def test_the_report_shows_confusions_and_reliability(ensemble: Built, joined_rings: Built, tmp_path: Path) -> None:
    words = {"ring": HEADS_OF_RINGS, "chain": ("Confusion matrix", "Reliability", "classes in a set", "balanced")}
    for name, folder in (("ring", joined_rings[0]), ("chain", ensemble[0])):
        page = write_report(folder, tmp_path / f"{name}.html").read_text()
        assert [word for word in words[name] if word not in page] == []
    assert len(summary(ensemble[0]).table or ()) == 4


def test_graphs_without_a_label_are_predicted_but_not_judged(ensemble: Built, chains: Path) -> None:
    store = open_store(chains)
    predictions = Ensemble.load(ensemble[0]).predict(store)
    assert predictions.ok.all() and np.isfinite(predictions["stiffness"].mean).all()
    assert (predictions["stiffness"].aleatoric > 0).all() and (predictions["stiffness"].epistemic > 0).any()
    with np.load(ensemble[0] / "evaluation.npz") as arrays:
        test_graphs = arrays["test/stiffness/graph"]
        assert len(test_graphs) and store.column("stiffness").present[test_graphs].all()
        assert len(arrays["test/pull/target"]) == 2 * store.sizes().nodes[np.unique(arrays["test/pull/graph"])].sum()
    assert ensemble[1].parts["test"]["pull"].unit == "mm"


def test_a_member_without_edges_never_sees_them(members: list[Path], chains: Path) -> None:
    blind, batch = Ensemble.load(members[2]), open_store(chains).read(np.arange(4))
    np.testing.assert_array_equal(blind.predict(batch)["pull"].mean, blind.predict(without_edges(batch))["pull"].mean)


def test_a_load_that_training_never_saw_is_flagged(ensemble: Built, chains: Path) -> None:
    batch = open_store(chains).read(np.arange(3))
    batch.nodes["load"][0] = 50.0
    flags = Ensemble.load(ensemble[0]).predict(batch).domain
    assert "final states of its nodes are unlike those of training" in flags[0]
    assert flags[1] == flags[2] == ""


def test_runs_with_the_same_folder_name_have_different_names(members: list[Path], tmp_path: Path) -> None:
    shutil.copytree(members[1], tmp_path / "elsewhere" / members[0].name)
    evaluation = build_ensemble([members[0], tmp_path / "elsewhere" / members[0].name], tmp_path / "ensemble")
    assert list(evaluation.parts["test"]["pull"].members) == [
        f"{place}/{members[0].name}" for place in (members[0].parent.name, "elsewhere")
    ]


NODES = 5
RING_FIELDS = (
    Field(name="load", on="node"),
    Field(name="flow", on="edge", unit="W", role="target"),
    Field(name="steep", on="edge", classes=2, dtype="int64", role="target"),
    Field(name="spread", on="graph", shape=(2, 2), parity="tensor", unit="m2", role="target"),
    Field(name="level", on="node", role="target"),
    Field(name="smooth", on="node", role="target"),
)
HEADS_OF_RINGS = ("flow", "steep", "spread", "level", "smooth")
HEADS = [
    {"kind": "scalar", "field": "flow", "symmetry": "antisymmetric", "distribution": "gaussian", "loss": "nll"},
    {"kind": "classes", "field": "steep", "symmetry": "symmetric", "class_weights": "balanced"},
    {"kind": "tensor", "field": "spread"},
    {"kind": "scalar", "field": "level", "per_index": NODES},
    {"kind": "scalar", "field": "smooth", "conv_layers": 1},
]


def ring(generator: np.random.Generator, number: int) -> GraphBatch:
    """Nodes around a ring, fully joined in every fifth graph, with a flow down the load; every fourth graph has no edge labels."""
    place = np.arange(NODES)
    steps = [1, NODES - 1] if number % 5 else [1, 2, NODES - 2, NODES - 1]
    receivers = np.repeat(place, len(steps))
    senders = (receivers + np.tile(steps, NODES)) % NODES
    positions, load = generator.normal(size=(NODES, 2)), generator.normal(size=NODES)
    flow = load[senders] - load[receivers]
    gone = {"flow", "steep"} if number % 4 == 0 else set()
    edges = {"flow": flow, "steep": (np.abs(flow) > 1).astype(np.int64)}
    return graph_from_arrays(
        positions,
        senders,
        receivers,
        fields=[field for field in RING_FIELDS if field.name not in gone],
        nodes={"load": load, "level": load + place, "smooth": np.roll(load, 1)},
        edges={name: values for name, values in edges.items() if name not in gone},
        graphs={"spread": (10 * np.eye(2) + np.cov(positions.T))[None]},
    )


@shared
def rings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator, path = np.random.default_rng(0), tmp_path_factory.mktemp("rings") / "rings.h5"
    return written(path, concatenate([ring(generator, number) for number in range(60)]), RING_FIELDS)


@shared
def joined_rings(tmp_path_factory: pytest.TempPathFactory, rings: Path) -> Built:
    """Two members of two epochs, and the evaluation of their ensemble."""
    root = tmp_path_factory.mktemp("head-members")
    table = {
        "data": {"store": str(rings)},
        "split": {"train": 0.5, "valid": 0.25},
        "batch": {"max_graphs": 16},
        "model": {"kind": "egnn", "hidden_dim": 6, "num_layers": 1, "num_radial": 3, "envelope": "none"},
        "heads": [{**head, "hidden_dims": [6]} for head in HEADS],
        "train": {"epochs": 2, "learning_rate": 1e-2},
    }
    return root / "ensemble", build_ensemble(members_in(root, [table] * 2), root / "ensemble")


def test_every_target_is_judged_where_it_has_labels(joined_rings: Built, rings: Path) -> None:
    folder, evaluation = joined_rings
    scores = evaluation.parts["test"]
    assert set(scores) >= set(HEADS_OF_RINGS)
    column, sizes = open_store(rings).column("flow"), open_store(rings).sizes()
    with np.load(folder / "evaluation.npz") as arrays:
        test_graphs = arrays["test/flow/graph"]
        assert len(test_graphs) == sizes.edges[np.unique(test_graphs)].sum() and column.present[test_graphs].all()
    assert Ensemble.load(folder).predict(open_store(rings)).ok.all()


def test_a_flow_is_predicted_with_its_sign_in_both_directions(joined_rings: Built, rings: Path) -> None:
    store = open_store(rings)
    output = Ensemble.load(joined_rings[0]).predict(store)
    back = store.read(np.arange(len(store))).reverse_edges.numpy()
    np.testing.assert_allclose(output["flow"].mean, -output["flow"].mean[back], atol=1e-12)
    np.testing.assert_allclose(output["flow"].std, output["flow"].std[back], rtol=1e-9)
    np.testing.assert_array_equal(output["steep"].label, output["steep"].label[back])
    np.testing.assert_array_equal(output.graph_of_item("flow"), np.repeat(np.arange(60), store.sizes().edges))


def test_a_tensor_is_symmetric_and_shifted_along_identity(joined_rings: Built, rings: Path) -> None:
    loaded = Ensemble.load(joined_rings[0])
    mean = loaded.predict(open_store(rings))["spread"].mean
    np.testing.assert_allclose(mean, mean.swapaxes(1, 2), rtol=1e-6)
    scale = loaded.members[0].model.normalisation.scales["spread"]
    assert scale.mean[0] == scale.mean[3] > 9 and scale.mean[1:3] == (0.0, 0.0) and len(set(scale.std)) == 1
    assert np.abs(mean[:, 0, 0] - 11).mean() < 2  # two epochs: little more than the shift


def test_files_say_which_nodes_an_edge_joins(joined_rings: Built, rings: Path, tmp_path: Path) -> None:
    folder, store = joined_rings[0], open_store(rings)
    batch, output = store.read(np.arange(len(store))), Ensemble.load(joined_rings[0]).predict(store)
    first = batch.node_offsets[batch.owner("edge")]
    predict_to_file(folder, rings, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["senders"][:], (batch.senders - first).numpy())
        np.testing.assert_array_equal(file["receivers"][:], (batch.receivers - first).numpy())
        np.testing.assert_array_equal(file["edges"][:], store.sizes().edges)
        np.testing.assert_allclose(file["fields/flow/mean"][:], output["flow"].mean)
    predict_to_file(folder, rings, tmp_path / "out.csv")
    with (tmp_path / "out.edges.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["sender"]) for row in rows] == (batch.senders - first).tolist()
    assert float(rows[7]["flow_mean"]) == pytest.approx(output["flow"].mean[7])
    assert int(rows[7]["steep_label"]) == output["steep"].label[7]
