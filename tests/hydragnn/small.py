"""Small models, and the fields that they read and predict."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydragnn.conformance.cases import small_settings
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, CLUSTERS, Field, clusters_field
from hydragnn.models import GraphModel, GraphStatistics, build_model, parse_head

FIELDS = {
    field.name: field
    for field in (
        ATOMIC_NUMBERS_FIELD,
        Field(name="species", on="node", classes=5, dtype="int64"),
        Field(name="size", on="node"),
        Field(name="guess", on="node", shape=(2,)),
        Field(name="volume", on="node"),
        Field(name="load", on="graph"),
        Field(name="normal", on="edge", shape=(3,), parity="vector"),
        Field(name="area", on="edge"),
        Field(name="relation", on="edge", classes=3, dtype="int64"),
        clusters_field(2),
        Field(name="energy", on="graph", role="target", unit="eV"),
        Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
        Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target"),
        Field(name="mean", on="graph", role="target"),
        Field(name="charge", on="node", role="target"),
        Field(name="displacement", on="node", shape=(2,), role="target"),
        Field(name="site", on="node", role="target"),
        Field(name="flux", on="edge", shape=(2,), role="target"),
        Field(name="bond", on="edge", classes=3, dtype="int64", role="target"),
        Field(name="kind", on="graph", classes=2, dtype="int64", role="target"),
        Field(name="pair", on="graph", shape=(2,), role="target"),
        Field(name="dipole", on="graph", shape=(3,), parity="vector", role="target"),
        Field(name="tensor", on="graph", shape=(3, 3), parity="tensor", role="target"),
    )
}
ENERGY, SCALAR = {"kind": "energy", "field": "energy"}, {"kind": "scalar", "field": "energy"}
FORCES, MOVED = {**ENERGY, "forces": "forces"}, {"kind": "scalar", "field": "displacement"}
LEVELS = ("species", CLUSTERS)
STATISTICS = GraphStatistics(mean_log_degree=1.5, mean_degree=2.0, species=(8, 101))


def small_model(
    kind: str,
    *heads: Mapping[str, Any],
    inputs: Sequence[str] = ("size",),
    dim: int = 3,
    statistics: GraphStatistics | None = STATISTICS,
    edges: bool = True,
    **settings: Any,
) -> GraphModel:
    shape: Any = {"inputs": inputs, "dim": dim, "seed": 0, "statistics": statistics, "edges": edges}
    return build_model(small_settings(kind, **settings), [parse_head(dict(head)) for head in heads], FIELDS, **shape)
