"""Graph inputs reach the prediction in every way there is, and what an architecture cannot see is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hydragnn.architectures import architecture_of
from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays, with_encodings
from hydragnn.graphs.joining import concatenate
from hydragnn.models import build_model, load_model, parse_head
from hydragnn.record import read_record
from tests.hydragnn.training.conftest import Trained

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
        graphs.append(
            graph_from_arrays(
                np.stack([np.cos(angle), np.sin(angle)], axis=1),
                np.concatenate([here, there]),
                np.concatenate([there, here]),
                fields=FIELDS,
                nodes={"site": here % 2},
                edges={"length": np.ones(2 * size)},
                graphs={name: np.array(value) for name, value in values.items()},
            )
        )
    return MemoryStore(graphs)


def config_for(inputs: list[str] | None = None, **model: Any) -> RunConfig:
    """A small network without geometry; ``model`` are keys of its section."""
    return RunConfig.parse(
        {
            "data": {"store": "in memory", "inputs": inputs},
            "split": {"train": 0.7, "valid": 0.2},
            "batch": {"max_graphs": 6},
            "model": {"kind": "gin", "hidden_dim": 8, "num_layers": 2, **model},
            "heads": [{"kind": "scalar", "field": "strength", "hidden_dims": [8]}],
            "train": {"epochs": 30, "learning_rate": 0.01, "precision": "fp64", "checkpoint_seconds": 0},
        }
    )


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
    resumed = trained("run", config, store=pairs, resume=True)
    assert resumed.curves["valid/loss"] == record.curves["valid/loss"]
    last = load_file(weights)
    assert [name for name in names if torch.equal(first[name], last[name])] == []


def test_edge_fields_that_an_architecture_does_not_see_are_left_out_and_named_or_refused_where_somebody_names_them(
    pairs: MemoryStore, trained: Trained, tmp_path: Path
) -> None:
    record = trained("run", config_for(), store=pairs, until=1)
    assert record.unseen_inputs == read_record(tmp_path / "run").unseen_inputs == ["length"]
    assert load_model(tmp_path / "run" / "model").inputs == ("site", "material", "heat")
    assert trained("seeing", config_for(kind="gatv2"), store=pairs, until=1).unseen_inputs == []
    with pytest.raises(InputError, match="gin does not see edge features, so length would have no say"):
        trained("named", config_for(inputs=["site", "length"]), store=pairs)


@pytest.mark.parametrize("kind", ["multihead", "linear"])
def test_graphs_that_look_alike_to_neighbours_and_attention_are_told_apart_by_an_encoding(kind: str) -> None:
    """Two triangles and a ring of six look alike to every node and its neighbours; random walks come home sooner in a triangle."""
    rings = [ring(3, 2), ring(6, 1)]
    table = {"kind": "gin", "hidden_dim": 8, "global_attention": {"kind": kind}}
    settings = architecture_of("gin").Settings.parse(table)
    target = Field(name="cycles", on="graph", role="target")

    def answers(batch: GraphBatch, inputs: list[str] | None) -> Tensor:
        head = parse_head({"kind": "scalar", "field": "cycles"})
        fields = [*batch.fields.values(), target]
        return build_model(settings, [head], fields, inputs=inputs, dim=2, seed=0)(batch)["cycles"].mean.detach()

    blind = answers(concatenate(rings), [])
    seeing = answers(with_encodings(concatenate(rings), {"random_walk_encoding": 4}), ["random_walk_encoding"])
    assert torch.allclose(blind[0], blind[1], atol=1e-6)
    assert not torch.allclose(seeing[0], seeing[1], atol=1e-4)


def ring(size: int, copies: int) -> GraphBatch:
    here = np.arange(size * copies)
    there = here // size * size + (here + 1) % size
    return graph_from_arrays(np.zeros((len(here), 2)), np.concatenate([here, there]), np.concatenate([there, here]))
