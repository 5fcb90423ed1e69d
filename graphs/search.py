"""Search of all pairs within a cutoff."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from hydragnn.base.errors import InputError

Pairs = tuple[Int[ndarray, " edges"], Int[ndarray, " edges"], Int[ndarray, "edges 3"], Float[ndarray, " edges"]]
FARTHEST = 1e7  # cutoffs from the origin; farther away a coordinate has too few digits to tell who is near
MOST_IMAGES = 1e7
"""Periodic images of a cell that reach into it; more only where a cell is nearly flat, and the search has no end."""
BOXES = 5e4
"""Vesin 0.6 makes at most twice as many; where more are needed it makes fewer along each axis in proportion, maybe none along a short one."""


def pairs_within(
    positions: Float[ndarray, "nodes 3"], cell: Float[ndarray, "3 3"], periodic: Any, cutoff: float, name: str
) -> Pairs:
    """Return firsts, seconds, shifts and lengths of ordered pairs within ``cutoff``.

    InputError where positions are too far away to tell, or a cell is so flat that its images have no end.
    """
    # small cutoffs, of points in metres, are refused; a power of two changes no bit of what is compared
    scale = 1.0 if 0.1 <= cutoff <= 1e3 else float(2.0 ** -np.round(np.log2(cutoff)))
    places, vectors, reach = positions * scale, cell * scale, float(cutoff) * scale
    search = _by_vesin if is_compact(places, vectors, periodic, reach, name) else _by_tree
    first, second, shifts, lengths = search(places, vectors, np.asarray(periodic, dtype=bool), reach)
    return first, second, shifts, lengths / scale


def is_compact(
    places: Float[ndarray, "nodes 3"], cell: Float[ndarray, "3 3"], periodic: Any, reach: float, name: str
) -> bool:
    """Return True where vesin needs few boxes; InputError as ``pairs_within``."""
    far = ~(np.abs(places).max(axis=1) <= FARTHEST * reach)  # so that NaN is far, too
    if far.any():
        node = int(far.argmax())
        raise InputError(
            f"{name}: node {node} lies {np.abs(places[node]).max() / reach:.2g} cutoffs from the origin, where coordinates do "
            "not tell who is near; remove the structure or wrap its positions"
        )
    inverse = np.linalg.inv(cell)
    heights = 1 / np.sqrt(np.square(inverse).sum(axis=0))  # between opposite faces of the cell
    images = np.where(periodic, np.ceil(reach / heights), 0)  # on either side, along each axis
    if (2 * images + 1).prod() > MOST_IMAGES:
        raise InputError(
            f"{name}: the cell is so flat that {(2 * images + 1).prod():.2g} of its images are near; give the same lattice by "
            "shorter vectors (ase.build.niggli_reduce), or a smaller cutoff"
        )
    along = np.where(periodic, heights, np.ptp(places @ inverse, axis=0) * heights)
    boxes = np.maximum(1, along / reach)
    lengthy = boxes.prod() > BOXES and boxes.min() ** 3 * BOXES < 4 * boxes.prod()
    return not (lengthy or boxes.prod() > 1000 + 50 * len(places))


def edge_order(
    receivers: Int[ndarray, " edges"], senders: Int[ndarray, " edges"], shifts: Int[ndarray, "edges 3"], nodes: int
) -> Int[ndarray, " edges"]:
    """Return the order of edges by receiver, sender and shift."""
    least, most = (int(shifts.min()), int(shifts.max())) if len(shifts) else (0, 0)
    width = most - least + 1
    if nodes**2 * width**3 >= 2**63:
        return np.lexsort((*shifts.T, senders, receivers))
    key = receivers * nodes + senders
    for axis in (2, 1, 0):
        key = key * width + (shifts[:, axis] - least)
    return np.argsort(key, kind="stable")


def completed_cell(cell: Float[ndarray, "3 3"], periodic: Any, name: str) -> Float[ndarray, "3 3"]:
    """Return the cell completed by unit vectors; InputError without periodic ones."""
    from ase.geometry import complete_cell

    if not periodic.any():
        return np.eye(3)
    if periodic.all() and spans_volume(cell.tolist()):
        return cell
    lacking = periodic & ~cell.any(axis=1)
    if lacking.any():
        axis = "abc"[int(lacking.argmax())]
        raise InputError(f"{name}: periodic along {axis} but the cell has no vector there; set the cell or pbc=False")
    completed = np.asarray(complete_cell(cell), dtype=np.float64)
    lengths = np.linalg.norm(completed, axis=1)
    if not np.isfinite(completed).all() or abs(np.linalg.det(completed / lengths[:, None])) < 1e-8:
        raise InputError(f"{name}: the cell is singular; give independent cell vectors")
    return completed


def spans_volume(rows: list[list[float]]) -> bool:
    """Return True where three vectors clearly span a volume."""
    (a, b, c), (d, e, f), (g, h, i) = rows
    volume = abs(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g))
    return volume > 1e-3 * math.prod(math.hypot(*row) for row in rows)  # the product of three values of at most 3 ** .5


def _by_vesin(places: ndarray, vectors: ndarray, periodic: ndarray, reach: float) -> Pairs:
    from vesin import NeighborList

    engine = NeighborList(cutoff=reach, full_list=True, n_threads=1)
    first, second, shifts, lengths = engine.compute(
        places, vectors, periodic, "ijSd", copy=False
    )  # views of the engine
    return first.astype(np.int64), second.astype(np.int64), shifts.astype(np.int64), lengths.copy()


def _by_tree(places: ndarray, vectors: ndarray, periodic: ndarray, reach: float) -> Pairs:
    """All images that reach into the cell as points of a tree."""
    from scipy.spatial import KDTree

    inverse = np.linalg.inv(vectors)
    margin = reach * np.sqrt(np.square(inverse).sum(axis=0)) + 1e-9  # in cell vectors
    turns = np.where(periodic, np.floor(places @ inverse), 0).astype(np.int64)  # [nodes, 3]
    inside = places - turns @ vectors
    node, fractions, shifts = np.arange(len(places)), inside @ inverse, np.zeros((len(places), 3), dtype=np.int64)
    for axis in np.flatnonzero(periodic):
        steps = np.arange(-np.ceil(margin[axis]), np.ceil(margin[axis]) + 1, dtype=np.int64)
        moved = fractions[:, axis, None] + steps
        image, step = np.nonzero((moved >= -margin[axis]) & (moved <= 1 + margin[axis]))
        node, fractions, shifts = node[image], fractions[image], shifts[image]
        fractions[:, axis] += steps[step]
        shifts[:, axis] += steps[step]
    images = KDTree(inside[node] + shifts @ vectors)
    pairs = KDTree(inside).sparse_distance_matrix(images, reach, output_type="ndarray")
    first, image = pairs["i"], pairs["j"]
    distinct = (first != node[image]) | shifts[image].any(axis=1)
    first, image, lengths = first[distinct], image[distinct], pairs["v"][distinct]
    second = node[image]
    return first.astype(np.int64), second, shifts[image] - turns[second] + turns[first], lengths
