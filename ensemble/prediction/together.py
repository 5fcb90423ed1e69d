"""Work that ranks share until all of it is there, whoever dies or dawdles."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hydragnn.ensemble.prediction.group import Group

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

PAUSE = 0.02
"""Seconds between two questions whether a word was said where that needs no look, times the number of ranks over ``CROWD``."""

CROWD = 64
"""Ranks that may ask one of them as often as they like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """A piece of work that was taken and is not there yet."""

    number: int
    claim: str
    """The claim of the queue it was taken from."""
    seconds: float
    """How long it should take."""


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
    the one that finds nothing missing says so to all.
    """
    idle_since, turn = time.monotonic(), Turn(group)
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
        rest(group)


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
        rest(group)
    return False


class Turn:
    """Which ranks look for themselves: helpers always, others now and then, in case that all helpers are gone."""

    def __init__(self, group: Group) -> None:
        self._helps, self._every = helps(group), max(HESITATION, group.size / LOOKS)
        self._next = time.monotonic() + self._every

    def looks(self) -> bool:
        """Return True where this rank is to look now."""
        if self._helps:
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every
        return True


def helps(group: Group) -> bool:
    """Return True where this rank looks after what others leave undone."""
    return group.rank % max(1, -(-group.size // HELPERS)) == 0


def rest(group: Group) -> None:
    """Wait a little, so long that all ranks together take few looks at the file system."""
    helpers = min(group.size, HELPERS)
    if helps(group):
        time.sleep(helpers / LOOKS)
    elif group.hears:
        time.sleep(min(LONGEST, PAUSE * max(1.0, group.size / CROWD)))
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
