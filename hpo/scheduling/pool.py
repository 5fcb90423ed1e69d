"""The free slots, first in, first out: a value of which every change makes a new one at a cost that does not grow."""

from collections.abc import Iterable, Iterator

from immutables import Map
from msgspec import Struct, field
from msgspec.structs import replace


class Pool(Struct, frozen=True):
    """Slots in the order in which they will be given out; slots can leave from the middle."""

    at: Map[int, str] = field(default_factory=Map)
    seat: Map[str, int] = field(default_factory=Map)
    """Where in ``at`` a slot is."""
    head: int = 0
    tail: int = 0

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[str]:
        return (self.at[seat] for seat in range(self.head, self.tail) if seat in self.at)

    def __contains__(self, slot: str) -> bool:
        return slot in self.seat

    def with_slots(self, slots: Iterable[str]) -> "Pool":
        """The pool with more slots at its end.

        >>> list(Pool().with_slots(["a", "b"]).with_slots(["c"]))
        ['a', 'b', 'c']
        """
        at, seat, tail = self.at.mutate(), self.seat.mutate(), self.tail
        for slot in slots:
            at[tail], seat[slot] = slot, tail
            tail += 1
        return replace(self, at=at.finish(), seat=seat.finish(), tail=tail)

    def without(self, slots: Iterable[str]) -> "Pool":
        """The pool without the slots; those that are not in it are passed over.

        >>> list(Pool().with_slots("abc").without("bx"))
        ['a', 'c']
        """
        at, seat = self.at.mutate(), self.seat.mutate()
        for slot in slots:
            if slot in seat:
                del at[seat.pop(slot)]
        return replace(self, at=at.finish(), seat=seat.finish())

    def moved(self, gone: Iterable[str], came: Iterable[tuple[int, str]], head: int, tail: int) -> "Pool":
        """The pool without some slots and with others in seats of their own, its ends where they are said to be; KeyError for a slot that is not in it."""
        at, seat = self.at.mutate(), self.seat.mutate()
        for slot in gone:
            del at[seat.pop(slot)]
        for place, slot in came:
            at[place], seat[slot] = slot, place
        return Pool(at.finish(), seat.finish(), head, tail)

    def take(self, count: int) -> tuple[tuple[str, ...], "Pool"]:
        """The first ``count`` slots, and the pool without them.

        >>> taken, left = Pool().with_slots("abcd").without("b").take(2)
        >>> taken, list(left)
        (('a', 'c'), ['d'])
        """
        at, seat, head = self.at.mutate(), self.seat.mutate(), self.head
        slots: list[str] = []
        while len(slots) < count and head < self.tail:
            slot = at.pop(head, None)
            if slot is not None:
                slots.append(slot)
                del seat[slot]
            head += 1
        return tuple(slots), Pool(at.finish(), seat.finish(), head, self.tail)
