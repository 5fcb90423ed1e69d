"""Kinds of edges of recipes: neighbour shells, directions, and levels of a mesh."""

from itertools import product

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.spatial import cKDTree

from hydragnn.base.errors import InputError
from hydragnn.graphs import GraphBatch, edge_vectors, with_relations


def shell_radii(batch: GraphBatch, tolerance: float = 1e-3) -> tuple[float, ...]:
    """Return the distinct lengths of edges, ascending.

    Lengths closer than ``tolerance`` to the one below are one shell.

    >>> from hydragnn.graphs import graph_from_arrays
    >>> square = graph_from_arrays([[0.0, 0], [1, 0], [1, 1]], [0, 1, 0], [1, 2, 2])
    >>> [round(radius, 3) for radius in shell_radii(square)]
    [1.0, 1.414]
    """
    lengths = np.sort(edge_vectors(batch).norm(dim=1).numpy())
    if not len(lengths):
        return ()
    shells = np.split(lengths, np.flatnonzero(np.diff(lengths) > tolerance) + 1)
    return tuple(float(shell.mean()) for shell in shells)


def with_shell_relations(batch: GraphBatch, radii: tuple[float, ...], tolerance: float = 1e-3) -> GraphBatch:
    """Return the batch with each edge's neighbour shell as relation.

    ``radii`` (of a reference lattice) number the shells. All graphs of one store take the same ``radii``. InputError
    for an edge that is within ``tolerance`` of no shell, which happens where atoms left their sites: lattice shells
    describe ideal lattices.
    """
    lengths = edge_vectors(batch).norm(dim=1).numpy()
    if not radii:
        raise InputError("no shell radii; take them from a reference graph with shell_radii")
    distance = np.abs(lengths[:, None] - np.asarray(radii))
    nearest = distance.argmin(axis=1)
    off = distance[np.arange(len(lengths)), nearest] > tolerance
    if off.any():
        raise InputError(
            f"an edge of length {lengths[off][0]:.6g} is in none of the {len(radii)} shells (tolerance {tolerance:g}); "
            "take the radii from this lattice, or raise the tolerance"
        )
    return with_relations(batch, nearest.astype(np.int64), len(radii))


def direction_bins(vectors: Float[ndarray, "edges dim"], sectors: int) -> Int[ndarray, " edges"]:
    """Return each vector's sector; the first is centred on the x axis.

    Two dimensions: any number of equal sectors, counter-clockwise. Three: 6 (the axes) or 26 (axes, edges and corners of a
    cube, nearest direction). Vectors of length 0 are in sector 0.

    >>> direction_bins(np.array([[1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]]), sectors=8).tolist()
    [0, 2, 4]
    """
    if vectors.shape[1] == 2 and sectors >= 1:
        turns = np.arctan2(vectors[:, 1], vectors[:, 0]) / (2 * np.pi) * sectors
        # half a sector rounds up whatever the sign of a rounding error, so equal edges of a lattice fall into one sector
        return np.floor(turns + 0.5 + 1e-9).astype(np.int64) % sectors
    if vectors.shape[1] != 3 or sectors not in (6, 26):
        raise InputError(f"{sectors} sectors in {vectors.shape[1]} dimensions; use 6 or 26 in three, any number in two")
    cube = [corner for corner in product((-1, 0, 1), repeat=3) if any(corner)]
    near = [corner for corner in cube if sectors == 26 or sum(map(abs, corner)) == 1]
    lattice = np.array(
        sorted(near, key=lambda corner: (sum(map(abs, corner)), *(-x for x in corner))), dtype=np.float64
    )
    unit = lattice / np.linalg.norm(lattice, axis=1, keepdims=True)
    return (vectors @ unit.T).round(9).argmax(axis=1).astype(np.int64)


def multilevel_edges(
    points: Float[ndarray, "nodes dim"], spacing: float, levels: int, *, reach: float = 1.5
) -> tuple[Int[ndarray, " edges"], Int[ndarray, " edges"], Int[ndarray, " edges"]]:
    """Return edges on ever coarser subsets of points, with their levels.

    Level 0 joins all points within ``reach * spacing``; level l keeps, of every cell of side ``spacing * 2**l`` centred on a
    lattice point, the point of level l - 1 nearest to that lattice point, and joins those within ``reach`` of its side.

    >>> senders, receivers, level = multilevel_edges(np.linspace(0, 8, 9)[:, None] * [1.0, 0.0], 1.0, 3)
    >>> np.bincount(level).tolist()
    [16, 8, 4]
    """
    senders, receivers, level = [], [], []
    indices = np.arange(len(points))
    for number in range(levels):
        side = spacing * 2**number
        if number:
            indices = _nearest_to_lattice(points, indices, side)
        pairs = indices[cKDTree(points[indices]).query_pairs(reach * side * (1 + 1e-9), output_type="ndarray")]
        senders += [pairs[:, 0], pairs[:, 1]]
        receivers += [pairs[:, 1], pairs[:, 0]]
        level.append(np.full(2 * len(pairs), number))
    return np.concatenate(senders), np.concatenate(receivers), np.concatenate(level)


def _nearest_to_lattice(points: ndarray, indices: ndarray, side: float) -> ndarray:
    corner = points.min(axis=0)
    scaled = (points[indices] - corner) / side
    cell = np.floor(scaled + 0.5 + 1e-9).astype(np.int64)
    distance = ((scaled - cell) ** 2).sum(axis=1).round(9)
    order = np.lexsort((distance, *cell.T))
    ordered = cell[order]
    first = np.concatenate([[True], (np.diff(ordered, axis=0) != 0).any(axis=1)])
    return np.sort(indices[order[first]])
