"""Values of nodes add up to a total: in physical units, in every step and form of a model."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import INPUTS, make_graph, small_settings
from hydragnn.conformance.law import permuted
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.ensemble import Ensemble, build_ensemble
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.models import GraphModel, TrainedModel, build_model, load_model, parse_head, replay, target_from_json
from hydragnn.models.distributions import Number
from hydragnn.models.trained_stack import TrainedStack
from hydragnn.runs import recording, train
from hydragnn.runs.recording import with_replays
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import CHARGE, ENERGY, Configs, Trained, assembled
from tests.hydragnn.training.recorder import StandIn
from tests.once import shared

SITE, PAIR = Field(name="site", on="node", role="target"), Field(name="pair", on="node", shape=(2,), role="target")
LABEL = Field(name="label", on="node", classes=3, dtype="int64", role="target")
OF_GRAPH = Field(name="of_graph", on="graph", role="target")
MOMENTS = Field(name="moments", on="graph", shape=(2,))
NET = Field(name="net", on="graph", unit="e", dtype="float64")
FIELDS = (*INPUTS, SITE, PAIR, LABEL, OF_GRAPH, MOMENTS)
WITH_NET = {"data__inputs": ["atomic_numbers", "net"]}
WAYS: dict[str, dict[str, Any]] = {
    "zero": {"total": 0},
    "graph field": {"total": "load"},
    "gaussian": {"total": "load", "distribution": "gaussian", "loss": "nll"},
    "networks per index": {"total": "load", "per_index": 4},
    "layers and factors of its own": {"total": "load", "conv_layers": 1, "graph_scale": True},
}


def built(
    head: dict[str, Any], field: str = "site", kind: str = "schnet", inputs: str = "species size load"
) -> GraphModel:
    heads = [parse_head({"kind": "scalar", "field": field, "hidden_dims": [6], **head})]
    return build_model(small_settings(kind), heads, FIELDS, inputs=inputs.split(), dim=3, seed=0).double()


def values_of(model: GraphModel, batch: GraphBatch, field: str = "site") -> Number:
    result: Number = model(batch)[field]  # type: ignore[assignment]
    return result


def sums(values: Tensor, batch: GraphBatch) -> Tensor:
    return torch.stack([part.sum(0) for part in values.split(batch.counts("node").tolist())])


@pytest.mark.parametrize("way", WAYS)
def test_values_add_up_and_depend_on_neither_company_nor_order(way: str) -> None:
    model, sizes = built(WAYS[way]), (4, 4) if way == "networks per index" else (3, 6)
    graphs = [make_graph(seed, nodes) for seed, nodes in enumerate(sizes)]
    batch = concatenate(graphs)
    values = values_of(model, batch)
    expected = batch["load"] if "graph field" in way or way in ("gaussian", *[*WAYS][3:]) else torch.zeros(2)
    torch.testing.assert_close(sums(values.mean, batch), expected.double(), rtol=1e-12, atol=1e-12)
    alone = [values_of(model, graph).mean for graph in graphs]
    torch.testing.assert_close(torch.cat(alone), values.mean, rtol=1e-12, atol=1e-12)
    if way != "networks per index":
        order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(
            values_of(model, permuted(graphs[1], order)).mean, alone[1][order], rtol=1e-12, atol=1e-12
        )


def test_the_shift_is_the_equation_and_has_its_gradients() -> None:
    model, batch = built({"total": "load"}), concatenate([make_graph(0, 3), make_graph(1, 6)])
    (head,) = model.heads
    graph = model.message_graph(batch, model.edge_vectors(batch))
    states = model.encode(batch, graph)
    raw = head.get_submodule("head")(states, graph, batch).mean
    expected = torch.cat([a + (total - a.sum()) / len(a) for a, total in zip(raw.split([3, 6]), batch["load"])])
    actual = values_of(model, batch).mean
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
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
    torch.testing.assert_close(sums(values_of(model, batch, "pair").mean, batch), moments, rtol=1e-12, atol=1e-12)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "graph fields": ({"field": "of_graph", "total": 0}, "total is for node fields, and of_graph lies on graphs"),
    "classes": ({"kind": "classes", "field": "label", "total": 0}, 'total belongs to kind = "scalar"'),
    "unknown": ({"total": "laod"}, "total = 'laod' is no numeric graph input; did you mean load"),
    "classes of graphs": ({"total": "phase"}, "total = 'phase' is no numeric graph input"),
    "node fields": ({"total": "size"}, "total = 'size' is no numeric graph input"),
    "not an input": ({"total": "moments"}, "total = 'moments' is no numeric graph input"),
    "other shape": ({"field": "pair", "total": "load"}, r"total = 'load' has shape \(\), the field \(2,\)"),
    "trained shares": ({"total": 0, "total_shift": "softness"}, "head site: total_shift = softness is gone; train"),
    "other numbers": ({"total": 1}, "1.0 is no total; write 0, or the name of a graph input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_totals_that_cannot_hold_are_refused(case: str) -> None:
    head, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence):
        built(head, inputs="species size load phase")


@pytest.fixture(scope="session")
def charged(material: ModuleType) -> MemoryStore:
    """Return clusters with the sums of their charges, or 3 where these are not known."""
    whole = material.clusters(40)
    graphs = []
    for number in range(len(whole)):
        graph = whole.read([number])
        known = bool(graph.masks["charge"].all()) if "charge" in graph.masks else True
        net = graph["charge"].sum().reshape(1) if known else torch.full((1,), 3.0, dtype=torch.float64)
        graphs.append(graph.with_fields({"net": net}, fields=[NET]))
    return MemoryStore(graphs, whole.attributes)


@shared
def folders(charged: MemoryStore, make_config: Configs, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root, heads = tmp_path_factory.mktemp("totals"), [ENERGY, {**CHARGE, "total": "net"}]
    for seed in (0, 1):
        config = make_config("schnet", heads, train__seed=seed, train__precision="fp32", **WITH_NET)
        record = train(config, root / str(seed), store=charged)
        assert record.status == "finished" and not [note for note in record.notes if "add up" in note]
    return [root / "0", root / "1"]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_saved_models_and_ensembles_keep_totals_in_physical_units(
    folders: list[Path], charged: MemoryStore, dtype: torch.dtype, tolerance: float
) -> None:
    batch = charged.read(range(40))
    models = [load_model(folder / "model", dtype) for folder in folders]
    scale = models[0].normalisation.scales
    assert scale["net"] == scale["charge"] and scale["net"].mean == (0.0,) and scale["net"].std != (1.0,)
    stack = TrainedStack(models)
    for model, (stacked, _) in zip(models, stack.predict_with_states(batch)):
        values = values_in(model.predict(batch)["charge"])
        assert float((sums(values, batch) - batch["net"]).abs().max()) < tolerance * float(batch["net"].abs().max())
        torch.testing.assert_close(values_in(stacked["charge"]), values, rtol=0, atol=tolerance)
    with pytest.raises(InputError, match="no field net, which the model reads"):
        models[0].predict(batch.with_fields(drop=["net"]))


def values_in(prediction: Any) -> Tensor:
    values: Tensor = prediction.mean
    return values


def test_means_of_ensembles_keep_totals(folders: list[Path], charged: MemoryStore, tmp_path: Path) -> None:
    build_ensemble(folders, tmp_path / "ensemble", store=charged)
    batch = charged.read(range(40))
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        estimate = Ensemble.load(tmp_path / "ensemble", dtype=dtype).predict(batch)["charge"]
        found = sums(torch.from_numpy(np.asarray(estimate.mean)), batch)
        assert float((found - batch["net"]).abs().max()) < tolerance * float(batch["net"].abs().max())
        lower, upper = estimate["lower"], estimate["upper"]
        assert np.nanmin(upper - lower) > 0  # of unknown intervals NaN


def test_padded_and_replayed_steps_with_totals_are_the_steps(
    make_config: Configs, charged: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = StandIn()
    monkeypatch.setattr(recording, "recorder_on", lambda device: recorder)
    monkeypatch.setattr(replay, "USES", 0)
    heads = [ENERGY, {**CHARGE, "total": "net"}]
    changes = {"train__optimizer": "sgd", **WITH_NET}
    configs = [make_config("painn", heads, train__graphs=way, **changes) for way in ("off", "on")]
    plain, replayed = (with_replays(assembled(one, charged), Ranks(), lambda: None) for one in configs)
    for ours, theirs in zip(replayed.data.epoch(0), plain.data.epoch(0)):
        new, old = (take_step(r.state, share, r.context, 1e-3) for r, share in ((replayed, ours), (plain, theirs)))
        torch.testing.assert_close((new.loss, new.norm), (old.loss, old.norm), rtol=1e-12, atol=0)
    assert recorder.replays > 0
    scales = plain.data.branches[0].normalisation
    model = TrainedModel(model=plain.state.model, normalisation=scales, dtype=torch.float64)
    batch = charged.read(range(40))
    assert float((sums(values_in(model.predict(batch)["charge"]), batch) - batch["net"]).abs().max()) < 1e-11


def test_labels_that_miss_their_total_are_noted(trained: Trained) -> None:
    record = trained(heads=[ENERGY, {**CHARGE, "total": 0}], train__epochs=1)
    assert any("labels of charge do not add up to zero" in note for note in record.notes)


@pytest.mark.parametrize("stored", [{"total": None, "total_shift": "softness"}, {"total": 0, "total_shift": "equal"}])
def test_stored_heads_without_trained_shares_load(stored: dict[str, Any]) -> None:
    head = parse_head({"kind": "scalar", "field": "site", **stored})
    assert "total_shift" not in head.to_json() and head.to_json()["total"] == stored["total"]


def test_targets_without_a_total_have_the_json_of_older_versions() -> None:
    with_total, without = (
        target
        for head in ({"total": "load"}, {})
        for target in parse_head({"kind": "scalar", "field": "site", **head}).targets({"site": SITE})
    )
    assert with_total.to_json()["total"] == "load" and "total" not in without.to_json()
    assert target_from_json(with_total.to_json()) == with_total and target_from_json(without.to_json()) == without
