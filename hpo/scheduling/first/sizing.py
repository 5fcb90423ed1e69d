"""How long work takes on so many slots, and how many slots every trial needs so that all end together."""

import math
from collections.abc import Sequence

import numpy as np

from hydragnn.hpo.scheduling.sizing import Load

STEPS = 50
"""Halvings of the interval in which the common ending is sought; more than a float can tell apart."""


def loss(slots: int, scaling: float | None) -> float:
    """By how much longer than at full efficiency work takes on so many slots.

    >>> loss(16, None), loss(1, 8.0), loss(9, 8.0)
    (1.0, 1.0, 2.0)
    """
    return 1.0 if scaling is None else 1.0 + (slots - 1) / scaling


def fewest_slots(load: Load, seconds: float, least: int, most: int) -> int:
    """The smallest number of slots from ``least`` to ``most`` that do the work in so many seconds; ``most`` where none does.

    Solves ``load / p * (1 + (p - 1) / scaling) <= seconds`` for p. Where more slots make nothing faster: ``least``.

    >>> fewest_slots(Load(100.0), 25.0, 1, 8), fewest_slots(Load(100.0), 1.0, 1, 8)
    (4, 8)
    >>> fewest_slots(Load(100.0, scaling=1.0), 1.0, 1, 8)
    1
    """
    floor = 0.0 if load.scaling is None else load.seconds / load.scaling
    if floor >= load.seconds:
        return least
    if seconds <= floor:
        return most
    return min(most, max(least, math.ceil((load.seconds - floor) / (seconds - floor) - 1e-9)))


def common_ending(loads: Sequence[Load], slots: int, least: int, most: int) -> float:
    """The smallest time in which all loads are done when each has its fewest slots for it; infinite where all at once do not fit.

    >>> round(common_ending([Load(300.0), Load(100.0)], 4, 1, 8), 6)
    100.0
    """
    if not loads or len(loads) * least > slots:
        return math.inf
    seconds = np.array([load.seconds for load in loads])
    floors = np.array([0.0 if load.scaling is None else load.seconds / load.scaling for load in loads])
    grows = floors < seconds
    gain = np.where(grows, seconds - floors, 0.0)
    low, high = 0.0, max(load.on(least) for load in loads)
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        rest = middle - floors
        sizes = np.where(rest > 0, np.ceil(gain / np.where(rest > 0, rest, 1.0) - 1e-9), float(most))
        sizes = np.where(grows, np.clip(sizes, least, most), least)
        low, high = (low, middle) if sizes.sum() <= slots else (middle, high)
    return high
