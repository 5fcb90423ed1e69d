"""Graphs of several kinds of nodes and edges, as relations."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import MISSING_CLASS, Field
from hydragnn.graphs.pyg import edges_of, torch_geometric
from hydragnn.graphs.validate import field_values, node_indices

NODE_KIND = "node_kind"  # categorical node field: which kind of node it is
RELATION = "relation"


def relation_field(relations: int, name: str = RELATION) -> Field:
    """The categorical edge field that relational layers read."""
    return Field(name=name, on="edge", classes=relations, dtype="int64")


def with_relations(batch: GraphBatch, relations: Any, count: int, name: str = RELATION) -> GraphBatch:
    """Return the batch with the edge field ``name`` of these relations."""
    field = relation_field(count, name)
    values = field_values(relations, field, batch.num_edges, "batch")
    return batch.with_fields({name: values}, fields=[field])


def is_hetero(data: Any) -> bool:
    """Return True for a ``HeteroData`` of torch_geometric."""
    return hasattr(data, "node_types") and hasattr(data, "metadata")


def homogeneous(
    data: Any, fields: Iterable[Field], keys: Mapping[str, str], optional: Collection[str], first: Any, name: str
) -> tuple[Any, list[Field]]:
    """Return one ``Data`` of all kinds, and the fields of kinds.

    Kinds are numbered in the order of their names; ``first`` is the first graph of the data set. Labels that a kind of node or edge lacks are missing;
    inputs must be there, and equally wide. InputError for a graph of other kinds.
    """
    if not (is_hetero(data) and is_hetero(first)):
        raise InputError(f"{name}: Data and HeteroData are in one data set; keep them apart")
    kinds, relations = map(sorted, first.metadata())
    if [kinds, relations] != [*map(sorted, data.metadata())]:
        problem = f"{name} has the kinds {data.metadata()}, and the first graph {first.metadata()}"
        raise InputError(f"{problem}; give every graph all of them, empty ones too")
    nodes = torch.tensor([data[kind].num_nodes or 0 for kind in kinds], dtype=torch.int64)
    starts = dict(zip(kinds, (nodes.cumsum(0) - nodes).tolist()))
    lacking_edges = [one for one in relations if data[one].get("edge_index") is None]
    if lacking_edges:
        raise InputError(
            f"{name}: the relation {lacking_edges[0]} has no edge_index; give one, of shape (2, 0) without edges"
        )
    make, count_of = torch_geometric("data").Data, dict(zip(kinds, nodes.tolist()))
    ends = []
    for one in relations:
        rows = zip(one[::2], edges_of(make(edge_index=data[one].edge_index), f"{name}, relation {one}"))
        both = [
            node_indices(row, f"{kind} of relation {one}", count_of[kind], name) + starts[kind] for kind, row in rows
        ]
        ends.append(torch.stack(both))
    edges = torch.tensor([pairs.shape[1] for pairs in ends], dtype=torch.int64)
    none = torch.zeros(2, 0, dtype=torch.int64)
    result = make(edge_index=torch.cat([none, *ends], dim=1), num_nodes=int(nodes.sum()))
    locations = {keys.get(field.name, field.name): field.on for field in fields}
    flags = {
        field.name for field in fields if field.role == "auxiliary" and field.classes == 2
    }  # masks: false where absent
    lacking = {keys.get(f.name, f.name) for f in fields if f.role == "target" and f.name in optional}
    geometry = {key: "node" for key in ("pos",) if any(key in data[kind] for kind in kinds)}
    for key, on in {**locations, **geometry}.items():
        if on == "graph" and key in data:
            result[key] = data[key]
        elif on != "graph":
            types, counts = (kinds, nodes) if on == "node" else (relations, edges)
            own = {str(one): data[one].get(key) for one in types}
            if any(value is not None for value in own.values()):
                result[key] = _end_to_end(own, counts.tolist(), key in lacking | flags, f"{name}, {key}", key in flags)
    result[NODE_KIND] = torch.arange(len(kinds)).repeat_interleave(nodes)
    result[RELATION] = torch.arange(len(relations)).repeat_interleave(edges)
    # the names stand as units, so that graphs of other kinds are another input wherever inputs are compared
    kind = Field(name=NODE_KIND, on="node", classes=len(kinds), dtype="int64", unit=", ".join(kinds))
    relation = replace(relation_field(max(1, len(relations))), unit=", ".join(map(" ".join, relations)))
    return result, [kind] * (len(kinds) > 1) + [relation] * (len(relations) > 1)


def _end_to_end(
    values: Mapping[str, Tensor | None], counts: list[int], optional: bool, where: str, flag: bool
) -> Tensor:
    """Return the values of all kinds; an ``optional`` target may lack some."""
    shapes = {kind: tuple(value.shape[1:]) for kind, value in values.items() if value is not None}
    absent = [kind for kind, value in values.items() if value is None]
    if len({*shapes.values()}) > 1:
        problem = f"{where}: the shapes are {shapes} by kind, and zeros beside the shorter ones would look like values"
        raise InputError(f"{problem}; give all kinds equally many columns, or declare a field that they share")
    if absent and not optional:
        raise InputError(f"{where}: {absent[0]} lacks it; add it, or make a target optional = true")
    like = next(value for value in values.values() if value is not None)
    fill = 0 if flag else math.nan if like.is_floating_point() else MISSING_CLASS
    empty = [like.new_full((count, *like.shape[1:]), fill) for count in counts]
    return torch.cat([rows if value is None else value for value, rows in zip(values.values(), empty)])
