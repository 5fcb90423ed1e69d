"""Kinds of edges as a categorical edge field."""

from typing import Any

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import field_values

RELATION = "relation"


def relation_field(relations: int, name: str = RELATION) -> Field:
    """The categorical edge field that relational layers read."""
    return Field(name=name, on="edge", classes=relations, dtype="int64")


def with_relations(batch: GraphBatch, relations: Any, count: int, name: str = RELATION) -> GraphBatch:
    """Return the batch with the edge field ``name`` of these relations."""
    field = relation_field(count, name)
    values = field_values(relations, field, batch.num_edges, "batch")
    return batch.with_fields({name: values}, fields=[field])
