"""Operations and bytes of the steps of a run."""

from collections import Counter as Sums
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from hydragnn.base.clock import Clock
from hydragnn.datasets.packing import NODE_COST
from hydragnn.kernels.counting import Counter
from hydragnn.training.data import Share

NOTHING = nullcontext()
"""Block of a step that is not counted."""


class StepWork:
    """Operations and bytes of this rank's steps.

    The first step of each branch is counted as it is done, and stands for others by their edges and nodes: by those of the
    steps that the clock divides, since to look at every batch costs small models a third of a percent.
    """

    def __init__(self) -> None:
        self.rates: dict[int, tuple[float, float]] = {}
        self.costs, self.seen = Sums[int](), 0

    def counting(self, share: Share) -> AbstractContextManager[object]:
        """Return a block that counts the step of a share."""
        branch = share.branch
        if branch in self.rates and not Clock.running.divides:
            return NOTHING
        cost = sum([part.num_edges + NODE_COST * part.num_nodes for part in share.parts])
        self.costs[branch] += cost
        self.seen += 1
        known = branch in self.rates or not cost  # peers have the graphs
        return NOTHING if known else self._first(branch, cost)

    @contextmanager
    def _first(self, branch: int, cost: int) -> Iterator[None]:
        with Counter() as counter:
            yield
        flops, moved = counter.totals
        self.rates[branch] = flops / cost, moved / cost

    @property
    def totals(self) -> list[float]:
        """Return operations and bytes of all steps; NaN where unknown."""
        scale = Clock.running.steps / max(1, self.seen)
        return [sum((scale * self.costs[branch] * one[n] for branch, one in self.rates.items()), 0.0) for n in (0, 1)]
