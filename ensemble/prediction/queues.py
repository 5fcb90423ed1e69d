"""The shared queue of an ensemble's work: every position is given out once, in order.

What is counted (an MPI window, a number in this process, a number on a simulated clock) is a ``Counter``; how ranks count
together is the same for all of them.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Costs = Sequence[float] | NDArray[np.float64]

BLOCKS, LOOK, PIECES, LANES = 0, 1, 2, 3
"""The first numbers of queues: for structures to be built, for parts to be looked at, for pieces of the file, for stages of the lanes."""

RELAY = 64
"""Ranks that share a relay, a counter of their own, once there are too many for one."""

MANY = 256
"""More ranks than these do not all count at the root."""

SHARE = 8
"""A block is this part of a relay's share of what is left; smaller ones ask the root more often."""

LEAST = 4
"""Positions that make a block: the ranks of a relay wait while one of them fetches it. What would be less is given out singly."""

_HALF = 1 << 32
_SINGLY = -(1 << 61)
"""What a relay holds when its ranks are to ask the root themselves; negative, however often it is counted up."""
_DONE = -(1 << 62)
"""The same when the root has nothing left; less than the other, however often it is counted up."""


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


class RelayQueue:
    """Ranks count at their relay, and a relay that has run dry takes a block of positions from the root.

    A relay holds the next position and the end of its block in one number, so that one addition both
    takes a position and says whether it is still inside. The rank that finds itself exactly at the end fetches the next
    block; those behind it look again. Towards the end, when a block would hold fewer than ``LEAST`` positions, ranks ask
    the root themselves, so that none waits for another's request: once for every other rank, or so.
    """

    def __init__(
        self,
        costs: Costs,
        root: Counter,
        relay: Counter,
        relays: int,
        pause: Callable[[], None] = lambda: time.sleep(1e-4),
    ) -> None:
        """``root`` counts blocks; ``relay`` is the counter of this rank, one of ``relays``."""
        self._blocks = blocks(costs, relays)
        self._singles = _first_of_singles(self._blocks)
        self._root, self._relay, self._pause = root, relay, pause

    def take(self) -> int | None:
        """The next position that nobody has."""
        while True:
            state = self._relay.add(1)
            if state < _SINGLY:
                return None
            if state < 0:
                return self._single()
            end, position = divmod(state, _HALF)
            if position < end:
                return position
            if position == end:
                return self._refill()
            self._pause()

    def _single(self) -> int | None:
        """The next position of the root, whose blocks have all been given out."""
        number = self._root.add(1)
        if number < len(self._blocks):
            return self._blocks[number][0]
        self._relay.put(_DONE)
        return None

    def _refill(self) -> int | None:
        """The first position of the root's next block, the rest of which is the relay's."""
        number = self._root.add(1)
        if number >= len(self._blocks):
            self._relay.put(_DONE)
            return None
        start, end = self._blocks[number]
        self._relay.put(_SINGLY if number >= self._singles else end * _HALF + start + 1)
        return start


def blocks(costs: Costs, relays: int) -> list[tuple[int, int]]:
    """Positions in blocks that shrink towards the end: an eighth of the relay's share of what is left; one at least.

    After the last block of ``LEAST`` positions all are single.

    >>> blocks([1.0] * 40, relays=1)[:4]
    [(0, 5), (5, 9), (9, 10), (10, 11)]
    """
    edges, left, inside = [0], float(np.sum(costs)), 0.0
    for position, cost in enumerate(np.asarray(costs).tolist()):
        if position > edges[-1] and inside + cost > left / (SHARE * relays):
            edges.append(position)
            left, inside = left - inside, 0.0
        inside += cost
    shrinking = list(pairwise([*edges, len(costs)])) if len(costs) else []
    shared = max((number + 1 for number, (start, end) in enumerate(shrinking) if end - start >= LEAST), default=0)
    rest = range(shrinking[shared - 1][1] if shared else 0, len(costs))
    return [*shrinking[:shared], *((position, position + 1) for position in rest)]


def _first_of_singles(all_blocks: Sequence[tuple[int, int]]) -> int:
    """The number of the first block behind which, itself included, all are single."""
    return max((number + 1 for number, (start, end) in enumerate(all_blocks) if end - start > 1), default=0)


def queue_for(costs: Costs, size: int, root: Counter, relay: Counter) -> Queue:
    """The queue for so many ranks."""
    if size <= MANY:
        return FlatQueue(len(costs), root)
    return RelayQueue(costs, root, relay, relays=-(-size // RELAY))
