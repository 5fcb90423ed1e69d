"""Orientations of crystals: symmetry, disorientation, grains of maps."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field

_GROUPS = "-1 C1Z 2/m C2Y 112/m C2Z mmm D2Z 4/m C4Z 4/mmm D4Z -3 C3Z -3m D3Z -31m D3Z 6/m C6Z 6/mmm D6Z m-3 TZ m-3m OZ"
LAUE = dict(zip(_GROUPS.split()[::2], _GROUPS.split()[1::2]))
"""Laue groups with their rotations as scipy names them. Twofold axes: 2/m has y, 112/m z, -3m x, -31m y."""

CHARACTERS = ("low angle", "high angle", "sigma 3", "between phases")  # classes of the field ``character``
LOW_ANGLE = 15.0  # degrees; also of Brandon's criterion
INVERSE = np.array([1.0, -1.0, -1.0, -1.0])
_TWIN = np.array([np.sqrt(3), *[1 / np.sqrt(3)] * 3]) / 2  # 60 degrees about 111
_MONOMIALS = [*combinations_with_replacement(range(3), 4)]
_CHUNK = 2**16
SPREAD = Field(name="orientation_spread", on="node", unit="degree")
FIELDS = [
    Field(name="orientation", on="node", shape=(4,), role="auxiliary"),
    Field(name="orientation_features", on="node", shape=(2 * len(_MONOMIALS),)),
    Field(name="misorientation", on="edge", unit="degree"),
    Field(name="character", on="edge", classes=len(CHARACTERS), dtype="int64"),
]


@cache
def rotations_of(laue: str) -> Float[ndarray, "rotations 4"]:
    """Return a Laue group's rotations as quaternions (w, x, y, z)."""
    from scipy.spatial.transform import Rotation

    group = Rotation.create_group(LAUE[laue][:-1], axis=LAUE[laue][-1])
    turn = Rotation.from_euler("Z", 90 if laue == "-31m" else 0, degrees=True)
    return np.roll((turn * group * turn.inv()).as_quat(), 1, axis=1)


def product(one: ndarray, other: ndarray) -> ndarray:
    """Return the product of quaternions."""
    (a, v), (b, u) = ((turn[..., :1], turn[..., 1:]) for turn in (one, other))
    return np.concatenate([a * b - (v * u).sum(axis=-1, keepdims=True), a * u + b * v + np.cross(v, u)], axis=-1)


def from_bunge(angles: Float[ndarray, "points 3"]) -> Float[ndarray, "points 4"]:
    """Return quaternions from the sample's frame to the crystal's; angles in radians.

    >>> from_bunge(np.array([[np.pi / 2, 0.0, 0.0]])).round(3).tolist()
    [[0.707, 0.0, 0.0, -0.707]]
    """
    from scipy.spatial.transform import Rotation

    return np.roll(Rotation.from_euler("ZXZ", angles).inv().as_quat(), 1, axis=1) + 0.0


def nearest(turns: Float[ndarray, "items 4"], targets: Float[ndarray, "targets 4"]) -> tuple[ndarray, ndarray]:
    """Return the target nearest to each rotation, and the angle between (degrees)."""
    best, cosine = np.empty(len(turns), dtype=np.int64), np.empty(len(turns))
    for start in range(0, len(turns), _CHUNK):
        part = slice(start, start + _CHUNK)
        cosines = np.abs(turns[part] @ targets.T)
        best[part], cosine[part] = cosines.argmax(axis=1), cosines.max(axis=1)
    return best, np.degrees(2 * np.arccos(np.minimum(cosine, 1.0)))


def disorientation(one: ndarray, other: ndarray, laue: str, other_laue: str | None = None) -> Float[ndarray, " pairs"]:
    """Return the smallest angle between equivalent orientations, in degrees.

    Between phases both symmetries count: it is the smallest rotation of one crystal's frame into the other's.
    """
    group = rotations_of(laue)
    if other_laue not in (None, laue):
        group = product(rotations_of(str(other_laue))[:, None] * INVERSE, group).reshape(-1, 4)
    return nearest(product(other, one * INVERSE), group)[1]


def cells_of_points(
    places: Float[ndarray, "points 2"], steps: Float[ndarray, " 2"], hexagonal: bool
) -> tuple[Int[ndarray, " points"], tuple[int, ...]] | None:
    """Return each point's cell and the shape; None beside the grid.

    A point of a hexagonal grid is a brick of two cells, this and the next along x, in staggered rows: it has the same neighbours.
    """
    index = np.empty((len(places), 2), dtype=np.int64)
    for axis, step in enumerate(steps):
        own, member = np.unique(places[:, axis], return_inverse=True)
        gaps = np.diff(own, prepend=own[0]) / step
        index[:, axis] = (number := np.cumsum(gaps > 0.5))[member]
        drift = abs((own[-1] - own[0]) / step - number[-1])
        if (np.abs(gaps - (gaps > 0.5)) >= 0.25).any() or drift > 0.02 * number[-1]:
            return None
    shape = tuple((index.max(axis=0) + np.array([1 + hexagonal, 1])).tolist())
    flat = np.ravel_multi_index((*index.T,), shape)
    stray = len(np.unique(flat)) < len(places) or (hexagonal and np.ptp(index.sum(axis=1) % 2))
    return None if stray else (flat, shape)


def grains_of_map(
    turns: ndarray, phase: Int[ndarray, "*axes"], laue: Mapping[int, str], threshold: float, periodic: Sequence[bool]
) -> Int[ndarray, "*axes"]:
    """Return every point's grain, from 1; 0 where ``phase`` is 0.

    Neighbours along an axis with one phase and less than ``threshold`` degrees between them are one grain.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    index, flat, pairs = np.arange(phase.size).reshape(phase.shape), turns.reshape(-1, 4), [np.empty((2, 0), np.int64)]
    for axis, wraps in enumerate(periodic):
        one, other = np.moveaxis(index, axis, 0), np.roll(np.moveaxis(index, axis, 0), -1, axis=0)
        ends = np.stack([one.ravel(), other.ravel()] if wraps else [one[:-1].ravel(), other[:-1].ravel()])
        for number, group in laue.items():
            one, other = ends[:, (phase.ravel()[ends] == number).all(axis=0)]
            rows = disorientation(flat[one], flat[other], group) < threshold
            pairs.append(np.stack([one[rows], other[rows]]))
    links = np.concatenate(pairs, axis=1)
    matrix = coo_matrix((np.ones(links.shape[1], dtype=bool), (links[0], links[1])), shape=(phase.size, phase.size))
    return np.where(phase > 0, connected_components(matrix, directed=False)[1].reshape(phase.shape) + 1, 0)


def joined_grains(
    grain: Int[ndarray, "*axes"], steps: Float[ndarray, " dim"], periodic: Sequence[bool]
) -> Int[ndarray, "*axes"]:
    """Return grains with all points: those of none (0) join the nearest."""
    from scipy.ndimage import distance_transform_edt

    outside = grain == 0  # axes that repeat go on as far as the nearest grain can be
    reach = np.ceil(distance_transform_edt(outside, steps).max() / steps).astype(np.int64) * periodic
    nearest = distance_transform_edt(np.pad(outside, reach[:, None], "wrap"), steps, False, True)
    own = tuple(slice(far, far + size) for far, size in zip(reach, grain.shape))
    return np.asarray(grain[tuple((x[own] - far) % size for x, far, size in zip(nearest, reach, grain.shape))])


def mean_orientations(turns: ndarray, grain: Int[ndarray, " points"], laue: str) -> tuple[ndarray, ndarray]:
    """Return each grain's mean orientation, and its spread in degrees.

    Points are first turned into the equivalents nearest to the mean, which begins as a point and is improved twice.
    """
    group, mean = rotations_of(laue), turns[np.unique(grain, return_index=True)[1]]
    for _ in range(3):
        aligned = product(group[nearest(product(turns, mean[grain] * INVERSE), group)[0]] * INVERSE, turns)
        aligned *= np.where((aligned * mean[grain]).sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
        total = np.stack([np.bincount(grain, weights=column) for column in aligned.T], axis=1)
        mean = total / np.linalg.norm(total, axis=1, keepdims=True)
    angles = np.degrees(2 * np.arccos(np.minimum((aligned * mean[grain]).sum(axis=1), 1.0)))
    return mean, np.bincount(grain, weights=angles) / np.bincount(grain)


def orientation_features(turns: Float[ndarray, "grains 4"], laue: str) -> Float[ndarray, "grains 30"]:
    """Return numbers that are equal for equivalent orientations and continuous in them.

    They are the products of four components, in the sample's frame, of the crystal's axes z and x: means over equivalents.
    """
    from scipy.spatial.transform import Rotation

    total, group = np.zeros((len(turns), 2 * len(_MONOMIALS))), rotations_of(laue)
    for rotation in group:
        frames = Rotation.from_quat(np.roll(product(rotation, turns), -1, axis=1)).as_matrix()
        total += np.stack([frames[:, axis, places].prod(axis=1) for axis in (2, 0) for places in _MONOMIALS], axis=1)
    return total / len(group)


def with_orientations(graph: GraphBatch, turns: ndarray, phase: ndarray, laue: Mapping[int, str]) -> GraphBatch:
    """Return grains with orientations of the smallest angle, and misorientations."""
    values = {one.name: np.empty((graph.num_items(one.on), *one.shape), dtype=one.dtype) for one in FIELDS}
    zone, features, misorientation, character = values.values()
    one, other = graph.receivers.numpy(), graph.senders.numpy()
    for number, group in laue.items():
        rows, rotations = phase == number, rotations_of(group)
        own = product(rotations[nearest(turns[rows], rotations)[0]] * INVERSE, turns[rows])
        zone[rows], features[rows] = own * np.where(own[:, :1] < 0, -1, 1), orientation_features(own, group)
        for second, second_group in laue.items():
            edges = np.flatnonzero(rows[one] & (phase[other] == second))
            ends = turns[one[edges]], turns[other[edges]]
            misorientation[edges] = angle = disorientation(*ends, group, second_group)
            character[edges] = (angle > LOW_ANGLE) if number == second else 3
            if number == second and group == "m-3m":
                twins = product(product(rotations, _TWIN)[:, None], rotations).reshape(-1, 4)
                deviation = nearest(product(ends[1], ends[0] * INVERSE), twins)[1]
                character[edges[deviation <= LOW_ANGLE / np.sqrt(3)]] = 2
    return graph.with_fields({name: torch.from_numpy(one) for name, one in values.items()}, fields=FIELDS)


def with_means(
    graph: GraphBatch, turns: ndarray, owner: ndarray, phase: ndarray, laue: Mapping[int, str]
) -> GraphBatch:
    """Return grains with means and spreads of their points' orientations."""
    means, spread = np.empty((len(phase), 4)), np.empty(len(phase), dtype=np.float32)
    for number, group in laue.items():
        grains, rows = np.flatnonzero(phase == number), phase[owner] == number
        means[grains], spread[grains] = mean_orientations(turns[rows], np.searchsorted(grains, owner[rows]), group)
    graph = with_orientations(graph, means, phase, laue)
    return graph.with_fields({SPREAD.name: torch.from_numpy(spread)}, fields=[SPREAD])
