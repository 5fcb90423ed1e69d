"""Who does what when, the same on all ranks, from the same numbers; and how all of it gets done, whoever dies or dawdles."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from hydragnn.ensemble.plan import Units, certificate, units_where
from hydragnn.ensemble.prediction.group import Group
from hydragnn.ensemble.prediction.queues import (
    LANES,
    STAGES,
    Bundles,
    Stage,
    bundles_by_chunk,
    bundles_of,
    homes,
    lanes_of,
    probing,
    staged,
)

LATE = 2.0
"""Work is done again by an idle rank when it takes this many times as long as expected."""

AT_LEAST = 2.0
"""Seconds that work may take whatever was expected."""

HELPERS = 16
"""Ranks that look after late work; more of them would only crowd the file system."""

HESITATION = 60.0
"""Seconds after which others do what the first living rank should have begun."""

LOOKS = 15.0
"""Looks at shared folders per second, of all helpers together; and of all others, where words need a look."""

LONGEST = 20.0
"""Seconds between two looks at most."""

PAUSES = 0.002, 0.5
"""Seconds between two questions whether a word was said, at least, and at most where that needs no look."""

SHARE = 0.125
"""Part of the time waited so far after which it is asked again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """A piece of work that was taken and is not there yet."""

    number: int
    claim: str
    """The claim of the queue it was taken from."""
    seconds: float
    """How long it should take."""


Loads = Float[np.ndarray, " chunks"]
Marks = Bool[np.ndarray, "chunks members"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lane:
    """Members that live together on a rank, and their work."""

    number: int
    members: tuple[int, ...]
    ranks: int
    """Ranks that begin here; the others help when theirs is done."""
    units: Units
    stages: int
    """How often work is ordered; one rank alone has no use for a second time."""

    def first(self, loads: Loads, rates: Sequence[float]) -> Stage:
        """The first stage, by expected costs."""
        stage = staged(self.units, self.units.costs(loads, rates), self.ranks, self.stages)
        return probing(stage, stage.left.costs(loads, rates), self.ranks)

    def following(self, number: int, before: Stage, loads: Loads, rates: Sequence[float]) -> Stage:
        """Stage ``number``, by measured seconds: a member's ``rates`` times a chunk's load."""
        return staged(before.left, before.left.costs(loads, rates), self.ranks, self.stages - number)

    def queue(self, stage: int) -> int:
        """The number of the queue of a stage."""
        return LANES + self.number * self.stages + stage


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """All units, those that were found finished, and the lanes of the others."""

    loads: Loads
    every: Marks
    """The units of this prediction: none of a chunk that nothing can be predicted of."""
    there: Bundles
    """Units with a part, chunk by chunk, which has to be looked at, since a power cut may have torn it."""
    lanes: tuple[Lane, ...]
    costs: tuple[float, ...]
    """Expected cost of every member per load."""
    ranks: int

    @property
    def units(self) -> int:
        """How many units there are."""
        return int(self.every.sum())

    def lanes_from(self, rank: int) -> list[Lane]:
        """The lanes in the order in which a rank goes through them, its own first."""
        home = homes([sum(self.costs[m] for m in lane.members) for lane in self.lanes], self.ranks)[rank]
        return [*self.lanes[home:], *self.lanes[:home]]

    def late(self, taken: Mapping[int, Bundles], rates: Sequence[float], there: Marks) -> Iterator[Late]:
        """Every unit of these queues that is not ``there``, with the claim it was taken under and the seconds that its bundle should take."""
        members = len(self.costs)
        for queue, bundles in taken.items():
            absent = np.flatnonzero(~there[bundles.units.chunk, bundles.units.member])
            for place, position in zip(absent, np.searchsorted(bundles.stops, absent, side="right").tolist()):
                units = bundles[position]
                yield Late(
                    number=int(bundles.units.chunk[place]) * members + int(bundles.units.member[place]),
                    claim=f"{queue}-{position}",
                    seconds=sum(rates[one.member] * float(self.loads[one.chunk]) for one in units),
                )

    @cached_property
    def certificate(self) -> dict[str, Any]:
        """How good the plan is on these ranks, by expected costs, and with how many threads each computes."""
        marks = self.every.copy()
        marks[self.there.units.chunk, self.there.units.member] = False
        waiting = units_where(marks)
        costs = waiting.costs(self.loads, self.costs)
        queue = bundles_of(waiting, costs, self.ranks).costs
        threads = torch.get_num_threads()
        return {**certificate(costs, queue, self.ranks), "bundles": len(queue), "threads": threads}


def make_schedule(
    loads: Loads, every: Marks, there: Marks, costs: Sequence[float], *, held: int, ranks: int
) -> Schedule:
    """The schedule of the units ``every``, of which some are ``there``, on ranks that hold so many members each."""
    sets = lanes_of(costs, min(held, len(costs)))
    at_home = homes([sum(costs[member] for member in members) for members in sets], ranks)
    lanes, stages = [], STAGES if ranks > 1 else 1
    for number, members in enumerate(sets):
        own = np.zeros_like(every)
        own[:, members] = every[:, members] & ~there[:, members]
        begin_here = max(1, at_home.count(number))
        lanes.append(
            Lane(number=number, members=tuple(members), ranks=begin_here, units=units_where(own), stages=stages)
        )
    found = units_where(every & there)
    looks = bundles_by_chunk(found, found.costs(loads, costs))
    return Schedule(loads=loads, every=every, there=looks, lanes=tuple(lanes), costs=tuple(costs), ranks=ranks)


def finish_together(
    group: Group,
    name: str,
    missing: Callable[[], Iterable[Late]],
    do: Callable[[int], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Return when nothing is missing; this rank's queues have run dry. ``check`` is called all the while.

    What a dead rank had taken is done by the first that sees it. What takes ``LATE`` times as long as it should is done
    again by one idle rank, and after the same time once more by another; all of them give the same bits. A few ranks look;
    the one that finds nothing missing says so to all, and so does the last rank that comes here, since all others have done
    what they took.
    """
    idle_since, turn = time.monotonic(), Turn(group)
    if group.last_at(name):
        group.tell(name)
    while not group.told(name):
        check()
        if turn.looks():
            waited, nothing, work = time.monotonic() - idle_since, True, None
            for one in missing():
                nothing = False
                if _is_ours(group, name, one, waited):
                    work = one
                    break
            if nothing:
                group.tell(name)
                return
            if work is not None:
                do(work.number)
                continue
        rest(group, time.monotonic() - idle_since)


def once(
    group: Group,
    name: str,
    done: Callable[[], bool],
    do: Callable[[], None],
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Let one rank do something while the others wait until it is done; whether this rank did it. ``check`` is called all the while.

    It is for the first living rank. Where that one hangs and has not begun after ``HESITATION`` seconds, another does it;
    one that hangs while it does it is waited for.
    """
    idle_since, turn = time.monotonic(), Turn(group)
    while not group.told(name):
        check()
        if turn.looks():
            if done():
                return False
            first = all(group.gone(rank) for rank in range(group.rank))
            if (first or time.monotonic() - idle_since > HESITATION) and _begins(group, name):
                do()
                group.tell(name)
                return True
        rest(group, time.monotonic() - idle_since)
    return False


class Turn:
    """Which ranks look for themselves: helpers often, others now and then, in case that all helpers are gone."""

    def __init__(self, group: Group) -> None:
        first = 0.0
        if helps(group):
            self._every = min(group.size, HELPERS) / LOOKS
        else:
            first = self._every = max(HESITATION, group.size / LOOKS)
        self._next = time.monotonic() + first

    def looks(self) -> bool:
        """Return True where this rank is to look now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every
        return True


def helps(group: Group) -> bool:
    """Return True where this rank looks after what others leave undone."""
    return group.rank % max(1, -(-group.size // HELPERS)) == 0


def rest(group: Group, waited: float) -> None:
    """Wait a little more after so many seconds, so long that all ranks together take few looks at the file system."""
    helpers = min(group.size, HELPERS)
    if group.hears or helps(group):
        time.sleep(min(max(SHARE * waited, PAUSES[0]), PAUSES[1] if group.hears else helpers / LOOKS))
    else:
        time.sleep(min(LONGEST, (group.size - helpers) / LOOKS))


def _is_ours(group: Group, name: str, work: Late, waited: float) -> bool:
    owner = group.owner(work.claim)
    if owner is not None and owner != group.rank and group.gone(owner):
        return group.first_to(f"{name}-{work.number}-after-{owner}")
    times = int(waited / max(AT_LEAST, LATE * work.seconds))
    return times > 0 and group.first_to(f"{name}-{work.number}-again-{times}")


def _begins(group: Group, name: str) -> bool:
    """Return True where this rank is the first to claim it, or the first after one that died."""
    claim = name
    while not group.first_to(claim):
        owner = group.owner(claim)
        if owner is None or not group.gone(owner):
            return False
        claim = f"{name}-after-{owner}"
    return True
