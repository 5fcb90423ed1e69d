"""Blocks of weights, whose gradients are summed during the backward pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

BYTES = 4 * 2**20
"""Least size of a block: smaller sums take as long as their latency."""
Wait = Callable[[], object]
"""Waits for what was begun; on a GPU only work that is queued there later does."""


@runtime_checkable
class VectorPeers(Protocol):
    """Ranks that share a vector and begin operations in one order."""

    @property
    def number(self) -> int:
        """Return the position of this rank among them."""

    @property
    def count(self) -> int:
        """Return how many they are."""

    def begin_sum(self, values: Tensor) -> Wait:
        """Start the sum of a tensor over the ranks, in place."""

    def begin_scatter(self, values: Tensor, own: Tensor) -> Wait:
        """Start the sum of ``values``; ``own`` receives this rank's share.

        The others' shares of ``values`` are no longer what they were.
        """

    def begin_gather(self, values: Tensor, own: Tensor) -> Wait:
        """Start to put every rank's ``own`` into its share of ``values``."""


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Consecutive parameters that travel between ranks at once."""

    first: int
    last: int
    """Number after that of the last one."""
    start: int
    end: int
    """Positions in a vector; zeros at the end make the length divisible."""

    def share(self, number: int, count: int) -> slice:
        """Return the positions of one of ``count`` equal shares."""
        length = (self.end - self.start) // count
        return slice(self.start + number * length, self.start + (number + 1) * length)


def blocks_of(sizes: Sequence[int], least: float, unit: int, shares: int) -> tuple[list[ParameterBlock], list[int]]:
    """Return blocks in the order of parameters, and every parameter's position.

    Blocks have ``least`` numbers or more and the last one begins first, as gradients do; parameters begin at multiples of ``unit``,
    blocks divide into ``shares`` of such multiples.

    >>> blocks_of([3, 8, 2], least=8.0, unit=4, shares=1)
    ([ParameterBlock(first=0, last=1, start=0, end=4), ParameterBlock(first=1, last=3, start=4, end=16)], [0, 4, 12])
    """
    bounds, aligned = [len(sizes)], 0
    for number in reversed(range(len(sizes))):
        aligned += -(-sizes[number] // unit) * unit
        if aligned >= least or number == 0:
            bounds.append(number)
            aligned = 0
    blocks: list[ParameterBlock] = []
    positions: list[int] = []
    position = 0
    for first, last in zip(bounds[:0:-1], bounds[-2::-1]):
        start = position
        for number in range(first, last):
            positions.append(position)
            position += -(-sizes[number] // unit) * unit
        position = start - (start - position) // (unit * shares) * unit * shares
        blocks.append(ParameterBlock(first, last, start, position))
    return blocks, positions


class Buckets:
    """Begins the sum of each block when its gradient is complete.

    The last block comes first, as its gradient does. All ranks sum blocks in one order, whatever their batches: a block
    begins once it is complete and all before it have begun.
    """

    def __init__(self, leaves: Sequence[Sequence[nn.Parameter]], begin: Callable[[int], Wait]) -> None:
        self.begin = begin
        self.order = list(reversed(range(len(leaves))))
        self.members = [sum(leaf.requires_grad for leaf in block) for block in leaves]  # others are frozen
        for number, block in enumerate(leaves):
            for leaf in block:
                if leaf.requires_grad:
                    leaf.register_post_accumulate_grad_hook(partial(self._add, number))
        self._reset()

    def _reset(self) -> None:
        self.missing, self.waits, self.active = list(self.members), list[Wait](), False

    def expect(self) -> None:
        """Sum the gradient that the next backward pass completes."""
        self._reset()
        self.active = True

    def _add(self, number: int, _: Tensor) -> None:
        """Note that the gradient of one more leaf is complete."""
        if self.active:
            self.missing[number] -= 1
            while len(self.waits) < len(self.order) and self.missing[self.order[len(self.waits)]] == 0:
                self.waits.append(self.begin(self.order[len(self.waits)]))

    def finish(self) -> None:
        """Begin all other sums, and wait for every one."""
        while len(self.waits) < len(self.order):
            self.waits.append(self.begin(self.order[len(self.waits)]))
        for wait in self.waits:
            wait()
        self._reset()
