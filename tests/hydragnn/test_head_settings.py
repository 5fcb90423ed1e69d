"""Heads say their kind: foreign keys are errors, and heads without kind mean what they meant in version 1."""

import json
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.graphs import Field
from hydragnn.models import Categorical, Normal, Point, parse_head, target_from_json

FIELDS = {
    field.name: field
    for field in (
        Field(name="energy", on="graph", dtype="float64"),
        Field(name="forces", on="node", shape=(3,), parity="vector"),
        Field(name="stress", on="graph", shape=(3, 3), parity="tensor"),
        Field(name="charge", on="node"),
        Field(name="dipole", on="graph", shape=(3,), parity="vector"),
        Field(name="phase", on="graph", classes=3, dtype="int64"),
    )
}
FOREIGN = {
    "forces of a scalar": (
        {"kind": "scalar", "field": "energy", "forces": "forces"},
        'forces belongs to kind = "energy"',
    ),
    "pool of an energy": (
        {"kind": "energy", "field": "energy", "pool": "mean"},
        'belongs to kind = "scalar" or "vector"',
    ),
    "loss of classes": ({"kind": "classes", "field": "phase", "distribution": "gaussian"}, 'not to kind = "classes"'),
    "new key without kind": ({"field": "energy", "extensive": True}, "read as in version 1"),
    "misspelled": (
        {"kind": "energy", "field": "energy", "forcs": "forces"},
        "unknown key .*forcs; did you mean forces",
    ),
    "unknown kind": ({"kind": "scaler", "field": "energy"}, "unknown kind of head"),
    "per node of no size": ({"kind": "scalar", "field": "energy", "per_node": True}, "add extensive = true"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_key_that_the_kind_does_not_use_is_refused(case: str) -> None:
    head, sentence = FOREIGN[case]
    with pytest.raises(InputError, match=sentence):
        parse_head(head)
    with pytest.raises(InputError, match=sentence):
        RunConfig.parse({"data": {"store": "x"}, "model": {"kind": "schnet"}, "heads": [head]})


USELESS = {
    "pool of a node field": ({"kind": "scalar", "field": "charge", "pool": "sum"}, "pool is for graph fields"),
    "extensive node field": ({"kind": "scalar", "field": "charge", "extensive": True}, "extensive is for graph fields"),
    "pool of a vector on nodes": ({"kind": "vector", "field": "forces", "pool": "sum"}, "pool is for graph fields"),
    "scale of a graph field": ({"kind": "scalar", "field": "energy", "graph_scale": True}, "graph_scale is for"),
    "correction of a graph field": (
        {"kind": "scalar", "field": "energy", "correction_of": "charge"},
        "correction_of is for node fields",
    ),
    "scalar head of a vector": ({"kind": "scalar", "field": "dipole"}, 'use kind = "vector"'),
    "classes of numbers": ({"kind": "classes", "field": "energy"}, "numbers, not classes"),
    "too few class weights": ({"kind": "classes", "field": "phase", "class_weights": [1.0]}, "1 class_weights for 3"),
}


@pytest.mark.parametrize("case", USELESS)
def test_a_key_that_the_field_has_no_use_for_is_refused(case: str) -> None:
    head, sentence = USELESS[case]
    with pytest.raises(InputError, match=sentence):
        parse_head(head).check(FIELDS[head["field"]])


VERSION_1: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "energy": (
        {"field": "energy", "pool": "sum", "per_node": True, "references": True, "forces": "forces"},
        {
            "kind": "energy",
            "field": "energy",
            "per_node": True,
            "references": True,
            "forces": "forces",
            "loss": "mse",
            "stage_two_factor": 1.0,
            "stress_per_node": False,
        },
    ),
    "sum": (
        {"field": "energy", "pool": "sum"},
        {"kind": "scalar", "field": "energy", "pool": "sum", "extensive": True, "per_node": False},
    ),
    "per node": (
        {"field": "energy", "per_node": True},
        {"kind": "scalar", "field": "energy", "pool": "mean", "per_node": True, "extensive": True},
    ),
    "node": ({"field": "charge", "loss": "huber"}, {"kind": "scalar", "field": "charge", "loss": "huber"}),
    "vectors": ({"field": "forces"}, {"kind": "vector", "field": "forces"}),
    "dipole": (
        {"field": "dipole", "pool": "sum"},
        {"kind": "vector", "field": "dipole", "pool": "sum", "extensive": True, "per_node": False},
    ),
    "classes": ({"field": "phase"}, {"kind": "classes", "field": "phase", "pool": "mean"}),
}


@pytest.mark.parametrize("case", VERSION_1)
def test_a_head_without_kind_means_what_it_meant_in_version_1(case: str) -> None:
    old, new = VERSION_1[case]
    head = parse_head(old)
    assert head.named(FIELDS[old["field"]]) == parse_head(new)
    assert parse_head(head.to_json()) == head


def test_a_key_that_version_1_ignored_is_refused_before_training_and_passed_over_in_trained_models() -> None:
    head = parse_head({"field": "charge", "pool": "sum"})
    with pytest.raises(InputError, match='say kind = "scalar" and leave pool out'):
        head.named(FIELDS["charge"])
    assert head.named(FIELDS["charge"], strict=False) == parse_head({"kind": "scalar", "field": "charge"})


def test_targets_say_in_one_place_how_fields_are_learned() -> None:
    heads = [
        {"kind": "energy", "field": "energy", "forces": "forces", "forces_weight": 5.0, "stress": "stress"},
        {"kind": "scalar", "field": "charge", "distribution": "gaussian", "loss": "nll"},
        {"kind": "classes", "field": "phase", "class_weights": "balanced"},
    ]
    targets = [target for head in heads for target in parse_head(head).targets(FIELDS)]
    assert [target.name for target in targets] == ["energy", "forces", "stress", "charge", "phase"]
    assert [target.distribution for target in targets] == [Point, Point, Point, Normal, Categorical]
    assert [target.extensive for target in targets] == [True, False, False, False, False]
    assert [(target.derivative, target.source) for target in targets[1:3]] == [
        ("forces", "energy"),
        ("stress", "energy"),
    ]
    assert [target.stage_two_factor for target in targets] == [10.0, 1.0, 1.0, 1.0, 1.0]
    assert [target.loss for target in targets] == ["mae", "mae", "mae", "nll", "cross_entropy"]
    assert [target.per_node for target in targets] == [True, False, True, False, False]
    assert targets[1].weight == 5.0 and targets[4].class_weights == "balanced"
    assert [target_from_json(json.loads(json.dumps(target.to_json()))) for target in targets] == list(targets)
