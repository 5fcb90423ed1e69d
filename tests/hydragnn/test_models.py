"""Building, refusing, saving and loading models."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_sealed
from hydragnn.datasets import Normalisation, Scale
from hydragnn.graphs import graph_from_arrays
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel, degree_statistics, load_model, save_model
from tests.hydragnn.small import ENERGY, FIELDS, MOVED, SCALAR, small_model


def chain(nodes: int, dim: int) -> GraphBatch:
    pairs = sorted((r, s) for r in range(nodes) for s in (r - 1, r + 1) if 0 <= s < nodes)
    receivers, senders = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
    positions = torch.arange(nodes * dim, dtype=torch.float32).view(nodes, dim).sin()
    fields = [FIELDS[name] for name in ("size", "relation", "atomic_numbers", "area")]
    nodes = {"size": torch.arange(nodes) / nodes, "atomic_numbers": torch.arange(nodes) % 3 + 1}
    edges = {"relation": torch.arange(len(pairs)) % 3, "area": torch.ones(len(pairs))}
    graph = graph_from_arrays(positions, senders, receivers, fields=fields, nodes=nodes, edges=edges)
    return graph.to(dtype=torch.float32)


@pytest.mark.parametrize(("kind", "dim"), [("pna", 0), ("relational", 0), ("relational", 2), ("painn", 2)])
def test_graphs_of_any_dimension_are_welcome_where_physics_allows(kind: str, dim: int) -> None:
    model = small_model(kind, MOVED, dim=dim, inputs=("size", "relation", "area"))
    actual = model(chain(5, dim))["displacement"].mean
    assert actual.shape == (5, 2) and actual.isfinite().all()
    assert small_model("schnet", ENERGY, inputs=())(chain(4, 3))["energy"].mean.shape == (1,)  # without any input


def test_variances_are_positive_however_sure_the_model_is() -> None:
    model = small_model("schnet", {**SCALAR, "distribution": "gaussian", "loss": "nll"})
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.fill_(-50.0)
    variance = model(chain(4, 3))["energy"].variance
    assert bool((variance > 0).all()) and bool(variance.log().isfinite().all())


def test_a_head_that_corrects_an_input_starts_from_it() -> None:
    plain, corrected = (
        small_model("schnet", {**MOVED, **keys}, inputs=("size", "guess")) for keys in ({}, {"correction_of": "guess"})
    )
    batch = concatenate([chain(4, 3), chain(3, 3)])
    guess = torch.randn(batch.num_nodes, 2, generator=torch.Generator().manual_seed(0))
    batch = batch.with_fields({"guess": guess}, fields=[FIELDS["guess"]])
    for factor in ([1.0, 1.0], [2.0, 0.0]):  # it starts from ones
        difference = corrected(batch)["displacement"].mean - plain(batch)["displacement"].mean
        torch.testing.assert_close(difference, guess * torch.tensor(factor))
        with torch.no_grad():
            corrected.heads[0].corrected.factor.copy_(torch.tensor([2.0, 0.0]))


def test_degree_statistics_count_every_node() -> None:
    actual = degree_statistics([chain(3, 2), chain(1, 2)])
    expected = torch.tensor([2.0, 3.0, 2.0, 1.0]).log().mean()
    assert actual.mean_log_degree == pytest.approx(float(expected))
    with pytest.raises(InputError, match="at least one training graph"):
        degree_statistics([])


def saved(folder: Path) -> GraphModel:
    model = small_model("painn", ENERGY, inputs=("atomic_numbers",))
    save_model(folder, model, Normalisation(scales={"energy": Scale(mean=(0.0,), std=(2.0,))}))
    return model


def test_loaded_models_predict_in_the_asked_precision(tmp_path: Path) -> None:
    saved(tmp_path)
    rough = load_model(tmp_path).predict(chain(4, 3))["energy"].mean
    fine = load_model(tmp_path, dtype=torch.float64).predict(chain(4, 3))["energy"].mean
    assert rough.dtype == fine.dtype == torch.float64
    torch.testing.assert_close(rough, fine, rtol=1e-5, atol=1e-6)
    assert not torch.equal(rough, fine)


def test_references_come_back_on_top_of_the_prediction(tmp_path: Path) -> None:
    model = small_model("painn", ENERGY, inputs=("atomic_numbers",))
    scales = {"energy": Scale(mean=(0.0,), std=(2.0,))}
    save_model(tmp_path / "plain", model, Normalisation(scales=scales))
    references = {"energy": {1: 10.0, 2: 20.0, 3: 30.0}}
    save_model(tmp_path / "referenced", model, Normalisation(scales=scales, references=references))
    plain, shifted = (load_model(tmp_path / one).predict(chain(4, 3))["energy"].mean for one in ("plain", "referenced"))
    torch.testing.assert_close(shifted - plain, torch.tensor([70.0], dtype=torch.float64), rtol=1e-12, atol=1e-12)


def of_model(**keys: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda value: {**value, "model": {**value["model"], **keys}}


SPOILED: list[tuple[str, Callable[[Any], Any], str]] = [
    ("model.json", lambda value: {**value, "version": 99}, "version 99.*update"),
    ("model.json", lambda value: {"hello": 1}, "does not describe a model"),
    ("model.json", lambda value: {name: value[name] for name in value if name != "heads"}, "damaged.*heads"),
    ("model.json", of_model(colour="red"), "damaged.*colour"),
    ("model.json", of_model(hidden_dim=16), "does not fit"),
    ("model.json", lambda value: 50, "not valid JSON"),
    ("weights.safetensors", lambda value: -100, "cannot be read"),
    ("weights.safetensors", lambda value: None, "does not exist"),
]
"""Files, what is in them instead (None: nothing; numbers: so many of their bytes), and words."""


@pytest.mark.parametrize(("name", "spoil", "sentence"), SPOILED)
def test_a_spoiled_model_folder_is_refused_in_one_sentence(
    tmp_path: Path, name: str, spoil: Callable[[Any], Any], sentence: str
) -> None:
    saved(tmp_path)
    value = spoil(json.loads((tmp_path / "model.json").read_text()))
    if value is None:
        (tmp_path / name).unlink()
    elif isinstance(value, int):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:value])
    else:
        write_sealed(tmp_path / name, value)
    with pytest.raises(InputError, match=sentence) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_trained_model_says_what_a_batch_lacks(tmp_path: Path) -> None:
    saved(tmp_path)
    model, batch = load_model(tmp_path), chain(4, 3)
    cases = {
        "no field atomic_numbers": replace(batch, fields={}),
        "graph 0 has no atomic_numbers": replace(batch, masks={"atomic_numbers": torch.tensor([False])}),
        "dimension 2": chain(4, 2),
        "holds 1 to 500": replace(batch, nodes={**batch.nodes, "atomic_numbers": torch.tensor([1, 2, 3, 500])}),
        "lies on node with shape": replace(
            batch, fields={**batch.fields, "atomic_numbers": replace(FIELDS["atomic_numbers"], shape=(2,))}
        ),
    }
    for sentence, wrong in cases.items():
        with pytest.raises(InputError, match=sentence):
            model.predict(wrong)
