"""Grids and icosahedral meshes on a sphere as graphs."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.sparse import csr_matrix
from scipy.spatial import ConvexHull, cKDTree

from hydragnn.base.errors import InputError

WHOLE = 1.5  # gap between the last and the first longitude, over the largest other one, up to which a grid goes round
FINER = 12  # parts of an icosahedral mesh's spacing in which cells are cut to find their nodes
NEAR = 1e-6  # degrees between equal places


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SphereMesh:
    """Nodes on the unit sphere, and their shares of grid cells."""

    positions: Float[ndarray, "nodes 3"]
    areas: Float[ndarray, " nodes"]
    """Steradians; on the whole sphere they sum to 4 pi."""
    edges: Int[ndarray, "2 edges"]
    """Senders and receivers."""
    overlaps: Any
    """Share of every cell in a node's area, sparse ``[nodes, cells]``; rows sum to 1, so that integrals stay."""

    def values(self, cells: Float[ndarray, "cells ..."]) -> Float[ndarray, "nodes ..."]:
        """Return area means of cells; NaN where one is missing."""
        means: ndarray = self.overlaps @ cells.reshape(len(cells), -1)
        return means.reshape(-1, *cells.shape[1:])


def grid_mesh(
    latitudes: ndarray, longitudes: ndarray, *, refinement: int | None = None, name: str = "grid"
) -> SphereMesh:
    """Return the mesh of a grid, or an icosahedral one.

    Cells are ``[latitudes, longitudes]`` in degrees, both in any order. They meet in the middles of centres; the outermost rows end at the poles where
    these are nearer than the next row. Neighbours share a side, or meet across a pole. A row at a pole is one node.

    With ``refinement`` nodes are the 10 * 4^refinement + 2 points of a refined icosahedron, and values the means of the parts of cells that are nearest to each,
    which keeps integrals (first-order conservative). InputError for places that are none, or there twice.

    >>> mesh = grid_mesh(np.array([-90, 0, 90]), np.array([0, 90, 180, 270]))
    >>> mesh.positions.shape, mesh.edges.shape, round(float(mesh.areas.sum() / np.pi), 12)
    ((6, 3), (2, 24), 4.0)
    """
    upward, eastward = np.argsort(latitudes), np.argsort(longitudes % 360)
    north, east = latitudes[upward].astype(float), longitudes[eastward].astype(float) % 360
    if not (np.isfinite(north).all() and np.isfinite(east).all()) or np.abs(north).max(initial=0) > 90 + NEAR:
        raise InputError(f"{name}: latitudes or longitudes are missing, or beyond a pole; give degrees north and east")
    gaps = np.roll(np.diff(np.r_[east, east[:1] + 360]), 1)
    if len(north) < 2 or len(east) < 2 or np.diff(north).min() < NEAR or gaps.min() < NEAR:
        raise InputError(f"{name}: a latitude or longitude is there twice, or alone; give a grid, with each once")
    eastward, east, gaps = (np.roll(one, -int(gaps.argmax())) for one in (eastward, east, gaps))  # after the gap
    east, whole = np.unwrap(east, period=360), gaps[0] <= WHOLE * gaps[1:].max()
    first, last = north[1] - north[0], north[-1] - north[-2]
    south, west = _ends(north, first, last), _ends(east, *gaps[[0, 0] if whole else [1, -1]])
    if north[0] + 90 < first - NEAR:
        south[0, 0] = -90
    if 90 - north[-1] < last - NEAR:
        south[-1, 1] = 90
    areas = np.outer(np.ptp(np.sin(np.radians(south)), axis=1), np.radians(np.ptp(west, axis=1)))
    cells = np.arange(areas.size).reshape(areas.shape)[np.ix_(upward, eastward)]
    if refinement is not None:
        return _icosahedral(areas, cells, south, west, refinement, name)
    places = points_at(*np.meshgrid(north, east, indexing="ij"))
    node = np.arange(areas.size).reshape(areas.shape)
    at_pole = np.abs(north) > 90 - NEAR
    node[at_pole] = node[at_pole, :1]
    pairs = [np.stack([node[1:], node[:-1]]), np.stack([node[:, 1:], node[:, :-1]])]
    if whole:
        pairs.append(np.stack([node[:, :1], node[:, -1:]]))
        for row in (0, -1) if len(east) % 2 == 0 else ():
            if np.abs(south[row]).max() > 90 - NEAR:  # the neighbour across the pole
                pairs.append(np.stack([node[row], np.roll(node[row], len(east) // 2)])[:, None])
    owners = np.unique(node)
    owners = owners[np.argsort(cells.ravel()[owners])]  # nodes in the order of the file
    number = np.zeros(areas.size, np.int64)
    number[owners] = np.arange(len(owners))
    joined = np.sort(number[np.concatenate([one.reshape(2, -1) for one in pairs], axis=1)], axis=0)
    joined = np.unique(joined[:, joined[0] != joined[1]], axis=1)
    edges = np.concatenate([joined, joined[::-1]], axis=1)
    return _mesh(places.reshape(-1, 3)[owners], edges, number[node.ravel()], cells.ravel(), areas.ravel())


def points_at(north: ndarray, east: ndarray) -> Float[ndarray, "... 3"]:
    """Return points of the unit sphere; the last axis points north."""
    north, east = np.radians(north), np.radians(east)
    return np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=-1)


def vectors_of(eastward: ndarray, northward: ndarray, north: ndarray, east: ndarray) -> Float[ndarray, "... 3"]:
    """Return vectors along the sphere in the axes of ``points_at``.

    >>> vectors_of(np.array([1.0]), np.array([0.0]), np.array([0.0]), np.array([0.0])).tolist()
    [[0.0, 1.0, 0.0]]
    """
    along = points_at(np.zeros_like(north), east + 90)
    return (eastward[..., None] * along + northward[..., None] * points_at(north + 90, east)).round(12) + 0.0


def _ends(centres: ndarray, first: float, last: float) -> ndarray:
    """Return ends of cells, which meet in the middles of centres."""
    middles = (centres[1:] + centres[:-1]) / 2
    return np.stack([np.r_[centres[0] - first / 2, middles], np.r_[middles, centres[-1] + last / 2]], axis=1)


def _mesh(points: ndarray, edges: ndarray, nodes: ndarray, cells: ndarray, parts: ndarray) -> SphereMesh:
    """Return the mesh whose nodes consist of parts of cells with areas."""
    areas = np.bincount(nodes, parts, len(points))
    overlaps = csr_matrix((parts / areas[nodes], (nodes, cells)), shape=(len(points), cells.max() + 1))
    return SphereMesh(positions=points, areas=areas, edges=edges, overlaps=overlaps)


def _icosahedral(
    areas: ndarray, cells: ndarray, south: ndarray, west: ndarray, refinement: int, name: str
) -> SphereMesh:
    """Return the mesh of a refined icosahedron, with cut cells."""
    points, sides = refined_icosahedron(refinement)
    if abs(areas.sum() / (4 * np.pi) - 1) > NEAR or areas.size < len(points):
        raise InputError(
            f"{name}: an icosahedral mesh of {len(points)} nodes takes as many cells that cover the sphere, not {areas.size} on "
            f"{areas.sum() / (4 * np.pi):.0%} of it; leave refinement out, or choose a smaller one"
        )
    size = np.radians(max(np.ptp(south, axis=1).max(), np.ptp(west, axis=1).max()))
    cut = int(np.ceil(FINER * size / np.sqrt(4 * np.pi / len(points))))
    inside, sines = (np.arange(cut) + 0.5) / cut, np.sin(np.radians(south))
    rows = np.degrees(np.arcsin(sines[:, :1] + np.ptp(sines, axis=1)[:, None] * inside)).ravel()
    columns = (west[:, :1] + np.ptp(west, axis=1)[:, None] * inside).ravel()
    nearest = cKDTree(points).query(points_at(*np.meshgrid(rows, columns, indexing="ij")).reshape(-1, 3))[1]
    cells, parts = (one.repeat(cut, 0).repeat(cut, 1).ravel() for one in (cells, areas / cut**2))
    return _mesh(points, np.concatenate([sides, sides[:, ::-1]]).T, nearest, cells, parts)


@lru_cache(maxsize=4)
def refined_icosahedron(refinement: int) -> tuple[Float[ndarray, "points 3"], Int[ndarray, "sides 2"]]:
    """Return points and sides of an icosahedron halved so often."""
    golden = (1 + 5**0.5) / 2
    signs = [(a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    points = np.array([one for a, b in signs for one in ((0, a, b), (a, b, 0), (b, 0, a))])
    sides = np.zeros((0, 2), np.int64)
    for _ in range(refinement + 1):
        points = np.concatenate([points, points[sides].sum(1)])
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        corners = ConvexHull(points).simplices[:, [0, 1, 1, 2, 2, 0]].astype(np.int64)
        sides = np.unique(np.sort(corners.reshape(-1, 2), axis=1), axis=0)
    return points, sides
