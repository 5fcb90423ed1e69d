"""Voronoi cells by scipy: fixtures of tests, and the exact truth of images of grains."""

from itertools import product
from typing import Any

import numpy as np
from numpy import ndarray

from hydragnn.graphs import Field, GraphBatch, graph_from_arrays

_SMALLEST = 1e-11  # of the box: corners and edges where cells only touch are not faces


def from_voronoi(seeds: Any, box: Any, periodic: Any = True) -> GraphBatch:
    """Return the Voronoi cells of seeds in a box from 0, with volumes, areas and normals."""
    lengths = np.array(box, dtype=np.float64)
    flags, dim = np.broadcast_to(periodic, lengths.shape), len(lengths)
    points = np.where(flags, np.array(seeds) % lengths, seeds)
    ends, images, cells, faces = _voronoi_cells(points, lengths, flags, "cells")
    fields = [
        Field(name="volume", on="node", dtype="float64"),
        Field(name="boundary_area", on="node", shape=(2 * dim,), dtype="float64"),
        Field(name="area", on="edge", dtype="float64"),
        Field(name="normal", on="edge", shape=(dim,), parity="vector", role="auxiliary", dtype="float64"),
    ]
    geometry = {"edge_shifts": images * lengths, "cell": np.diag(lengths), "periodic": flags, "name": "cells"}
    return graph_from_arrays(points, *ends, fields=fields, nodes=cells, edges=faces, **geometry)


_Cells = tuple[ndarray, ndarray, dict[str, ndarray], dict[str, ndarray]]
"""Senders and receivers of faces, images of senders, fields of cells and of faces."""


def _voronoi_cells(seeds: ndarray, box: ndarray, periodic: ndarray, name: str) -> _Cells:
    """Return the Voronoi cells of ``seeds``, clipped by walls, through images.

    Images one box away are enough along periodic axes (no point of a cell is nearer to one farther off), and a mirror image
    behind a wall makes that wall a face of the cell.
    """
    margin = 3.0 * float((box.prod() / len(seeds)) ** (1 / len(box)))
    while True:
        complete = margin > 2 * float(box.max())
        cells, reach = _faces(*_ghosts(seeds, box, periodic, margin), len(seeds), box)
        if cells is not None and (complete or 2 * reach <= margin):
            return cells
        if complete:
            raise ValueError(f"{name}: cells do not close")
        margin *= 2


def _ghosts(
    seeds: ndarray, box: ndarray, periodic: ndarray, margin: float
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return seeds, images and mirrors near the box, with walls (else -1)."""
    count, dim = seeds.shape
    index = np.arange(count)
    none = (0,) * dim
    found = [(seeds, index, none, -1)]  # points, their seeds, image and wall
    for offset in product(*[(-1, 0, 1) if flag else (0,) for flag in periodic]):
        moved = seeds + np.array(offset) * box
        near = ((moved > -margin) & (moved < box + margin)).all(axis=1)
        if any(offset):
            found.append((moved[near], index[near], offset, -1))
    for axis in np.flatnonzero(~periodic):
        for side, plane in enumerate((0.0, box[axis])):
            near = np.abs(seeds[:, axis] - plane) < margin
            moved = seeds[near].copy()
            moved[:, axis] = 2 * plane - moved[:, axis]
            found.append((moved, index[near], none, 2 * int(axis) + side))
    points, owner, image, wall = zip(*found)
    counts = [*map(len, owner)]
    images = np.repeat(np.array(image, dtype=np.int64), counts, axis=0)
    return np.concatenate(points), np.concatenate(owner), images, np.repeat(np.array(wall), counts)


def _faces(
    points: ndarray, owner: ndarray, image: ndarray, wall: ndarray, count: int, box: ndarray
) -> tuple[_Cells | None, float]:
    """Return the faces, None for an open cell, and the farthest corner."""
    from scipy.spatial import QhullError, Voronoi

    dim = len(box)
    try:
        diagram = Voronoi(points)
    except QhullError:
        return None, 0.0
    pairs = np.asarray(diagram.ridge_points, dtype=np.int64)
    touching = np.flatnonzero((pairs < count).any(axis=1))
    corners = [diagram.ridge_vertices[ridge] for ridge in touching]
    if any(-1 in corner for corner in corners):
        return None, 0.0
    pairs, face = pairs[touching], np.repeat(np.arange(len(corners)), [*map(len, corners)])
    flat = diagram.vertices[np.concatenate(corners)]
    areas = np.linalg.norm(flat[1::2] - flat[0::2], axis=1) if dim == 2 else _polygon_areas(flat, face)
    ends, area = np.concatenate([pairs, pairs[:, ::-1]]), np.concatenate([areas, areas])
    real = ends[:, 0] < count
    (receivers, others), area = ends[real].T, area[real]
    across = points[others] - points[receivers]
    distance = np.linalg.norm(across, axis=1)
    volumes = np.bincount(receivers, weights=area * distance / 2 / dim, minlength=count)
    walls = np.zeros((count, 2 * dim))
    at_wall = (wall[others] >= 0) & (owner[others] == receivers)
    np.add.at(walls, (receivers[at_wall], wall[others][at_wall]), area[at_wall])
    shared = (wall[others] < 0) & (area > _SMALLEST * float(box.max()) ** (dim - 1))
    senders = others[shared]
    faces = {"area": area[shared], "normal": across[shared] / distance[shared, None]}
    cells = {"volume": volumes, "boundary_area": walls}
    reach = float(np.linalg.norm(flat - points[pairs.min(axis=1)][face], axis=1).max())
    return (np.stack([owner[senders], receivers[shared]]), image[senders], cells, faces), reach


def _polygon_areas(corners: ndarray, face: ndarray) -> ndarray:
    """Return areas of planar polygons; ``face`` is sorted, and corners come in order, as Qhull gives them."""
    starts = np.flatnonzero(np.diff(face, prepend=-1))
    following = np.arange(len(face)) + 1
    following[np.r_[starts[1:], len(face)] - 1] = starts
    local = corners - corners[starts][face]
    return np.linalg.norm(np.add.reduceat(np.cross(local, local[following]), starts), axis=1) / 2
