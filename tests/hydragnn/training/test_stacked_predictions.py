"""Predictions of several models as one are those of each alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hydragnn.architectures import ArchitectureSettings
from hydragnn.conformance.cases import FORCES, INPUTS, SCALARS, STRESS, make_graph, small_settings
from hydragnn.datasets import MemoryStore
from hydragnn.datasets.normalisation import Normalisation
from hydragnn.graphs import GraphBatch, concatenate
from hydragnn.layers.stacked import NotStackable
from hydragnn.models import TrainedModel, build_model, degree_statistics, parse_head
from hydragnn.models.branched import build_branched
from hydragnn.models.graph_model import eager_prediction
from hydragnn.models.trained_stack import TrainedStack, check_alike, of_inputs
from tests.hydragnn.training.conftest import CHARGE, ENERGY, MODELS, Configs, assembled
from tests.hydragnn.training.launches import launches_of

WITHOUT_FORCES = {"kind": "energy", "field": "energy", "references": True, "hidden_dims": [8]}
MEMBERS = 8
EXACT = 1e-12


def models_of(model: str, make_config: Configs, store: MemoryStore, **changes: Any) -> list[TrainedModel]:
    """Eight models that differ in their seed."""
    heads = [WITHOUT_FORCES, CHARGE] if model in ("gin", "sage", "mfc") else [ENERGY, CHARGE]
    configs = [make_config(model, heads, train__seed=seed, **changes) for seed in range(MEMBERS)]
    runs = [assembled(config, store) for config in configs]
    return [TrainedModel(model=run.state.model, normalisation=Normalisation(), dtype=torch.float64) for run in runs]


def assert_near(one: Tensor, other: Tensor) -> None:
    assert float((one - other).abs().max()) <= EXACT * float(other.abs().max())


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"relational", "field_tokens"}))
def test_eight_models_as_one_predict_what_each_does_alone(model: str, make_config: Configs, store: MemoryStore) -> None:
    """Values and states, with forces where the model has some."""
    models = models_of(model, make_config, store)
    batch = store.read(range(5))
    if model == "painn":
        check_launches(models, batch)
    for (values, states), trained in zip(TrainedStack(models).predict_with_states(batch), models, strict=True):
        expected, exact = trained.predict_with_states(batch)
        assert_near(states, exact)
        for name, prediction in expected.items():
            tensors: dict[str, Any] = prediction.tensors()
            for what, value in values[name].tensors().items():
                assert_near(value, tensors[what])


@pytest.mark.parametrize("kind", ["painn", "mace", "pna"])
def test_branches_of_eight_models_predict_as_one_what_each_does_alone(kind: str) -> None:
    """Values, forces and stress; branches of other trunks are no models of this shape."""
    batch = concatenate([make_graph(seed, 3 + seed) for seed in range(3)])
    models = [branch_of(seed, small_settings(kind)) for seed in range(MEMBERS)]
    for (values, states), trained in zip(TrainedStack(models).predict_with_states(batch), models, strict=True):
        expected, exact = trained.predict_with_states(batch)
        assert {"energy@metals", "forces@metals", "stress@metals"} <= expected.keys()
        assert_near(states, exact)
        for name, prediction in expected.items():
            assert_near(values[name].mean, prediction.mean)
    wider = branch_of(0, small_settings(kind, hidden_dim=16))
    with pytest.raises(NotStackable, match="different shapes"):
        check_alike([models[0].model, wider.model])


def branch_of(seed: int, settings: ArchitectureSettings) -> TrainedModel:
    """Return one of two branches."""
    tables: dict[str, list[dict[str, Any]]] = {
        "metals": [{"kind": "energy", "field": "energy", "forces": "forces", "stress": "stress"}],
        "oxides": [{"kind": "scalar", "field": "charge"}],
    }
    fields, statistics = [*INPUTS, *SCALARS, FORCES, STRESS], degree_statistics([make_graph(1, 5)])
    shared: dict[str, Any] = {"inputs": ["species"], "dim": 3, "seed": 0, "statistics": statistics}
    models = [build_model(settings, [*map(parse_head, heads)], fields, **shared) for heads in tables.values()]
    descriptions = [replace(model.description, branch=name) for name, model in zip(tables, models)]
    view = build_branched(descriptions, seed).double().views[0]
    return TrainedModel(model=view, normalisation=Normalisation(), dtype=torch.float64)


def check_launches(models: Sequence[TrainedModel], batch: GraphBatch) -> None:
    """Eight members as one launch at most 1.6 times what one does, and nothing whose order is open."""
    stack = TrainedStack(models)
    inputs = of_inputs(models[0].normalised(batch), stack.inputs)
    fresh = [inputs.mapped(Tensor.clone) for _ in range(2)]
    of_all, unordered = launches_of(lambda: eager_prediction(stack.model, stack.joined(fresh[:1])))
    of_one, _ = launches_of(lambda: eager_prediction(models[0].model, fresh[1]))
    assert sum(of_all.values()) <= 1.6 * sum(of_one.values()) and not unordered


def test_layers_without_a_stacked_form_are_computed_one_after_the_other(
    make_config: Configs, store: MemoryStore
) -> None:
    models = models_of("gatv2", make_config, store, model__wide_heads=True)
    with pytest.raises(NotStackable, match="weights of WideLayer have no stacked form"):
        TrainedStack(models)
