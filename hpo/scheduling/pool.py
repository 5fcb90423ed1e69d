"""Free slots in the order in which they are given out."""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from msgspec import Struct


class FreeChange(Struct):
    """Change of the pool; version 0.2.0 wrote slots with positions."""

    all: tuple[str | tuple[int, str], ...] | None = None
    came: tuple[str | tuple[int, str], ...] = ()
    gone: tuple[str, ...] = ()


class Pool(OrderedDict[str, None]):
    """A queue of slots that can leave from the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Note changes from now on."""
        self._gone, self._came, self._anew = dict[str, None](), dict[str, None](), False

    def add(self, slots: Iterable[str]) -> None:
        """Append slots.

        >>> pool = Pool()
        >>> pool.add("abcd")
        >>> pool.remove("bx")
        >>> pool.take(2), list(pool)
        (('a', 'c'), ['d'])
        """
        for slot in slots:
            self[slot] = self._came[slot] = None

    def remove(self, slots: Iterable[str]) -> None:
        """Remove slots; those that are not in the pool are passed over."""
        for slot in slots:
            if slot in self:
                del self[slot]
                if slot in self._came:
                    del self._came[slot]
                else:
                    self._gone[slot] = None

    def take(self, count: int) -> tuple[str, ...]:
        """Remove and return the first ``count`` slots."""
        slots = tuple(islice(self, count))
        self.remove(slots)
        return slots

    def clear(self) -> None:
        """Remove all slots."""
        super().clear()
        self._anew = True

    def changes(self) -> dict[str, object]:
        """Return changes since ``begin`` as JSON."""
        if self._anew:
            return {"all": [*self]}
        return {name: [*slots] for name, slots in (("gone", self._gone), ("came", self._came)) if slots}

    def apply(self, change: FreeChange) -> None:
        """Apply a change; KeyError for a slot that is not free."""
        came = change.came
        if change.all is not None:
            super().clear()
            came = change.all
        for slot in change.gone:
            del self[slot]
        for one in came:
            self[one if isinstance(one, str) else one[1]] = None
