"""Field tokens read what a graph has, and refuse what would be wrong without a word."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import make_graph, make_model
from hydragnn.datasets import SplitSettings, StoreWriter, make_split, open_store
from hydragnn.ensemble import rollout
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.layers.field_tokens import FAINT
from hydragnn.models import TrainedModel, load_model
from tests.once import shared

UNITS = {"height": "m", "rate": "m/s", "depth": "m", "warmth": "K"}


def lattice(number: int, names: tuple[str, ...], lead: float) -> GraphBatch:
    """A few nodes in the plane with fields, and their height later."""
    random, size = torch.Generator().manual_seed(number), 5 + number % 3
    positions = torch.rand(size, 2, generator=random)
    ends = torch.combinations(torch.arange(size)).T
    senders, receivers = torch.cat([ends, ends.flip(0)], dim=1)
    fields = [Field(name=name, on="node", unit=UNITS[name]) for name in names]
    fields += [Field(name="next", on="node", unit="m", role="target"), Field(name="lead", on="graph", unit="s")]
    nodes = {name: torch.randn(size, generator=random) for name in names}
    nodes["next"] = nodes["height"] + lead * nodes.get("rate", torch.zeros(size))
    if "warmth" in names:
        fields.append(Field(name="later", on="node", unit="K", role="target"))
        nodes["later"] = 0.9 * nodes["warmth"]
    graphs = {"lead": torch.tensor([lead])}
    return graph_from_arrays(positions, senders, receivers, fields=fields, nodes=nodes, graphs=graphs)


def write(path: Path, names: tuple[str, ...], lacking: str = "") -> Path:
    """Write graphs of two lead times; every third one lacks a field."""
    graphs = [lattice(number, names, (0.1, 0.4)[number % 2]) for number in range(30)]
    for number in range(0, 30, 3) if lacking else ():
        graphs[number] = graphs[number].with_fields(masks={lacking: torch.tensor([False])})
    with StoreWriter(path, list(graphs[0].fields.values()), dim=2) as store:
        for graph in graphs:
            store.write(graph)
    return path


def table_of(store: Path, start: Path | None = None, **model: Any) -> dict[str, Any]:
    own = {"kind": "field_tokens", "hidden_dim": 8, "num_layers": 1, "heads": 2, "lead_time": "lead"}
    of_start = {"start": {"model": str(start)}} if start else {}
    return {
        "data": {"store": str(store)},
        "model": {**({} if start else own), **model},
        "heads": [{"kind": "scalar", "field": "next", "correction_of": "height"}],
        "train": {"epochs": 2, "precision": "fp64"},
        **of_start,
    }


@shared
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    write(folder / "two.h5", ("height", "rate"), lacking="rate")
    write(folder / "four.h5", ("height", "rate", "depth", "warmth"))
    hydragnn.train(table_of(folder / "two.h5", optional_inputs=["rate"]), folder / "two")
    return folder


def model_of(place: Path) -> TrainedModel:
    return load_model(place / "two/model", torch.float64)


def test_a_field_that_a_graph_lacks_has_no_token(place: Path) -> None:
    model, graph = model_of(place), lattice(3, ("height", "rate"), 0.2)
    masked = graph.with_fields({"rate": torch.full_like(graph["rate"], 1e6)}, masks={"rate": torch.tensor([False])})
    without = graph.with_fields(drop=["rate"])
    both = model.predict(concatenate([masked, graph]))["next"].mean
    for batch in (masked, without):
        torch.testing.assert_close(model.predict(batch)["next"].mean, both[: graph.num_nodes])
    assert not torch.allclose(model.predict(graph)["next"].mean, model.predict(without)["next"].mean)


@pytest.mark.parametrize(
    "unit, lead, words",
    [
        ("", 0.2, "no field height, which the model reads"),
        ("km/s", 0.2, r"rate is in km/s, but the model was trained in m/s; convert the values, by scale = 1000 in its"),
        ("K", 0.2, r"rate is in K, but the model was trained in m/s; convert the values$"),
        ("m/s", 0.5, r"lead = 0.5, and the model was trained from 0.1 to 0.4; roll out in shorter steps"),
    ],
)
def test_what_would_be_wrong_without_a_word_is_refused(place: Path, unit: str, lead: float, words: str) -> None:
    graph = lattice(3, ("height", "rate"), lead)
    if unit:
        graph = replace(graph, fields={**graph.fields, "rate": replace(graph.fields["rate"], unit=unit)})
    else:
        graph = graph.with_fields(drop=["height"])
    with pytest.raises(InputError, match=words):
        model_of(place).predict(graph)


def test_equal_units_of_another_name_are_taken(place: Path) -> None:
    model, graph = model_of(place), lattice(3, ("height", "rate"), 0.2)
    other = replace(graph, fields={**graph.fields, "rate": replace(graph.fields["rate"], unit="m s^-1")})
    assert torch.equal(model.predict(other)["next"].mean, model.predict(graph)["next"].mean)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"optional_inputs": ["rat"]}, "optional_inputs: 'rat' is no input of nodes or graphs; did you mean rate"),
        ({"optional_inputs": ["lead"]}, "optional_inputs: 'lead' is no input"),
        ({"lead_time": "rate"}, "lead_time = 'rate' is no input with one number per graph"),
        ({"heads": 3}, "hidden_dim = 8 does not divide into model.heads = 3"),
        ({}, "graph 0 has no rate, which the model reads"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    place: Path, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        hydragnn.train(table_of(place / "two.h5", **settings), tmp_path / "run")


def test_fine_tuning_adds_fields_that_begin_as_those_of_their_unit(place: Path, tmp_path: Path) -> None:
    table = table_of(place / "four.h5", place / "two", optional_inputs=["rate", "depth", "warmth"])
    table["data"]["inputs"] = ["warmth", "lead", "height", "depth", "rate"]
    table["train"]["learning_rate"] = 1e-12  # the first function
    record = hydragnn.train(table, tmp_path / "tuned")
    assert any("the start does not have the inputs warmth, depth" in note for note in record.notes)
    tuned, old = load_model(tmp_path / "tuned/model", torch.float64), model_of(place).model.node_inputs
    inputs = tuned.model.node_inputs
    query, keys = inputs.attention.queries(inputs.query).view(2, 4), inputs.attention.keys.weight.view(2, 4, 8)
    scores = torch.einsum("hw,hwc->hc", query, keys) / 2  # of a token in each head
    away = torch.eye(8, dtype=torch.float64) - torch.linalg.pinv(scores) @ scores  # what no head's score depends on
    for name, alike in (("depth", old.names["of_height"]), ("warmth", torch.zeros(1, 16, dtype=torch.float64))):
        slope, offset = (inputs.names[f"of_{name}"] - alike).chunk(2, dim=1)
        torch.testing.assert_close(offset @ scores.T, torch.full((1, 2), -FAINT, dtype=torch.float64))
        unit = inputs.unit(inputs.units[[field.name for field in inputs.variables].index(name)])[:8]
        whole = inputs.names[f"of_{name}"][:, :8] + unit
        torch.testing.assert_close(whole @ scores.T, torch.zeros(1, 2, dtype=torch.float64), rtol=0, atol=1e-9)
        torch.testing.assert_close(slope @ away, torch.zeros_like(slope), rtol=0, atol=1e-9)
    tuned, graph = load_model(tmp_path / "tuned/model", torch.float64), lattice(3, ("height", "rate"), 0.2)
    ours, first = (one.predict(graph)["next"].mean for one in (tuned, model_of(place)))
    torch.testing.assert_close(ours, first, rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match=r"inputs = .* in this run, and .* in the start"):
        less = table_of(place / "four.h5", place / "two", optional_inputs=["depth"])
        less["data"]["inputs"] = ["height", "lead", "depth"]
        hydragnn.train(less, tmp_path / "less")
    with pytest.raises(InputError, match=r"optional_inputs lacks rate, which graphs of the start .* may lack"):
        hydragnn.train(table_of(place / "four.h5", place / "two", optional_inputs=[]), tmp_path / "less")


def test_lead_times_of_fine_tuning_widen_the_range(place: Path, tmp_path: Path) -> None:
    graphs = [lattice(number, ("height", "rate"), 0.8) for number in range(12)]
    with StoreWriter(tmp_path / "long.h5", list(graphs[0].fields.values()), dim=2) as store:
        for graph in graphs:
            store.write(graph)
    hydragnn.train(table_of(tmp_path / "long.h5", place / "two"), tmp_path / "long")
    statistics = load_model(tmp_path / "long/model").model.description.statistics
    assert statistics is not None and statistics.ranges == {"lead": pytest.approx((0.1, 0.8))}


def test_an_ensemble_predicts_graphs_that_lack_an_optional_field(place: Path) -> None:
    model, store = hydragnn.load(place / "two"), open_store(place / "two.h5")
    predictions = model.predict(store)
    assert set(predictions.status) == {"ok"}
    graph = lattice(3, ("height", "rate"), 0.2)
    assert model.predict(graph.with_fields(masks={"rate": torch.tensor([False])})).status == ("ok",)
    assert "no height" in model.predict(graph.with_fields(masks={"height": torch.tensor([False])})).status[0]


def test_a_class_may_be_missing_and_graph_numbers_are_tokens_of_all_nodes() -> None:
    model, batch = make_model("field_tokens"), make_graph(1, 5)
    masked = batch.with_fields(masks={"species": torch.tensor([False])})
    other = masked.with_fields({"species": (batch["species"] + 1) % 5})
    assert torch.equal(model(masked)["charge"].mean, model(other)["charge"].mean)
    heavier = batch.with_fields({"load": batch["load"] + 1})
    assert bool((model(heavier)["charge"].mean != model(batch)["charge"].mean).any(1).all())


def test_replay_shows_old_graphs_that_lack_the_new_field(place: Path, tmp_path: Path) -> None:
    table = table_of(place / "four.h5", place / "two", optional_inputs=["rate", "depth", "warmth"])
    table["data"]["inputs"] = ["height", "rate", "lead", "depth", "warmth"]
    table["heads"].append({"kind": "scalar", "field": "later", "correction_of": "warmth"})
    alone = hydragnn.train(table, tmp_path / "alone")
    table["start"]["replay"] = 1.0
    both = hydragnn.train(table, tmp_path / "both")
    assert both.start["replayed_per_epoch"] > 0
    assert all(math.isfinite(loss) for loss in both.curves["valid/loss"])
    assert both.curves["valid/loss"] != alone.curves["valid/loss"]
    forgotten, split = both.start["forgetting"], make_split(open_store(place / "two.h5"), SplitSettings())
    test = open_store(place / "two.h5").read(split.test)
    mae = float((model_of(place).predict(test)["next"].mean - test["next"]).abs().mean())
    assert forgotten["graphs"] == len(split.test) and "later/mae" not in forgotten["errors"]
    assert forgotten["errors"]["next/mae"]["before"] == pytest.approx(mae, rel=1e-6)
    tuned, old = hydragnn.load(tmp_path / "both"), lattice(3, ("height", "rate"), 0.2)
    new = lattice(4, ("height", "rate", "warmth", "depth"), 0.2)
    for lacking in (old, new.with_fields(masks={"warmth": torch.tensor([False])})):  # there is nothing to correct
        predictions = tuned.predict(lacking)
        assert predictions.status == ("ok",)
        assert bool(np.isnan(predictions["later"].mean).all()) and bool(np.isfinite(predictions["next"].mean).all())
        with pytest.raises(InputError, match="graphs lack warmth, from which a roll-out begins"):
            rollout(tuned, lacking, 2, feedback={"warmth": "later"})
    assert rollout(tuned, old, 2, feedback={"height": "next"}).mean("height").isfinite().all()
    table["model"]["optional_inputs"] = ["rate"]
    with pytest.raises(InputError, match="depth"):
        hydragnn.train(table, tmp_path / "neither")
