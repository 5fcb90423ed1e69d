"""Operations and bytes of the steps of a run."""

from collections import Counter as Sums
from collections.abc import Iterator
from contextlib import contextmanager

from hydragnn.datasets.packing import NODE_COST
from hydragnn.kernels.counting import Counter
from hydragnn.training.data import Share


class StepWork:
    """Operations and bytes of this rank's steps.

    The first step of each branch is counted as it is done, and stands for others by their edges and nodes.
    """

    def __init__(self) -> None:
        self.rates: dict[int, tuple[float, float]] = {}
        self.costs = Sums[int]()

    @contextmanager
    def counting(self, share: Share) -> Iterator[None]:
        """Count the step of a share in the block."""
        cost = sum(part.num_edges + NODE_COST * part.num_nodes for part in share.parts)
        if share.branch in self.rates or not cost:  # peers have the graphs
            yield
        else:
            with Counter() as counter:
                yield
            flops, moved = counter.totals
            self.rates[share.branch] = flops / cost, moved / cost
        self.costs[share.branch] += cost

    @property
    def totals(self) -> list[float]:
        """Return operations and bytes of all steps; NaN where unknown."""
        return [sum((self.costs[branch] * one[n] for branch, one in self.rates.items()), 0.0) for n in (0, 1)]
