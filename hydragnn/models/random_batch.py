"""Random batches on which functions of batches are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, LOCATIONS, Field, Location
from hydragnn.graphs.topology import Topology
from hydragnn.layers import CloseRangeLimits


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
