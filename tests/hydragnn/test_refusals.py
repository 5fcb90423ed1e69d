"""Models that cannot work are refused when they are built, in a sentence that names the remedy."""

from typing import Any

import pytest
from pydantic import ValidationError

from hydragnn.base.errors import InputError
from hydragnn.models import GraphStatistics
from tests.hydragnn.small import ENERGY, FORCES, LEVELS, MOVED, SCALAR, small_model

DIPOLE = {"kind": "vector", "field": "dipole"}
SITE = {"kind": "scalar", "field": "site"}
TENSOR, BOND = {"kind": "tensor", "field": "tensor"}, {"kind": "classes", "field": "bond"}
NO_ATOMS = {"statistics": GraphStatistics(mean_log_degree=1.0, mean_degree=2.0)}
RELATIONS = {"inputs": ("relation",)}
POOLS = {"inputs": LEVELS}
EVERY = {"inputs": ("size", "guess", "area", "atomic_numbers")}
LOAD, FLAT = {"inputs": ("load",)}, {**FORCES, "forces": "displacement"}


def attention(**keys: Any) -> dict[str, Any]:
    return {"global_attention": {"kind": "equivariant", "heads": 2, **keys}}


def pooled(levels: int = 1, **keys: Any) -> dict[str, Any]:
    return {"pooling": {"levels": levels}, **keys}


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    # architectures, settings of [model], a head, options, words
    ("painn", {}, SCALAR, {"dim": 0}, "needs positions.*relational"),
    ("egnn", attention(), ENERGY, {"dim": 0}, "model egnn needs positions"),
    ("gatv2", attention(), ENERGY, {"dim": 0}, "equivariant attention needs positions"),
    ("mace", {}, SCALAR, {"dim": 2}, "mace needs graphs in 3 dimensions, and these have 2"),
    ("tensornet", {}, SCALAR, {"dim": 2}, "tensornet needs graphs in 3 dimensions, and these have 2"),
    ("pna", {}, SCALAR, {"statistics": None}, "pna needs degrees of the training part"),
    # inputs and targets
    ("painn", {}, SCALAR, {"inputs": ("normal",)}, "input normal is a vector.*components"),
    ("painn", {}, SCALAR, {"inputs": ("sise",)}, "no field sise; did you mean size"),
    ("painn", {}, SCALAR, {"inputs": ("size", "energy")}, "both an input and a target"),
    ("painn", {}, {**SCALAR, "field": "enrgy"}, {}, "no field enrgy; did you mean energy"),
    ("relational", {}, SCALAR, {}, "categorical edge field 'relation'"),
    ("relational", {"relation": "area"}, SCALAR, {"inputs": ("area",)}, "edge field 'area'"),
    ("mace", {"distance_transform": "agnesi"}, SCALAR, NO_ATOMS, "have no atomic_numbers among their inputs"),
    ("mace", {"distance_transform": "soft"}, SCALAR, NO_ATOMS, "have no atomic_numbers among their inputs"),
    ("mace", {"distance_transform": "agnesi"}, SCALAR, EVERY, "atomic number 101 has none"),
    ("mace", {"distance_transform": "soft"}, SCALAR, EVERY, "atomic number 101 has none"),
    # heads
    ("schnet", {}, DIPOLE, {}, "egnn.*painn.*not schnet"),
    ("relational", {}, DIPOLE, RELATIONS, "scalar if the axes are fixed"),
    ("painn", {}, DIPOLE, {"dim": 2}, r"give shape \(2,\)"),
    ("egnn", {}, {**DIPOLE, "pool": "max"}, {}, "pool: Input should be"),
    ("pna", {}, {**SCALAR, "field": "kind"}, {}, "kind: it is categorical"),
    ("painn", {}, {**FORCES, "field": "pair"}, {}, "pair: forces and stress are derivatives of one scalar"),
    ("relational", {}, FORCES, RELATIONS, "sees no lengths"),
    ("painn", {}, FLAT, {}, r"displacement lies on node with shape \(2,\); expected node and \(3,\)"),
    ("gin", {}, TENSOR, {}, "model gin, which sees no lengths.*painn"),
    ("painn", {}, TENSOR, {"dim": 2}, r"3 x 3 in graphs of dimension 2; give shape \(2, 2\)"),
    ("gin", {}, {**TENSOR, "kind": "scalar"}, {}, 'use kind = "tensor"'),
    ("gin", {}, {"kind": "scalar", "field": "flux"}, {"edges": False}, "data.edges = false takes them all away"),
    ("gin", {}, {**SITE, "symmetry": "symmetric"}, {}, "symmetry is for edge fields, and site lies on nodes"),
    ("gin", {}, {**BOND, "symmetry": "antisymmetric"}, {}, "symmetry"),
    ("gin", {}, {**BOND, "conv_layers": 1}, {}, "conv_layers is for node fields"),
    ("gin", {}, {**SITE, "per_index": 2, "correction_of": "size"}, {}, "correction_of is for one network"),
    # misspelled, a target, of edges, classes, another shape
    *(
        ("pna", {}, {**MOVED, "correction_of": name}, EVERY, "is no numeric node input")
        for name in ("guesss", "forces", "area", "atomic_numbers")
    ),
    ("pna", {}, {**MOVED, "correction_of": "size"}, EVERY, r"has shape \(\), the field \(2,\)"),
    # settings that do nothing or do not fit
    ("mace", {"hidden_dim": [3, 2]}, SCALAR, {}, r"hidden_dim.*valid integer"),
    *(
        ("mace", {"correlation": value}, SCALAR, {}, r"correlation.*(one number for each layer|one for each layer)")
        for value in ([3, 2, 1], [], [2, 5], [2, True], "32", 2.5, 0)
    ),
    ("mace", {"hidden_l": 2, "max_ell": 1}, SCALAR, {}, r"hidden_l = 2 is above model\.max_ell = 1"),
    ("mace", {"correlation": 4, "max_ell": 4}, SCALAR, {}, "lower one of them to 3"),
    ("egnn", {"movement": "mean"}, SCALAR, {}, "movement = 'mean' was of version 0.2.0"),
    ("painn", {"envelope_exponent": 5, "envelope": "cosine"}, SCALAR, {}, 'set envelope = "polynomial"'),
    ("gatv2", {"heads": 3}, SCALAR, {}, r"does not divide into model\.heads = 3"),
    # attention and pooling
    ("gin", attention(), SCALAR, {}, "model gin, beside which it stands, sees none"),
    ("painn", attention() | pooled(), ENERGY, POOLS, "of the graph itself, .* cannot pool; leave model.pooling"),
    ("painn", {**attention(), "hidden_dim": 9}, SCALAR, {}, "does not divide into 2 heads"),
    *(
        (
            "painn",
            attention(kind="linear", **{key: value}),
            SCALAR,
            {},
            f'{key} is that of equi.*; leave it out, or set kind = "equi',
        )
        for key, value in (("cutoff", 5.0), ("num_radial", 8))
    ),
    ("painn", pooled(), FORCES, POOLS, "over nodes of one level, so that the model cannot pool"),
    ("painn", pooled(3, num_layers=4), ENERGY, POOLS, "make more levels, or use fewer"),
    ("painn", pooled(), ENERGY, {}, "needs the node field clusters"),
    ("painn", {}, ENERGY, POOLS, "set model.pooling"),
    ("mace", pooled(distance_transform="soft"), ENERGY, POOLS, "a cluster has none"),
    ("gin", pooled(num_layers=1), ENERGY, POOLS, "set num_layers to 2 or more"),
]


@pytest.mark.parametrize(("kind", "model", "head", "options", "words"), REFUSED)
def test_what_cannot_work_is_refused_with_its_remedy(
    kind: str, model: dict[str, Any], head: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((InputError, ValidationError), match=words):
        small_model(kind, head, **{**options, **model})
