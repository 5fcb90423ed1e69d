"""A setting that was given and cannot act is refused; one that is taken changes something."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from hydragnn.architectures import ArchitectureSettings, architecture_of, architectures
from hydragnn.base.errors import InputError
from hydragnn.base.settings import Settings, idle_settings
from hydragnn.config import config_from_table
from hydragnn.conformance.cases import FORCES, INPUTS, SCALARS, STRESS, TENSORS, VECTORS, make_graph, small_settings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import HeadSettings, build_model, degree_statistics, parse_head
from tests.hydragnn.training.conftest import Trained, make_config
from tests.hydragnn.training.worker import clusters

GRAPH = replace(make_graph(1, 7), graphs={})
FLAT = {name: getattr(GRAPH, name)[:, :0] for name in ("positions", "edge_shifts")}
EMPTY = {name: torch.zeros_like(getattr(GRAPH, name)) for name in ("cell", "periodic")}
BARE = replace(GRAPH, **FLAT, **EMPTY, edges={})
"""The same nodes and edges without positions and edge features."""

STATISTICS = degree_statistics([make_graph(1, 5), make_graph(2, 7)])

OTHER: dict[str, Any] = {
    "loss": "relative",
    "global_attention": {"kind": "linear", "heads": 2},
    "pooling": {"levels": 1},
    "correlation": 2,
    "cutoff": 7.0,
    "relation": "other",
    "envelope": "none",
    "references": {"H": -13.6},
    "forces": "forces",
    "stress": "stress",
    "per_index": 7,
    "pool": "sum",
    "correction_of": "size",
    "lead_time": "other",
    "optional_inputs": ["other"],
    "total": 0.0,
    "class_weights": "balanced",
}
"""Other values than the default where the annotation tells none."""

HEADS = {
    "an energy": {"kind": "energy", "field": "energy"},
    "forces": {"kind": "energy", "field": "energy", "forces": "forces"},
    "stress": {"kind": "energy", "field": "energy", "stress": "stress"},
    **{f"numbers of {field}": {"kind": "scalar", "field": field} for field in ("gap", "charge", "hop")},
    **{f"vectors of {field}": {"kind": "vector", "field": field} for field in ("dipole", "flow")},
    **{f"tensors of {field}": {"kind": "tensor", "field": field} for field in ("polarisability", "shielding")},
    **{f"classes of {field}": {"kind": "classes", "field": field} for field in ("lattice", "site", "bond")},
}

PLAIN = parse_head({"kind": "scalar", "field": "energy", "hidden_dims": [4]})
SAME = {"checkpoint_activations", "repulsion", "conditioning"}
"""Less memory for the same numbers; what is nothing on training data; and what acts on inputs of graphs alone, and is refused without any."""


def other_value(settings: Settings, key: str) -> Any:
    if key in OTHER:
        return OTHER[key]
    now, annotation = getattr(settings, key), type(settings).model_fields[key].annotation
    parts = [part for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal]
    choices = [one for part in parts for one in get_args(part) if one != now]
    if choices or parts:
        return choices[-1] if choices else now
    if isinstance(now, list):
        return now[:-1]
    if isinstance(now, bool):
        return not now
    if isinstance(now, int | float):
        return now + (2 if isinstance(now, int) else 0.25)
    raise AssertionError(f"{key} = {now!r}: name another value")


def outcome(settings: ArchitectureSettings, batch: GraphBatch, *heads: HeadSettings) -> list[Any]:
    inputs = [field for field in INPUTS if field.name in ("species", "size") or field.name in batch.edges]
    reads = [field.name for field in inputs if architecture_of(settings.kind).reads(settings, field)]
    shape: Any = {"inputs": reads, "dim": batch.positions.shape[1], "seed": 0, "statistics": STATISTICS}
    fields = [*inputs, *SCALARS, FORCES, STRESS, *VECTORS, *TENSORS]
    model = build_model(settings, heads or [PLAIN], fields, **shape).to(torch.float64)
    torch.manual_seed(0)
    values = [value.tolist() for one in model.train()(batch).values() for value in one.tensors().values()]
    return [*(tuple(weights.shape) for weights in model.parameters()), values]


@pytest.mark.parametrize("batch", [GRAPH, BARE], ids=["positions", "no positions"])
@pytest.mark.parametrize("kind", architectures())
def test_a_setting_of_a_model_acts_or_says_on_which_data_it_does_not(kind: str, batch: GraphBatch) -> None:
    architecture, positions = architecture_of(kind), batch.positions.shape[1]
    if architecture.requires and not positions:
        return
    settings, cls = small_settings(kind), architecture.Settings
    known, idle = outcome(settings, batch), set()
    common = set() if kind == "gin" else {*ArchitectureSettings.model_fields}
    keys = cls.model_fields.keys() - common - {"kind", *SAME}
    for key in keys:
        with suppress(InputError):
            changed = small_settings(kind, **{key: other_value(settings, key)})
            idle |= {key} if outcome(changed, batch) == known else set()
    declared = {key for key, condition in vars(cls).get("acts_with", {}).items() if not condition.holds(cls(kind=kind))}
    assert idle == keys & (declared | (set() if positions else {*cls.acts_on}))


@pytest.mark.parametrize("table", HEADS.values(), ids=HEADS)
def test_a_setting_of_a_head_acts_or_is_refused(table: dict[str, Any]) -> None:
    fields = {field.name: field for field in (*SCALARS, FORCES, STRESS, *VECTORS, *TENSORS)}
    encoder, before = small_settings("painn"), parse_head(table)
    known = outcome(encoder, GRAPH, before), before.targets(fields)
    for key in type(before).model_fields.keys() - {"kind", "field", "hidden_dims"} - table.keys():
        value = other_value(before, key)
        if value == getattr(before, key):
            continue  # there is no other
        try:
            after = parse_head({**table, key: value})
            acts = (outcome(encoder, GRAPH, after), after.targets(fields)) != known
        except InputError:
            continue
        assert acts == (key not in idle_settings(after)), key


FILES = {"checkpoint_epochs", "checkpoint_seconds", "callbacks"}
WITHOUT_TRACE = {"patience", "calibration", "graphs", "precision", *FILES}
"""Graphs that calibrate an ensemble, when files are written, and how the same steps are computed."""
ALLOWED: dict[str, Any] = {
    "train.schedule": "constant",
    "train.patience": 1,
    "split.train": 0.6,
    "split.valid": 0.15,
    "train.clip_norm": 1e-3,
    "batch.max_nodes": 25,
    "batch.max_edges": 50,
}


@pytest.mark.parametrize("section", ["train", "split", "batch"])
def test_a_setting_of_training_changes_the_curves_or_is_refused(section: str, trained: Trained) -> None:
    heads = [{"kind": "scalar", "field": "charge", "hidden_dims": [8]}]
    table = make_config("gin", heads).to_json()
    table["heads"] = heads
    table["data"] = {"store": table["data"]["store"]}
    table["train"] = {"epochs": 6, "precision": "fp64", "learning_rate": 0.5}
    few = clusters(20)

    def curves(changes: dict[str, Any]) -> Any:
        config = config_from_table({**table, section: {**table.get(section, {}), **changes}}, Path("c.toml"))
        record = trained("-".join(["run", *changes]), config, store=few)
        return {name: curve for name, curve in record.curves.items() if "seconds" not in name}

    settings = getattr(config_from_table(table, Path("c.toml")), section)
    known, idle = curves({}), set()
    for key in type(settings).model_fields.keys() - WITHOUT_TRACE - {"kind", "field", "memory"}:
        try:
            value = ALLOWED.get(f"{section}.{key}") or other_value(settings, key)
            if curves({key: value}) == known:
                idle.add(key)
        except InputError as error:
            assert f"{key} acts only" in str(error)
    assert idle == set()
