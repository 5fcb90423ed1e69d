"""Batches as flat tensors by name, for traced functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from hydragnn.graphs.batch import GraphBatch, edge_vectors, volumes
from hydragnn.graphs.field import ATOMIC_NUMBERS, LOCATIONS, Field, Location
from hydragnn.graphs.topology import Topology
from hydragnn.kernels.segment_order import SegmentOrder, remember_order
from hydragnn.layers import CloseRangeLimits


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FlatTensor:
    """One tensor of a batch: its location, and how to read it."""

    on: Location
    read: Callable[[GraphBatch], Tensor]


STRUCTURE: Mapping[str, FlatTensor] = {
    "positions": FlatTensor(on="node", read=lambda batch: batch.positions),
    "edge_shifts": FlatTensor(on="edge", read=lambda batch: batch.edge_shifts),
    "cell": FlatTensor(on="graph", read=lambda batch: batch.cell),
    "volumes": FlatTensor(on="graph", read=volumes),
    "periodic": FlatTensor(on="graph", read=lambda batch: batch.periodic),
    "senders": FlatTensor(on="edge", read=lambda batch: batch.senders),
    "receivers": FlatTensor(on="edge", read=lambda batch: batch.receivers),
    "by_sender": FlatTensor(on="edge", read=lambda batch: batch.topology.by_sender),
    "degrees": FlatTensor(on="node", read=lambda batch: batch.topology.degrees),
    "sent": FlatTensor(on="node", read=lambda batch: batch.topology.column_offsets.diff()),
    "nodes_per_graph": FlatTensor(on="graph", read=lambda batch: batch.counts("node")),
    "edges_per_graph": FlatTensor(on="graph", read=lambda batch: batch.counts("edge")),
    "graph_of_node": FlatTensor(on="node", read=lambda batch: batch.owner("node")),
    "graph_of_edge": FlatTensor(on="edge", read=lambda batch: batch.owner("edge")),
    "reverse_edges": FlatTensor(on="edge", read=lambda batch: batch.reverse_edges),
}
"""What every batch has."""


def flat_tensors(fields: Sequence[Field]) -> dict[str, FlatTensor]:
    """Return the tensors of batches with these fields, as ``node/NAME``."""
    return {**STRUCTURE, **{f"{field.on}/{field.name}": _of_field(field) for field in fields}}


def _of_field(field: Field) -> FlatTensor:
    return FlatTensor(on=field.on, read=lambda batch: batch.on(field.on)[field.name])


def batch_from_flat(tensors: Mapping[str, Tensor], fields: Sequence[Field]) -> GraphBatch:
    """Return the batch of flat tensors, with all that derives from edges."""
    senders, nodes = tensors["senders"], tensors["positions"].shape[0]
    topology = Topology.square(senders, tensors["receivers"], nodes)
    topology._derived.update(
        by_sender=tensors["by_sender"],
        sorted_senders=senders.index_select(0, tensors["by_sender"]),
        degrees=tensors["degrees"],
        row_offsets=pad(tensors["degrees"].cumsum(0), (1, 0)),
        column_offsets=pad(tensors["sent"].cumsum(0), (1, 0)),
    )
    on = {at: {f.name: tensors[f"{at}/{f.name}"] for f in fields if f.on == at} for at in LOCATIONS}
    batch = GraphBatch(
        positions=tensors["positions"],
        topology=topology,
        edge_shifts=tensors["edge_shifts"],
        cell=tensors["cell"],
        periodic=tensors["periodic"],
        node_offsets=pad(tensors["nodes_per_graph"].cumsum(0), (1, 0)),
        edge_offsets=pad(tensors["edges_per_graph"].cumsum(0), (1, 0)),
        fields={field.name: field for field in fields},
        nodes=on["node"],
        edges=on["edge"],
        graphs=on["graph"],
    )
    batch._derived.update(
        {
            ("counts", "node"): tensors["nodes_per_graph"],
            ("counts", "edge"): tensors["edges_per_graph"],
            ("owner", "node"): tensors["graph_of_node"],
            ("owner", "edge"): tensors["graph_of_edge"],
            ("volume", "graph"): tensors["volumes"],
            ("reverse", "edge"): tensors["reverse_edges"],
        }
    )
    ascending = (
        (topology.receivers, topology.row_offsets),
        (tensors["graph_of_node"], batch.node_offsets),
        (tensors["graph_of_edge"], batch.edge_offsets),
    )
    for owners, offsets in ascending:  # which nobody has to sort
        remember_order(owners, offsets.shape[0] - 1, SegmentOrder(None, owners, offsets, None))
    return batch


def random_batch(
    fields: Sequence[Field],
    dim: int,
    extent: float,
    sizes: Mapping[Location, int],
    dtype: torch.dtype,
    limits: CloseRangeLimits | None = None,
) -> GraphBatch:
    """Return a fixed random batch of these sizes and inputs.

    Edges have lengths up to about ``extent``. Within the ``limits`` of close range elements are known and no edge is short, since a repulsion would hide
    all else.
    It means nothing: edges have no reverse, and ``reverse_edges`` is any permutation.
    """
    random = torch.Generator().manual_seed(0)
    nodes, edges, graphs = (sizes[location] for location in LOCATIONS)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, dtype=torch.float64)

    of_node = torch.arange(nodes) * graphs // nodes  # [nodes]; every graph has some
    node_counts = torch.bincount(of_node, minlength=graphs)
    receivers = torch.randint(nodes, (edges,), generator=random).sort().values
    of_edge = of_node[receivers]
    starts = node_counts.cumsum(0) - node_counts
    senders = starts[of_edge] + (uniform(edges) * node_counts[of_edge]).to(torch.int64)
    values = {
        field.name: torch.randint(field.classes, (sizes[field.on], *field.shape), generator=random)
        if field.classes
        else torch.randn(sizes[field.on], *field.shape, generator=random, dtype=torch.float64)
        for field in fields
    }
    batch = GraphBatch(
        positions=extent * uniform(nodes, dim) / 2,
        topology=Topology.square(senders, receivers, nodes),
        edge_shifts=extent * uniform(edges, dim) / 4,
        cell=extent * (torch.eye(3, dtype=torch.float64) + uniform(graphs, 3, 3) / 4),
        periodic=torch.ones(graphs, 3, dtype=torch.bool),
        node_offsets=pad(node_counts.cumsum(0), (1, 0)),
        edge_offsets=pad(torch.bincount(of_edge, minlength=graphs).cumsum(0), (1, 0)),
        fields={field.name: field for field in fields},
        nodes={field.name: values[field.name] for field in fields if field.on == "node"},
        edges={field.name: values[field.name] for field in fields if field.on == "edge"},
        graphs={field.name: values[field.name] for field in fields if field.on == "graph"},
    ).to(dtype=dtype)
    if limits is not None:
        batch = _without_contacts(batch, limits, extent)
    batch._derived["reverse", "edge"] = torch.randperm(edges, generator=random)
    return batch


def _without_contacts(batch: GraphBatch, limits: CloseRangeLimits, extent: float) -> GraphBatch:
    """Return the batch with known elements, and lengths from the longest limit to the extent."""
    species = torch.tensor(limits.species)[batch.nodes[ATOMIC_NUMBERS] % len(limits.species)]
    vectors = edge_vectors(batch)
    least = min(max((length for *_, length in limits.shortest), default=0.0) / limits.angstrom, 0.8 * extent)
    shares = torch.linspace(0, 1, batch.num_edges, dtype=vectors.dtype)[
        torch.arange(batch.num_edges) * 7 % max(batch.num_edges, 1)
    ]
    lengths = least + (extent - least) * shares
    stretched = vectors * (lengths / vectors.norm(dim=1).clamp_min(1e-6)).unsqueeze(-1)
    shifts = batch.edge_shifts + (stretched - vectors)
    return replace(batch, nodes={**batch.nodes, ATOMIC_NUMBERS: species}, edge_shifts=shifts)
