"""Tasks of a prediction, the same on all ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from hydragnn.ensemble.members.plan import certificate

SHARE = 8
"""A task is at most this part of a rank's share of the work that is left."""

LONGEST_TASK = 256
"""Batches of a task at most."""

Marks = Bool[np.ndarray, " chunks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionTask:
    """Consecutive batches that one rank predicts with all members."""

    first: int
    stop: int
    cost: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """All tasks of a prediction, in one queue."""

    every: Marks
    """The units of this prediction: every batch that can be predicted."""
    finished: Marks
    """The batches that an earlier sitting has finished."""
    tasks: tuple[PredictionTask, ...]
    costs: Float[np.ndarray, " chunks"]
    """Expected cost of every batch that is left."""
    ranks: int

    @property
    def units(self) -> int:
        """Return the number of units."""
        return int(self.every.sum())

    @property
    def resumed(self) -> int:
        """Return the number of units that were finished at the beginning."""
        return int((self.every & self.finished).sum())

    @cached_property
    def certificate(self) -> dict[str, Any]:
        """Return the quality of the plan by expected costs."""
        queue = np.array([task.cost for task in self.tasks])
        plan = certificate(self.costs[self.every & ~self.finished], queue, self.ranks)
        return {**plan, "tasks": len(queue), "threads": torch.get_num_threads()}


def make_schedule(loads: Float[np.ndarray, " chunks"], every: Marks, finished: Marks, *, ranks: int) -> Schedule:
    """Return the schedule of all batches that are not ``finished``."""
    costs = loads * (every & ~finished)
    return Schedule(
        every=every, finished=finished, tasks=tuple(tasks_of(costs, ~finished, ranks)), costs=costs, ranks=ranks
    )


def tasks_of(costs: Float[np.ndarray, " chunks"], is_open: Marks, ranks: int) -> Iterator[PredictionTask]:
    """Give large batches alone, the costliest first, then ever shorter runs.

    >>> costs, every = np.array([1.0, 1.0, 9.0, 1.0]), np.ones(4, dtype=np.bool_)
    >>> [(task.first, task.stop) for task in tasks_of(costs, every, ranks=1)]
    [(0, 4)]
    >>> [(task.first, task.stop) for task in tasks_of(costs, every, ranks=2)]
    [(2, 3), (0, 1), (1, 2), (3, 4)]
    """
    own = np.where(is_open, costs, 0.0)
    shares = SHARE * ranks if ranks > 1 else 1
    large = np.flatnonzero(is_open & (own > own.sum() / shares * (1 + 1e-9)))
    for chunk in sorted(large.tolist(), key=lambda chunk: -own[chunk]):
        yield PredictionTask(first=chunk, stop=chunk + 1, cost=float(own[chunk]))
    small = is_open.copy()
    small[large] = False
    reached = np.concatenate([[0.0], np.where(small, own, 0.0).cumsum()])
    for begin, end in runs_of(small):
        first = begin
        while first < end:
            goal = reached[first] + (reached[-1] - reached[first]) / shares
            stop = int(np.searchsorted(reached, goal * (1 + 1e-9), side="right")) - 1
            stop = min(max(stop, first + 1), end, first + LONGEST_TASK)
            yield PredictionTask(first=first, stop=stop, cost=float(reached[stop] - reached[first]))
            first = stop


def runs_of(marks: Marks) -> list[tuple[int, int]]:
    """Return first and stop of every run of marks.

    >>> runs_of(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8))).tolist()
    return list(zip(edges[::2], edges[1::2]))
