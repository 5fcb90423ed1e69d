"""Many batches as one, and one as its graphs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.texts import join_texts
from hydragnn.graphs.topology import Topology, repeated_offsets, tiled


def concatenate(batches: Sequence[GraphBatch]) -> GraphBatch:
    """Return all graphs as one batch; fields of some get a mask."""
    if not batches:
        raise InputError("cannot concatenate an empty list of graphs; give at least one")
    dims = {batch.dim for batch in batches}
    if len(dims) > 1:
        raise InputError(f"cannot concatenate graphs of dimensions {sorted(dims)}; keep them in separate stores")
    fields: dict[str, Field] = {}
    for batch in batches:
        for name, field in batch.fields.items():
            if fields.setdefault(name, field) != field:
                raise InputError(f"field {name} has two meanings: {fields[name]} and {field}; rename one of them")
    node_base = list(accumulate((batch.num_nodes for batch in batches[:-1]), initial=0))
    edge_base = list(accumulate((batch.num_edges for batch in batches[:-1]), initial=0))
    tensors: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}, "graph": {}}
    masks: dict[str, Tensor] = {}
    batches = [with_absent(batch, fields.values()) for batch in batches]
    for name, field in fields.items():
        tensors[field.on][name] = torch.cat([batch.on(field.on)[name] for batch in batches])
        if any(name in batch.masks for batch in batches):
            masks[name] = torch.cat([batch.present(name) for batch in batches])
    return GraphBatch(
        positions=torch.cat([b.positions for b in batches]),
        topology=Topology.square(
            torch.cat([b.senders + base for b, base in zip(batches, node_base)]),
            torch.cat([b.receivers + base for b, base in zip(batches, node_base)]),
            sum(batch.num_nodes for batch in batches),
        ),
        edge_shifts=torch.cat([b.edge_shifts for b in batches]),
        cell=torch.cat([b.cell for b in batches]),
        periodic=torch.cat([b.periodic for b in batches]),
        node_offsets=_joined_offsets([b.node_offsets for b in batches], node_base),
        edge_offsets=_joined_offsets([b.edge_offsets for b in batches], edge_base),
        fields=fields,
        nodes=tensors["node"],
        edges=tensors["edge"],
        graphs=tensors["graph"],
        masks=masks,
        texts=join_texts([(batch.texts, batch.num_graphs) for batch in batches]),
    )


def repeated(batch: GraphBatch, copies: int) -> GraphBatch:
    """Return so many copies of all graphs as one batch, without texts.

    What follows from edges and offsets is taken over, not sought again.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> repeated(graph_from_arrays(torch.zeros(2, 3), [0, 1], [1, 0]), 2).receivers.tolist()
    [0, 1, 2, 3]
    """

    def copied(value: Tensor) -> Tensor:
        return value.repeat(copies, *[1] * (value.ndim - 1))

    whole = replace(
        batch,
        **batch.by_location(lambda _, value: copied(value)),
        topology=batch.topology.repeated(copies),
        node_offsets=repeated_offsets(batch.node_offsets, copies, batch.num_nodes),
        edge_offsets=repeated_offsets(batch.edge_offsets, copies, batch.num_edges),
        texts={},
    )
    steps = {"counts": 0, "volume": 0, "owner": batch.num_graphs, "reverse": batch.num_edges}
    for (what, location), value in batch._derived.items():
        if what in steps:
            step = steps[what]
            whole._derived[what, location] = tiled(value, copies, step) if step else copied(value)
    return whole


def _joined_offsets(offsets: list[Tensor], bases: list[int]) -> Tensor:
    shifted = [offset[1:] + base for offset, base in zip(offsets, bases)]
    return torch.cat([offsets[0][:1], *shifted])


def with_absent(batch: GraphBatch, fields: Iterable[Field]) -> GraphBatch:
    """Return the batch with the fields that it lacks, zero and masked."""
    absent = [field for field in fields if field.name not in batch.fields]
    if not absent:
        return batch
    zeros = partial(torch.zeros, device=batch.device)
    values = {one.name: zeros(batch.num_items(one.on), *one.shape, dtype=one.torch_dtype) for one in absent}
    masks = dict.fromkeys(values, zeros(len(batch), dtype=torch.bool))
    return batch.with_fields(values, fields=absent, masks=masks)


def unbatch(batch: GraphBatch) -> list[GraphBatch]:
    """Return every graph on its own, as views, without absent fields.

    Masks stay on fields of which labels are missing.
    """
    graphs = [batch.select([number]) for number in range(batch.num_graphs)]
    if not batch.masks:
        return graphs
    absent = [[name for name, mask in graph.masks.items() if not mask[0]] for graph in graphs]
    present = [graph.with_fields(drop=names) for graph, names in zip(graphs, absent)]
    return [
        replace(graph, masks={name: mask for name, mask in graph.masks.items() if not bool(graph.labelled(name).all())})
        for graph in present
    ]
