"""Values of nodes add up to a total: in physical units, in every step and form of a model."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import INPUTS, make_graph, small_settings
from hydragnn.conformance.law import permuted
from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import Ensemble, build_ensemble
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.models import GraphModel, build_model, load_model, parse_head, target_from_json
from hydragnn.models.trained_stack import TrainedStack
from hydragnn.runs import train
from tests.hydragnn.training.conftest import CHARGE, ENERGY, STORE, Trained, make_config
from tests.once import shared

SITE, PAIR = Field(name="site", on="node", role="target"), Field(name="pair", on="node", shape=(2,), role="target")
LABEL = Field(name="label", on="node", classes=3, dtype="int64", role="target")
OF_GRAPH = Field(name="of_graph", on="graph", role="target")
MOMENTS = Field(name="moments", on="graph", shape=(2,))
NET = Field(name="net", on="graph", unit="e", dtype="float64")
FIELDS = (*INPUTS, SITE, PAIR, LABEL, OF_GRAPH, MOMENTS)
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
WITH_NET = {"data__inputs": ["atomic_numbers", "net"]}
WAYS: dict[str, dict[str, Any]] = {
    "zero": {"total": 0},
    "graph field": {"total": "load"},
    "gaussian": {"total": "load", "distribution": "gaussian", "loss": "nll"},
    "networks per index": {"total": "load", "per_index": 4},
    "layers of its own": {"total": "load", "conv_layers": 1},
}


def built(head: dict[str, Any], field: str = "site", inputs: str = "species size load") -> GraphModel:
    heads = [parse_head({"kind": "scalar", "field": field, "hidden_dims": [6], **head})]
    return build_model(small_settings("schnet"), heads, FIELDS, inputs=inputs.split(), dim=3, seed=0).double()


def sums(values: Tensor, batch: GraphBatch) -> Tensor:
    return torch.stack([part.sum(0) for part in values.split(batch.counts("node").tolist())])


@pytest.mark.parametrize("way", WAYS)
def test_values_add_up_and_depend_on_neither_company_nor_order(way: str) -> None:
    model, sizes = built(WAYS[way]), (4, 4) if way == "networks per index" else (3, 6)
    graphs = [make_graph(seed, nodes) for seed, nodes in enumerate(sizes)]
    batch = concatenate(graphs)
    values = model(batch)["site"]
    expected = torch.zeros(2) if way == "zero" else batch["load"]
    assert_close(sums(values.mean, batch), expected.double())
    alone = [model(graph)["site"].mean for graph in graphs]
    assert_close(torch.cat(alone), values.mean)
    if way != "networks per index":
        order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
        assert_close(model(permuted(graphs[1], order))["site"].mean, alone[1][order])


def test_the_shift_is_the_equation_and_has_its_gradients() -> None:
    model, batch = built({"total": "load"}), concatenate([make_graph(0, 3), make_graph(1, 6)])
    (head,) = model.heads
    graph = model.message_graph(batch, model.edge_vectors(batch))
    states = model.encode(batch, graph)
    raw = head.get_submodule("head")(states, graph, batch).mean
    expected = torch.cat([a + (total - a.sum()) / len(a) for a, total in zip(raw.split([3, 6]), batch["load"])])
    actual = model(batch)["site"].mean
    assert_close(actual, expected)
    weights = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = (
        torch.autograd.grad((one * weights).sum(), [*model.parameters()], retain_graph=True, allow_unused=True)
        for one in (actual, expected)
    )
    for one, other in zip(ours, theirs):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_components_have_totals_of_their_own() -> None:
    batch = concatenate([make_graph(0, 3), make_graph(1, 6)])
    moments = torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = batch.with_fields({"moments": moments}, fields=[MOMENTS])
    model = built({"total": "moments"}, "pair", inputs="species moments")
    assert_close(sums(model(batch)["pair"].mean, batch), moments)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "graph fields": ({"field": "of_graph", "total": 0}, "total is for node fields, and of_graph lies on graphs"),
    "classes": ({"kind": "classes", "field": "label", "total": 0}, 'total belongs to kind = "scalar"'),
    "unknown": ({"total": "laod"}, "total = 'laod' is no numeric graph input; did you mean load"),
    "classes of graphs": ({"total": "phase"}, "total = 'phase' is no numeric graph input"),
    "node fields": ({"total": "size"}, "total = 'size' is no numeric graph input"),
    "not an input": ({"total": "moments"}, "total = 'moments' is no numeric graph input"),
    "other shape": ({"field": "pair", "total": "load"}, r"total = 'load' has shape \(\), the field \(2,\)"),
    "other numbers": ({"total": 1}, "1.0 is no total; write 0, or the name of a graph input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_totals_that_cannot_hold_are_refused(case: str) -> None:
    head, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence):
        built(head, inputs="species size load phase")


@pytest.fixture(scope="session")
def charged() -> MemoryStore:
    """Clusters with the sums of their charges, or 3 where these are not known."""
    batch = STORE.read(range(40))
    net = torch.where(batch.present("charge"), sums(batch["charge"], batch), 3.0)
    return MemoryStore(batch.with_fields({"net": net}, fields=[NET]), STORE.attributes)


@shared
def folders(charged: MemoryStore, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root, heads = tmp_path_factory.mktemp("totals"), [ENERGY, {**CHARGE, "total": "net"}]
    for seed in (0, 1):
        config = make_config("schnet", heads, train__seed=seed, train__precision="fp32", **WITH_NET)
        record = train(config, root / str(seed), store=charged)
        assert record.status == "finished" and not [note for note in record.notes if "add up" in note]
    return [root / "0", root / "1"]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_models_stacks_and_ensembles_keep_totals(
    folders: list[Path], charged: MemoryStore, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    batch = charged.read(range(40))
    models = [load_model(folder / "model", dtype) for folder in folders]
    scale = models[0].normalisation.scales
    assert scale["net"] == scale["charge"] and scale["net"].mean == (0.0,) and scale["net"].std != (1.0,)

    def assert_totals(values: Tensor) -> None:
        assert float((sums(values, batch) - batch["net"]).abs().max()) < tolerance * float(batch["net"].abs().max())

    for model, (stacked, _) in zip(models, TrainedStack(models).predict_with_states(batch)):
        values = model.predict(batch)["charge"].mean
        assert_totals(values)
        torch.testing.assert_close(stacked["charge"].mean, values, rtol=0, atol=tolerance)
    with pytest.raises(InputError, match="no field net, which the model reads"):
        models[0].predict(batch.with_fields(drop=["net"]))
    build_ensemble(folders, tmp_path / "ensemble", store=charged)
    estimate = Ensemble.load(tmp_path / "ensemble", dtype=dtype).predict(batch)["charge"]
    assert_totals(torch.from_numpy(np.asarray(estimate.mean)))
    assert np.nanmin(estimate["upper"] - estimate["lower"]) > 0  # of unknown intervals NaN


def test_labels_that_miss_their_total_are_noted(trained: Trained) -> None:
    record = trained(heads=[ENERGY, {**CHARGE, "total": 0}], train__epochs=1)
    assert any("labels of charge do not add up to zero" in note for note in record.notes)


def test_targets_without_a_total_have_the_json_of_older_versions() -> None:
    with_total, without = (
        target
        for head in ({"total": "load"}, {})
        for target in parse_head({"kind": "scalar", "field": "site", **head}).targets({"site": SITE})
    )
    assert with_total.to_json()["total"] == "load" and "total" not in without.to_json()
    assert target_from_json(with_total.to_json()) == with_total and target_from_json(without.to_json()) == without
