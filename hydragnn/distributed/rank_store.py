"""Store whose graphs lie in the memory of a group of ranks.

Ranks of one node map the same memory. Ranks of other nodes are read over MPI, and the disk takes the place of those that do not answer:
shared memory outlives the rank that filled it, but not its node.
"""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, MemoryStore
from hydragnn.datasets.arrays import FlatGraphs, array_specs, flat_graphs, join, offsets_of
from hydragnn.datasets.formats.memory import check_fields, checked_indices
from hydragnn.datasets.gather import gather, take_graphs
from hydragnn.datasets.store import Numbers
from hydragnn.datasets.views import View
from hydragnn.distributed.ranks import Ranks, machine_number, number_of
from hydragnn.distributed.shared_memory import SharedLayout, SharedMemory, held_specs, row_bytes, write_graphs
from hydragnn.distributed.sharing import shared_problem
from hydragnn.distributed.windows import Windows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field

BLOCK = 1024
"""Graphs that a rank copies at once from the disk."""


Nodes = tuple[tuple[int, ...], ...]
"""Ranks of each node of a group that keeps one copy together, ascending."""


def rank_groups(machines: Sequence[int], size: int) -> list[Nodes]:
    """Return groups of ``size`` consecutive ranks; 0: those of a machine.

    >>> rank_groups([7, 7, 8, 8], 0)
    [((0, 1),), ((2, 3),)]
    >>> rank_groups([7, 7, 8, 8], 4)
    [((0, 1), (2, 3))]
    """
    ranks = sorted(range(len(machines)), key=lambda rank: (rank // size if size else machines[rank], rank))
    groups = []
    for _, part in groupby(ranks, key=lambda rank: rank // size if size else machines[rank]):
        members = sorted(part, key=lambda rank: (machines[rank], rank))
        groups.append(tuple(tuple(own) for _, own in groupby(members, key=lambda rank: machines[rank])))
    return groups


class RankStore(View):
    """Graphs in the memory of ranks; others are read from the disk."""

    in_memory = True

    def __init__(
        self,
        store: GraphStore,
        graphs: Int64[ndarray, " kept"],
        fields: tuple[Field, ...],
        own: MemoryStore,
        cuts: Int64[ndarray, " nodes_plus_one"],
        node: int,
        remote: "RemoteNodes | None",
    ) -> None:
        """The ``graphs``, ascending, of which this ``node`` has those between its cuts."""
        super().__init__(store)
        self._fields, self._graphs, self._own, self._remote = fields, graphs, own, remote
        self._cuts, self._node = cuts, node
        self._places = np.full(len(store), -1, dtype=np.int64)
        self._places[graphs] = np.arange(len(graphs))

    @property
    def fetched(self) -> bool:
        """True where batches may come from other nodes."""
        return self._remote is not None

    def fields(self) -> tuple[Field, ...]:
        """Return the fields that are kept."""
        return self._fields

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """Return these graphs in this order, with the named fields."""
        numbers = checked_indices(indices, len(self.store))
        places = self._places.take(numbers)
        if places.min(initial=0) < 0:
            check_fields(self._fields, fields)
            return self.store.read(numbers, [field.name for field in self._fields] if fields is None else fields)
        if self._remote is None:
            return self._own.read(places, fields)
        check_fields(self._fields, fields)
        unique, order = np.unique(places, return_inverse=True)
        cuts = np.searchsorted(unique, self._cuts)
        # all reads are on their way before the first is waited for
        pieces = [self._begin(node, unique[a:b]) for node, (a, b) in enumerate(pairwise(cuts)) if b > a]
        flat = join([piece() for piece in pieces]) if pieces else self._own.flat
        return gather(flat, order.reshape(-1), fields)

    def _begin(self, node: int, places: Int64[ndarray, " chosen"]) -> Callable[[], FlatGraphs]:
        """Begin to read graphs of one node; return what waits for them."""
        if node == self._node or self._remote is None:
            return lambda: take_graphs(self._own.flat, places - self._cuts[node])
        wait = self._remote.begin(node, places - self._cuts[node])

        def piece() -> FlatGraphs:
            flat, numbers = wait(), self._graphs[places]
            if flat is None:
                names = [field.name for field in self._fields]
                return flat_graphs(self.store.read(numbers, names), self._fields)
            return replace(flat, texts={key: texts.select(numbers) for key, texts in self.store.texts.items()})

        return piece


class RemoteNodes:
    """Graphs in the memory of other nodes of the group."""

    def __init__(
        self,
        windows: Windows,
        layouts: Sequence[SharedLayout],
        names: Collection[str],
        fields: tuple[Field, ...],
        dim: int,
    ) -> None:
        """``names`` are the arrays that are not all zero."""
        self._windows, self._layouts, self._fields, self._dim = windows, layouts, fields, dim
        self._names = [name for name in layouts[0].specs if name in names and 0 not in layouts[0].specs[name].shape]
        self._starts = [layout.starts for layout in layouts]
        self.servers: list[int] = []
        """Rank that is read for each node."""

    def begin(self, node: int, places: Int64[ndarray, " chosen"]) -> Callable[[], FlatGraphs | None]:
        """Begin to read graphs; return what waits, for None without an answer."""
        layout, starts, lengths, totals = self._layouts[node], [], [], []
        for name in self._names:
            spec, width = layout.specs[name], row_bytes(layout.specs[name])
            first, end = (layout.first_rows(spec, graphs) for graphs in (places, places + 1))
            starts.append(self._starts[node][name] + first * width)
            lengths.append((end - first) * width)
            totals.append(int(lengths[-1].sum()))
        start, length = np.concatenate(starts), np.concatenate(lengths)
        some = length > 0
        wait = self._windows.begin(self.servers[node], start[some], length[some])

        def piece() -> FlatGraphs | None:
            joined = wait()
            if joined is None:
                return None
            pieces = np.split(joined, np.cumsum(totals)[:-1])
            arrays = {
                name: own.view(layout.specs[name].dtype).reshape(-1, *layout.specs[name].shape)
                for name, own in zip(self._names, (np.array(piece) for piece in pieces))
            }
            both = (layout.node_offsets, layout.edge_offsets)
            nodes, edges = (offsets_of(offsets[places + 1] - offsets[places]) for offsets in both)
            rest: dict[str, Any] = {"dim": self._dim, "fields": self._fields, "arrays": arrays}
            return FlatGraphs(node_offsets=nodes, edge_offsets=edges, **rest)

        return piece


def kept_by_ranks(
    store: GraphStore,
    graphs: NDArray[np.int64],
    names: Collection[str],
    ranks: Ranks,
    *,
    group: int = 0,
    machine: str | None = None,
    alive: Callable[[], None] = lambda: None,
) -> RankStore:
    """Return the store with graphs in the memory of ranks.

    All ranks call it together. ``group`` is the ranks of a group, 0 for those of a node. ``machine`` names this rank's node. InputError, on all ranks, where memory
    is short or a group of several nodes cannot be read.
    """
    graphs, fields = np.unique(graphs), tuple(field for field in store.fields() if field.name in names)
    own_machine = machine_number() if machine is None else number_of(machine)
    groups = rank_groups([number for (number,) in ranks.numbers(own_machine)], group)
    places = [(number, node) for number, one in enumerate(groups) for node, own in enumerate(one) if ranks.rank in own]
    ((number, node),) = places
    nodes = groups[number]
    order = [rank for own in nodes for rank in own]
    shares = np.arange(len(order) + 1) * len(graphs) // len(order)  # of ranks, in the order of nodes
    cuts = shares[np.cumsum([0, *map(len, nodes)])]
    sizes, specs = store.sizes(), held_specs(store.dim, fields)
    offsets = [[offsets_of(of[graphs[a:b]]) for of in (sizes.nodes, sizes.edges)] for a, b in pairwise(cuts)]
    layouts = [SharedLayout(specs=specs, node_offsets=nodes, edge_offsets=edges) for nodes, edges in offsets]
    memory = _mapped(layouts[node].starts[""], nodes[node][0], ranks)
    place, written = order.index(ranks.rank), set[str]()

    def fill() -> None:
        for first in range(shares[place], shares[place + 1], BLOCK):
            block = graphs[first : min(first + BLOCK, shares[place + 1])]
            flat = flat_graphs(store.read(block, [field.name for field in fields]), fields)
            written.update(write_graphs(flat, first - int(cuts[node]), layouts[node], memory))
            alive()

    _on_all(fill, ranks)
    with suppress(OSError):
        os.close(memory.descriptor)  # all ranks have mapped the memory
    flags = ranks.numbers(*(name in written for name in specs))
    held = [any(flags[rank][place] for rank in order) for place in range(len(specs))]
    always = {*array_specs(store.dim, fields)} - {"edge_shifts", "cell", "periodic"}
    present = [name for name, some in zip(specs, held) if some or name in always]
    own = graphs_in(memory, layouts[node], present, fields, store.dim)
    remote = None
    if any(len(one) > 1 for one in groups):
        windows = Windows(memory.memory, number, sorted(order))  # as MPI counts them
        remote = RemoteNodes(windows, layouts, present, fields, store.dim)
        local = nodes[node].index(ranks.rank)
        remote.servers = [peers[local % len(peers)] for peers in nodes]
    texts = {key: one.select(graphs[cuts[node] : cuts[node + 1]]) for key, one in store.texts.items()}
    return RankStore(store, graphs, fields, MemoryStore(replace(own, texts=texts)), cuts, node, remote)


def graphs_in(
    memory: SharedMemory, layout: SharedLayout, present: Collection[str], fields: tuple[Field, ...], dim: int
) -> FlatGraphs:
    """Return the graphs of a node as views of its memory."""
    arrays = {name: array for name, array in layout.arrays(memory.memory).items() if name in present}
    for spec in layout.specs.values():
        if 0 in spec.shape and spec.name in present:
            arrays[spec.name] = np.zeros((int(layout.rows(spec)[-1]), *spec.shape), dtype=spec.dtype)
    return FlatGraphs(
        dim=dim, fields=fields, node_offsets=layout.node_offsets, edge_offsets=layout.edge_offsets, arrays=arrays
    )


def _on_all(action: Callable[[], object], ranks: Ranks) -> None:
    """Act on every rank; raise the first problem on all."""
    problem = None
    try:
        action()
    except (InputError, OSError) as error:
        problem = str(error)
    if (first := shared_problem(problem, ranks)) is not None:
        raise InputError(first)


def _mapped(size: int, maker: int, ranks: Ranks) -> SharedMemory:
    """Return memory that all ranks of a node map; collective."""
    memories: list[SharedMemory] = []
    own = ranks.rank == maker
    _on_all(lambda: memories.extend([SharedMemory(size)] if own else []), ranks)
    process, descriptor = ranks.numbers(os.getpid(), memories[0].descriptor if own else 0)[maker]
    _on_all(lambda: memories.extend([] if own else [SharedMemory(size, (process, descriptor))]), ranks)
    return memories[0]
