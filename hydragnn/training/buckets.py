"""Gradients summed over ranks in buckets, while the backward pass goes on."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

BYTES = 4 * 2**20
"""Least size of a bucket: smaller sums take as long as their latency."""

Begin = Callable[[Tensor], Callable[[], object]]
"""Starts the sum of a tensor over all ranks, in place; returns a function that waits for it."""


class Buckets:
    """Consecutive weights whose gradients are summed at once.

    The last weights come first, as their gradients do. All ranks sum buckets in one order, whatever their batches: a bucket
    begins once it is complete and all before it have begun.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], starts: Sequence[int], total: int, begin: Begin) -> None:
        """Watch parameters that begin at ``starts`` of a vector of ``total`` numbers."""
        self.begin = begin
        self.ranges: list[tuple[int, int]] = []
        self.members: list[int] = []
        """Number of weights of every bucket."""
        end, count = total, 0
        for parameter, start in zip(reversed(parameters), reversed(starts)):
            if parameter.requires_grad:  # others are frozen
                count += 1
                parameter.register_post_accumulate_grad_hook(partial(self._add, len(self.ranges)))
            if (end - start) * parameter.element_size() >= BYTES or start == 0:
                self.ranges.append((start, end))
                self.members.append(count)
                end, count = start, 0
        self.gradient: Tensor | None = None
        self._reset()

    def _reset(self) -> None:
        self.missing, self.waits, self.active = list(self.members), list[Callable[[], object]](), False

    def expect(self, gradient: Tensor) -> None:
        """Sum the gradient that the next backward pass completes."""
        self._reset()
        self.gradient, self.active = gradient, True

    def _add(self, number: int, _: Tensor) -> None:
        """Note that the gradient of one more weight is complete."""
        if self.active:
            self.missing[number] -= 1
            while len(self.waits) < len(self.ranges) and self.missing[len(self.waits)] == 0:
                self._begin_next()

    def _begin_next(self) -> None:
        assert self.gradient is not None
        start, end = self.ranges[len(self.waits)]
        self.waits.append(self.begin(self.gradient[start:end]))

    def finish(self, gradient: Tensor) -> None:
        """Begin all other sums, and wait for every one."""
        self.gradient = gradient
        while len(self.waits) < len(self.ranges):
            self._begin_next()
        for wait in self.waits:
            wait()
        self._reset()
