"""Order of points by several objectives: fronts and spread.

All objectives are minimised. Points within all bounds come before others, as constrained domination has it; among them decide the
front, then the distance to neighbours, which is infinite at the ends of a front (Deb et al. 2002, doi:10.1109/4235.996017).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bounds = tuple[float | None, ...]
"""Largest value of every objective that is allowed; None without a bound."""

Values = Sequence[float]


def violation(values: Values, bounds: Bounds) -> float:
    """Return by how much values exceed their bounds, in shares of these.

    >>> violation((3.0, 1.0), (2.0, None))
    0.5
    """
    over = (0.0 if bound is None else max(0.0, one - bound) / (abs(bound) or 1.0) for one, bound in zip(values, bounds))
    return sum(over, 0.0)


def front_numbers(points: Sequence[Values]) -> list[int]:
    """Return the front of every point; 0 for those that none dominates.

    >>> front_numbers([(1.0, 2.0), (2.0, 1.0), (2.0, 3.0)])
    [0, 0, 1]
    """
    fronts: list[list[Values]] = []
    numbers = [0] * len(points)
    for index in sorted(range(len(points)), key=lambda one: tuple(points[one])):
        point, low, high = points[index], 0, len(fronts)
        while low < high:  # the first front without a point that dominates it
            middle = (low + high) // 2
            low, high = (middle + 1, high) if _is_dominated(point, fronts[middle]) else (low, middle)
        if low == len(fronts):
            fronts.append([])
        fronts[low].append(point)
        numbers[index] = low
    return numbers


def _is_dominated(point: Values, front: Sequence[Values]) -> bool:
    """Return True where a point of a front, added in order, dominates."""
    if len(point) == 2:  # the second objective falls along a front
        return front[-1][1] <= point[1] and tuple(front[-1]) != tuple(point)
    others = np.asarray(front)
    return bool(((others <= point).all(1) & (others < point).any(1)).any())


def distances(points: ArrayLike) -> NDArray[np.float64]:
    """Return each point's distance to its neighbours; infinite at the front's ends."""
    rows = np.asarray(points, dtype=float)
    sums = np.zeros(len(rows))
    for column in rows.T:
        order = np.argsort(column, kind="stable")
        width = column[order[-1]] - column[order[0]]
        if width > 0:
            gaps = column[order][2:] - column[order][:-2]
            sums[order[1:-1]] += gaps / width
            sums[order[[0, -1]]] = math.inf
    return sums


def ranked(points: Sequence[Values], bounds: Bounds) -> list[int]:
    """Return the points by index, the best first.

    Of equal ones, that with the lower first objective.

    >>> ranked([(1.0, 9.0), (2.0, 2.0), (9.0, 1.0), (3.0, 3.0)], (None, None))
    [0, 2, 1, 3]
    """
    excess = [violation(point, bounds) for point in points]
    within = [index for index, one in enumerate(excess) if one == 0]
    numbers = front_numbers([points[index] for index in within])
    keys: dict[int, tuple[float, float]] = {}
    for number in set(numbers):
        front = [index for index, own in zip(within, numbers) if own == number]
        far = distances([points[index] for index in front])
        keys |= {index: (float(number), -float(distance)) for index, distance in zip(front, far)}
    return sorted(
        range(len(points)), key=lambda one: (excess[one], *keys.get(one, (0.0, 0.0)), tuple(points[one]), one)
    )


def places(points: Sequence[Values], bounds: Bounds) -> list[float]:
    """Return the place of every point, 0 for the best."""
    return [float(place) for place in np.argsort(ranked(points, bounds))]


def front_of(points: Sequence[Values], bounds: Bounds) -> list[int]:
    """Return the points within bounds that none dominates, by the first objective."""
    within = [index for index, point in enumerate(points) if violation(point, bounds) == 0]
    numbers = dict(zip(within, front_numbers([points[index] for index in within])))
    return sorted((one for one in within if not numbers[one]), key=lambda one: tuple(points[one]))


def hypervolume(points: Sequence[Values], reference: Values) -> float:
    """Return the volume between points and a reference that they dominate.

    >>> hypervolume([(1.0, 2.0), (2.0, 1.0)], (3.0, 3.0))
    3.0
    """
    return float(gains(points, reference).sum())


def gains(points: ArrayLike | Sequence[Values], reference: Values | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the hypervolume that each point adds to those before it.

    Its own box, without the boxes of the others cut to it (While et al. 2012, doi:10.1109/TEVC.2010.2077298).
    """
    end = np.asarray(reference, dtype=float)
    rows = np.minimum(np.reshape(points, (-1, len(end))), end)
    if len(end) == 1:
        return -np.diff(np.minimum.accumulate(rows[:, 0]), prepend=end)
    volumes = (end - rows).prod(1)
    for count, row in enumerate(rows):
        cut = np.unique(np.maximum(row, rows[:count]), axis=0)  # in the order of their first objective
        cut = cut[(cut[:, None] >= cut).all(2).sum(1) == 1]
        volumes[count] -= (end[0] - cut[:, 0]) @ gains(cut[:, 1:], end[1:])
    return volumes


def knee(points: Sequence[Values]) -> int:
    """Return the point farthest below the line between a front's ends.

    Objectives are scaled to their range on the front; of more than two, the sum of all is smallest there.
    """
    rows = np.asarray(points, dtype=float)
    width = np.ptp(rows, axis=0)
    return int(np.argmin(((rows - rows.min(0)) / np.where(width > 0, width, 1.0)).sum(1)))
