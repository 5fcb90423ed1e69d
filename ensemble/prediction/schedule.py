"""Tasks of a prediction, the same on all ranks, and their completion."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from hydragnn.ensemble.plan import certificate
from hydragnn.ensemble.prediction.group import Group

SHARE = 8
"""A task is at most this part of a rank's share of the work that is left."""

LONGEST_TASK = 256
"""Batches of a task at most."""

COMBINED_PER_RANK = 4
"""Tasks per rank in which batches are combined whose members were predicted by several ranks."""

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

Loads = Float[np.ndarray, " chunks"]
Marks = Bool[np.ndarray, "chunks members"]
Units = Sequence[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Consecutive batches, and the members that one rank predicts for them."""

    first: int
    stop: int
    members: tuple[int, ...]
    cost: float = 0.0

    def is_done(self, marks: Marks) -> bool:
        """Return True where all of the task is marked."""
        return bool(marks[self.first : self.stop, list(self.members)].all())


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
    """All tasks of a prediction, a queue per set of members."""

    loads: Loads
    every: Marks
    """The units of this prediction: none of a batch that cannot be predicted."""
    finished: Marks
    """The units that an earlier sitting has finished."""
    lanes: tuple[tuple[Task, ...], ...]
    spread: tuple[Task, ...]
    """Batches that are combined at the end, because several ranks predicted their members."""
    costs: tuple[float, ...]
    """Expected cost of every member per load."""
    ranks: int

    @property
    def units(self) -> int:
        """Return the number of units."""
        return int(self.every.sum())

    @property
    def resumed(self) -> int:
        """Return the number of units that were finished at the beginning."""
        return int((self.every & self.finished).sum())

    def lanes_from(self, rank: int) -> list[int]:
        """Return the numbers of the lanes, this rank's own first."""
        home = homes([math.fsum(task.cost for task in lane) for lane in self.lanes], self.ranks)[rank]
        return [*range(home, len(self.lanes)), *range(home)]

    @cached_property
    def certificate(self) -> dict[str, Any]:
        """Return the quality of the plan by expected costs."""
        waiting = (self.loads[:, None] * np.array(self.costs))[self.every & ~self.finished]
        queue = np.array([task.cost for lane in self.lanes for task in lane])
        threads = torch.get_num_threads()
        return {**certificate(waiting, queue, self.ranks), "tasks": len(queue), "threads": threads}


def make_schedule(
    loads: Loads,
    every: Marks,
    finished: Marks,
    combined: Bool[np.ndarray, " chunks"],
    costs: Sequence[float],
    *,
    held: int,
    ranks: int,
    units_of: Callable[[int | None], Units] | None = None,
) -> Schedule:
    """Return the schedule of all batches that are not ``combined``.

    ``units_of`` gives the sets of members that one rank has to predict for a batch, or for any; absent, each member is one.
    """
    waiting = loads[:, None] * np.array(costs) * (every & ~finished)
    sets = lanes_of(costs, held, units_of(None) if units_of and held < len(costs) else None)
    lanes, spread = list[tuple[Task, ...]](), np.zeros(len(loads), dtype=np.bool_)
    for members in sets:
        is_open = ~combined & (len(sets) == 1 or (every & ~finished)[:, members].any(axis=1))
        lanes.append(tuple(tasks_of(waiting, is_open, members, ranks, units_of)))
        for task in lanes[-1]:
            spread[task.first : task.stop] |= len(task.members) < len(costs)
    if len(sets) > 1:
        spread |= ~combined
    together = tuple(_equal_tasks(spread, range(len(costs)), COMBINED_PER_RANK * ranks))
    return Schedule(
        loads=loads,
        every=every,
        finished=finished,
        lanes=tuple(lanes),
        spread=together,
        costs=tuple(costs),
        ranks=ranks,
    )


def tasks_of(
    costs: Float[np.ndarray, "chunks members"],
    is_open: Bool[np.ndarray, " chunks"],
    members: Sequence[int],
    ranks: int,
    units_of: Callable[[int | None], Units] | None = None,
) -> Iterator[Task]:
    """Give large batches by units of members, the costliest first, then ever shorter runs.

    >>> costs, every = np.ones((6, 2)), np.ones(6, dtype=np.bool_)
    >>> [(task.first, task.stop) for task in tasks_of(costs, every, [0, 1], ranks=1)]
    [(0, 6)]
    >>> [task.members for task in tasks_of(costs[:1], every[:1], [0, 1], ranks=2)]
    [(0,), (1,)]
    """
    own = np.where(is_open, costs[:, members].sum(axis=1), 0.0)
    shares = SHARE * ranks if ranks > 1 else 1
    most = own.sum() / shares
    large = np.flatnonzero(is_open & (own > most * (1 + 1e-9)))
    split = list[Task]()
    for chunk in large.tolist():
        units = [unit for unit in units_of(chunk) if unit[0] in members] if units_of else [(one,) for one in members]
        count = min(len(units), int(np.ceil(own[chunk] / most)))
        for few in lanes_of(costs[chunk].tolist(), -(-len(units) // count), units):
            task = Task(first=chunk, stop=chunk + 1, members=tuple(few), cost=float(costs[chunk, few].sum()))
            split.append(task)
    yield from sorted(split, key=lambda task: -task.cost)
    small = is_open.copy()
    small[large] = False
    reached = np.concatenate([[0.0], np.where(small, own, 0.0).cumsum()])
    for begin, end in runs_of(small):
        first = begin
        while first < end:
            goal = reached[first] + (reached[-1] - reached[first]) / shares
            stop = int(np.searchsorted(reached, goal * (1 + 1e-9), side="right")) - 1
            stop = min(max(stop, first + 1), end, first + LONGEST_TASK)
            yield Task(first=first, stop=stop, members=tuple(members), cost=float(reached[stop] - reached[first]))
            first = stop


def runs_of(marks: Bool[np.ndarray, " chunks"]) -> list[tuple[int, int]]:
    """Return first and stop of every run of marks.

    >>> runs_of(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8))).tolist()
    return list(zip(edges[::2], edges[1::2]))


def _equal_tasks(marks: Bool[np.ndarray, " chunks"], members: Iterable[int], count: int) -> Iterator[Task]:
    """Give the marked batches in about ``count`` tasks."""
    longest = max(1, -(-int(marks.sum()) // count))
    for begin, end in runs_of(marks):
        for first in range(begin, end, longest):
            yield Task(first=first, stop=min(first + longest, end), members=tuple(members))


def lanes_of(costs: Sequence[float], held: int, units: Units | None = None) -> list[list[int]]:
    """Return sets of at most ``held`` members, or units of them, of nearly equal cost.

    >>> lanes_of([1.0, 1.0, 3.0], held=2)
    [[2], [0, 1]]
    >>> lanes_of([1.0, 1.0, 3.0], held=1, units=[(0, 2), (1,)])
    [[0, 2], [1]]
    """
    units = [(member,) for member in range(len(costs))] if units is None else units
    lanes: list[list[int]] = [[] for _ in range(-(-len(units) // held))]
    of_unit = [sum(costs[member] for member in unit) for unit in units]
    for number in sorted(range(len(units)), key=lambda number: (-of_unit[number], number)):
        free = [lane for lane in lanes if len(lane) < held]
        min(free, key=lambda lane: sum(of_unit[one] for one in lane)).append(number)
    return [sorted(member for number in lane for member in units[number]) for lane in lanes]


def homes(costs: Sequence[float], ranks: int) -> list[int]:
    """Return the first lane of each rank, in proportion to costs.

    >>> homes([1.0, 3.0], ranks=4)
    [0, 1, 1, 1]
    """
    total, ends = sum(costs), []
    for lane in range(len(costs)):
        ends.append(sum(costs[: lane + 1]) / total if total > 0 else (lane + 1) / len(costs))
    shares = [(rank + 0.5) / ranks for rank in range(ranks)]
    return [next((lane for lane, end in enumerate(ends) if share < end), len(costs) - 1) for share in shares]


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
