"""A sorted list as a value: a changed copy shares all but a small part with the list that it came from."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import eq
from typing import overload

RankingEntry = tuple[float, int]
"""(value, trial), so that entries sort best first."""

WIDTH = 128
"""A chunk of twice this length is divided."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Ranking, best first; no chunk is empty. Two are equal where their entries are, however these are divided."""

    chunks: tuple[tuple[RankingEntry, ...], ...] = ()
    size: int = 0

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
