"""Meshes: nodes are vertices (or cells), edges join what an element joins."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import meshio
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.cells import cell_edges, cell_facets, cell_shape
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays

CELL_VOLUME = Field(name="volume", on="node", dtype="float64")
FACET_AREA = Field(name="area", on="edge", dtype="float64")


def from_mesh(
    mesh: meshio.Mesh,
    *,
    fields: Iterable[Field] = (),
    nodes: Mapping[str, Any] | None = None,
    graphs: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    cell_centred: bool = False,
    optional: Collection[str] = (),
    name: str = "mesh",
) -> GraphBatch:
    """Return the graph of a mesh: its vertices, or its cells.

    Node fields come from ``nodes`` or ``mesh.point_data`` (``mesh.cell_data`` when cell-centred), one row per point (cell) of
    the mesh; graph fields from ``graphs``; labels of targets named in ``optional`` may be missing. Mid-side nodes of quadratic cells join the corners along their edge. Points that
    no element uses are dropped (``used_points`` lists those kept, in order); a mesh flat at z = 0 has dimension 2.

    Every physical group or cell set, or those named in ``tags``, becomes a categorical node field ``tag_<name>``: 1 on
    the vertices of its cells (cell-centred: on its cells and the cells beside it), 0 elsewhere.

    Cell-centred, the nodes are the cells of the highest dimension, block by block, at the mean of their corners, with
    ``volume`` and, on edges, the ``area`` of the shared facet (area and length in two dimensions).

    InputError for unknown cell types, cells that name points that do not exist, and unknown tags.

    >>> square = meshio.Mesh([[0, 0], [1, 0], [1, 1], [0, 1]], [("triangle", [[0, 1, 2], [0, 2, 3]])])
    >>> from_mesh(square).num_edges, from_mesh(square, cell_centred=True)["volume"].tolist()
    (10, [0.5, 0.5])
    """
    _check_cells(mesh, name)
    declared = list(fields)
    node_values = dict(nodes or {})
    source: Mapping[str, Any] = mesh.point_data
    if cell_centred:
        source = {key: np.concatenate([blocks[i] for i in _top_blocks(mesh)]) for key, blocks in mesh.cell_data.items()}
    for field in declared:
        if field.on == "node" and field.name not in node_values and field.name in source:
            node_values[field.name] = source[field.name]
    groups = {
        f"tag_{re.sub('[^A-Za-z0-9_]', '_', tag)}": flags for tag, flags in tag_members(mesh, tags, name=name).items()
    }
    edges: dict[str, ndarray] = {}
    if cell_centred:
        facets, owner, areas, volumes, points = _facets(mesh)
        _, group = np.unique(facets, axis=0, return_inverse=True)
        senders, receivers, edges["area"] = _across(group.reshape(-1), owner, areas)
        used, measured = None, [CELL_VOLUME, FACET_AREA]
        own = {tag: _marked_cells(mesh, flags, facets, owner) for tag, flags in groups.items()} | {"volume": volumes}
    else:
        pairs, measured = _vertex_pairs(mesh), []
        used = np.unique(pairs)
        points = np.asarray(mesh.points, dtype=np.float64)[used]
        first, second = np.searchsorted(used, pairs).T
        senders, receivers = np.concatenate([first, second]), np.concatenate([second, first])
        own = {tag: _marked_points(mesh, flags)[used] for tag, flags in groups.items()}
    values = {key: _rows(value, mesh, used, key, declared, name) for key, value in node_values.items()}
    tag_fields = [Field(name=tag, on="node", classes=2, dtype="int64") for tag in groups]
    return graph_from_arrays(
        _coordinates(points),
        senders,
        receivers,
        fields=[*declared, *tag_fields, *measured],
        nodes=values | own,
        edges=edges,
        graphs=graphs,
        optional=optional,
        name=name,
    )


def used_points(mesh: meshio.Mesh) -> Int[ndarray, " kept"]:
    """Return the numbers of the points that become nodes."""
    return np.unique(_vertex_pairs(mesh))


def _check_cells(mesh: meshio.Mesh, name: str) -> None:
    points = np.asarray(mesh.points)
    if points.ndim != 2 or points.shape[1] not in (1, 2, 3):
        raise InputError(f"{name}: points of shape {points.shape} are not [points, 2] or [points, 3]; reshape them")
    dimensions = [0]
    for block in mesh.cells:
        indices = _members(block.type, block.data)
        dimensions.append(block.dim if len(block.data) else 0)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(points)):
            bad = indices[(indices < 0) | (indices >= len(points))][0]
            raise InputError(f"{name}: a {block.type} names point {bad} of {len(points)}; repair the mesh")
    if max(dimensions) == 0:
        raise InputError(f"{name} has no cells that join points; leave it out")


def _members(cell_type: str, cells: Any) -> Int[ndarray, " points"]:
    if cell_shape(cell_type) == "polyhedron":
        return np.array([point for cell in cells for face in cell for point in face], dtype=np.int64)
    return np.asarray(cells, dtype=np.int64).reshape(-1)


def _vertex_pairs(mesh: meshio.Mesh) -> Int[ndarray, "pairs 2"]:
    """Unordered pairs of points that are joined, each once."""
    collected = [np.zeros((0, 2), dtype=np.int64)]
    for block in mesh.cells:
        if cell_shape(block.type) == "polyhedron":
            for face in (face for cell in block.data for face in cell):
                collected.append(np.column_stack([face, np.roll(face, -1)]).astype(np.int64))
        elif len(block.data):
            data = np.asarray(block.data, dtype=np.int64)
            local = np.array(cell_edges(block.type, data.shape[1]), dtype=np.int64).reshape(-1, 2)
            collected.append(data[:, local].reshape(-1, 2))
    pairs = np.sort(np.concatenate(collected), axis=1)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def _coordinates(points: Float[ndarray, "nodes columns"]) -> Float[ndarray, "nodes dim"]:
    """Two columns for what is flat at z = 0, else three."""
    if points.shape[1] < 3:
        return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    flat = np.abs(points[:, 2]).max(initial=0.0) <= 1e-12 * np.abs(points).max(initial=0.0)
    return points[:, :2] if flat else points


def _rows(value: Any, mesh: meshio.Mesh, used: ndarray | None, key: str, declared: list[Field], name: str) -> ndarray:
    """Return one row per node; an empty third component may go."""
    array = np.asarray(value)
    if used is not None and len(array) == len(mesh.points):
        array = array[used]
    elif used is not None:
        raise InputError(f"{name}, field {key}: {len(array)} rows for {len(mesh.points)} points; give one per point")
    shape = next((field.shape for field in declared if field.name == key), None)
    if shape == (2,) and array.shape[1:] == (3,) and not array[:, 2].any():
        return array[:, :2]
    return array.reshape(len(array)) if shape == () and array.shape[1:] == (1,) else array


def _top_blocks(mesh: meshio.Mesh) -> list[int]:
    dimension = [block.dim if len(block.data) else -1 for block in mesh.cells]
    return [index for index, value in enumerate(dimension) if value == max(dimension)]


def _facets(mesh: meshio.Mesh) -> tuple[ndarray, ndarray, ndarray, ndarray, ndarray]:
    """Return facets (corners sorted, padded with -1), owners, areas, volumes and centres."""
    points = np.asarray(mesh.points, dtype=np.float64)
    points = np.pad(points, ((0, 0), (0, 3 - points.shape[1])))
    rows, owners, areas, volumes, centres = [], [], [], [], []
    first = 0
    for index in _top_blocks(mesh):
        block = mesh.cells[index]
        if cell_shape(block.type) == "polyhedron":
            raise InputError("cell-centred graphs of polyhedra are not supported; use vertices (cell_centred=False)")
        data = np.asarray(block.data, dtype=np.int64)
        sides = cell_facets(block.type, data.shape[1])
        corners = np.unique(np.concatenate([np.asarray(side) for side in sides]))
        centre = points[data[:, corners]].mean(axis=1)
        volume = np.zeros(len(data))
        for side in sides:
            facet = data[:, list(side)]
            area, wedge = _measures(points[facet], centre)
            volume += wedge
            rows.append(np.pad(np.sort(facet, axis=1), ((0, 0), (0, 12 - facet.shape[1])), constant_values=-1))
            owners.append(first + np.arange(len(data)))
            areas.append(area)
        volumes.append(volume)
        centres.append(centre)
        first += len(data)
    facets, owner, area = np.concatenate(rows), np.concatenate(owners), np.concatenate(areas)
    return facets, owner, area, np.concatenate(volumes), np.concatenate(centres)


def _measures(facet: Float[ndarray, "cells corners 3"], centre: Float[ndarray, "cells 3"]) -> tuple[ndarray, ndarray]:
    """Return facet sizes, and what each spans with the cell's centre."""
    corners = facet.shape[1]
    if corners == 1:
        return np.ones(len(facet)), np.linalg.norm(facet[:, 0] - centre, axis=1)
    if corners == 2:
        along = facet[:, 1] - facet[:, 0]
        return np.linalg.norm(along, axis=1), np.linalg.norm(np.cross(along, centre - facet[:, 0]), axis=1) / 2
    area, wedge = np.zeros(len(facet)), np.zeros(len(facet))
    middle = facet.mean(axis=1)
    for k in range(corners):
        cross = np.cross(facet[:, k] - middle, facet[:, (k + 1) % corners] - middle)
        area += np.linalg.norm(cross, axis=1) / 2
        wedge += np.abs((cross * (centre - middle)).sum(axis=1)) / 6
    return area, wedge


def _across(group: Int[ndarray, " facets"], owner: ndarray, areas: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    ends = np.cumsum(counts)
    senders, receivers, area = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for size in np.unique(counts[counts > 1]):
        members = order[ends[counts == size, None] - size + np.arange(size)]
        for i in range(size):
            for j in range(size):
                if i != j:
                    senders.append(owner[members[:, i]])
                    receivers.append(owner[members[:, j]])
                    area.append(areas[members[:, j]])
    return np.concatenate(senders), np.concatenate(receivers), np.concatenate(area)


def tag_members(
    mesh: meshio.Mesh, tags: Sequence[str] | None = None, *, name: str = "mesh"
) -> dict[str, list[Bool[ndarray, " cells"]]]:
    """Return the cells of every physical group, cell set or ``tags``."""
    groups = {label: value for label, value in mesh.field_data.items() if np.size(value) == 2}
    names = {(int(number), int(dim)): label for label, (number, dim) in groups.items()}
    collected: dict[str, list[ndarray]] = {}
    physical = mesh.cell_data.get("gmsh:physical", [np.zeros(0)] * len(mesh.cells))
    for index, (block, numbers) in enumerate(zip(mesh.cells, physical)):
        for number in np.unique(numbers):
            label = names.get((int(number), block.dim), str(int(number)))
            if int(number) or label in mesh.field_data:
                flags = collected.setdefault(label, [np.zeros(len(b.data), dtype=bool) for b in mesh.cells])
                flags[index] = np.asarray(numbers) == number
    for label, members in mesh.cell_sets.items():
        if not label.startswith("gmsh:") and label not in collected:
            collected[label] = [_flags(rows, len(block.data)) for rows, block in zip(members, mesh.cells)]
    if tags is None:
        return dict(sorted(collected.items()))
    for tag in tags:
        if tag not in collected:
            raise InputError(
                f"{name} has no physical group or cell set {tag}; it has {', '.join(sorted(collected)) or 'none'}"
            )
    return {tag: collected[tag] for tag in tags}


def _flags(rows: Any, count: int) -> ndarray:
    flags = np.zeros(count, dtype=bool)
    if rows is not None:
        flags[np.asarray(rows, dtype=np.int64)] = True
    return flags


def _marked_points(mesh: meshio.Mesh, flags: list[ndarray]) -> Int[ndarray, " points"]:
    """Return 1 for points of cells of the group."""
    marked = np.zeros(len(mesh.points), dtype=np.int64)
    for block, flag in zip(mesh.cells, flags):
        marked[_members(block.type, [block.data[row] for row in np.flatnonzero(flag)])] = 1
    return marked


def _marked_cells(mesh: meshio.Mesh, flags: list[ndarray], facets: ndarray, owner: ndarray) -> Int[ndarray, " cells"]:
    """Return 1 for cells in the group, or facets."""
    top = _top_blocks(mesh)
    marked = np.concatenate([flags[index] for index in top]).astype(np.int64)
    sides = {
        tuple(sorted(np.asarray(cell).tolist()))
        for index, (block, flag) in enumerate(zip(mesh.cells, flags))
        if index not in top and cell_shape(block.type) != "polyhedron"
        for cell in _corners(block, flag)
    }
    if sides:
        hit = [tuple(row[row >= 0].tolist()) in sides for row in facets]
        marked[owner[np.array(hit)]] = 1
    return marked


def _corners(block: Any, flag: ndarray) -> ndarray:
    data = np.asarray(block.data, dtype=np.int64)[flag]
    sides = cell_facets(block.type, data.shape[1]) or [(0,)]
    return data[:, sorted({corner for side in sides for corner in side})]
