"""Numpy arrays in npz files: flat with counts, or rectangular."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from pydantic import model_validator

from hydragnn.base.errors import InputError
from hydragnn.base.settings import ActsWith
from hydragnn.datasets.arrays import offsets_of
from hydragnn.datasets.sources.base import LEAD, TIME, BuildSettings, Make
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import Table, both_ways, check_sides, read_npz, stack_rows, table_column
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Location
from hydragnn.graphs.network import check_reversed
from hydragnn.graphs.problems import ROUNDING
from hydragnn.graphs.texts import as_text
from hydragnn.graphs.units import LENGTH_UNIT, unit_factor

Array = NDArray[Any]
_Geometry = tuple[Array | None, Array | None, Array, Array, Array | None]
"""Positions, cell, senders, receivers and shifts."""


class NpzBuild(BuildSettings):
    """Flat numpy arrays with counts, or rectangular arrays, in ``.npz`` files."""

    takes_columns: ClassVar[bool] = True
    takes_steps: ClassVar[bool] = True
    joins: ClassVar[frozenset[Location]] = frozenset(("node", "edge", "graph"))
    acts_with: ClassVar = {
        "max_neighbours": ActsWith(words="with cutoff", remedy="give one", holds=lambda build: build.cutoff),
        "undirected": ActsWith(words="with edges", remedy="name their array", holds=lambda build: build.edges),
        "spacing": ActsWith(words="with grid", remedy="give it", holds=lambda build: build.grid),
    }

    kind: Literal["npz"] = "npz"

    nodes: str | None = None
    """Array with the number of nodes of each graph; absent where every graph has equally many: [graphs, nodes, ...]."""

    positions: str | None = None
    """Array of positions: all nodes end to end, or [graphs, nodes, dim], or [nodes, dim] shared by all graphs."""

    edges: str | None = None
    """Array of node pairs [pairs, 2] (sender, receiver), numbered inside each graph; shared by all graphs if ``edge_counts`` is absent."""

    edge_counts: str | None = None
    """Array with the number of pairs of each graph."""

    undirected: bool | None = None
    """True adds the reverse of every pair, for arrays that list each once; False takes edges that run one way; absent: both directions are listed."""

    cutoff: float | None = Setting(default=None, gt=0)
    """Make edges between nodes within this distance instead of reading them."""

    max_neighbours: int | None = Setting(default=None, ge=1)
    """Keep only so many nearest neighbours of each node; with ``cutoff``."""

    cell: str | list[float] | None = None
    """Array of cells ([graphs, 3, 3], [graphs, 3], [3, 3] or [3]), or the three lengths of one box."""

    periodic: bool | list[bool] | None = None
    """Axes that repeat; a ``cell`` needs it."""

    grid: Literal[4, 6, 8, 26] | None = None
    """Node fields lie on a regular grid, [graphs, points along x, y(, z), ...], whose points have so many neighbours: 4 or 8 in two
    dimensions, 6 or 26 in three."""

    spacing: float | list[float] = 1.0
    """Distance of the points of a grid, or one per axis."""

    @model_validator(mode="after")
    def _check(self) -> "NpzBuild":
        if self.grid and (self.nodes or self.positions or self.edges or self.cutoff or self.cell):
            raise ValueError("grid makes nodes, edges and cell: leave nodes, positions, edges, cutoff and cell out")
        if self.cutoff is not None and (self.positions is None or self.edges is not None):
            raise ValueError("cutoff makes edges from positions: give positions and no edges")
        if self.edge_counts and not self.edges:
            raise ValueError("edge_counts needs edges")
        return self

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each graph; InputError names file, array and graph."""
        if self.undirected:
            check_reversed((field.field for field in self.fields), self.edges or "")
        for path, name in self.named_files():
            source = _open(path, name, self)
            shared = source.geometry(0) if source.graphs and source.has_one_geometry else None
            steps = [0, *(field.step for field in self.fields)]
            for graph in range(-min(steps), source.graphs - max(steps)):
                entries = {key: source.column(key)[graph] for key in self.text_keys}
                yield partial(
                    self.graph_with_texts, entries, f"{source.name}#{graph}", partial(source.graph, graph, shared)
                )

    def is_shared(self, field: FieldSettings, table: Table) -> bool:
        """Return True for a node field that all frames share."""
        frames = field.on == "node" and not self.nodes and np.ndim(table.get(self.positions or "", 0)) == 3
        axes = 1 + len(field.shape) - (len(field.keys) > 1) + isinstance(field.column, int)
        return frames and all(key in table and table[key].ndim == axes for key in field.keys)

    @property
    def array_names(self) -> list[str]:
        """Arrays that the settings name."""
        cell = self.cell if isinstance(self.cell, str) else None
        named = (self.nodes, self.positions, self.edges, self.edge_counts, cell)
        return [*filter(None, named), *self.text_keys, *(key for field in self.fields for key in field.keys)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Source:
    """One npz file with the offsets of its graphs."""

    path: Path
    table: Table
    settings: NpzBuild
    graphs: int
    nodes: Array
    edges: Array | None
    points: tuple[int, ...]  # of a grid along each axis
    name: str  # of the file, in names of graphs

    def column(self, name: str) -> Array:
        return table_column(self.table, name, self.path)

    def graph(self, graph: int, shared: _Geometry | None) -> GraphBatch:
        """Return one graph, with the ``shared`` geometry if there is one."""
        settings, (positions, cell, senders, receivers, shifts) = self.settings, shared or self.geometry(graph)
        values = {field.name: self._value(field, graph) for field in settings.fields}
        geometry = {"edge_shifts": shifts, "cell": cell, "periodic": settings.periodic}
        name = f"{self.path.name}, graph {graph}"
        return settings.graph_of(positions, senders, receivers, values, name=name, **geometry)

    @property
    def has_one_geometry(self) -> bool:
        """True where all graphs share positions, cell and edges."""
        if self.points:
            return True
        cell = self.settings.cell
        one_cell = not isinstance(cell, str) or self._one_cell(self.column(cell))
        return self._one_position and one_cell and self.edges is None

    @property
    def _one_position(self) -> bool:
        settings = self.settings
        return settings.positions is not None and settings.nodes is None and self.column(settings.positions).ndim == 2

    def _one_cell(self, array: Array) -> bool:
        if array.shape == (3, 3) and self.graphs == 3:
            problem = f"{self.path}: {self.settings.cell} of shape (3, 3) is one cell, or the lengths of three boxes"
            raise InputError(f"{problem}; write a matrix for each graph")
        return array.shape in ((3, 3), (3,))

    def geometry(self, graph: int) -> _Geometry:
        """Return positions, cell and edges of a graph."""
        if self.points:
            return _grid(self.points, self.settings, self.path)
        positions, cell = self._positions(graph), self._cell(graph)
        senders, receivers, shifts = self._edges(graph, positions, cell)
        return positions, cell, senders, receivers, shifts

    def _rows(self, array: Array, graph: int) -> Array:
        if self.settings.nodes is None:
            return np.asarray(array[graph])
        return array[self.nodes[graph] : self.nodes[graph + 1]]

    def _edge_rows(self, array: Array, graph: int) -> Array:
        return array if self.edges is None else array[self.edges[graph] : self.edges[graph + 1]]

    def _positions(self, graph: int) -> Array | None:
        if self.settings.positions is None:
            return None
        array = self.column(self.settings.positions)
        return array if self._one_position else self._rows(array, graph)

    def _cell(self, graph: int) -> Array | None:
        cell = self.settings.cell
        if cell is None:
            return None
        if isinstance(cell, list):
            return np.array(cell, dtype=np.float64)
        array = self.column(cell)
        if self._one_cell(array):
            return array
        if len(array) != self.graphs:
            raise InputError(f"{self.path}: {cell} has {len(array)} rows for {self.graphs} graphs")
        return np.asarray(array[graph])

    def _edges(self, graph: int, positions: Array | None, cell: Array | None) -> tuple[Array, Array, Array | None]:
        settings, name = self.settings, f"{self.path.name}, graph {graph}"
        if settings.cutoff is not None and positions is not None:
            return _near(positions, cell, settings, name)
        if settings.edges is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), None
        pairs = self._edge_rows(self.column(settings.edges), graph)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise InputError(f"{name}: {settings.edges} of shape {pairs.shape} is not [pairs, 2]; transpose it")
        first, second = pairs[:, 0], pairs[:, 1]
        check_sides(first, second, settings.undirected, f"{name}, {settings.edges}")
        return (*both_ways(first, second)[:2], None) if settings.undirected else (first, second, None)

    def _value(self, field: FieldSettings, graph: int) -> Any:
        if field.keys == [LEAD] and self.column(LEAD) is self.table.get(TIME):
            return self.settings.lead_time(field, self.column(TIME), graph, f"{self.name}#{graph}")
        arrays, graph = [self.column(key) for key in field.keys], graph + field.step
        if field.on == "graph":
            return stack_rows([array[graph] for array in arrays], field)
        if field.on == "node":
            shared = self.settings.is_shared(field, self.table)
            return stack_rows(arrays if shared else [self._rows(array, graph) for array in arrays], field)
        values = stack_rows([self._edge_rows(array, graph) for array in arrays], field)
        if not self.settings.undirected or self.settings.edges is None:
            return values
        pairs = self._edge_rows(self.column(self.settings.edges), graph)
        return values[both_ways(pairs[:, 0], pairs[:, 1])[2]]

    def check(self) -> None:
        """Raise InputError where an array does not have one row per item."""
        for field in self.settings.fields:
            self._check_rows(field)
        if any(field.step for field in self.settings.fields):
            self._check_frames()
        for key in self.settings.text_keys:
            if self.column(key).shape != (self.graphs,):
                raise InputError(
                    f"{self.path}: {key} has shape {self.column(key).shape}; texts are one per graph, ({self.graphs},)"
                )

    def _check_frames(self) -> None:
        """Raise InputError where graphs are no frames of one time series."""
        fields, times = self.settings.fields, self.table.get(TIME, np.arange(self.graphs))
        varying = [field for field in fields if not self.settings.is_shared(field, self.table)]
        species = [self.column(field.keys[0]) for field in varying if field.name == ATOMIC_NUMBERS]
        if times.shape != (self.graphs,) or times.dtype.kind not in "iuf":
            problem = f"{self.path}: {TIME} has shape {times.shape} and dtype {times.dtype}"
            raise InputError(f"{problem}; write a number for each frame, ({self.graphs},)")
        if (
            any(field.on == "edge" or field not in varying for field in fields if field.step)
            or len({*np.diff(self.nodes).tolist()}) > 1
            or any(np.ptp(one.reshape(self.graphs, -1), axis=0).any() for one in species)
        ):
            problem = f"{self.path}: frames have the same nodes, and edges or an array that all frames share no step"
            raise InputError(f"{problem}; leave step out")
        self.settings.check_times(times.astype(float).tolist(), str(self.path))

    def _check_rows(self, field: FieldSettings) -> None:
        flat = self.settings.nodes is not None
        expected = {"node": int(self.nodes[-1]), "graph": self.graphs, "edge": None}[field.on]
        if field.on == "edge" and self.edges is not None:
            expected = int(self.edges[-1])
        for key in field.keys:
            rows = len(self.column(key))
            if (flat or field.on == "graph") and expected is not None and rows != expected:
                raise InputError(f"{self.path}: {key} has {rows} rows where {expected} {field.on}s were counted")
            if field.on == "edge" and (self.settings.cutoff is not None or self.points):
                raise InputError(f"{self.path}: the edge field {field.name} cannot go with edges from a cutoff or grid")


def _open(path: Path, name: str, settings: NpzBuild) -> _Source:
    leads = LEAD in settings.array_names and any(field.step for field in settings.fields)
    table = read_npz(path, [TIME if leads and name == LEAD else name for name in settings.array_names])
    with np.load(path, allow_pickle=False) as archive:
        names = archive.files
    if leads and LEAD in names:
        raise InputError(f"{path} has an array {LEAD}, the key of a difference of times; name the array otherwise")
    if settings.positions is not None or settings.grid:
        settings.check_geometry(names, str(path))
    _check_units(path, settings, {key: read_npz(path, [key])[key] for key in ("r_unit", "e_unit") if key in names})
    if any(field.step for field in settings.fields) and TIME in names:
        table |= read_npz(path, [TIME])
    table |= {LEAD: table[TIME]} if leads else {}  # a difference of times
    points = _flatten_grid(path, table, settings) if settings.grid else ()
    if settings.nodes is not None:
        offsets = _offsets(path, table, settings.nodes)
    else:
        offsets = np.arange(_rectangular_graphs(path, table, settings) + 1)
    edges = None
    if settings.edge_counts is not None:
        edges = _offsets(path, table, settings.edge_counts)
        if len(edges) != len(offsets):
            raise InputError(f"{path}: {settings.edge_counts} counts {len(edges) - 1} graphs, not {len(offsets) - 1}")
    own: dict[str, Any] = {"path": path, "name": name, "table": table, "settings": settings, "points": points}
    source = _Source(graphs=len(offsets) - 1, nodes=offsets, edges=edges, **own)
    if edges is not None and settings.edges is not None and len(source.column(settings.edges)) != edges[-1]:
        raise InputError(
            f"{path}: {settings.edges} has {len(source.column(settings.edges))} pairs, {settings.edge_counts} counts {edges[-1]}"
        )
    source.check()
    return source


def _check_units(path: Path, settings: NpzBuild, stated: Table) -> None:
    """Raise InputError for units other than those that a file of sGDML states."""
    length, energy = (as_text(stated.get(key)) for key in ("r_unit", "e_unit"))
    length, energy = ({"au": own}.get(unit, unit) for own, unit in (("bohr", length), ("Ha", energy)))
    units = {"R": length, "E": energy, "F": f"{energy}/{length}"}
    settings.check_units({key: unit for key, unit in units.items() if unit_factor(unit, unit)}, str(path))
    declared = str(settings.attributes.get(LENGTH_UNIT, "Angstrom"))
    if settings.positions == "R" and abs((unit_factor(length, declared) or 1) - 1) > ROUNDING:
        problem = f"{path}: R is in {length}, not {declared}"
        raise InputError(f"{problem}; write [attributes] {LENGTH_UNIT} = {length!r}, with a cutoff in it")


def _offsets(path: Path, table: Table, name: str) -> Array:
    """Return the first item of each graph by an array of counts."""
    counts = table_column(table, name, path)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any() or (counts >= 2**31).any():
        raise InputError(
            f"{path}: {name} of shape {counts.shape} and dtype {counts.dtype} is not one whole number per graph, from 0 and below 2^31; mend it"
        )
    return offsets_of(counts.astype(np.int64))


def _rectangular_graphs(path: Path, table: Table, settings: NpzBuild) -> int:
    varying = [field for field in settings.fields if not settings.is_shared(field, table)]
    lengths = {key: len(table_column(table, key, path)) for field in varying for key in field.keys}
    if settings.positions is not None and table_column(table, settings.positions, path).ndim == 3:
        lengths[settings.positions] = len(table[settings.positions])
    if not lengths:
        raise InputError(f"{path}: how many graphs? give nodes = the array with the number of nodes of each graph")
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"{path}: arrays of different lengths {lengths}; give nodes = the array with node counts, or repeat what stands once for all graphs"
        )
    return next(iter(lengths.values()))


def _flatten_grid(path: Path, table: Table, settings: NpzBuild) -> tuple[int, ...]:
    """Put a grid's points on one axis; return those along each."""
    axes = 2 if settings.grid in (4, 8) else 3
    keys = {key for field in settings.fields if field.on == "node" for key in field.keys}
    shapes = {key: table[key].shape[1 : 1 + axes] for key in keys}
    if len({*shapes.values()}) != 1 or any(table[key].ndim < 1 + axes for key in keys):
        raise InputError(
            f"{path}: node fields lie on the grids {shapes or 'of none'}; with grid = {settings.grid} they are [graphs, x, y{', z' * (axes == 3)}, "
            "...] of one size; transpose them, or choose another grid"
        )
    for key in keys:
        table[key] = table[key].reshape(len(table[key]), prod(shapes[key]), *table[key].shape[1 + axes :])
    return tuple(shapes[min(shapes)])


def _grid(points: tuple[int, ...], settings: NpzBuild, path: Path) -> _Geometry:
    """Return points and neighbours of a regular grid."""
    dim, size = len(points), np.array(points)
    stated = (settings.spacing, settings.periodic or False)
    steps, flags = (np.array(one if isinstance(one, list) else [one] * dim) for one in stated)
    if len(steps) != dim or len(flags) != dim or (steps <= 0).any():
        raise InputError(f"{path}: the grid has {dim} axes; give one positive spacing and periodic, or one per axis")
    places = np.stack(np.meshgrid(*map(np.arange, points), indexing="ij"), axis=-1).reshape(-1, dim)
    senders, receivers, shifts = [], [], []
    for offset in product((-1, 0, 1), repeat=dim):
        if any(offset) and (settings.grid in (8, 26) or sum(map(abs, offset)) == 1):
            images, inside = np.divmod(places + np.array(offset), size)
            reached = ((images == 0) | flags).all(axis=1)
            senders.append(np.ravel_multi_index(tuple(inside[reached].T), points))
            receivers.append(np.flatnonzero(reached))
            shifts.append(images[reached] * size * steps)
    cell = np.diag(size * steps) if flags.any() else None
    return places * steps, cell, np.concatenate(senders), np.concatenate(receivers), np.concatenate(shifts)


def _near(positions: Array, cell: Array | None, settings: NpzBuild, name: str) -> tuple[Array, Array, Array]:
    """Pairs within the cutoff; two dimensions are three with z = 0."""
    from hydragnn.graphs.atomic import neighbour_list
    from hydragnn.graphs.search import completed_cell

    dim = positions.shape[-1]
    points = np.zeros((len(positions), 3))
    points[:, :dim] = positions
    periodic = np.zeros(3, dtype=bool)
    flags = settings.periodic or False
    periodic[: dim if isinstance(flags, bool) else len(flags)] = flags
    box = np.eye(3)
    if cell is not None:
        size = cell.shape[-1]
        box[:size, :size] = cell if cell.ndim == 2 else np.diag(cell)
    elif periodic.any():
        raise InputError(f"{name}: periodic, but no cell; give cell")
    box = completed_cell(box, periodic, name)
    cutoff, most = float(settings.cutoff or 0), settings.max_neighbours
    senders, receivers, images = neighbour_list(points, box, periodic, cutoff, most, name=name)
    return senders, receivers, (images @ box)[:, :dim]
