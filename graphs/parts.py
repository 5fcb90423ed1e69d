"""Graphs whose nodes are parted into training, validation, test and calibration."""

from collections.abc import Sequence

import torch

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import MISSING_CLASS, Field
from hydragnn.graphs.texts import NAME

PARTS = ("train", "valid", "test", "calibration")  # parts in the order of masks
PART = Field(name="part", on="graph", role="auxiliary", classes=len(PARTS), dtype="int64")
"""Part of the nodes whose labels a graph has, for ``kind = "given"`` of a split."""


def labels_of_part(graph: GraphBatch, masks: Sequence[str], part: int) -> GraphBatch:
    """Return one graph with labels of one part of its nodes.

    The graph field ``part`` holds its number.

    ``masks`` name the node fields of training, validation, and perhaps test and calibration; they are taken away. All
    inputs and edges stay. InputError for a node in two parts, and for targets that are not of nodes, since every part would see them.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> names, y = ("train_mask", "val_mask"), Field(name="y", on="node", role="target", classes=3, dtype="int64")
    >>> fields = [y, *(Field(name=name, on="node", role="auxiliary", classes=2, dtype="int64") for name in names)]
    >>> nodes = {"y": [2, 1, 0], "train_mask": [1, 0, 0], "val_mask": [0, 1, 0]}
    >>> graph = graph_from_arrays(torch.zeros(3, 0), [], [], fields=fields, nodes=nodes)
    >>> [labels_of_part(graph, names, part)["y"].tolist() for part in (0, 1)]
    [[2, -1, -1], [-1, 1, -1]]
    """
    targets = [field for field in graph.fields.values() if field.role == "target"]
    for field in targets:
        if field.on != "node":
            problem = f"the target {field.name} lives on {field.on}s, and masks part the labels of nodes"
            raise InputError(f"{problem}; every part would see it, so leave it out")
    flags = torch.stack([graph[name] != 0 for name in masks])
    if bool((flags.sum(0) > 1).any()):
        node = int((flags.sum(0) > 1).nonzero()[0])
        first, second = (masks[number] for number in flags[:, node].nonzero().flatten()[:2].tolist())
        raise InputError(
            f"node {node} is in {first} and in {second}, so that errors would be too small; take it out of one"
        )
    values = {
        field.name: torch.where(
            flags[part].view(-1, *[1] * len(field.shape)),
            graph[field.name],
            MISSING_CLASS if field.classes else torch.nan,
        ).to(field.torch_dtype)
        for field in targets
    }
    values |= {PART.name: torch.tensor([part])}
    some = {field.name: torch.ones(1, dtype=torch.bool) for field in targets}
    result = graph.with_fields(values, fields=[PART], masks=some, drop=masks)
    name = "" if graph.names is None else graph.names[0]
    return result.with_texts({NAME: [f"{name}, {PARTS[part]}"]}) if name else result


def graphs_of_parts(graph: GraphBatch, masks: Sequence[str]) -> list[GraphBatch]:
    """Return a graph for each mask, with its nodes' labels alone."""
    return [labels_of_part(graph, masks, part) for part in range(len(masks))]
