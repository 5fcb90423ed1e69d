"""Microstructures: nodes are grains or cells, edges their shared faces."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays

Axes = bool | Sequence[bool] | ndarray

_SMALLEST = 1e-11  # of the box: corners and edges where cells only touch are not faces


def mesoscale_fields(dim: int, *, source: str = "voronoi", unit: str = "") -> list[Field]:
    """Return the fields of ``from_voronoi``, or those of ``from_labels`` (source "labels")."""
    units = [f"{unit}^{power}".replace("^1", "") if unit else "" for power in (dim, dim - 1)]
    volume = Field(name="volume", on="node", dtype="float64", unit=units[0])
    area = Field(name="area", on="edge", dtype="float64", unit=units[1])
    if source == "labels":
        vector = Field(name="area_vector", on="edge", shape=(dim,), unit=units[1], parity="vector", role="auxiliary")
        return [volume, area, vector]
    return [
        volume,
        Field(name="boundary_area", on="node", shape=(2 * dim,), dtype="float64"),
        area,
        Field(name="normal", on="edge", shape=(dim,), parity="vector", role="auxiliary", dtype="float64"),
    ]


def from_voronoi(
    seeds: Any,
    box: Any,
    periodic: Axes = True,
    *,
    fields: Iterable[Field] = (),
    nodes: Mapping[str, Any] | None = None,
    graphs: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    name: str = "microstructure",
) -> GraphBatch:
    """Return the Voronoi cells of ``seeds`` [cells, 2 or 3].

    The box reaches from 0 to ``box`` (edge lengths). One cell is legal. Nodes sit at the seeds (wrapped into the box
    along periodic axes) and have ``volume`` and ``boundary_area``: what the cell shows to the walls, low and high side
    of each axis in turn. Edges are shared faces with their ``area`` and ``normal`` (out of the receiver). In two
    dimensions a volume is an area and an area a length. Cells that touch through several periodic images have one edge
    per image; the volumes sum to the box, and area times normal over the faces and walls of a cell sums to zero.
    ``fields`` declares the tensors in ``nodes`` and ``graphs``; labels of targets named in ``optional`` may be missing.

    InputError for seeds that coincide, or lie on or outside a bounded wall.

    >>> from_voronoi([[0.25, 0.5], [0.75, 0.5]], [1.0, 1.0], periodic=False)["volume"]
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    points, lengths = np.array(seeds, dtype=np.float64), np.array(box, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or not len(points):
        raise InputError(f"{name}: seeds of shape {points.shape} are not [cells, 2] or [cells, 3]; give at least one")
    if lengths.shape != (points.shape[1],) or not (np.isfinite(lengths) & (lengths > 0)).all():
        raise InputError(f"{name}: box {box} is not {points.shape[1]} positive edge lengths; give one per axis")
    if not np.isfinite(points).all():
        raise InputError(f"{name}: seed {int((~np.isfinite(points)).any(axis=1).argmax())} is NaN or inf; remove it")
    flags = _axes(periodic, points.shape[1], name)
    points = np.where(flags, points % lengths, points)
    points = np.where(flags & (points >= lengths), 0.0, points)
    ends, images, cells, faces = _voronoi_cells(points, lengths, flags, name)
    return graph_from_arrays(
        points,
        *ends,
        fields=[*mesoscale_fields(len(lengths)), *fields],
        nodes={**cells, **(nodes or {})},
        edges=faces,
        graphs=graphs,
        edge_shifts=images * lengths,
        cell=np.diag(lengths),
        periodic=flags,
        optional=optional,
        name=name,
    )


def _axes(periodic: Axes, dim: int, name: str) -> ndarray:
    flags = np.asarray(periodic, dtype=bool)
    flags = np.full(dim, bool(flags)) if flags.ndim == 0 else flags
    if flags.shape != (dim,):
        raise InputError(f"{name}: periodic has {flags.size} flags for {dim} axes; give one per axis")
    return flags


def from_labels(
    voxels: Any,
    spacing: float | Sequence[float] | ndarray = 1.0,
    periodic: Axes = False,
    *,
    background: int | None = None,
    fields: Iterable[Field] = (),
    nodes: Mapping[str, Any] | None = None,
    graphs: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    unit: str = "",
    name: str = "microstructure",
) -> GraphBatch:
    """Return the grains of an image of labels, ascending by label.

    ``spacing`` is the voxel's edge length (one, or one per axis) in ``unit``. Voxels labelled ``background`` belong to no grain. Nodes
    sit at the grain's centroid (found through the periodic wrap; exact for grains shorter than the image) and have its
    ``volume``. An edge is all faces that two grains share through one periodic image, with their total ``area`` (of
    voxel faces, so a slanted boundary counts its steps) and ``area_vector`` (their vector sum, out of the receiver, in which
    steps cancel). A grain has no edge to itself. ``fields`` declares the tensors in ``nodes`` and ``graphs``; labels of targets
    named in ``optional`` may be missing. ``grain_numbers`` gives the node of every voxel.

    >>> from_labels([[7, 7, 9], [7, 7, 9]])["volume"]
    tensor([4., 2.], dtype=torch.float64)
    """
    image = np.asarray(voxels)
    if image.dtype.kind not in "iu" or image.ndim not in (2, 3) or not image.size:
        raise InputError(f"{name}: {image.dtype} image of shape {image.shape}; give integer labels on 2 or 3 axes")
    steps = np.array([spacing] * image.ndim if np.ndim(spacing) == 0 else spacing, dtype=np.float64)
    if steps.shape != (image.ndim,) or not (np.isfinite(steps) & (steps > 0)).all():
        raise InputError(f"{name}: spacing {spacing} is not {image.ndim} positive lengths; give one, or one per axis")
    flags = _axes(periodic, image.ndim, name)
    grain = grain_numbers(image, background)
    count = int(grain.max()) + 1
    if count == 0:
        raise InputError(f"{name}: the image has no grain, only background {background}; leave it out")
    lengths = np.array(image.shape) * steps
    centroids = _centroids(grain, count, steps, lengths, flags)
    receivers, senders, images, areas, vectors = _shared_faces(grain, centroids, steps, lengths, flags)
    return graph_from_arrays(
        centroids,
        senders,
        receivers,
        fields=[*mesoscale_fields(image.ndim, source="labels", unit=unit), *fields],
        nodes={"volume": np.bincount(grain[grain >= 0], minlength=count) * steps.prod(), **(nodes or {})},
        edges={"area": areas, "area_vector": vectors},
        graphs=graphs,
        edge_shifts=images * lengths,
        cell=np.diag(lengths),
        periodic=flags,
        optional=optional,
        name=name,
    )


def grain_numbers(voxels: Any, background: int | None = None) -> Int[ndarray, "*axes"]:
    """Return every voxel's node number; -1 in the background.

    >>> grain_numbers([[5, 5], [0, 2]], background=0).tolist()
    [[1, 1], [-1, 0]]
    """
    image = np.asarray(voxels)
    labels, inverse = np.unique(image, return_inverse=True)
    number = inverse.reshape(image.shape).astype(np.int64)
    if background is None or background not in labels:
        return number
    hole = int(np.searchsorted(labels, background))
    return np.where(number == hole, -1, number - (number > hole))


def _centroids(
    grain: Int[ndarray, "*axes"], count: int, steps: ndarray, lengths: ndarray, periodic: ndarray
) -> Float[ndarray, "grains dim"]:
    """Return every grain's mean position, unwrapped along periodic axes."""
    inside = grain >= 0
    owner = grain[inside]
    sizes = np.bincount(owner, minlength=count)
    columns = []
    for axis, voxels in enumerate(grain.shape):
        along = np.expand_dims((np.arange(voxels) + 0.5) * steps[axis], [a for a in range(grain.ndim) if a != axis])
        x = np.broadcast_to(along, grain.shape)[inside]
        if periodic[axis]:
            phase = 2 * np.pi * x / lengths[axis]
            sine, cosine = (np.bincount(owner, weights=f(phase), minlength=count) for f in (np.sin, np.cos))
            middle = np.arctan2(sine, cosine) / (2 * np.pi) * lengths[axis]
            local = x - middle[owner]
            local -= lengths[axis] * np.rint(local / lengths[axis])
            columns.append((middle + np.bincount(owner, weights=local, minlength=count) / sizes) % lengths[axis])
        else:
            columns.append(np.bincount(owner, weights=x, minlength=count) / sizes)
    return np.stack(columns, axis=1)


def _shared_faces(
    grain: Int[ndarray, "*axes"], centroids: ndarray, steps: ndarray, lengths: ndarray, periodic: ndarray
) -> tuple[ndarray, ndarray, ndarray, ndarray, ndarray]:
    """Return receivers, senders, images, areas and area vectors of shared faces."""

    def copy(voxel: ndarray, owner: ndarray) -> ndarray:
        """Return the image of its grain's centroid nearest to each voxel."""
        return np.where(periodic, np.rint(((voxel + 0.5) * steps - centroids[owner]) / lengths), 0).astype(np.int64)

    rows, vectors = [], []
    for axis, count in enumerate(grain.shape):
        neighbour = np.roll(grain, -1, axis=axis)
        boundary = (grain != neighbour) & (grain >= 0) & (neighbour >= 0)
        low = np.argwhere(boundary)
        last = low[:, axis] == count - 1  # their neighbour is the first voxel, one box on
        low, last = (low, last) if periodic[axis] else (low[~last], last[~last])
        high = low.copy()
        high[:, axis] = (low[:, axis] + 1) % count
        a, b = grain[tuple(low.T)], grain[tuple(high.T)]
        image = copy(high, b) - copy(low, a)
        image[:, axis] += last
        vector = np.zeros((len(image), grain.ndim))
        vector[:, axis] = steps.prod() / steps[axis]
        rows += [np.column_stack([a, b, image]), np.column_stack([b, a, -image])]
        vectors += [vector, -vector]
    keys, member = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    stacked = np.concatenate(vectors)
    total = np.zeros((len(keys), grain.ndim))
    np.add.at(total, member.reshape(-1), stacked)
    areas = np.zeros(len(keys))
    np.add.at(areas, member.reshape(-1), np.abs(stacked).sum(axis=1))
    return keys[:, 0], keys[:, 1], keys[:, 2:], areas, total


_Cells = tuple[ndarray, ndarray, dict[str, ndarray], dict[str, ndarray]]
"""Senders and receivers of faces, images of senders, fields of cells and of faces."""


def _voronoi_cells(
    seeds: Float[ndarray, "cells dim"], box: Float[ndarray, " dim"], periodic: Bool[ndarray, " dim"], name: str
) -> _Cells:
    """Return the Voronoi cells of ``seeds``, clipped by walls, through images.

    Images one box away are enough along periodic axes (no point of a cell is nearer to one farther off), and a mirror image
    behind a wall makes that wall a face of the cell. InputError for coincident seeds and seeds on a wall.
    """
    from scipy.spatial import cKDTree

    scale, margin, cells = float(box.max()), 3.0 * float((box.prod() / len(seeds)) ** (1 / len(box))), None
    close = (np.minimum(seeds, box - seeds) < 1e-9 * scale) & ~periodic
    if close.any():
        seed, axis = np.argwhere(close)[0]
        where = f"the wall of axis {axis} at {seeds[seed, axis]:g}"
        move = f"move it inside 0 to {box[axis]:g}, or make the axis periodic"
        raise InputError(f"{name}: seed {seed} lies on or outside {where}; {move}")
    tree = cKDTree(seeds, boxsize=np.where(periodic, box, 0.0))  # they are inside along periodic axes
    if len(pairs := tree.query_pairs(1e-9 * scale, output_type="ndarray")):
        raise InputError(f"{name}: seeds {pairs[0][0]} and {pairs[0][1]} coincide; remove one")
    while margin < 8 * scale:  # beyond, all images are there
        cells, reach = _faces(*_ghosts(seeds, box, periodic, margin), len(seeds), box)
        if cells is not None and (margin > 2 * scale or 2 * reach <= margin):
            return cells
        margin *= 2
    raise InputError(f"{name}: the Voronoi cells of the seeds do not close; check seeds and box")


def _ghosts(
    seeds: ndarray, box: ndarray, periodic: ndarray, margin: float
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return seeds, images and mirrors near the box, with walls (else -1)."""
    points, owner, image = seeds, np.arange(len(seeds)), np.zeros(seeds.shape, dtype=np.int64)
    wall = np.full(len(seeds), -1)
    for axis, step in enumerate(np.eye(len(box), dtype=np.int64)):
        ghosts = [(points, owner, image, wall)]
        for side, sign in enumerate((-1, 1)):
            moved = points + sign * step * box if periodic[axis] else points * (1 - 2 * step) + 2 * side * step * box
            near = (moved[:, axis] > -margin) & (moved[:, axis] < box[axis] + margin)
            shift, through = (sign * step, wall) if periodic[axis] else (0 * step, np.full(len(wall), 2 * axis + side))
            ghosts.append((moved[near], owner[near], (image + shift)[near], through[near]))
        points, owner, image, wall = (np.concatenate(part) for part in zip(*ghosts))
    return points, owner, image, wall


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
    """Return areas of planar polygons, whose corners are in order of ``face``."""
    starts = np.flatnonzero(np.diff(face, prepend=-1))
    following = np.arange(len(face)) + 1
    following[np.r_[starts[1:], len(face)] - 1] = starts
    local = corners - corners[starts][face]
    return np.linalg.norm(np.add.reduceat(np.cross(local, local[following]), starts), axis=1) / 2
