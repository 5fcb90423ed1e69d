"""Graphs from numpy arrays in npz files: flat with counts, or rectangular."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import offsets_of
from hydragnn.datasets.build_settings import FieldSettings, Make, NpzBuild
from hydragnn.datasets.tables import Table, check_sides, find_files, read_npz, stack_rows, table_column
from hydragnn.graphs.batch import GraphBatch

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Source:
    """One npz file with where its graphs begin."""

    path: Path
    table: Table
    settings: NpzBuild
    graphs: int
    nodes: Array
    edges: Array | None

    def name(self, graph: int) -> str:
        """What messages call a graph."""
        return f"{self.path.name}, graph {graph}"

    def column(self, name: str) -> Array:
        return table_column(self.table, name, self.path)


def npz_graphs(settings: NpzBuild) -> Iterator[Make]:
    """One graph per count (or row) of every file; InputError naming file, array and graph."""
    for path in find_files(settings.files):
        source = _source(path, read_npz(path, _array_names(settings)), settings)
        for field in settings.fields:
            _check_rows(source, field)
        for key in settings.text_keys:
            if source.column(key).shape != (source.graphs,):
                raise InputError(
                    f"{path}: {key} has shape {source.column(key).shape}; texts are one per graph, ({source.graphs},)"
                )
        shared = _geometry(source, 0) if source.graphs and _same_geometry(source) else None
        for graph in range(source.graphs):
            yield partial(_graph, source, graph, shared)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Geometry:
    """Where the nodes of a graph are, and which of them are joined."""

    positions: Array | None
    cell: Array | None
    senders: Array
    receivers: Array
    shifts: Array | None


def _geometry(source: _Source, graph: int) -> _Geometry:
    positions, cell = _positions(source, graph), _cell(source, graph)
    senders, receivers, shifts = _edges(source, graph, positions, cell, source.name(graph))
    return _Geometry(positions=positions, cell=cell, senders=senders, receivers=receivers, shifts=shifts)


def _graph(source: _Source, graph: int, shared: _Geometry | None) -> GraphBatch:
    """One graph, with the geometry that all share if they do."""
    from hydragnn.graphs.validate import graph_from_arrays

    geometry, settings = shared or _geometry(source, graph), source.settings
    values: dict[str, dict[str, Any]] = {"node": {}, "edge": {}, "graph": {}}
    for field in settings.fields:
        values[field.on][field.name] = _value(source, field, graph)
    texts = {key: source.column(key)[graph] for key in settings.text_keys}
    made = graph_from_arrays(
        geometry.positions,
        geometry.senders,
        geometry.receivers,
        fields=[field.field for field in settings.fields],
        nodes=values["node"],
        edges=values["edge"],
        graphs=values["graph"],
        edge_shifts=geometry.shifts,
        cell=geometry.cell,
        periodic=settings.periodic,
        name=source.name(graph),
    )
    return made.with_texts(settings.texts_of(texts, f"{source.path.name}#{graph}"))


def _array_names(settings: NpzBuild) -> list[str]:
    """All arrays that the settings name."""
    cell = settings.cell if isinstance(settings.cell, str) else None
    named = (settings.nodes, settings.positions, settings.edges, settings.edge_counts, cell)
    return [*filter(None, named), *settings.text_keys, *(key for field in settings.fields for key in field.keys)]


def _same_geometry(source: _Source) -> bool:
    """Return True where all graphs have the same positions, cell and edges, so that edges are made once."""
    settings = source.settings
    shared = settings.positions is not None and settings.nodes is None and source.column(settings.positions).ndim == 2
    one_cell = not isinstance(settings.cell, str) or _one_cell(source, source.column(settings.cell))
    return shared and one_cell and source.edges is None


def _one_cell(source: _Source, array: Array) -> bool:
    return array.shape in ((3, 3), (3,)) and source.graphs != 3


def _source(path: Path, table: Table, settings: NpzBuild) -> _Source:
    if settings.nodes is not None:
        counts = table_column(table, settings.nodes, path)
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
            raise InputError(
                f"{path}: {settings.nodes} must hold one whole number per graph; it has shape {counts.shape}"
            )
        offsets = offsets_of(counts.astype(np.int64))
    else:
        offsets = np.arange(_rectangular_graphs(path, table, settings) + 1)
    edges = None
    if settings.edge_counts is not None:
        edges = offsets_of(table_column(table, settings.edge_counts, path).astype(np.int64))
        if len(edges) != len(offsets):
            raise InputError(f"{path}: {settings.edge_counts} counts {len(edges) - 1} graphs, not {len(offsets) - 1}")
    source = _Source(path=path, table=table, settings=settings, graphs=len(offsets) - 1, nodes=offsets, edges=edges)
    if edges is not None and settings.edges is not None and len(source.column(settings.edges)) != edges[-1]:
        raise InputError(
            f"{path}: {settings.edges} has {len(source.column(settings.edges))} pairs, {settings.edge_counts} counts {edges[-1]}"
        )
    return source


def _rectangular_graphs(path: Path, table: Table, settings: NpzBuild) -> int:
    """The common first axis of the field arrays."""
    lengths = {key: len(table_column(table, key, path)) for field in settings.fields for key in field.keys}
    if settings.positions is not None and table_column(table, settings.positions, path).ndim == 3:
        lengths[settings.positions] = len(table[settings.positions])
    if not lengths:
        raise InputError(f"{path}: how many graphs? give nodes = the array with the number of nodes of each graph")
    if len(set(lengths.values())) > 1:
        raise InputError(f"{path}: arrays of different lengths {lengths}; give nodes = the array with node counts")
    return next(iter(lengths.values()))


def _check_rows(source: _Source, field: FieldSettings) -> None:
    """InputError where an array does not have one row per item."""
    flat = source.settings.nodes is not None
    expected = {"node": int(source.nodes[-1]), "graph": source.graphs, "edge": None}[field.on]
    if field.on == "edge" and source.edges is not None:
        expected = int(source.edges[-1])
    for key in field.keys:
        rows = len(source.column(key))
        if (flat or field.on == "graph") and expected is not None and rows != expected:
            raise InputError(f"{source.path}: {key} has {rows} rows where {expected} {field.on}s were counted")
        if field.on == "edge" and source.settings.cutoff is not None:
            raise InputError(f"{source.path}: the edge field {field.name} cannot go with edges from a cutoff")


def _rows(source: _Source, array: Array, graph: int) -> Array:
    """The rows of one graph's nodes."""
    if source.settings.nodes is None:
        return np.asarray(array[graph])
    return array[source.nodes[graph] : source.nodes[graph + 1]]


def _positions(source: _Source, graph: int) -> Array | None:
    if source.settings.positions is None:
        return None
    array = source.column(source.settings.positions)
    shared = source.settings.nodes is None and array.ndim == 2
    return array if shared else _rows(source, array, graph)


def _cell(source: _Source, graph: int) -> Array | None:
    cell = source.settings.cell
    if cell is None:
        return None
    if isinstance(cell, list):
        return np.array(cell, dtype=np.float64)
    array = source.column(cell)
    if _one_cell(source, array):
        return array
    if len(array) != source.graphs:
        raise InputError(f"{source.path}: {cell} has {len(array)} rows for {source.graphs} graphs")
    return np.asarray(array[graph])


def _edges(
    source: _Source, graph: int, positions: Array | None, cell: Array | None, name: str
) -> tuple[Array, Array, Array | None]:
    settings = source.settings
    if settings.cutoff is not None and positions is not None:
        return _near(positions, cell, settings, name)
    if settings.edges is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), None
    pairs = source.column(settings.edges)
    if source.edges is not None:
        pairs = pairs[source.edges[graph] : source.edges[graph + 1]]
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InputError(f"{name}: {settings.edges} of shape {pairs.shape} is not [pairs, 2]; transpose it")
    first, second = pairs[:, 0], pairs[:, 1]
    check_sides(first, second, settings.undirected, f"{name}, {settings.edges}")
    if settings.undirected:
        return np.concatenate([first, second]), np.concatenate([second, first]), None
    return first, second, None


def _near(positions: Array, cell: Array | None, settings: NpzBuild, name: str) -> tuple[Array, Array, Array]:
    """Pairs within the cutoff; two dimensions are three with z = 0."""
    from hydragnn.graphs.atomic import neighbour_list

    dim = positions.shape[-1]
    points = np.zeros((len(positions), 3))
    points[:, :dim] = positions
    periodic = np.zeros(3, dtype=bool)
    periodic[: dim if isinstance(settings.periodic, bool) else len(settings.periodic)] = settings.periodic
    box = np.eye(3)
    if cell is not None:
        size = cell.shape[-1]
        box[:size, :size] = cell if cell.ndim == 2 else np.diag(cell)
    elif periodic.any():
        raise InputError(f"{name}: periodic, but no cell; give cell")
    cutoff, most = float(settings.cutoff or 0), settings.max_neighbours
    senders, receivers, images = neighbour_list(points, box, periodic, cutoff, most, name=name)
    return senders, receivers, (images @ box)[:, :dim]


def _value(source: _Source, field: FieldSettings, graph: int) -> Any:
    arrays = [source.column(key) for key in field.keys]
    if field.on == "graph":
        return stack_rows([array[graph] for array in arrays], field)
    if field.on == "node":
        return stack_rows([_rows(source, array, graph) for array in arrays], field)
    rows = [array if source.edges is None else array[source.edges[graph] : source.edges[graph + 1]] for array in arrays]
    values = stack_rows(rows, field)
    return np.concatenate([values, values]) if source.settings.undirected else values
