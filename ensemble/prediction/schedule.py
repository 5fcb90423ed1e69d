"""Tasks of a prediction, the same on all ranks, and their completion."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from hydragnn.distributed.group import Group
from hydragnn.ensemble.members.plan import certificate

SHARE = 8
"""A task is at most this part of a rank's share of the work that is left."""

LONGEST_TASK = 256
"""Batches of a task at most."""

LATE = 2.0
"""Work is done again by an idle rank when it takes this many times as long as expected."""

AT_LEAST = 2.0
"""Seconds that work may take whatever was expected."""

HELPERS = 16
"""Ranks that look for late work; more of them would only crowd the file system."""

HESITATION = 60.0
"""Seconds after which others do what the first living rank should have begun."""

LOOKS = 15.0
"""Looks at shared folders per second, of all helpers together, and of all others."""

PAUSES = 0.002, 0.5
"""Seconds between two questions to the store, at least and at most, for a rank that waits."""

QUESTIONS = 2000
"""Questions to the store per second, of all ranks together, at most."""

PART_OF_WAIT = 0.125
"""Part of the time waited so far after which a rank asks again."""

Marks = Bool[np.ndarray, " chunks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionTask:
    """Consecutive batches that one rank predicts with all members."""

    first: int
    stop: int
    cost: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """A task that was taken and is not finished."""

    number: int
    claim: str
    """Its position in a queue."""
    seconds: float
    """Expected time."""


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


def finish_together(
    group: Group,
    name: str,
    missing: Callable[[], Iterable[Late]],
    do: Callable[[int], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Return when nothing is missing; ``check`` is called all the while.

    Work of a dead rank is done again at once. Work that takes ``LATE`` times as long as expected is done again by one idle rank, and
    after the same time by another; all of them write the same bits. A few ranks look for missing work. One that finds none, or
    the last rank with empty queues, signals the end to all.
    """
    idle_since, turn = time.monotonic(), Turn(group)
    if group.is_last_at(name):
        group.signal(name)
    while not group.is_signalled(name):
        check()
        if turn.is_due():
            waited, nothing, work = time.monotonic() - idle_since, True, None
            for one in missing():
                nothing = False
                if _is_ours(group, name, one, waited):
                    work = one
                    break
            if nothing:
                group.signal(name)
                return
            if work is not None:
                do(work.number)
                continue
        rest(group, time.monotonic() - idle_since)


def once(
    group: Group,
    name: str,
    is_finished: Callable[[], bool],
    do: Callable[[], None],
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Let one rank do something; return True where this rank did.

    ``check`` is called all the while. The first living rank does it. Where it has not begun after ``HESITATION`` seconds, another one does; a rank that has begun is
    waited for.
    """
    idle_since, turn = time.monotonic(), Turn(group)
    while not group.is_signalled(name):
        check()
        if turn.is_due():
            if is_finished():
                return False
            first = all(group.gone(rank) for rank in range(group.rank))
            if (first or time.monotonic() - idle_since > HESITATION) and _begins(group, name):
                do()
                group.signal(name)
                return True
        rest(group, time.monotonic() - idle_since)
    return False


class Turn:
    """Times at which a rank looks into the folder, helpers often."""

    def __init__(self, group: Group) -> None:
        is_helper = group.rank % max(1, -(-group.size // HELPERS)) == 0
        self._every = min(group.size, HELPERS) / LOOKS if is_helper else max(HESITATION, group.size / LOOKS)
        self._next = time.monotonic() + (0.0 if is_helper else self._every)

    def is_due(self) -> bool:
        """Return True where this rank is to look now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every
        return True


def rest(group: Group, waited: float) -> None:
    """Wait a little more, in proportion to the time waited."""
    time.sleep(min(max(PART_OF_WAIT * waited, PAUSES[0]), max(PAUSES[1], group.size / QUESTIONS)))


def _is_ours(group: Group, name: str, work: Late, waited: float) -> bool:
    owner = group.owner(work.claim)
    if owner is not None and owner != group.rank and group.gone(owner):
        return group.first_to(f"{name}-{work.number}-after-{owner}")
    times = int(waited / max(AT_LEAST, LATE * work.seconds))
    return times > 0 and group.first_to(f"{name}-{work.number}-again-{times}")


def _begins(group: Group, name: str) -> bool:
    """Return True where this rank claims it, first or after a death."""
    claim = name
    while not group.first_to(claim):
        owner = group.owner(claim)
        if owner is None or not group.gone(owner):
            return False
        claim = f"{name}-after-{owner}"
    return True
