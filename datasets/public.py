"""Sets of the public HydraGNN as stores, read where they lie."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.limits import check_readable
from hydragnn.base.places import INDEX
from hydragnn.datasets.access import Access
from hydragnn.datasets.arrays import Array, FlatGraphs, array_name, flat_graphs, offsets_of
from hydragnn.datasets.fingerprint import fingerprint_of, graph_digests
from hydragnn.datasets.formats.memory import check_fields, checked_indices
from hydragnn.datasets.formats.public_columns import EDGES, LABELS, Columns, record_columns
from hydragnn.datasets.formats.public_pickles import samples_in
from hydragnn.datasets.gather import GAP, gather
from hydragnn.datasets.store import Column, GraphStore, Numbers, Sizes
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, Location, Role, is_labelled
from hydragnn.graphs.parts import PART
from hydragnn.graphs.problems import graph_problems
from hydragnn.graphs.pyg import CELLS, PERIODIC, POSITIONS
from hydragnn.graphs.texts import NAME, Texts
from hydragnn.graphs.validate import check_straight

Runs = Sequence[tuple[int, int]]  # first and last number of consecutive graphs, the last excluded
Origin = tuple[Field, str, int | None]  # field, its key, and of a packed ``y`` the number of a head
SHIFTS, Y, Y_LOC, LABEL = "edge_shifts", "y", "y_loc", "label"
GEOMETRY: dict[str, tuple[Location, int]] = {
    **dict.fromkeys(POSITIONS, ("node", 3)),
    EDGES: ("edge", 2),
    SHIFTS: ("edge", 3),
    **dict.fromkeys(CELLS, ("graph", 9)),
    **dict.fromkeys(PERIODIC, ("graph", 3)),
}
"""Place and size of keys that are geometry."""
TARGETS = (Y, "energy", "energy_per_atom", "forces")
INPUTS = ("x", "edge_attr", "graph_attr", ATOMIC_NUMBERS)
OF_GRAPHS = (*TARGETS[:3], "graph_attr", "natoms", "chemical_composition")
"""Keys of graphs, where as many rows as nodes do not tell."""
ELEMENTS = 119
EXACT = 2**53  # largest whole number up to which doubles hold all of them
BLOCK = 4096  # graphs that are read at once where all are


class PublicStore(Access, GraphStore):
    """Graphs of a set of the public HydraGNN."""

    def __init__(self, columns: Columns, heads: Sequence[Location] | None = None) -> None:
        """Take columns; ``heads`` are the places of parts of ``y``."""
        self.columns, self.path, self.paths, self._heads = columns, columns.path, (columns.path,), heads
        nodes = next((key for key in (*POSITIONS, "x", ATOMIC_NUMBERS) if key in columns.offsets), None)
        if nodes is None:
            raise InputError(f"{self.path} has neither pos nor x in every sample, so no nodes; check where it is from")
        self._has_positions, self._nodes = nodes in POSITIONS, columns.offsets[nodes]
        self._edges = columns.offsets.get(EDGES, np.zeros(len(columns) + 1, dtype=np.int64))
        for key in GEOMETRY:
            self._check_geometry(key)
        count = self._y_loc.shape[1] - 1 if {Y, Y_LOC} <= columns.offsets.keys() else 0
        if heads is not None and len(heads) != count:
            raise InputError(f"{self.path}: heads name {len(heads)} places, and y has {count} heads with a y_loc")
        self._origins = {origin[0].name: origin for origin in self._origins_of_keys()}

    @classmethod
    def at(cls, path: Path, heads: Sequence[Location] | None = None) -> "PublicStore":
        """Open a set of ADIOS2, or a folder of pickled samples."""
        check_readable(path)
        if (path / INDEX).is_file():
            from hydragnn.datasets.formats.public_bp import BpColumns

            return cls(BpColumns(path), heads)
        return cls(record_columns(path, *samples_in(path)), heads)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return its columns: processes of a loader open them anew."""
        return PublicStore, (self.columns, self._heads)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Global attributes of the set, and keys that are not read."""
        notes = {"left_out": self.columns.left_out} if self.columns.left_out else {}
        return {**self.columns.attributes, **notes, "source": "hydragnn", "files": [self.path.name]}

    @property
    def dim(self) -> int:
        """Spatial dimension of positions."""
        return 3 if self._has_positions else 0

    def __len__(self) -> int:
        return len(self.columns)

    def fields(self) -> tuple[Field, ...]:
        """Return a field for every key."""
        return tuple(field for field, *_ in self._origins.values())

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
        own = (key for key, dtype in self.columns.dtypes.items() if dtype == np.uint8 and key not in GEOMETRY)
        return {key: Texts.unread(partial(self._texts_of, key), len(self)) for key in (NAME, LABEL, *own)}

    def _texts_of(self, key: str, graphs: Int64[ndarray, " graphs"]) -> list[str]:
        names, (places, numbers) = [*self.columns.labels], self._places(graphs)
        if key == LABEL:
            return [names[place] for place in places.tolist()]
        if key == NAME and self.columns.dtypes.get(NAME) != np.uint8:
            return [f"{names[place]}#{number}" for place, number in zip(places.tolist(), numbers.tolist())]
        return [self.columns.rows(key, g, g + 1).tobytes().decode(errors="backslashreplace") for g in graphs.tolist()]

    def _places(self, graphs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the place of each graph's label, and the graph's number there."""
        starts = offsets_of(np.array([*self.columns.labels.values()]))
        places = np.searchsorted(starts, graphs, side="right") - 1
        return places, graphs - starts[places]

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """Return these graphs in this order, repeats allowed, with the named fields."""
        check_fields(self.fields(), fields)
        chosen = checked_indices(indices, len(self))
        graphs, order = np.unique(chosen, return_inverse=True)
        breaks = np.flatnonzero(np.diff(graphs) > GAP) + 1
        runs = [(int(some[0]), int(some[-1]) + 1) for some in np.split(graphs, breaks) if len(some)]
        numbers = _numbers_of(runs)
        batch = gather(self._flat(runs, numbers, fields), np.searchsorted(numbers, graphs)[order.reshape(-1)])
        for problem in graph_problems(batch, chosen).values():
            raise InputError(f"{self.path}: {problem}")
        if SHIFTS not in self.columns.offsets:
            self._check_images(batch)
        if batch.masks:  # of graphs without any label, which lack the field
            batch = gather(flat_graphs(batch, tuple(batch.fields.values())), np.arange(len(batch)))
        return batch

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """Return the field ``name`` of consecutive graphs."""
        check_fields(self.fields(), [name])
        runs = [(start, len(self) if stop is None else stop)]
        field, values = self._origins[name][0], self._values(self._origins[name], runs)
        if field.on == "edge" or (field.role == "target" and not is_labelled(values, field).all()):
            batch = self.read(range(*runs[0]), [name])
            return Column(values=batch[name].numpy(), present=batch.present(name).numpy())
        return Column(values=values, present=np.ones(runs[0][1] - start, dtype=np.bool_))

    def _check_geometry(self, key: str) -> None:
        """Raise InputError for geometry that would be ignored or read wrongly."""
        columns, (on, size) = self.columns, GEOMETRY[key]
        if key in columns.left_out:
            raise InputError(f"{self.path}: {key} is {columns.left_out[key]}; write it for all alike, as edges need it")
        if key not in columns.offsets:
            return
        offsets = self._nodes if on == "node" else self._edges
        rows = columns.count(key) if on == "graph" else int(np.array_equal(columns.offsets[key], offsets))
        kinds, fits = "iu" if key == EDGES else "iufb", (rows or 0) * math.prod(columns.shapes[key]) == size
        if not fits or columns.dtypes[key].kind not in kinds or (key != EDGES and not self._has_positions):
            raise InputError(f"{self.path}: {key} has another shape or dtype, or no pos beside it; write it again")

    def _check_images(self, batch: GraphBatch) -> None:
        """Raise InputError where images are nearer than edges without shifts."""
        unclear = torch.tensor(not any(key in self.columns.offsets for key in PERIODIC))
        for place in batch.cell.flatten(1).any(dim=1).nonzero().flatten().tolist():
            one, where = batch.select([place]), f"{self.path}, {batch.texts[NAME][place]}"
            rows = one.cell[0] * (one.periodic[0, :, None] | unclear)
            check_straight(one.positions, one.senders, one.receivers, rows, where)

    def _rows(self, key: str, runs: Runs) -> Array:
        return np.concatenate([self.columns.rows(key, *run) for run in runs or [(0, 0)]])

    def _flat(self, runs: Runs, graphs: NDArray[np.int64], names: Collection[str] | None) -> FlatGraphs:
        """Return runs of consecutive graphs, edges sorted by receiver."""
        nodes, edges = (offsets_of(one[graphs + 1] - one[graphs]) for one in (self._nodes, self._edges))
        fields = tuple(field for field in self.fields() if names is None or field.name in names)
        owner = np.repeat(np.arange(len(graphs)), np.diff(edges))
        ends = self._rows(EDGES, runs) if EDGES in self.columns.offsets else np.zeros((0, 2), dtype=np.int64)
        order = np.argsort(nodes[owner] + ends[:, 1], kind="stable")
        arrays = dict(zip(("senders", "receivers"), np.ascontiguousarray(ends[order].T)))
        arrays |= self._geometry(runs, order, owner[order])
        arrays.setdefault("positions", np.zeros((int(nodes[-1]), 0)))
        for field in fields:
            values = self._values(self._origins[field.name], runs)
            arrays[array_name(field)] = np.ascontiguousarray(values[order] if field.on == "edge" else values)
        return FlatGraphs(
            dim=self.dim,
            fields=fields,
            node_offsets=nodes,
            edge_offsets=edges,
            arrays=arrays,
            texts={key: texts.select(graphs) for key, texts in self.texts.items()},
        )

    def _geometry(self, runs: Runs, order: NDArray[np.int64], owner: NDArray[np.int64]) -> dict[str, Array]:
        """Return positions, shifts, cells and periodic axes, as far as there are."""
        sources = {"positions": POSITIONS, SHIFTS: (SHIFTS,), "cell": CELLS, "periodic": PERIODIC}
        keys = {name: next((key for key in own if key in self.columns.offsets), None) for name, own in sources.items()}
        arrays = {name: self._rows(key, runs).astype(np.float64) for name, key in keys.items() if key is not None}
        graphs = sum(stop - start for start, stop in runs)
        if SHIFTS in arrays:  # there of receivers, here of senders
            arrays[SHIFTS] = 0.0 - arrays[SHIFTS][order]
        if "cell" in arrays:
            arrays["cell"] = arrays["cell"].reshape(graphs, 3, 3)
        if "periodic" in arrays:
            arrays["periodic"] = arrays["periodic"].reshape(graphs, 3) != 0
        elif "cell" in arrays and SHIFTS in arrays:
            crossed = np.einsum("ei,eij->ej", arrays[SHIFTS], np.linalg.pinv(arrays["cell"])[owner])
            arrays["periodic"] = np.zeros((graphs, 3), dtype=np.bool_)
            np.logical_or.at(arrays["periodic"], owner, np.abs(crossed) > 0.5)
        return arrays

    def _origins_of_keys(self) -> Iterator[Origin]:
        """Yield a field for every key but geometry and texts."""
        columns = self.columns
        if {*columns.labels} <= {*LABELS}:
            yield PART, LABEL, None
        for key in sorted(columns.offsets):
            if key in GEOMETRY or columns.dtypes[key] == np.uint8 or (key == Y_LOC and Y in columns.offsets):
                continue
            if key == Y and Y_LOC in columns.offsets:
                yield from self._heads_of_y()
                continue
            on, rows = self._location(key), columns.count(key)
            try:
                assert key not in (PART.name, LABEL, NAME) and (on != "graph" or rows is not None)
                yield self._field(key, on, (rows if on == "graph" else 1, *columns.shapes[key])), key, None
            except (InputError, AssertionError):
                columns.left_out[key] = "no usable name, or rows of neither nodes, edges nor graphs"

    def _location(self, key: str) -> Location:
        offsets, is_of_graphs = self.columns.offsets[key], key in OF_GRAPHS and self.columns.count(key) is not None
        of_nodes = np.array_equal(offsets, self._nodes) and not is_of_graphs
        of_edges = np.array_equal(offsets, self._edges) and (not of_nodes or key.startswith("edge"))
        return "edge" if of_edges and offsets[-1] else "node" if of_nodes else "graph"

    def _field(self, key: str, on: Location, shape: tuple[Any, ...], name: str = "") -> Field:
        shape = tuple(size for size in shape if size != 1)
        dtype = self.columns.dtypes[key]
        role: Role = "target" if key in TARGETS else "input" if key in INPUTS else "auxiliary"
        is_single = dtype == np.float32 and (role, on, shape) != ("target", "graph", ())
        more: dict[str, Any] = {"dtype": "float32" if is_single else "float64"}
        if key == ATOMIC_NUMBERS and dtype.kind in "iu":
            more = {"dtype": "int64", "classes": ELEMENTS}
        elif key == "forces" and shape == (self.dim,):
            more["parity"] = "vector"
        return Field(name=name or key, on=on, shape=shape, role=role, **more)

    def _values(self, origin: Origin, runs: Runs) -> Array:
        """Return the values of a field in its dtype."""
        field, key, head = origin
        if field is PART:
            return np.array([*map(LABELS.index, self.columns.labels)])[self._places(_numbers_of(runs))[0]]
        values = self._rows(key, runs)
        if head is not None:
            lengths = np.diff(self._y_loc[_numbers_of(runs)])
            values = values[np.repeat(np.arange(lengths.size) % lengths.shape[1], lengths.reshape(-1)) == head]
        whole = values.dtype.kind in "iu" and values.size and not field.classes
        if whole and max(int(values.max()), -int(values.min())) > EXACT:
            raise InputError(f"{self.path}: {key} has whole numbers above 2^53, which doubles do not hold")
        return values.reshape(-1, *field.shape).astype(field.dtype)

    @cached_property
    def _y_loc(self) -> NDArray[np.int64]:
        """Bounds of the heads in the packed ``y`` of every graph."""
        bounds, lengths = self.columns.rows(Y_LOC, 0, len(self)).astype(np.int64), np.diff(self.columns.offsets[Y])
        bounds = bounds.reshape(len(self), -1) if self.columns.count(Y_LOC) else np.ones((1, 1), dtype=np.int64)
        if (np.diff(bounds) < 0).any() or (bounds[:, :1] != 0).any() or (bounds[:, -1:] != lengths[:, None]).any():
            raise InputError(f"{self.path}: y_loc does not bound the numbers of y; write the set again")
        return bounds

    def _heads_of_y(self) -> Iterator[Origin]:
        """Yield a field for each head of a packed ``y``."""
        nodes = np.diff(self._nodes)
        for head, counts in enumerate(np.diff(self._y_loc).T):
            ratio, widths = int(counts[0] // max(nodes[0], 1)), dict[Location, int]()
            if ratio and (counts == ratio * nodes).all():
                widths["node"] = ratio
            if (counts == counts[0]).all():
                widths["graph"] = int(counts[0])
            on = self._heads[head] if self._heads is not None else "node" if "node" in widths else "graph"
            if on not in widths or (self._heads is None and len(widths) > 1):
                places = " or ".join(widths) or "neither nodes nor graphs"
                raise InputError(f"{self.path}: head {head} of y may lie on {places}; say heads")
            yield self._field(Y, on, (widths[on],), f"{Y}_{head}"), Y, head


def _numbers_of(runs: Runs) -> NDArray[np.int64]:
    return np.concatenate([np.arange(*run) for run in runs or [(0, 0)]])
