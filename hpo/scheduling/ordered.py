"""Free slots and results in order, as values: a changed copy shares all but a small part with what it came from."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import eq
from typing import overload

from immutables import Map
from msgspec import Struct, field
from msgspec.structs import replace

RankingEntry = tuple[float, int]
"""(value, trial), so that entries sort best first."""

WIDTH = 128
"""A chunk of twice this length is divided."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Ranking, best first; no chunk is empty. Two are equal where their entries are, however these are divided."""

    chunks: tuple[tuple[RankingEntry, ...], ...] = ()
    size: int = 0

    @classmethod
    def of(cls, entries: Iterable[RankingEntry]) -> "Ranking":
        """The ranking of entries in any order.

        >>> list(Ranking.of([(0.5, 1), (0.1, 2)]))
        [(0.1, 2), (0.5, 1)]
        """
        ordered = tuple(sorted(entries))
        return cls(tuple(ordered[at : at + WIDTH] for at in range(0, len(ordered), WIDTH)), len(ordered))

    def __len__(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranking) and self.size == other.size and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[RankingEntry]:
        return chain.from_iterable(self.chunks)

    @overload
    def __getitem__(self, rank: int) -> RankingEntry: ...

    @overload
    def __getitem__(self, rank: slice) -> tuple[RankingEntry, ...]: ...

    def __getitem__(self, rank: int | slice) -> RankingEntry | tuple[RankingEntry, ...]:
        if isinstance(rank, slice):
            return tuple(islice(self, *rank.indices(self.size)))
        rank = range(self.size)[rank]
        at = 0
        while rank >= len(self.chunks[at]):
            rank -= len(self.chunks[at])
            at += 1
        return self.chunks[at][rank]

    def rank(self, entry: RankingEntry) -> int:
        """How many entries are better.

        >>> Ranking().with_entry((0.5, 1)).with_entry((0.1, 2)).rank((0.3, 0))
        1
        """
        at = self._chunk(entry)
        return sum(map(len, self.chunks[:at])) + (bisect_left(self.chunks[at], entry) if self.chunks else 0)

    def with_entry(self, entry: RankingEntry) -> "Ranking":
        """The entries with one more.

        >>> list(Ranking().with_entry((0.5, 1)).with_entry((0.1, 2)))
        [(0.1, 2), (0.5, 1)]
        """
        if not self.chunks:
            return Ranking(((entry,),), 1)
        at = self._chunk(entry)
        chunk = self.chunks[at]
        position = bisect_left(chunk, entry)
        chunk = (*chunk[:position], entry, *chunk[position:])
        parts = (chunk,) if len(chunk) < 2 * WIDTH else (chunk[:WIDTH], chunk[WIDTH:])
        return Ranking((*self.chunks[:at], *parts, *self.chunks[at + 1 :]), self.size + 1)

    def without_entry(self, entry: RankingEntry) -> "Ranking":
        """The entries without one that is among them; ValueError if it is not."""
        at = self._chunk(entry)
        chunk = self.chunks[at] if self.chunks else ()
        position = chunk.index(entry)
        chunk = chunk[:position] + chunk[position + 1 :]
        return Ranking((*self.chunks[:at], *((chunk,) if chunk else ()), *self.chunks[at + 1 :]), self.size - 1)

    def _chunk(self, entry: RankingEntry) -> int:
        """Which chunk an entry belongs to."""
        return max(0, bisect_right(self.chunks, entry, key=lambda chunk: chunk[0]) - 1)


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
