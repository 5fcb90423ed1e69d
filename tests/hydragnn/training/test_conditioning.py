"""Graph inputs reach the prediction in every way there is, and what an architecture cannot see is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import Field, graph_from_arrays
from hydragnn.models import load_model
from hydragnn.record import read_record
from tests.hydragnn.training.conftest import Trained, make_config

FIELDS = (
    Field(name="site", on="node", classes=2, dtype="int64"),
    Field(name="material", on="graph", classes=2, dtype="int64"),
    Field(name="heat", on="graph"),
    Field(name="length", on="edge"),
    Field(name="strength", on="graph", role="target"),
)


@pytest.fixture(scope="module")
def pairs() -> MemoryStore:
    """Rings of two materials, equal but for the graph input; the same ring is strong in one and weak in the other."""
    random = np.random.default_rng(0)
    graphs = []
    for number in range(60):
        size, material = 4 + number // 2 % 3, number % 2
        here = np.arange(size)
        there, angle = (here + 1) % size, here * 2 * np.pi / size
        heat = random.uniform(-1, 1)
        strength = (1 if material else -1) + 0.3 * heat
        values = {"material": [material], "heat": [heat], "strength": [strength]}
        places, ends = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.stack([here, there])
        more = {"nodes": {"site": here % 2}, "edges": {"length": np.ones(2 * size)}}
        more["graphs"] = {name: np.array(value) for name, value in values.items()}
        senders, receivers = np.concatenate([ends, ends[::-1]], axis=1)
        graphs.append(graph_from_arrays(places, senders, receivers, fields=FIELDS, **more))
    return MemoryStore(graphs)


def config_for(kind: str = "gin", inputs: list[str] | None = None, **model: Any) -> RunConfig:
    head = {"kind": "scalar", "field": "strength", "hidden_dims": [8]}
    train = {"train__epochs": 12, "train__learning_rate": 0.03}
    section = {f"model__{key}": value for key, value in model.items()}
    return make_config(kind, [head], data__inputs=inputs, **train, **section)


@pytest.mark.parametrize("conditioning", ["concat", "film", "pooled"])
def test_what_conditions_tells_materials_apart_and_is_optimised_and_saved(
    conditioning: str, pairs: MemoryStore, trained: Trained, tmp_path: Path
) -> None:
    config, weights = config_for(conditioning=conditioning), tmp_path / "run" / "model" / "weights.safetensors"
    record = trained("whole", config, store=pairs)
    # the best constant is off by the distance of the two materials, 1
    assert record.trivial["valid/strength/rmse"] > 0.9
    assert record.best["valid/strength/rmse"] < 0.2 * record.trivial["valid/strength/rmse"]
    if conditioning == "concat":
        return
    trained("run", config, store=pairs, until=1)
    first = load_file(weights)
    names = [name for name in first if "condition" in name or "modulation" in name]
    assert any(name.startswith("condition_inputs.") for name in names)
    assert any("modulation" in name or name.startswith("pooled_condition.") for name in names)
    resumed = trained("run", config, store=pairs, resume=True, until=3)
    assert resumed.curves["valid/loss"] == record.curves["valid/loss"][:3]
    last = load_file(weights)
    assert [name for name in names if torch.equal(first[name], last[name])] == []


def test_edge_fields_that_are_not_seen_are_left_out_or_refused(
    pairs: MemoryStore, trained: Trained, tmp_path: Path
) -> None:
    record = trained("run", config_for(), store=pairs, until=1)
    assert record.unseen_inputs == read_record(tmp_path / "run").unseen_inputs == ["length"]
    assert load_model(tmp_path / "run" / "model").inputs == ("site", "material", "heat")
    assert trained("seeing", config_for("gatv2"), store=pairs, until=1).unseen_inputs == []
    with pytest.raises(InputError, match="gin does not see edge features, so length would have no say"):
        trained("named", config_for(inputs=["site", "length"]), store=pairs)
