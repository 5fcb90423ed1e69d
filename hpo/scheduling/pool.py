"""The free places, first in, first out: a value of which every change makes a new one at a cost that does not grow."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from immutables import Map


@dataclass(frozen=True, slots=True)
class Pool:
    """Places in the order in which they will be given out; places can leave from the middle."""

    at: Map[int, str] = field(default_factory=Map)
    seat: Map[str, int] = field(default_factory=Map)
    """Where in ``at`` a place is."""
    head: int = 0
    tail: int = 0

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[str]:
        return (self.at[seat] for seat in range(self.head, self.tail) if seat in self.at)

    def __contains__(self, place: str) -> bool:
        return place in self.seat

    def with_places(self, places: Iterable[str]) -> "Pool":
        """The pool with more places at its end.

        >>> list(Pool().with_places(["a", "b"]).with_places(["c"]))
        ['a', 'b', 'c']
        """
        at, seat, tail = self.at.mutate(), self.seat.mutate(), self.tail
        for place in places:
            at[tail], seat[place] = place, tail
            tail += 1
        return replace(self, at=at.finish(), seat=seat.finish(), tail=tail)

    def without(self, places: Iterable[str]) -> "Pool":
        """The pool without the places; those that are not in it are passed over.

        >>> list(Pool().with_places("abc").without("bx"))
        ['a', 'c']
        """
        at, seat = self.at.mutate(), self.seat.mutate()
        for place in places:
            if place in seat:
                del at[seat.pop(place)]
        return replace(self, at=at.finish(), seat=seat.finish())

    def taken(self, count: int) -> tuple[tuple[str, ...], "Pool"]:
        """The first ``count`` places, and the pool without them.

        >>> taken, left = Pool().with_places("abcd").without("b").taken(2)
        >>> taken, list(left)
        (('a', 'c'), ['d'])
        """
        at, seat, head = self.at.mutate(), self.seat.mutate(), self.head
        places: list[str] = []
        while len(places) < count and head < self.tail:
            place = at.pop(head, None)
            if place is not None:
                places.append(place)
                del seat[place]
            head += 1
        return tuple(places), Pool(at.finish(), seat.finish(), head, self.tail)
