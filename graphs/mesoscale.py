"""Microstructures: nodes are grains or cells, edges their shared faces."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays

Axes = bool | Sequence[bool] | ndarray


def mesoscale_fields(dim: int) -> list[Field]:
    """Return the fields that ``from_labels`` gives every graph."""
    return [
        Field(name="volume", on="node", dtype="float64"),
        Field(name="area", on="edge", dtype="float64"),
        Field(name="area_vector", on="edge", shape=(dim,), parity="vector", role="auxiliary"),
    ]


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
    name: str = "microstructure",
) -> GraphBatch:
    """Return the grains of an image of labels, ascending by label.

    ``spacing`` is the voxel's edge length (one, or one per axis). Voxels labelled ``background`` belong to no grain. Nodes
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
        fields=[*mesoscale_fields(image.ndim), *fields],
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
