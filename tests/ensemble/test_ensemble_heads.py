"""Edge, tensor and per-index heads from training to prediction files and the report, with labels that some graphs lack."""

import csv
from pathlib import Path

import h5py
import numpy as np
import pytest

from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import Ensemble, Evaluation, build_ensemble, predict_to_file
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.scripts.report import write_report
from tests.ensemble.conftest import members_in
from tests.once import shared

NODES = 5
FIELDS = (
    Field(name="load", on="node"),
    Field(name="flow", on="edge", unit="W", role="target"),
    Field(name="steep", on="edge", classes=2, dtype="int64", role="target"),
    Field(name="spread", on="graph", shape=(2, 2), parity="tensor", unit="m2", role="target"),
    Field(name="level", on="node", role="target"),
    Field(name="smooth", on="node", role="target"),
)
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
        fields=[field for field in FIELDS if field.name not in gone],
        nodes={"load": load, "level": load + place, "smooth": np.roll(load, 1)},
        edges={name: values for name, values in edges.items() if name not in gone},
        graphs={"spread": (10 * np.eye(2) + np.cov(positions.T))[None]},
    )


@shared
def rings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rings") / "rings.h5"
    generator = np.random.default_rng(0)
    with StoreWriter(path, FIELDS, dim=2) as writer:
        writer.write(concatenate([ring(generator, number) for number in range(60)]))
    return path


@shared
def ensemble(tmp_path_factory: pytest.TempPathFactory, rings: Path) -> tuple[Path, Evaluation]:
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


def test_every_target_is_judged_where_it_has_labels(ensemble: tuple[Path, Evaluation], rings: Path) -> None:
    folder, evaluation = ensemble
    scores = evaluation.parts["test"]
    assert set(scores) >= {"flow", "steep", "spread", "level", "smooth"}
    column, sizes = open_store(rings).column("flow"), open_store(rings).sizes()
    with np.load(folder / "evaluation.npz") as arrays:
        test_graphs = arrays["test/flow/graph"]
        assert len(test_graphs) == sizes.edges[np.unique(test_graphs)].sum() and column.present[test_graphs].all()
    assert Ensemble.load(folder).predict(open_store(rings)).ok.all()


def test_a_flow_is_predicted_with_its_sign_in_both_directions(ensemble: tuple[Path, Evaluation], rings: Path) -> None:
    store = open_store(rings)
    output = Ensemble.load(ensemble[0]).predict(store)
    back = store.read(np.arange(len(store))).reverse_edges.numpy()
    np.testing.assert_allclose(output["flow"].mean, -output["flow"].mean[back], atol=1e-12)
    np.testing.assert_allclose(output["flow"].std, output["flow"].std[back], rtol=1e-9)
    np.testing.assert_array_equal(output["steep"].label, output["steep"].label[back])
    np.testing.assert_array_equal(output.graph_of_item("flow"), np.repeat(np.arange(60), store.sizes().edges))


def test_a_tensor_is_symmetric_and_shifted_along_the_identity_only(
    ensemble: tuple[Path, Evaluation], rings: Path
) -> None:
    loaded = Ensemble.load(ensemble[0])
    mean = loaded.predict(open_store(rings))["spread"].mean
    np.testing.assert_allclose(mean, mean.swapaxes(1, 2), rtol=1e-6)
    scale = loaded.members[0].model.normalisation.scales["spread"]
    assert scale.mean[0] == scale.mean[3] > 9 and scale.mean[1:3] == (0.0, 0.0) and len(set(scale.std)) == 1
    assert np.abs(mean[:, 0, 0] - 11).mean() < 2  # two epochs: little more than the shift


def test_prediction_files_say_which_nodes_an_edge_joins(
    ensemble: tuple[Path, Evaluation], rings: Path, tmp_path: Path
) -> None:
    folder, store = ensemble[0], open_store(rings)
    batch, output = store.read(np.arange(len(store))), Ensemble.load(ensemble[0]).predict(store)
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


def test_the_report_shows_all_of_them(ensemble: tuple[Path, Evaluation], tmp_path: Path) -> None:
    page = write_report(ensemble[0], tmp_path / "report.html").read_text()
    for name in ("flow", "steep", "spread", "level", "smooth"):
        assert name in page
