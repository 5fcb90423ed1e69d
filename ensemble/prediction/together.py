"""Work that ranks share until all of it is there, whoever dies or dawdles."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hydragnn.ensemble.prediction.group import Group

LATE = 2.0
"""Work is done again by an idle rank when it takes this many times as long as expected."""

AT_LEAST = 2.0
"""Seconds that work may take whatever was expected."""

HELPERS = 64
"""Ranks that look after late work; more of them would only crowd the file system."""

HESITATION = 60.0
"""Seconds after which others do what the first living rank should have begun."""

PAUSE = 0.02
"""Seconds between two looks, times the number of ranks over ``HELPERS``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """A piece of work that was taken and is not there yet."""

    number: int
    claim: str
    """The claim of the queue it was taken from."""
    seconds: float
    """How long it should take."""


def finish_together(group: Group, name: str, missing: Callable[[], Sequence[Late]], do: Callable[[int], None]) -> None:
    """Return when nothing is missing; this rank's queues have run dry.

    What a dead rank had taken is done by the first that sees it. What takes ``LATE`` times as long as it should is done
    again by one idle rank, and after the same time once more by another; all of them give the same bits.
    """
    idle_since = time.monotonic()
    while late := missing():
        waited = time.monotonic() - idle_since
        work = next((one for one in late if _is_ours(group, name, one, waited)), None) if helps(group) else None
        if work is None:
            rest(group)
        else:
            do(work.number)


def once(group: Group, name: str, done: Callable[[], bool], do: Callable[[], None]) -> bool:
    """Let one rank do something while the others wait until it is done; whether this rank did it.

    It is for the first living rank. Where that one hangs and has not begun after ``HESITATION`` seconds, another does it;
    one that hangs while it does it is waited for.
    """
    idle_since = time.monotonic()
    while not done():
        first = all(group.gone(rank) for rank in range(group.rank))
        late = helps(group) and time.monotonic() - idle_since > HESITATION
        if (first or late) and _begins(group, name):
            do()
            return True
        rest(group)
    return False


def helps(group: Group) -> bool:
    """Return True where this rank looks after what others leave undone."""
    return group.rank % max(1, -(-group.size // HELPERS)) == 0


def rest(group: Group) -> None:
    """Wait a little, longer where many look at one file system."""
    time.sleep(min(5.0, PAUSE * max(1.0, group.size / HELPERS)))


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
