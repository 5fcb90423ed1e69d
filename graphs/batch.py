"""One or many graphs as flat tensors; a single graph is a batch of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydragnn.errors import InputError
from hydragnn.graphs.field import Field, Place


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphBatch:
    """Graphs laid end to end; node indices in ``senders`` and ``receivers`` count over the whole batch.

    A message flows sender -> receiver. Edges are sorted by receiver. ``positions`` has dim 0 where graphs have no
    geometry. ``masks[name]`` says which graphs have a field; a name without a mask is present everywhere. The
    constructor trusts its caller; ``graph_from_arrays`` and ``validate`` check what comes from outside.
    """

    positions: Float[Tensor, "nodes dim"]
    senders: Int[Tensor, " edges"]
    receivers: Int[Tensor, " edges"]
    edge_shifts: Float[Tensor, "edges dim"]
    cell: Float[Tensor, "graphs 3 3"]
    periodic: Bool[Tensor, "graphs 3"]
    node_offsets: Int[Tensor, " graphs_plus_one"]
    edge_offsets: Int[Tensor, " graphs_plus_one"]
    fields: Mapping[str, Field] = member(default_factory=dict)
    nodes: Mapping[str, Tensor] = member(default_factory=dict)
    edges: Mapping[str, Tensor] = member(default_factory=dict)
    graphs: Mapping[str, Tensor] = member(default_factory=dict)
    masks: Mapping[str, Bool[Tensor, " graphs"]] = member(default_factory=dict)
    cache: dict[str, Tensor] = member(default_factory=dict, repr=False)

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs together."""
        return self.positions.shape[0]

    @property
    def num_edges(self) -> int:
        """Directed edges of all graphs together."""
        return self.senders.shape[0]

    @property
    def num_graphs(self) -> int:
        """Graphs in the batch."""
        return self.node_offsets.shape[0] - 1

    @property
    def dim(self) -> int:
        """Spatial dimension; 0 for graphs without geometry."""
        return self.positions.shape[1]

    def __len__(self) -> int:
        return self.num_graphs

    def _cached(self, key: str, make: Any) -> Tensor:
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    @property
    def nodes_per_graph(self) -> Int[Tensor, " graphs"]:
        """Node count of every graph."""
        return self._cached("nodes_per_graph", lambda: self.node_offsets.diff())

    @property
    def edges_per_graph(self) -> Int[Tensor, " graphs"]:
        """Edge count of every graph."""
        return self._cached("edges_per_graph", lambda: self.edge_offsets.diff())

    @property
    def graph_of_node(self) -> Int[Tensor, " nodes"]:
        """The graph that each node belongs to."""
        return self._cached("graph_of_node", lambda: _owners(self.nodes_per_graph, self.num_nodes))

    @property
    def graph_of_edge(self) -> Int[Tensor, " edges"]:
        """The graph that each edge belongs to."""
        return self._cached("graph_of_edge", lambda: _owners(self.edges_per_graph, self.num_edges))

    @property
    def receiver_offsets(self) -> Int[Tensor, " nodes_plus_one"]:
        """CSR row pointer: the edges received by node i are ``receiver_offsets[i]`` to ``receiver_offsets[i + 1]``."""
        return self._cached("receiver_offsets", lambda: _row_pointer(self.receivers, self.num_nodes))

    @property
    def by_sender(self) -> Int[Tensor, " edges"]:
        """The stable permutation of edges that sorts them by sender: the transposed order."""
        return self._cached("by_sender", lambda: torch.argsort(self.senders, stable=True))

    @property
    def sender_offsets(self) -> Int[Tensor, " nodes_plus_one"]:
        """CSR row pointer of the transposed order."""
        return self._cached(
            "sender_offsets",
            lambda: _row_pointer(self.senders.index_select(0, self.by_sender), self.num_nodes),
        )

    def on(self, place: Place) -> Mapping[str, Tensor]:
        """The tensors that live on nodes, edges or graphs."""
        return {"node": self.nodes, "edge": self.edges, "graph": self.graphs}[place]

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of the field ``name``; InputError names the fields that there are."""
        if name not in self.fields:
            raise InputError(f"the batch has no field {name}; it has {', '.join(sorted(self.fields)) or 'none'}")
        return self.on(self.fields[name].on)[name]

    def present(self, name: str) -> Bool[Tensor, " graphs"]:
        """Which graphs have the field ``name``."""
        if name in self.masks:
            return self.masks[name]
        return torch.ones(self.num_graphs, dtype=torch.bool, device=self.positions.device)


def _owners(counts: Tensor, total: int) -> Tensor:
    index = torch.arange(counts.shape[0], device=counts.device)
    return torch.repeat_interleave(index, counts, output_size=total)


def _row_pointer(sorted_index: Tensor, rows: int) -> Tensor:
    counts = torch.bincount(sorted_index, minlength=rows)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def edge_vectors(batch: GraphBatch) -> Float[Tensor, "edges dim"]:
    """Vector from receiver to sender of every edge, through the periodic image; differentiable in positions."""
    sender = batch.positions.index_select(0, batch.senders)
    receiver = batch.positions.index_select(0, batch.receivers)
    return sender + batch.edge_shifts - receiver


def volumes(batch: GraphBatch) -> Float[Tensor, " graphs"]:
    """Volume of every cell; zero where a graph has none."""
    return torch.linalg.det(batch.cell).abs()


def to(batch: GraphBatch, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> GraphBatch:
    """The batch on ``device`` with floating-point tensors in ``dtype``; None keeps what there is."""

    def move(value: Tensor) -> Tensor:
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    def move_all(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: move(value) for name, value in values.items()}

    return replace(
        batch,
        positions=move(batch.positions),
        senders=move(batch.senders),
        receivers=move(batch.receivers),
        edge_shifts=move(batch.edge_shifts),
        cell=move(batch.cell),
        periodic=move(batch.periodic),
        node_offsets=move(batch.node_offsets),
        edge_offsets=move(batch.edge_offsets),
        nodes=move_all(batch.nodes),
        edges=move_all(batch.edges),
        graphs=move_all(batch.graphs),
        masks=move_all(batch.masks),
        cache=move_all(batch.cache),
    )


def concatenate(batches: Sequence[GraphBatch]) -> GraphBatch:
    """All graphs of ``batches`` as one batch, in order; a field that only some have gets a mask and zeros elsewhere."""
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
    node_base = _bases([batch.num_nodes for batch in batches])
    edge_base = _bases([batch.num_edges for batch in batches])
    tensors: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}, "graph": {}}
    masks: dict[str, Tensor] = {}
    for name, field in fields.items():
        tensors[field.on][name] = torch.cat([_values_or_zeros(batch, field) for batch in batches])
        if any(name in batch.masks or name not in batch.fields for batch in batches):
            masks[name] = torch.cat([_presence(batch, name) for batch in batches])
    return GraphBatch(
        positions=torch.cat([b.positions for b in batches]),
        senders=torch.cat([b.senders + base for b, base in zip(batches, node_base)]),
        receivers=torch.cat([b.receivers + base for b, base in zip(batches, node_base)]),
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
    )


def _bases(counts: list[int]) -> list[int]:
    bases = [0]
    for count in counts[:-1]:
        bases.append(bases[-1] + count)
    return bases


def _joined_offsets(offsets: list[Tensor], bases: list[int]) -> Tensor:
    shifted = [offset[1:] + base for offset, base in zip(offsets, bases)]
    return torch.cat([offsets[0][:1], *shifted])


def _values_or_zeros(batch: GraphBatch, field: Field) -> Tensor:
    if field.name in batch.fields:
        return batch[field.name]
    items = {"node": batch.num_nodes, "edge": batch.num_edges, "graph": batch.num_graphs}[field.on]
    return torch.zeros(items, *field.shape, dtype=field.torch_dtype)


def _presence(batch: GraphBatch, name: str) -> Tensor:
    if name in batch.fields:
        return batch.present(name)
    return torch.zeros(batch.num_graphs, dtype=torch.bool)


def split(batch: GraphBatch) -> list[GraphBatch]:
    """Every graph of the batch on its own; views, not copies, except for the shifted node indices."""
    return [one_graph(batch, index) for index in range(batch.num_graphs)]


def one_graph(batch: GraphBatch, index: int) -> GraphBatch:
    """Graph ``index`` of the batch as a batch of one; a field it does not have is left out."""
    n0, n1 = batch.node_offsets[index : index + 2].tolist()
    e0, e1 = batch.edge_offsets[index : index + 2].tolist()
    span = {"node": slice(n0, n1), "edge": slice(e0, e1), "graph": slice(index, index + 1)}
    kept = {
        name: field for name, field in batch.fields.items() if name not in batch.masks or bool(batch.masks[name][index])
    }
    tensors = {place: {n: batch[n][span[place]] for n, f in kept.items() if f.on == place} for place in span}
    return GraphBatch(
        positions=batch.positions[span["node"]],
        senders=batch.senders[span["edge"]] - n0,
        receivers=batch.receivers[span["edge"]] - n0,
        edge_shifts=batch.edge_shifts[span["edge"]],
        cell=batch.cell[span["graph"]],
        periodic=batch.periodic[span["graph"]],
        node_offsets=torch.tensor([0, n1 - n0]),
        edge_offsets=torch.tensor([0, e1 - e0]),
        fields=kept,
        nodes=tensors["node"],
        edges=tensors["edge"],
        graphs=tensors["graph"],
    )
