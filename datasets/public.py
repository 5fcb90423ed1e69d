"""Sets of the public HydraGNN as stores, read where they lie."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.access import Access
from hydragnn.datasets.arrays import Array, FlatGraphs, array_name, flat_graphs, offsets_of
from hydragnn.datasets.fingerprint import fingerprint_of, graph_digests
from hydragnn.datasets.formats.memory import check_fields, checked_indices
from hydragnn.datasets.formats.public_columns import EDGES, LABELS, Columns, record_columns
from hydragnn.datasets.gather import GAP, gather, no_graphs
from hydragnn.datasets.store import Column, GraphStore, Numbers, Sizes
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, Location, Role, is_labelled
from hydragnn.graphs.parts import PART
from hydragnn.graphs.problems import graph_problems
from hydragnn.graphs.pyg import CELLS, PERIODIC, POSITIONS
from hydragnn.graphs.texts import NAME, Texts
from hydragnn.graphs.validate import check_straight

Runs = Sequence[tuple[int, int]]
"""First and last number of consecutive graphs, the last excluded."""

SHIFTS, Y, Y_LOC, LABEL = "edge_shifts", "y", "y_loc", "label"
GEOMETRIC = (*POSITIONS, *CELLS, *PERIODIC, SHIFTS, EDGES)
TARGETS = (Y, "energy", "energy_per_atom", "forces")
INPUTS = ("x", "edge_attr", "graph_attr", ATOMIC_NUMBERS)
OF_GRAPHS = (*TARGETS[:3], "graph_attr", "natoms", "chemical_composition")
"""Keys of graphs, where as many rows as nodes do not tell."""
ELEMENTS = 119
EXACT = 2**53
"""Largest whole number up to which doubles hold all of them."""
BLOCK = 4096
"""Graphs that are read at once where all are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Source of the values of a field."""

    field: Field
    key: str
    head: int | None = None


class PublicStore(Access, GraphStore):
    """Graphs of a set of the public HydraGNN."""

    def __init__(self, columns: Columns, heads: Sequence[Location] | None = None) -> None:
        """Take columns; ``heads`` are the places of parts of ``y``."""
        self.columns, self.path, self._heads = columns, columns.path, heads
        self._pos = next((key for key in POSITIONS if key in columns.offsets), None)
        for key in (key for key in GEOMETRIC if key in columns.left_out):
            raise InputError(
                f"{self.path}: {key} is {columns.left_out[key]}, and without it edges would be others; write it for every sample alike"
            )
        nodes = self._pos or next((key for key in ("x", ATOMIC_NUMBERS) if key in columns.offsets), None)
        if nodes is None:
            raise InputError(f"{self.path} has neither pos nor x, so no nodes; check where it comes from")
        self._nodes = columns.offsets[nodes]
        self._edges = columns.offsets.get(EDGES, np.zeros(len(columns) + 1, dtype=np.int64))
        forms = (self._pos, self._nodes, (self.dim,)), (SHIFTS, self._edges, (self.dim,)), (EDGES, self._edges, (2,))
        for where, offsets, shape in (form for form in forms if form[0] in columns.offsets):
            key = str(where)
            alike = columns.shapes[key] == shape and np.array_equal(columns.offsets[key], offsets)
            if not alike or columns.dtypes[key].kind not in ("iu" if key == EDGES else "iuf"):
                raise InputError(
                    f"{self.path}: {key} has another shape or dtype than sets of that package; write it again"
                )
        count = self._y_loc.shape[1] - 1 if {Y, Y_LOC} <= columns.offsets.keys() else 0
        if heads is not None and len(heads) != count:
            raise InputError(f"{self.path}: heads name {len(heads)} places, and y has {count} heads with a y_loc")
        self._origins = {origin.field.name: origin for origin in self._origins_of_keys()}

    @classmethod
    def at(cls, path: Path, heads: Sequence[Location] | None = None) -> "PublicStore":
        """Open a ``.bp`` set, or a folder of pickled samples."""
        if path.suffix == ".bp":
            from hydragnn.datasets.formats.public_bp import BpColumns

            return cls(BpColumns(path), heads)
        from hydragnn.datasets.formats.public_pickles import samples_in

        return cls(record_columns(path, *samples_in(path)), heads)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return its columns: processes of a loader open them anew."""
        return PublicStore, (self.columns, self._heads)

    @property
    def paths(self) -> tuple[Path]:
        """The set's path."""
        return (self.path,)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Global attributes of the set, and keys that are not read."""
        notes = {"left_out": self.columns.left_out} if self.columns.left_out else {}
        return {**self.columns.attributes, **notes, "source": "hydragnn", "files": [self.path.name]}

    @property
    def dim(self) -> int:
        """Spatial dimension of positions."""
        return 0 if self._pos is None else (*self.columns.shapes[self._pos], 0)[0]

    def __len__(self) -> int:
        return len(self.columns)

    def fields(self) -> tuple[Field, ...]:
        """Return a field for every key."""
        return tuple(origin.field for origin in self._origins.values())

    def sizes(self) -> Sizes:
        """Nodes and edges of every graph."""
        return Sizes(nodes=np.diff(self._nodes), edges=np.diff(self._edges))

    @cached_property
    def _all_digests(self) -> UInt8[ndarray, "graphs 16"]:
        blocks = [range(first, min(first + BLOCK, len(self))) for first in range(0, len(self), BLOCK)]
        return np.concatenate([graph_digests(flat_graphs(self.read(block), self.fields())) for block in blocks])

    def digests(self) -> UInt8[ndarray, "graphs 16"]:
        """Return the digest of every graph, which reads all."""
        return self._all_digests

    @property
    def fingerprint(self) -> str:
        """Hash of the content, that of a converted store."""
        return fingerprint_of(self.dim, self.fields(), self.digests())

    @cached_property
    def texts(self) -> Mapping[str, Texts]:
        """Names, labels, and what the set holds as bytes."""
        keys = [key for key, dtype in self.columns.dtypes.items() if dtype == np.uint8]
        return {
            key: Texts.unread(partial(self._texts_of, key), len(self)) for key in dict.fromkeys((NAME, LABEL, *keys))
        }

    def _texts_of(self, key: str, graphs: Int64[ndarray, " graphs"]) -> list[str]:
        stops = np.cumsum([*self.columns.labels.values()])
        labels, places = [*self.columns.labels], np.searchsorted(stops, graphs, side="right")
        starts = stops - [*self.columns.labels.values()]
        if key == LABEL:
            return [labels[place] for place in places.tolist()]
        if key == NAME and NAME not in self.columns.offsets:
            numbers = (graphs - starts[places]).tolist()
            return [f"{labels[place]}#{number}" for place, number in zip(places.tolist(), numbers)]
        return [self.columns.rows(key, g, g + 1).tobytes().decode(errors="backslashreplace") for g in graphs.tolist()]

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """Return these graphs in this order, repeats allowed, with the named fields."""
        check_fields(self.fields(), fields)
        graphs, order = np.unique(checked_indices(indices, len(self)), return_inverse=True)
        breaks = np.flatnonzero(np.diff(graphs) > GAP) + 1
        runs = [(int(some[0]), int(some[-1]) + 1) for some in np.split(graphs, breaks) if len(some)]
        if not runs:
            return gather(no_graphs(self.dim, self._chosen_fields(fields)), graphs)
        read = np.concatenate([np.arange(*run) for run in runs])
        batch = gather(self._flat(runs, fields), np.searchsorted(read, graphs)[order.reshape(-1)])
        for problem in graph_problems(batch, graphs[order.reshape(-1)]).values():
            raise InputError(f"{self.path}: {problem}")
        if SHIFTS not in self.columns.offsets:
            self._check_images(batch)
        if batch.masks:  # of graphs without any label, which lack the field
            batch = gather(flat_graphs(batch, tuple(batch.fields.values())), np.arange(len(batch)))
        return batch

    def read_checked(
        self, indices: Numbers, fields: Collection[str] | None = None
    ) -> tuple[GraphBatch, Bool[ndarray, " chosen"]]:
        """Return graphs; a set has no digests that they could differ from."""
        batch = self.read(indices, fields)
        return batch, np.zeros(len(batch), dtype=np.bool_)

    def _check_images(self, batch: GraphBatch) -> None:
        """Raise InputError where images are nearer than edges without shifts."""
        unclear = torch.tensor(not any(key in self.columns.offsets for key in PERIODIC))
        for place in batch.cell.flatten(1).any(dim=1).nonzero().flatten().tolist():
            one, where = batch.select([place]), f"{self.path}, {batch.texts[NAME][place]}"
            rows = (one.cell[0] * (one.periodic[0, :, None] | unclear))[: self.dim, : self.dim]
            check_straight(one.positions, one.senders, one.receivers, rows, where)

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """Return the field ``name`` of consecutive graphs."""
        check_fields(self.fields(), [name])
        stop = len(self) if stop is None else stop
        field, values = self._origins[name].field, self._values(self._origins[name], [(start, stop)])
        if field.on == "edge" or (field.role == "target" and not is_labelled(values, field).all()):
            batch = self.read(range(start, stop), [name])
            return Column(values=batch[name].numpy(), present=batch.present(name).numpy())
        return Column(values=values, present=np.ones(stop - start, dtype=np.bool_))

    def _chosen_fields(self, fields: Collection[str] | None) -> list[Field]:
        return [field for field in self.fields() if fields is None or field.name in fields]

    def _rows(self, key: str, runs: Runs) -> Array:
        return np.concatenate([self.columns.rows(key, *run) for run in runs])

    def _flat(self, runs: Runs, fields: Collection[str] | None = None) -> FlatGraphs:
        """Return runs of consecutive graphs, edges sorted by receiver."""
        graphs = np.concatenate([np.arange(*run) for run in runs])
        nodes, edges = (offsets_of(one[graphs + 1] - one[graphs]) for one in (self._nodes, self._edges))
        order, arrays = self._geometry(runs, graphs, nodes, edges)
        for field in self._chosen_fields(fields):
            values = self._values(self._origins[field.name], runs)
            arrays[array_name(field)] = np.ascontiguousarray(values[order] if field.on == "edge" else values)
        return FlatGraphs(
            dim=self.dim,
            fields=tuple(self._chosen_fields(fields)),
            node_offsets=nodes,
            edge_offsets=edges,
            arrays=arrays,
            texts={key: texts.select(graphs) for key, texts in self.texts.items()},
        )

    def _geometry(
        self, runs: Runs, graphs: NDArray[np.int64], nodes: NDArray[np.int64], edges: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[str, Array]]:
        """Return the order of edges by receiver, and arrays of a geometry."""
        columns, dim = self.columns, self.dim
        owner = np.repeat(np.arange(len(graphs)), np.diff(edges))
        ends = self._rows(EDGES, runs) if EDGES in columns.offsets else np.zeros((0, 2), dtype=np.int64)
        order = np.argsort(nodes[owner] + ends[:, 1], kind="stable")
        arrays = dict(zip(("senders", "receivers"), np.ascontiguousarray(ends[order].T)))
        arrays["positions"] = np.zeros((int(nodes[-1]), dim))
        if self._pos is not None:
            arrays["positions"] = self._rows(self._pos, runs).astype(np.float64)
        if dim and SHIFTS in columns.offsets:  # there of receivers, here of senders
            arrays[SHIFTS] = 0.0 - self._rows(SHIFTS, runs).astype(np.float64)[order]
        cell = self._box(CELLS, runs)
        if cell is not None and dim:
            width = round(cell.shape[1] ** 0.5) if cell.shape[1] in (4, 9) else cell.shape[1]
            arrays["cell"] = np.zeros((len(graphs), 3, 3))
            square = cell.reshape(len(graphs), width, -1)
            arrays["cell"][:, :width, :width] = square if square.shape[2] == width else square * np.eye(width)
        flags = self._box(PERIODIC, runs)
        if flags is not None:
            arrays["periodic"] = np.broadcast_to(flags != 0, (len(graphs), 3)).copy()
        elif "cell" in arrays and SHIFTS in arrays:
            crossed = np.einsum("ei,eij->ej", arrays[SHIFTS], np.linalg.pinv(arrays["cell"])[owner[order]])
            arrays["periodic"] = np.zeros((len(graphs), 3), dtype=np.bool_)
            np.logical_or.at(arrays["periodic"], owner[order], np.abs(crossed) > 0.5)
        return order, arrays

    def _box(self, names: Collection[str], runs: Runs) -> Array | None:
        """Return numbers of a cell or of periodic axes, ``[graphs, numbers]``."""
        key = next((name for name in names if name in self.columns.offsets), None)
        if key is None:
            return None
        width = (self.columns.count(key) or 0) * math.prod(self.columns.shapes[key])
        if width not in ((1, 3) if names is PERIODIC else (3, 4, 9)):
            raise InputError(f"{self.path}: {key} is not one box per graph; store [3, 3], or 3 flags")
        return self._rows(key, runs).astype(np.float64).reshape(-1, width)

    def _origins_of_keys(self) -> Iterator[Origin]:
        """Yield a field for every key but geometry and texts."""
        columns = self.columns
        if {*columns.labels} <= {*LABELS}:
            yield Origin(field=PART, key=LABEL)
        for key in sorted(columns.offsets):
            if key in GEOMETRIC or columns.dtypes[key] == np.uint8 or (key == Y_LOC and Y in columns.offsets):
                continue
            if key == Y and Y_LOC in columns.offsets:
                yield from self._heads_of_y()
                continue
            on = self._location(key)
            count = columns.count(key) if on == "graph" else 1
            try:
                assert key != PART.name
                shape = (*(() if on != "graph" else (count,)), *columns.shapes[key])
                yield Origin(field=self._field(key, on, shape), key=key)
            except (InputError, TypeError, AssertionError):
                columns.left_out[key] = "no usable name, or rows of neither nodes, edges nor graphs"

    def _location(self, key: str) -> Location:
        offsets = self.columns.offsets[key]
        of_nodes = np.array_equal(offsets, self._nodes) and not (
            key in OF_GRAPHS and self.columns.count(key) is not None
        )
        of_edges = np.array_equal(offsets, self._edges) and (not of_nodes or key.startswith("edge"))
        return "edge" if of_edges and offsets[-1] else "node" if of_nodes else "graph"

    def _field(self, key: str, on: Location, shape: tuple[Any, ...], name: str = "") -> Field:
        shape = tuple(size for size in shape if size != 1)
        dtype = self.columns.dtypes[key]
        role: Role = "target" if key in TARGETS else "input" if key in INPUTS else "auxiliary"
        more: dict[str, Any] = {
            "dtype": "float64" if dtype != np.float32 or (role, on, shape) == ("target", "graph", ()) else "float32"
        }
        if key == ATOMIC_NUMBERS and dtype.kind in "iu":
            more = {"dtype": "int64", "classes": ELEMENTS}
        elif key == "forces" and shape == (self.dim,):
            more["parity"] = "vector"
        return Field(name=name or key, on=on, shape=shape, role=role, **more)

    def _values(self, origin: Origin, runs: Runs) -> Array:
        """Return the values of a field in its dtype."""
        field = origin.field
        if field is PART:
            parts = [LABELS.index(label) for label in self.columns.labels]
            every = np.repeat(np.array(parts, dtype=np.int64), [*self.columns.labels.values()])
            return np.concatenate([every[slice(*run)] for run in runs])
        values = self._rows(origin.key, runs)
        if origin.head is not None:
            graphs = np.concatenate([np.arange(*run) for run in runs])
            starts = offsets_of(np.diff(self._y_loc[graphs][:, [0, -1]])[:, 0])[:-1]
            bounds = (starts[:, None] + self._y_loc[graphs])[:, origin.head : origin.head + 2]
            values = np.concatenate([values[:0], *(values[a:b] for a, b in bounds.tolist())])
        whole = values.dtype.kind in "iu" and values.size and not field.classes
        if whole and max(int(values.max()), -int(values.min())) > EXACT:
            raise InputError(f"{self.path}: {origin.key} has whole numbers above 2^53, which doubles do not hold")
        return values.reshape(-1, *field.shape).astype(field.dtype)

    @cached_property
    def _y_loc(self) -> NDArray[np.int64]:
        """Bounds of the heads in the packed ``y`` of every graph."""
        bounds = self.columns.rows(Y_LOC, 0, len(self)).reshape(len(self), -1).astype(np.int64)
        lengths = np.diff(self.columns.offsets[Y])
        if (np.diff(bounds) < 0).any() or (bounds[:, 0] != 0).any() or (bounds[:, -1] != lengths).any():
            raise InputError(f"{self.path}: y_loc does not bound the numbers of y; write the set again")
        return bounds

    def _heads_of_y(self) -> Iterator[Origin]:
        """Yield a field for each head of a packed ``y``."""
        lengths, nodes = np.diff(self._y_loc), np.diff(self._nodes)
        for head, counts in enumerate(lengths.T):
            alike, ratio = bool((counts == counts[0]).all()), int(counts[0] // nodes[0])
            of_nodes = ratio > 0 and (counts == ratio * nodes).all()
            if of_nodes and alike and self._heads is None:
                raise InputError(
                    f"{self.path}: head {head} of y may be of nodes or of graphs, all of one size; say heads"
                )
            on: Location = self._heads[head] if self._heads is not None else "node" if of_nodes else "graph"
            if not (of_nodes if on == "node" else alike):
                raise InputError(
                    f"{self.path}: head {head} of y is none of {on}s; its lengths begin {counts[:3].tolist()}"
                )
            width = ratio if on == "node" else int(counts[0])
            yield Origin(field=self._field(Y, on, (width,), f"{Y}_{head}"), key=Y, head=head)
