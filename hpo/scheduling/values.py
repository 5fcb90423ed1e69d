"""A changed copy of a frozen value, as ``dataclasses.replace`` makes it, in less than half of the time.

The scheduler makes ten of them for every event, and has tens of thousands of events.
"""

from dataclasses import fields
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from immutables import Map

if TYPE_CHECKING:
    from dataclasses import replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """The dataclass ``value`` with some members changed; for classes whose fields are all given to ``__init__``.

        >>> from hydragnn.hpo.scheduling.events import Exhausted
        >>> replace(Exhausted(trial=3), trial=4)
        Exhausted(trial=4)
        """
        names, members = _members(type(value))
        new = object.__new__(type(value))
        any(map(object.__setattr__, repeat(new), names, members(value)))  # None each time: runs through all of them
        any(map(object.__setattr__, repeat(new), changes, changes.values()))
        return new


def with_count(counts: Map[Any, int], key: Any, more: int) -> Map[Any, int]:
    """Counts with one of them changed; what is counted no more is left out.

    >>> dict(with_count(Map({"a": 1}), "a", -1))
    {}
    """
    count = counts.get(key, 0) + more
    return counts.set(key, count) if count else counts.delete(key)


@cache
def _members(cls: Any) -> tuple[tuple[str, ...], Any]:
    names = tuple(field.name for field in fields(cls))
    return names, attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
