"""Batches: one or many graphs as flat tensors."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from operator import index
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.shown import Shown
from hydragnn.graphs.coarse import Levels
from hydragnn.graphs.field import LOCATIONS, Field, Location, is_labelled
from hydragnn.graphs.halo import Halo
from hydragnn.graphs.search import Pairs, completed_cell, pairs_within
from hydragnn.graphs.texts import NAME, Texts, label
from hydragnn.graphs.topology import HasTensors, Topology, map_tensors, note_ascending, reverse_of

MOST = 10  # graphs whose names and sizes notebooks show
FAR = 10.0
"""A graph is far where its first node is so many times farther from the origin than from its other nodes and its edges' images."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class GraphBatch(Shown, HasTensors):
    """Graphs laid end to end; the ``topology`` counts nodes over all.

    A message flows sender -> receiver. Edges are sorted by receiver. ``positions`` has dim 0 where graphs have no
    geometry. ``masks[name]`` says which graphs have a field; a name without a mask is present everywhere.
    Labels of targets may be missing inside a graph, too: NaN, of classes -1 (``labelled``), if the field has a mask. The
    constructor trusts its caller; ``graph_from_arrays`` and ``validate`` check what comes from outside.

    What follows from the offsets is made when first asked for and kept; a ``replace`` starts without it.
    """

    positions: Float[Tensor, "nodes dim"]
    topology: Topology
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
    texts: Mapping[str, Texts] = member(default_factory=dict)
    """One text per graph and key, such as its ``name``; no model reads them."""
    halo: Halo | None = None
    """Nodes that other ranks own, where the batch is a part of graphs that ranks share (``hydragnn.graphs.cutting``)."""
    _derived: dict[tuple[str, Location], Any] = member(init=False, default_factory=dict)

    @property
    def senders(self) -> Int[Tensor, " edges"]:
        """The node that each edge comes from."""
        return self.topology.senders

    @property
    def receivers(self) -> Int[Tensor, " edges"]:
        """The node that each edge goes to; sorted."""
        return self.topology.receivers

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs together."""
        return self.positions.shape[0]

    @property
    def num_edges(self) -> int:
        """Directed edges of all graphs together."""
        return self.topology.num_edges

    @property
    def num_graphs(self) -> int:
        """Graphs in the batch."""
        return self.node_offsets.shape[0] - 1

    @property
    def dim(self) -> int:
        """Spatial dimension; 0 for graphs without geometry."""
        return self.positions.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.positions.device

    def __len__(self) -> int:
        return self.num_graphs

    def __repr__(self) -> str:
        sizes = f"{self.num_graphs} graphs, {self.num_nodes} nodes, {self.num_edges} edges, dim {self.dim}"
        names = [f"{name} ({field.on}{', masked' * (name in self.masks)})" for name, field in self.fields.items()]
        return f"GraphBatch({sizes}; {', '.join(names) or 'no fields'}; {self.device})"

    def shown(self) -> Mapping[str, Any]:
        """Return the graphs by size, and the fields."""
        sizes = {"nodes": self.counts("node")[:MOST].tolist(), "edges": self.counts("edge")[:MOST].tolist()}
        names = {} if self.names is None else {"name": list(self.names[:MOST])}
        return {**names, **sizes, "fields": [field.shown() for field in self.fields.values()]}

    def num_items(self, location: Location) -> int:
        """Nodes, edges or graphs of the batch."""
        return {"node": self.num_nodes, "edge": self.num_edges, "graph": self.num_graphs}[location]

    @property
    def size(self) -> int:
        """Bytes of its tensors, without what follows from them."""
        tensors = [self.positions, self.senders, self.receivers, self.edge_shifts, self.cell, self.periodic]
        tensors += [self.node_offsets, self.edge_offsets, *self.masks.values()]
        tensors += [value for location in LOCATIONS for value in self.on(location).values()]
        return sum(tensor.nbytes for tensor in tensors)

    def offsets(self, location: Location) -> Int[Tensor, " graphs_plus_one"]:
        """Return the first node, edge or graph of each, and their number."""
        if location == "graph":
            return torch.arange(self.num_graphs + 1, device=self.device)
        return self.node_offsets if location == "node" else self.edge_offsets

    def counts(self, location: Location) -> Int[Tensor, " graphs"]:
        """Return each graph's number of nodes or edges; ones for ``"graph"``."""
        return self._derive("counts", location, lambda: self.offsets(location).diff())

    @property
    def nodes_per_graph(self) -> Int[Tensor, " graphs"]:
        """Nodes of every graph, also those of other ranks."""
        return self.counts("node") if self.halo is None else self.halo.nodes_per_graph

    def owner(self, location: Location) -> Int[Tensor, " items"]:
        """The graph that each node, edge or graph belongs to."""

        def owners() -> Tensor:
            graphs = torch.arange(self.num_graphs, device=self.device)
            result = torch.repeat_interleave(graphs, self.counts(location), output_size=self.num_items(location))
            note_ascending(result, self.num_graphs, self.offsets(location))
            return result

        return self._derive("owner", location, owners)

    @property
    def reverse_edges(self) -> Int[Tensor, " edges"]:
        """Number of the edge that runs the other way, for every edge.

        It leads through the opposite shift, from receiver to sender. Of several between the same nodes through the same
        shift the first belongs to the first. An edge of a node to itself without a shift is its own reverse. InputError
        names an edge that has none.
        """
        return self._derive("reverse", "edge", lambda: reverse_of(self.topology, self.edge_shifts))

    def prepare(self) -> None:
        """Derive on a CPU what a GPU would sort and count."""
        self.topology.prepare()
        self.owner("node")

    def forget_derived(self) -> None:
        """Free what was derived from offsets and edges."""
        self._derived.clear()
        self.topology._derived.clear()

    def _derive(self, what: str, location: Location, make: Callable[[], Any]) -> Any:
        key = (what, location)
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def on(self, location: Location) -> Mapping[str, Tensor]:
        """The tensors that live on nodes, edges or graphs."""
        return {"node": self.nodes, "edge": self.edges, "graph": self.graphs}[location]

    def by_location(self, change: Callable[[Location, Tensor], Tensor]) -> dict[str, Any]:
        """Return changed tensors by name, all but edges and offsets."""
        on_all = {at: {name: change(at, value) for name, value in self.on(at).items()} for at in LOCATIONS}
        return {
            "positions": change("node", self.positions),
            "edge_shifts": change("edge", self.edge_shifts),
            "cell": change("graph", self.cell),
            "periodic": change("graph", self.periodic),
            **{f"{at}s": values for at, values in on_all.items()},
            "masks": {name: change("graph", value) for name, value in self.masks.items()},
        }

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of a field; InputError names the fields."""
        if not isinstance(name, str):
            raise InputError(
                f"{name!r:.60} is no name of a field; take graphs of a batch with select, such as batch.select([0])"
            )
        if name not in self.fields:
            raise InputError(f"the batch has no field {name}; it has {', '.join(sorted(self.fields)) or 'none'}")
        return self.on(self.fields[name].on)[name]

    @property
    def names(self) -> Texts | None:
        """Name of every graph, empty without one; None where none has one."""
        return self.texts.get(NAME)

    def with_texts(self, texts: Mapping[str, Sequence[str] | Texts]) -> "GraphBatch":
        """Return the batch with texts added or replaced, one per graph.

        >>> from hydragnn.graphs.validate import graph_from_arrays
        >>> graph_from_arrays([[0.0, 0.0]], [], []).with_texts({"name": ["mp-1234"]}).names
        Texts(['mp-1234'])
        """
        for key, values in texts.items():
            if isinstance(values, str) or len(values) != self.num_graphs:
                raise InputError(f"{key}: {values!r} for {self.num_graphs} graphs; give a list with one text per graph")
        added = {key: values if isinstance(values, Texts) else Texts(values) for key, values in texts.items()}
        result = replace(self, texts={**self.texts, **added})
        result._derived.update(self._derived)
        return result

    def present(self, name: str) -> Bool[Tensor, " graphs"]:
        """Return a bool per graph: it has the field ``name``."""
        if name in self.masks:
            return self.masks[name]
        return torch.ones(self.num_graphs, dtype=torch.bool, device=self.device)

    def present_items(self, name: str) -> Bool[Tensor, " items"] | None:
        """Return a bool per item of a field; None for all.

        Of graphs that ranks share, every item counts on one of them.
        """
        location = self.fields[name].on
        counted = None if self.halo is None else self.halo.counted(location, self.num_items(location))
        if name not in self.masks:
            return counted
        mask = self.masks[name]
        present = mask if location == "graph" else mask.index_select(0, self.owner(location))
        return present if counted is None else present & counted

    def labelled(self, name: str) -> Bool[Tensor, "items *shape"]:
        """Return a bool per number of the field: it is not missing.

        >>> from hydragnn.graphs.validate import graph_from_arrays
        >>> charge = Field(name="charge", on="node", role="target")
        >>> values = {"charge": [0.5, float("nan")]}
        >>> graph_from_arrays(torch.zeros(2, 0), [], [], fields=[charge], nodes=values, optional=["charge"]).labelled("charge")
        tensor([ True, False])
        """
        values, present = self[name], self.present_items(name)
        labelled = is_labelled(values, self.fields[name])
        return labelled if present is None else labelled & present.view(-1, *[1] * (values.ndim - 1))

    def with_fields(
        self,
        values: Mapping[str, Tensor] | None = None,
        *,
        fields: Iterable[Field] = (),
        masks: Mapping[str, Bool[Tensor, " graphs"]] | None = None,
        drop: Collection[str] = (),
    ) -> "GraphBatch":
        """Return the batch with tensors replaced, fields added and fields dropped.

        A replaced field keeps its mask, unless ``masks`` has another; an added one is present everywhere, unless it has one.
        InputError for a name without a meaning, a meaning without a tensor, and a tensor of the wrong shape.

        >>> from hydragnn.graphs.validate import graph_from_arrays
        >>> graph = graph_from_arrays([[0.0, 0.0], [1.0, 0.0]], [0, 1], [1, 0])
        >>> graph.with_fields({"mass": torch.ones(2)}, fields=[Field(name="mass", on="node")])
        GraphBatch(1 graphs, 2 nodes, 2 edges, dim 2; mass (node); cpu)
        """
        values, added = values or {}, {field.name: field for field in fields}
        for name in drop:
            self[name]  # the error for a field that there is not
        for name in added:
            if name not in values:
                raise InputError(f"field {name} is declared but has no tensor; give one in values")
        removed = {*drop, *added}
        fields_left = {name: field for name, field in self.fields.items() if name not in removed} | added
        tensors = {at: {n: v for n, v in self.on(at).items() if n not in removed} for at in LOCATIONS}
        for name, value in values.items():
            if name not in fields_left:
                raise InputError(f"values of {name}, which is no field of the batch; declare it in fields")
            field = fields_left[name]
            if value.shape != (self.num_items(field.on), *field.shape):
                expected = (self.num_items(field.on), *field.shape)
                raise InputError(f"field {name}: shape {tuple(value.shape)} is not {expected}; reshape it")
            tensors[field.on][name] = value
        present = {name: mask for name, mask in self.masks.items() if name not in removed} | dict(masks or {})
        on: dict[str, Any] = {f"{at}s": own for at, own in tensors.items()}
        result = replace(self, fields=fields_left, masks=present, **on)
        touched = {*values, *drop}
        result._derived.update(  # fields change no offset
            (key, value)
            for key, value in self._derived.items()
            if not (isinstance(value, Levels) and touched & value.fields)
        )
        return result

    def select(self, graphs: slice | Sequence[int] | Tensor) -> "GraphBatch":
        """Return the graphs with these numbers (or bools), in this order.

        Numbers may repeat. Consecutive graphs are views, not copies, except for the shifted node indices. InputError
        for numbers out of range.

        >>> from hydragnn.graphs import concatenate
        >>> from hydragnn.graphs.validate import graph_from_arrays
        >>> graphs = [graph_from_arrays(torch.zeros(size, 2), [0], [0]) for size in (1, 2, 3)]
        >>> concatenate(graphs).select([2, 0]).counts("node")
        tensor([3, 1])
        """
        rows_of_graphs = _graph_rows(graphs, self.num_graphs, self.device)
        if isinstance(rows_of_graphs, slice) and rows_of_graphs == slice(0, self.num_graphs):
            return self
        assert self.halo is None, "graphs are selected before they are cut"
        nodes, node_offsets = _rows(self, "node", rows_of_graphs)
        edges, edge_offsets = _rows(self, "edge", rows_of_graphs)
        if isinstance(nodes, slice):
            moved: Tensor | int = -nodes.start
        else:
            assert isinstance(rows_of_graphs, Tensor) and isinstance(edges, Tensor)
            by_graph = node_offsets[:-1] - self.node_offsets.index_select(0, rows_of_graphs)
            moved = torch.repeat_interleave(by_graph, edge_offsets.diff(), output_size=len(edges))
        rows: dict[Location, Rows] = {"node": nodes, "edge": edges, "graph": rows_of_graphs}
        tensors = self.by_location(lambda at, value: _take(value, rows[at]))
        senders, receivers = (_take(one, edges) + moved for one in (self.senders, self.receivers))
        places = rows_of_graphs if isinstance(rows_of_graphs, slice) else rows_of_graphs.tolist()
        return replace(
            self,
            **tensors,
            topology=Topology.square(senders, receivers, len(tensors["positions"])),
            node_offsets=node_offsets,
            edge_offsets=edge_offsets,
            texts={key: texts.select(places) for key, texts in self.texts.items()},
        )

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "GraphBatch":
        """Return the batch on ``device`` with floats in ``dtype``; None keeps either."""
        batch = self if dtype is None else self.near_origin(dtype)
        if device is not None and torch.device(device).type not in ("cpu", "meta"):
            batch.prepare()
        return batch.mapped(lambda value: value.to(device=device, dtype=dtype if value.is_floating_point() else None))

    def near_origin(self, dtype: torch.dtype) -> "GraphBatch":
        """Return the batch with far graphs at the origin, before rounding.

        Edge vectors stay what they are. A mesh with the coordinates of a map (5.4e6 m north, 0.1 m between nodes) would lose them:
        there single precision has places half a metre apart. Positions that keep their digits stay where they are.

        >>> from hydragnn.graphs.validate import graph_from_arrays
        >>> graph_from_arrays([[5.4e6, 0.0], [5.4e6, 0.1]], [], []).near_origin(torch.float32).positions.tolist()
        [[0.0, 0.0], [0.0, 0.1]]
        """
        if not self.num_nodes or not self.dim or dtype.itemsize >= self.positions.dtype.itemsize:
            return self
        owner = self.owner("node")
        first = self.positions.index_select(0, self.node_offsets[:-1].clamp_max(self.num_nodes - 1))  # [graphs, dim]
        away = first.abs().amax(1)
        spans = (self.positions - first.index_select(0, owner)).abs().amax(1)
        reach = torch.zeros_like(away).scatter_reduce(0, owner, spans, "amax")  # [graphs]
        if not bool((away > FAR * reach).any()):
            return self
        reach = reach.scatter_reduce(0, self.owner("edge"), self.edge_shifts.to(reach.dtype).abs().amax(1), "amax")
        far = (away > FAR * reach).unsqueeze(1)
        moved = replace(self, positions=self.positions - torch.where(far, first, 0.0).index_select(0, owner))
        moved._derived.update(self._derived)  # nothing that follows from offsets and edges
        return moved

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "GraphBatch":
        """Return the batch with ``change``, which keeps values, done to every tensor."""
        changed = HasTensors.mapped(self, change)
        changed._derived.update(map_tensors(self._derived, change))
        for location in ("node", "edge"):
            if ("owner", location) in changed._derived:
                note_ascending(changed.owner(location), self.num_graphs, changed.offsets(location))
        return changed


Rows = slice | Tensor  # of an array: a run of them, or every one by number


def _take(values: Tensor, rows: Rows) -> Tensor:
    return values[rows] if isinstance(rows, slice) else values.index_select(0, rows)


def _graph_rows(graphs: slice | Sequence[int] | Tensor, count: int, device: torch.device) -> Rows:
    """Return the rows of graphs: a slice where they are consecutive."""
    if isinstance(graphs, slice):
        graphs = range(*graphs.indices(count))
    elif not isinstance(graphs, Tensor):
        graphs = _whole_numbers(graphs)
    if isinstance(graphs, Tensor):
        if graphs.dtype == torch.bool and graphs.shape != (count,):
            raise InputError(f"{tuple(graphs.shape)} flags for {count} graphs; give one per graph")
        graphs = (graphs.nonzero().squeeze(1) if graphs.dtype == torch.bool else graphs).tolist()
    for number in (min(graphs), max(graphs)) if graphs else ():
        if not 0 <= number < count:
            raise InputError(f"graph {number} of a batch of {count}; use 0 to {count - 1}")
    first = graphs[0] if graphs else 0
    if all(number == first + place for place, number in enumerate(graphs)):
        return slice(first, first + len(graphs))
    return torch.tensor(graphs, device=device)


def _whole_numbers(graphs: Any) -> Sequence[int] | Tensor:
    """Return numbers as a list, bools as a tensor; else InputError."""
    try:
        values = [*(graphs.tolist() if hasattr(graphs, "tolist") else graphs)]
        return torch.tensor(values) if values and isinstance(values[0], bool) else [*map(index, values)]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{graphs!r:.80} are no graphs of a batch; give a slice, whole numbers, or one bool per graph"
        ) from error


def _rows(batch: GraphBatch, location: Location, graphs: Rows) -> tuple[Rows, Tensor]:
    offsets = batch.offsets(location)
    if isinstance(graphs, slice):
        bounds = batch._derive("bounds", location, offsets.tolist)
        first, last = bounds[graphs.start], bounds[graphs.stop]
        return slice(first, last), offsets[graphs.start : graphs.stop + 1] - first
    counts = batch.counts(location).index_select(0, graphs)
    result = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    total = int(result[-1])
    starts = offsets.index_select(0, graphs) - result[:-1]
    rows = torch.repeat_interleave(starts, counts, output_size=total) + torch.arange(total, device=batch.device)
    return rows, result


def edge_vectors(batch: GraphBatch) -> Float[Tensor, "edges dim"]:
    """Return every edge's vector from receiver to sender, through its image."""
    sender = batch.positions.index_select(0, batch.senders)
    receiver = batch.positions.index_select(0, batch.receivers)
    return sender + batch.edge_shifts - receiver


def pairs_of_graph(batch: GraphBatch, graph: int, cutoff: float, name: str = "graph") -> Pairs:
    """Return all pairs of a graph's nodes within a cutoff, as ``pairs_within``."""
    first, stop = batch.node_offsets[graph : graph + 2].tolist()
    places, periodic = np.zeros((stop - first, 3)), batch.periodic[graph].cpu().numpy()
    places[:, : batch.dim] = batch.positions[first:stop].detach().cpu().numpy()
    cell = completed_cell(batch.cell[graph].detach().cpu().double().numpy(), periodic, name)
    return pairs_within(places, cell, periodic, cutoff, name)


def volumes(batch: GraphBatch) -> Float[Tensor, " graphs"]:
    """Return every cell's volume; zero without periodic axes or volume."""
    kept_volumes: Tensor | None = batch._derived.get(("volume", "graph"))
    return torch.linalg.det(batch.cell).abs() * batch.periodic.any(dim=1) if kept_volumes is None else kept_volumes


def graph_label(batch: GraphBatch, position: int, number: int | None = None) -> str:
    """Return the name of a graph in messages, else its ``number``.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> graph = graph_from_arrays([[0.0, 0.0]], [], [])
    >>> graph_label(graph, 0, 17), graph_label(graph.with_texts({"name": ["mp-1234"]}), 0, 17)
    ('graph 17', "graph 'mp-1234'")
    """
    name = batch.names[position] if batch.names is not None else ""
    return label(name, position if number is None else number)
