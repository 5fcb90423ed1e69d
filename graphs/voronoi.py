"""Voronoi cells in a periodic or bounded box, with face areas."""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from hydragnn.base.errors import InputError

_SMALLEST = 1e-11  # of the box: corners and edges where cells only touch are not faces


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cells:
    """Faces between cells, in both directions, and faces at walls."""

    senders: Int[ndarray, " faces"]
    receivers: Int[ndarray, " faces"]
    images: Int[ndarray, "faces dim"]  # box lengths added to the sender's seed
    areas: Float[ndarray, " faces"]  # lengths in two dimensions
    normals: Float[ndarray, "faces dim"]  # unit vectors out of the receiver
    volumes: Float[ndarray, " cells"]  # areas in two dimensions
    walls: Float[ndarray, "cells sides"]  # area on the low and high side of each axis


def voronoi_cells(
    seeds: Float[ndarray, "cells dim"], box: Float[ndarray, " dim"], periodic: Bool[ndarray, " dim"], name: str
) -> Cells:
    """Return the Voronoi cells of ``seeds``, clipped by walls, through images.

    Images one box away are enough along periodic axes (no point of a cell is nearer to one farther off), and a mirror image
    behind a wall makes that wall a face of the cell. InputError for coincident seeds and seeds on a wall.
    """
    _check_seeds(seeds, box, periodic, name)
    margin = 3.0 * float((box.prod() / len(seeds)) ** (1 / len(box)))
    while True:
        points, owner, image, wall = _ghosts(seeds, box, periodic, margin)
        complete = margin > 2 * float(box.max())
        cells = _faces(points, owner, image, wall, seeds, box)
        if cells is not None and (complete or 2 * cells[1] <= margin):
            return cells[0]
        if complete:
            raise InputError(f"{name}: the Voronoi cells of the seeds do not close; check seeds and box")
        margin *= 2


def _check_seeds(seeds: ndarray, box: ndarray, periodic: ndarray, name: str) -> None:
    from scipy.spatial import cKDTree

    scale = float(box.max())
    for axis in np.flatnonzero(~periodic):
        close = np.minimum(seeds[:, axis], box[axis] - seeds[:, axis]) < 1e-9 * scale
        if close.any():
            raise InputError(
                f"{name}: seed {int(close.argmax())} lies on or outside the wall of axis {axis} at "
                f"{seeds[close.argmax(), axis]:g}; move it inside 0 to {box[axis]:g}, or make the axis periodic"
            )
    tree = cKDTree(np.where(periodic, seeds % box, seeds), boxsize=np.where(periodic, box, 0.0))
    pairs = tree.query_pairs(1e-9 * scale, output_type="ndarray")
    if len(pairs):
        raise InputError(f"{name}: seeds {pairs[0][0]} and {pairs[0][1]} coincide; remove one")


def _ghosts(
    seeds: ndarray, box: ndarray, periodic: ndarray, margin: float
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return seeds, images and mirrors near the box, with walls (else -1)."""
    count, dim = seeds.shape
    index = np.arange(count)
    points, owner, image, wall = [seeds], [index], [np.zeros((count, dim), dtype=np.int64)], [np.full(count, -1)]
    for offset in product(*[(-1, 0, 1) if flag else (0,) for flag in periodic]):
        moved = seeds + np.array(offset) * box
        near = ((moved > -margin) & (moved < box + margin)).all(axis=1)
        if any(offset):
            points.append(moved[near])
            owner.append(index[near])
            image.append(np.tile(np.array(offset, dtype=np.int64), (int(near.sum()), 1)))
            wall.append(np.full(int(near.sum()), -1))
    for axis in np.flatnonzero(~periodic):
        for side, plane in enumerate((0.0, box[axis])):
            near = np.abs(seeds[:, axis] - plane) < margin
            moved = seeds[near].copy()
            moved[:, axis] = 2 * plane - moved[:, axis]
            points.append(moved)
            owner.append(index[near])
            image.append(np.zeros((int(near.sum()), dim), dtype=np.int64))
            wall.append(np.full(int(near.sum()), 2 * axis + side))
    return np.concatenate(points), np.concatenate(owner), np.concatenate(image), np.concatenate(wall)


def _faces(
    points: ndarray, owner: ndarray, image: ndarray, wall: ndarray, seeds: ndarray, box: ndarray
) -> tuple[Cells, float] | None:
    """Return faces and the farthest corner; None where a cell is open."""
    from scipy.spatial import QhullError, Voronoi

    count, dim = seeds.shape
    try:
        diagram = Voronoi(points)
    except QhullError:
        return None
    pairs = np.asarray(diagram.ridge_points, dtype=np.int64)
    touching = np.flatnonzero((pairs < count).any(axis=1))
    corners = [diagram.ridge_vertices[ridge] for ridge in touching]
    if any(-1 in corner for corner in corners):
        return None
    pairs = pairs[touching]
    lengths = np.array([len(corner) for corner in corners])
    flat = diagram.vertices[np.concatenate([np.asarray(corner) for corner in corners])]
    face = np.repeat(np.arange(len(corners)), lengths)
    areas = _lengths(flat) if dim == 2 else _polygon_areas(flat, face, points[pairs[:, 1]] - points[pairs[:, 0]])
    inside = np.where(pairs[:, 0] < count, pairs[:, 0], pairs[:, 1])
    reach = float(np.linalg.norm(flat - points[inside][face], axis=1).max())
    return _directed(points, owner, image, wall, pairs, areas, box, count), reach


def _directed(
    points: ndarray,
    owner: ndarray,
    image: ndarray,
    wall: ndarray,
    pairs: ndarray,
    areas: ndarray,
    box: ndarray,
    count: int,
) -> Cells:
    receivers = np.concatenate([pairs[:, 0], pairs[:, 1]])
    others = np.concatenate([pairs[:, 1], pairs[:, 0]])
    area = np.concatenate([areas, areas])
    real = receivers < count
    receivers, others, area = receivers[real], others[real], area[real]
    across = points[others] - points[receivers]
    distance = np.linalg.norm(across, axis=1)
    dim = points.shape[1]
    volumes = np.bincount(receivers, weights=area * distance / 2 / dim, minlength=count)
    walls = np.zeros((count, 2 * dim))
    at_wall = (wall[others] >= 0) & (owner[others] == receivers)
    np.add.at(walls, (receivers[at_wall], wall[others][at_wall]), area[at_wall])
    shared = (wall[others] < 0) & (area > _SMALLEST * float(box.max()) ** (dim - 1))
    return Cells(
        senders=owner[others][shared],
        receivers=receivers[shared],
        images=image[others][shared],
        areas=area[shared],
        normals=across[shared] / distance[shared, None],
        volumes=volumes,
        walls=walls,
    )


def _lengths(corners: ndarray) -> ndarray:
    return np.linalg.norm(corners[1::2] - corners[0::2], axis=1)


def _polygon_areas(corners: ndarray, face: ndarray, normal: ndarray) -> ndarray:
    """Return areas of convex planar polygons; ``face`` is sorted."""
    unit = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    helper = np.eye(3)[np.abs(unit).argmin(axis=1)]
    first = np.cross(unit, helper)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(unit, first)
    counts = np.bincount(face)
    middle = np.stack([np.bincount(face, weights=corners[:, axis]) for axis in range(3)], axis=1) / counts[:, None]
    local = corners - middle[face]
    x, y = (local * first[face]).sum(axis=1), (local * second[face]).sum(axis=1)
    order = np.lexsort((np.arctan2(y, x), face))
    x, y = x[order], y[order]
    following = np.arange(len(face)) + 1
    ends = np.cumsum(counts)
    following[ends - 1] = ends - counts
    return np.bincount(face, weights=x * y[following] - x[following] * y) / 2
