"""Durations by number of slots, and sizes that end together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

STEPS = 50  # halvings of the interval in which the common ending is sought; more than a float can tell apart


class Mean(Struct, frozen=True):
    """A running mean."""

    count: int = 0
    value: float = 0.0

    def with_value(self, value: float) -> "Mean":
        """The mean with one more value.

        >>> Mean().with_value(1.0).with_value(3.0)
        Mean(count=2, value=2.0)
        """
        return Mean(self.count + 1, self.value + (value - self.value) / (self.count + 1))


@dataclass(frozen=True, slots=True)
class Load:
    """Remaining seconds on one slot, and the scaling."""

    seconds: float
    scaling: float | None = None

    def on(self, slots: int) -> float:
        """Seconds on so many slots.

        >>> Load(100.0).on(4), Load(100.0, scaling=8.0).on(9)
        (25.0, 22.22222222222222)
        """
        return self.seconds / slots * loss(slots, self.scaling)


def loss(slots: int, scaling: float | None) -> float:
    """Return the slowdown against full efficiency on several slots.

    >>> loss(16, None), loss(1, 8.0), loss(9, 8.0)
    (1.0, 1.0, 2.0)
    """
    return 1.0 if scaling is None else 1.0 + (slots - 1) / scaling


def fewest_slots(load: Load, seconds: float, least: int, most: int) -> int:
    """Return the fewest slots that do the work in time; ``most`` where none does.

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
    """Return the smallest time in which all loads can end.

    Infinite where they do not fit at once.

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
