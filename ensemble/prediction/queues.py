"""The shared queue of an ensemble's work: every position is given out once, in order.

What is counted (an MPI window, a number in this process, a number on a simulated clock) is a ``Counter``; how ranks count
together is the same for all of them.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

GROUP = 64
"""Ranks that share a counter of their own once there are too many for one."""

MANY = 256
"""More ranks than these do not all count at the root."""

SHARE = 8
"""A block is this part of a group's share of what is left; smaller ones ask the root more often."""

_HALF = 1 << 32
_DONE = -(1 << 62)
"""What a group's counter holds when the root has nothing left; negative, however often it is counted up."""


@runtime_checkable
class Queue(Protocol):
    """Positions of a list of work that ranks share."""

    def take(self) -> int | None:
        """The next position that nobody has; None when all are taken."""


@runtime_checkable
class Counter(Protocol):
    """A number that any rank can count up at once."""

    def add(self, amount: int) -> int:
        """Count up; gives the number from before."""

    def put(self, value: int) -> None:
        """Replace the number."""


class LocalCounter:
    """A number in this process."""

    def __init__(self) -> None:
        """Begins at zero."""
        self.value = 0

    def add(self, amount: int) -> int:
        """Count up; gives the number from before."""
        before, self.value = self.value, self.value + amount
        return before

    def put(self, value: int) -> None:
        """Replace the number."""
        self.value = value


class FlatQueue:
    """All ranks count at one place."""

    def __init__(self, count: int, root: Counter) -> None:
        """``count`` positions, given out by ``root``."""
        self._count, self._root = count, root

    def take(self) -> int | None:
        """The next position that nobody has."""
        position = self._root.add(1)
        return position if position < self._count else None


class GroupedQueue:
    """Ranks count within their group, and a group that has run dry takes a block of positions from the root.

    A group's counter holds the next position and the end of the group's block in one number, so that one addition both
    takes a position and says whether it is still inside. The rank that finds itself exactly at the end fetches the next
    block; those behind it look again.
    """

    def __init__(
        self,
        costs: Sequence[float],
        root: Counter,
        group: Counter,
        groups: int,
        pause: Callable[[], None] = lambda: time.sleep(1e-4),
    ) -> None:
        """``root`` counts blocks; ``group`` is the counter of this rank's group of ``groups``."""
        self._blocks = blocks(costs, groups)
        self._root, self._group, self._pause = root, group, pause

    def take(self) -> int | None:
        """The next position that nobody has."""
        while True:
            found = self._group.add(1)
            if found < 0:
                return None
            end, position = divmod(found, _HALF)
            if position < end:
                return position
            if position == end:
                self._refill()
            else:
                self._pause()

    def _refill(self) -> None:
        number = self._root.add(1)
        if number < len(self._blocks):
            start, end = self._blocks[number]
            self._group.put(end * _HALF + start)
        else:
            self._group.put(_DONE)


def blocks(costs: Sequence[float], groups: int) -> list[tuple[int, int]]:
    """Positions in blocks that shrink towards the end: an eighth of the group's share of what is left; one at least.

    >>> blocks([3.0] + [1.0] * 21, groups=1)[:5]
    [(0, 1), (1, 3), (3, 5), (5, 7), (7, 8)]
    """
    edges, left, inside = [0], sum(costs), 0.0
    for position, cost in enumerate(costs):
        if position > edges[-1] and inside + cost > left / (SHARE * groups):
            edges.append(position)
            left, inside = left - inside, 0.0
        inside += cost
    return list(pairwise([*edges, len(costs)])) if costs else []


def queue_for(costs: Sequence[float], size: int, root: Counter, group: Counter) -> Queue:
    """The queue for so many ranks."""
    if size <= MANY:
        return FlatQueue(len(costs), root)
    return GroupedQueue(costs, root, group, groups=-(-size // GROUP))
