"""What is not atoms: plates in the plane, heads with variances, labels that some graphs lack, members without edges."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, open_store, without_edges
from hydragnn.ensemble import Ensemble, Evaluation, build_ensemble, predict_to_file
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from tests.ensemble.conftest import members_in
from tests.once import shared

FIELDS = (
    Field(name="load", on="node"),
    Field(name="pull", on="node", shape=(2,), unit="mm", role="target"),
    Field(name="stiffness", on="graph", unit="N/mm", role="target"),
)


def plate(generator: np.random.Generator, labelled: bool) -> GraphBatch:
    nodes = int(generator.integers(5, 9))
    receivers = np.repeat(np.arange(nodes), 2)
    senders = (receivers + np.tile([1, nodes - 1], nodes)) % nodes
    load = generator.normal(size=nodes).astype(np.float32)
    around = load[(np.arange(nodes) + 1) % nodes]
    pull = np.stack([load + around, 10 * load], axis=1).astype(np.float32)
    values = {"stiffness": torch.tensor([float(load.sum() + 0.3 * generator.normal())])} if labelled else {}
    own_fields = [field for field in FIELDS if labelled or field.name != "stiffness"]
    return graph_from_arrays(
        positions=torch.from_numpy(generator.normal(size=(nodes, 2))),
        senders=torch.from_numpy(senders),
        receivers=torch.from_numpy(receivers),
        fields=own_fields,
        nodes={"load": torch.from_numpy(load), "pull": torch.from_numpy(pull)},
        graphs=values,
    )


@shared
def plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plates") / "plates.h5"
    generator = np.random.default_rng(0)
    with StoreWriter(path, FIELDS, dim=2) as writer:
        writer.write(concatenate([plate(generator, labelled=i % 4 != 0) for i in range(80)]))
    return path


@shared
def members(tmp_path_factory: pytest.TempPathFactory, plates: Path) -> list[Path]:
    """With edges and variances, with edges, and without edges."""
    how = {"distribution": "gaussian", "loss": "nll"}
    tables = [
        {
            "data": {"store": str(plates), "edges": edges},
            "split": {"train": 0.5, "valid": 0.25},
            "batch": {"max_graphs": 8},
            "model": {"kind": "egnn", "hidden_dim": 8, "num_layers": 2, "num_radial": 4, "envelope": "none"},
            "heads": [
                {"kind": "scalar", "field": "pull", "hidden_dims": [8]},
                {"kind": "scalar", "field": "stiffness", "hidden_dims": [8], **(how if gaussian else {})},
            ],
            "train": {"epochs": 1},
        }
        for edges, gaussian in [(True, True), (True, False), (False, True)]
    ]
    return members_in(tmp_path_factory.mktemp("members"), tables)


@shared
def ensemble(tmp_path_factory: pytest.TempPathFactory, members: list[Path]) -> tuple[Path, Evaluation]:
    out = tmp_path_factory.mktemp("plates-ensemble") / "ensemble"
    return out, build_ensemble(members, out)


def test_graphs_without_a_label_are_predicted_but_not_judged(ensemble: tuple[Path, Evaluation], plates: Path) -> None:
    out, evaluation = ensemble
    store = open_store(plates)
    predictions = Ensemble.load(out).predict(store)
    assert predictions.ok.all() and np.isfinite(predictions["stiffness"].mean).all()
    with np.load(out / "evaluation.npz") as arrays:
        test_graphs = arrays["test/stiffness/graph"]
        assert len(test_graphs) and store.column("stiffness").present[test_graphs].all()
        assert len(arrays["test/pull/target"]) == 2 * store.sizes().nodes[np.unique(arrays["test/pull/graph"])].sum()
    assert evaluation.parts["test"]["pull"].unit == "mm"


def test_noise_and_disagreement_add_up_above_the_floor(ensemble: tuple[Path, Evaluation], plates: Path) -> None:
    loaded = Ensemble.load(ensemble[0])
    stiffness = loaded.predict(open_store(plates))["stiffness"]
    assert (stiffness.aleatoric > 0).all() and (stiffness.epistemic > 0).any()
    component = loaded.manifest.calibration["stiffness"].components[0]
    above = stiffness.std > component.scale * component.floor * (1 + 1e-9)
    np.testing.assert_allclose(
        stiffness.std[above] ** 2, (stiffness.epistemic**2 + stiffness.aleatoric**2)[above], rtol=1e-9
    )
    assert (stiffness.aleatoric < stiffness.std * (1 + 1e-9)).all() or above.any()


def test_a_member_without_edges_never_sees_them(members: list[Path], plates: Path) -> None:
    store = open_store(plates)
    blind = Ensemble.load(members[2])
    batch = store.read(np.arange(4))
    np.testing.assert_array_equal(blind.predict(batch)["pull"].mean, blind.predict(without_edges(batch))["pull"].mean)


def test_plates_are_no_structures(ensemble: tuple[Path, Evaluation], plates: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="extended XYZ holds atoms"):
        predict_to_file(ensemble[0], plates, tmp_path / "out.xyz")
    result = predict_to_file(ensemble[0], plates, tmp_path / "out.csv")
    assert result.graphs == 80
    header = (tmp_path / "out.nodes.csv").read_text().splitlines()[0].split(",")
    assert "pull_0_mean" in header and "pull_1_upper" in header


def test_a_load_that_training_never_saw_is_flagged(ensemble: tuple[Path, Evaluation], plates: Path) -> None:
    batch = open_store(plates).read(np.arange(3))
    batch.nodes["load"][0] = 50.0
    flags = Ensemble.load(ensemble[0]).predict(batch).domain
    assert "final states of its nodes are unlike those of training" in flags[0]
    assert flags[1] == flags[2] == ""


def test_runs_with_the_same_folder_name_become_members_with_different_names(
    members: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(members[1], tmp_path / "elsewhere" / members[0].name)
    evaluation = build_ensemble([members[0], tmp_path / "elsewhere" / members[0].name], tmp_path / "ensemble")
    names = list(evaluation.parts["test"]["pull"].members)
    assert names == ["0000", "0000-2"]
