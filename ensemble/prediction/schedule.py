"""Tasks of a prediction, the same on all ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

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
    ranks: int

    @property
    def units(self) -> int:
        """Return the number of units."""
        return int(self.every.sum())

    @property
    def resumed(self) -> int:
        """Return the number of units that were finished at the beginning."""
        return int((self.every & self.finished).sum())

    @property
    def plan(self) -> dict[str, int]:
        """Return units that are left, tasks, ranks and their threads."""
        own = {"units": self.units - self.resumed, "tasks": len(self.tasks)}
        return {**own, "ranks": self.ranks, "threads": torch.get_num_threads()}


def make_schedule(loads: Float[np.ndarray, " chunks"], every: Marks, finished: Marks, *, ranks: int) -> Schedule:
    """Return the schedule of all batches that are not ``finished``."""
    tasks = tasks_of(loads * (every & ~finished), ~finished, ranks)
    return Schedule(every=every, finished=finished, tasks=tuple(tasks), ranks=ranks)


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
