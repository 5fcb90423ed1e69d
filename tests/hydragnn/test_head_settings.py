"""Heads say their kind, and foreign keys are errors."""

import json

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
    "no kind": ({"field": "energy"}, "a head has no kind; add one of scalar, energy"),
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
