"""Fields, graphs and models of the conformance suite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hydragnn.architectures import ArchitectureSettings, architecture_of
from hydragnn.base.imports import allow_named
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.joining import repeated as copied
from hydragnn.graphs.levels import CLUSTERS, clusters_field, with_contracted_levels
from hydragnn.graphs.topology import Topology
from hydragnn.models import Distribution, GraphModel, build_model, degree_statistics, parse_head

INPUTS = (
    Field(name="species", on="node", classes=5, dtype="int64"),
    Field(name="size", on="node", shape=(2,)),
    Field(name="load", on="graph"),
    Field(name="phase", on="graph", classes=2, dtype="int64"),
    Field(name="area", on="edge"),
    Field(name="relation", on="edge", classes=3, dtype="int64"),
)
SCALARS = (
    Field(name="energy", on="graph", role="target"),
    Field(name="charge", on="node", shape=(2,), role="target"),
    Field(name="gap", on="graph", shape=(1, 2), role="target"),
    Field(name="top", on="graph", role="target"),
    Field(name="site", on="node", classes=3, dtype="int64", role="target"),
    Field(name="lattice", on="graph", shape=(2,), classes=4, dtype="int64", role="target"),
    Field(name="hop", on="edge", shape=(2,), role="target"),
    Field(name="bond", on="edge", classes=3, dtype="int64", role="target"),
    Field(name="load_of_own", on="node", role="target"),
)
FORCES = Field(name="forces", on="node", shape=(3,), parity="vector", role="target")
STRESS = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target")
VECTORS = (
    Field(name="dipole", on="graph", shape=(3,), parity="vector", role="target"),
    Field(name="flow", on="node", shape=(2, 3), parity="vector", role="target"),
)
TENSORS = (
    Field(name="polarisability", on="graph", shape=(3, 3), parity="tensor", role="target"),
    Field(name="shielding", on="node", shape=(2, 3, 3), parity="tensor", role="target"),
)
LEVELS = 2
"""Coarser levels of the graphs, for models that pool."""
GAUSSIAN = {"distribution": "gaussian", "loss": "nll"}
AROUND: dict[str, dict[str, Any]] = {
    "multihead": {"global_attention": {"kind": "multihead", "heads": 2}},
    "linear": {"global_attention": {"kind": "linear", "heads": 2}},
    "equivariant": {"global_attention": {"kind": "equivariant", "heads": 2, "cutoff": 4.3, "num_radial": 5}},
    "film": {"conditioning": "film"},
    "pooled": {"conditioning": "pooled"},
    "clusters": {"pooling": {"levels": LEVELS}, "num_layers": 3},
    "checkpointing": {"checkpoint_activations": True},
}
"""Wrappers of the layers of any architecture, as keys of [model]: attention, conditioning, pooling.

Equivariant attention reaches farther than the edges of crystals and molecules in ``hydragnn.conformance.smoothness``, through images in all periodic cells.
"""


def make_graph(seed: int, nodes: int, *, edges: int | None = None, self_loop: bool = False, dim: int = 3) -> GraphBatch:
    """Return a random graph in a small periodic cell.

    Edges pass through images; larger graphs have two components; clusters are contractions.
    In two dimensions the cell has a third vector of length 1, as in stores, so that its volume is the area.
    Clusters are sought once; the graph is new, and so is what follows from its edges.
    """
    graph = _first_graph(seed, nodes, edges, self_loop, dim).mapped(Tensor.clone)
    return replace(graph, topology=Topology.square(graph.senders, graph.receivers, nodes))


@cache
def _first_graph(seed: int, nodes: int, edges: int | None, self_loop: bool, dim: int) -> GraphBatch:
    random = torch.Generator().manual_seed(seed)
    count = 4 * nodes if edges is None else edges
    cell = 4 * torch.eye(dim, dtype=torch.float64) + torch.rand(dim, dim, generator=random, dtype=torch.float64)
    fractional = torch.rand(nodes, dim, generator=random, dtype=torch.float64)
    half = max(nodes // 2, 1)
    receivers = torch.randint(nodes, (count,), generator=random).sort().values
    senders = torch.randint(half, (count,), generator=random) + torch.where(receivers < half, 0, nodes - half)
    images = torch.randint(-1, 2, (count, dim), generator=random).double()
    images[(senders == receivers) & (images == 0).all(1), 0] = 1.0
    if self_loop:
        receivers, senders = torch.cat([receivers.new_zeros(1), receivers]), torch.cat([senders.new_zeros(1), senders])
        images = torch.cat([images.new_zeros(1, dim), images])
    edge_count = len(senders)
    graph = GraphBatch(
        positions=fractional @ cell,
        topology=Topology.square(senders, receivers, len(fractional)),
        edge_shifts=images @ cell,
        cell=torch.block_diag(cell, torch.eye(3 - dim, dtype=torch.float64)).unsqueeze(0),
        periodic=(torch.arange(3) < dim).unsqueeze(0),
        node_offsets=torch.tensor([0, nodes]),
        edge_offsets=torch.tensor([0, edge_count]),
        fields={field.name: field for field in INPUTS},
        nodes={
            "species": torch.randint(5, (nodes,), generator=random),
            "size": torch.randn(nodes, 2, generator=random, dtype=torch.float64),
        },
        edges={
            "area": torch.rand(edge_count, generator=random, dtype=torch.float64),
            "relation": torch.randint(3, (edge_count,), generator=random),
        },
        graphs={
            "load": torch.randn(1, generator=random, dtype=torch.float64),
            "phase": torch.randint(2, (1,), generator=random),
        },
    )
    return with_contracted_levels(graph, LEVELS)


def no_nodes() -> GraphBatch:
    some = make_graph(9, 1, edges=0)
    return replace(
        some,
        positions=some.positions[:0],
        topology=Topology.square(some.senders, some.receivers, 0),
        node_offsets=torch.tensor([0, 0]),
        nodes={name: value[:0] for name, value in some.nodes.items()},
    )


def repeated(cell: GraphBatch, counts: tuple[int, int, int]) -> tuple[int, GraphBatch]:
    """Return the number of copies and the supercell of a graph.

    Nodes, edges and their fields appear once for every copy.
    An edge from an image ``m`` of its sender, in the copy ``k`` of the cell, comes from the copy ``k + m`` modulo ``counts``.
    """
    size = torch.tensor(counts)
    copies = torch.cartesian_prod(*(torch.arange(count) for count in counts))  # [copies, 3]
    number, lattice = len(copies), cell.cell[0]
    images = torch.linalg.solve(lattice.T, cell.edge_shifts.T).T.round().long()
    reached = copies.unsqueeze(1) + images  # [copies, edges, 3]
    wraps, inside = reached.div(size, rounding_mode="floor"), reached.remainder(size)
    place = (inside[..., 0] * counts[1] + inside[..., 1]) * counts[2] + inside[..., 2]
    apart = copied(cell, number)  # as graphs without edges between them
    clusters = apart.nodes[CLUSTERS] + apart.owner("node").unsqueeze(1) * (cell.nodes[CLUSTERS].amax(0) + 1)
    wide = lattice * size.unsqueeze(1)
    senders = (place * cell.num_nodes + cell.senders).flatten()
    return number, replace(
        cell,
        positions=(cell.positions + (copies.double() @ lattice).unsqueeze(1)).flatten(0, 1),
        topology=Topology.square(senders, apart.receivers, apart.num_nodes),
        edge_shifts=(wraps.double() @ wide).flatten(0, 1),
        cell=wide.unsqueeze(0),
        node_offsets=cell.node_offsets * number,
        edge_offsets=cell.edge_offsets * number,
        nodes={**apart.nodes, CLUSTERS: clusters},
        edges=apart.edges,
    )


def in_one_place(distance: float) -> GraphBatch:
    graph = make_graph(0, 6)
    edge = int((graph.senders != graph.receivers).nonzero()[0])
    positions, shifts = graph.positions.clone(), graph.edge_shifts.clone()
    shifts[edge] = 0.0
    positions[graph.senders[edge]] = positions[graph.receivers[edge]]
    positions[graph.senders[edge], 0] += distance
    return replace(graph, positions=positions, edge_shifts=shifts)


CORNERS: dict[str, Callable[[], GraphBatch]] = {
    "one graph": lambda: make_graph(0, 6),
    "two graphs": lambda: concatenate([make_graph(1, 5), make_graph(2, 7)]),
    "no edges": lambda: make_graph(3, 4, edges=0),
    "lone node": lambda: concatenate([make_graph(4, 1, edges=0), make_graph(5, 3)]),
    "self loop": lambda: make_graph(6, 5, self_loop=True),
    "one edge": lambda: make_graph(7, 3, edges=1),
}


def small_settings(kind: str, **changes: Any) -> ArchitectureSettings:
    allow_named(kind)
    cls = architecture_of(kind).Settings
    small = {"kind": kind, "hidden_dim": 8, "num_layers": 2, "cutoff": 9.0, "num_radial": 4}
    return cls.parse({k: v for k, v in small.items() if k in cls.model_fields} | changes)


def gives_forces(kind: str, settings: Mapping[str, Any]) -> bool:
    """Return True if the architecture sees positions and does not pool."""
    return architecture_of(kind).sees_positions() and small_settings(kind, **settings).pooling is None


def make_model(
    kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, *, dim: int = 3, **changes: Any
) -> GraphModel:
    """Return a small model with every head that its kind can have."""
    settings, forces = small_settings(kind, **changes), gives_forces(kind, changes)
    derivatives = {"forces": "forces", "stress": "stress"} if forces else {}
    heads: list[dict[str, Any]] = [
        {"kind": "energy", "field": "energy", "hidden_dims": [6], **derivatives},
        {"kind": "scalar", "field": "charge", "hidden_dims": [6]},
        {"kind": "scalar", "field": "gap", **GAUSSIAN},
        {"kind": "scalar", "field": "top", "pool": "max"},
        {"kind": "classes", "field": "site", "hidden_dims": [6]},
        {"kind": "classes", "field": "lattice", "hidden_dims": [6]},
        {"kind": "scalar", "field": "hop", "hidden_dims": [6], **GAUSSIAN},
        {"kind": "classes", "field": "bond", "hidden_dims": [6]},
        {"kind": "scalar", "field": "load_of_own", "hidden_dims": [6], "conv_layers": 1},
    ]
    fields = [*INPUTS, *SCALARS, *((FORCES, STRESS) if forces else ())]
    if architecture_of(kind).sees_positions():
        tensor = {"kind": "tensor", "hidden_dims": [6]}
        heads += [{**tensor, "field": "polarisability", **GAUSSIAN}, {**tensor, "field": "shielding"}]
        fields += TENSORS
    if 1 in architecture_of(kind).gives:
        heads += [{"kind": "vector", "field": "dipole", **GAUSSIAN}, {"kind": "vector", "field": "flow"}]
        fields += VECTORS
    statistics = degree_statistics([make_graph(1, 5), make_graph(2, 7)])
    fields += [clusters_field(LEVELS)] if settings.pooling is not None else []
    inputs = [field.name for field in INPUTS if architecture_of(kind).reads(settings, field)]
    inputs += [CLUSTERS] if settings.pooling is not None else []
    parsed, fields = [parse_head(head) for head in heads], [in_dimension(field, dim) for field in fields]
    return build_model(settings, parsed, fields, inputs=inputs, dim=dim, seed=seed, statistics=statistics).to(dtype)


_shared: dict[tuple[Any, ...], GraphModel] = {}


def shared_model(kind: str, dtype: torch.dtype = torch.float64, *, dim: int = 3, **changes: Any) -> GraphModel:
    """Return the model of ``make_model``, made once, to read."""
    allow_named(kind)
    key = (architecture_of(kind), repr(sorted(changes.items())), dtype, dim)
    if key not in _shared:
        if len(_shared) == 8:  # a suite needs five, and suites follow one another
            _shared.clear()
        _shared[key] = make_model(kind, 0, dtype, dim=dim, **changes)
    return _shared[key].train()


def in_dimension(field: Field, dim: int) -> Field:
    axes = {"scalar": 0, "vector": 1, "tensor": 2}[field.parity]
    return replace(field, shape=(*field.shape[: len(field.shape) - axes], *[dim] * axes))


def loss_of(predictions: dict[str, Distribution]) -> Tensor:
    """One number that depends on every output."""
    parts = [
        (values.log() if name == "variance" else values).square().sum()
        for prediction in predictions.values()
        for name, values in prediction.tensors().items()
    ]
    return torch.stack(parts).sum()


def energies_of(model: GraphModel, graphs: Sequence[GraphBatch]) -> list[float]:
    energies = model(concatenate(graphs))["energy"].mean.detach()
    return [float(part.sum()) for part in energies.split([batch.num_graphs for batch in graphs])]


def values_of(prediction: Distribution) -> Tensor:
    """Means of numbers, logits of classes."""
    return next(iter(prediction.tensors().values()))
