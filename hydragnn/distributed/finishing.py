"""Work of ranks that all of them finish, whoever dies."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hydragnn.distributed.group import Group

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """A task that was taken and is not finished."""

    number: int
    claim: str
    """Its position in a queue."""
    seconds: float


def finish_together(
    group: Group,
    name: str,
    missing: Callable[[], Iterable[Late]],
    do: Callable[[int], object],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Return when nothing is missing; ``check`` is called all the while.

    Work of a dead rank is done again at once. Work that takes ``LATE`` times as long as expected is done again by one idle rank, and
    after the same time by another; all of them write the same bits. A few ranks look for missing work. One that finds none, or
    the last rank with empty queues, signals the end to all.
    """
    idle_since, turn = time.monotonic(), Turn(group)
    if group.store.add(f"ranks at {name}", 1) == group.size:  # the last one
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
