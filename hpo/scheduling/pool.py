"""Free slots in the order in which they are given out."""

from collections.abc import Iterable, Iterator

from msgspec import Struct


class FreeChange(Struct):
    """Change of the pool; ``all``: all slots anew."""

    head: int
    tail: int
    all: tuple[tuple[int, str], ...] | None = None
    came: tuple[tuple[int, str], ...] = ()
    gone: tuple[str, ...] = ()


class Pool:
    """A queue of slots that can leave from the middle."""

    def __init__(self) -> None:
        self.at: dict[int, str] = {}
        """Slots by position, positions ascending."""
        self.seat: dict[str, int] = {}
        """Positions by slot."""
        self.head = self.tail = 0
        self.begin()

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[str]:
        return iter(self.at.values())

    def __contains__(self, slot: str) -> bool:
        return slot in self.seat

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pool) and (self.at, self.head, self.tail) == (other.at, other.head, other.tail)

    __hash__ = None  # type: ignore[assignment]

    def begin(self) -> None:
        """Note changes from now on."""
        self.changed, self._gone, self._length, self._tail = False, set[str](), len(self.at), self.tail

    def add(self, slots: Iterable[str]) -> None:
        """Append slots.

        >>> pool = Pool()
        >>> pool.add("abcd")
        >>> pool.remove("bx")
        >>> pool.take(2), list(pool)
        (('a', 'c'), ['d'])
        """
        self.changed = True
        for slot in slots:
            self.at[self.tail], self.seat[slot] = slot, self.tail
            self.tail += 1

    def remove(self, slots: Iterable[str]) -> None:
        """Remove slots; those that are not in the pool are passed over."""
        self.changed = True
        for slot in slots:
            if slot in self.seat:
                self._leave(slot)

    def take(self, count: int) -> tuple[str, ...]:
        """Remove and return the first ``count`` slots."""
        self.changed = True
        slots: list[str] = []
        while len(slots) < count and self.head < self.tail:
            slot = self.at.get(self.head)
            if slot is not None:
                slots.append(slot)
                self._leave(slot)
            self.head += 1
        return tuple(slots)

    def clear(self) -> None:
        """Remove all slots; positions begin at 0 again."""
        self.at, self.seat, self.head, self.tail, self.changed = {}, {}, 0, 0, True

    def _leave(self, slot: str) -> None:
        seat = self.seat.pop(slot)
        del self.at[seat]
        if seat < self._tail:
            self._gone.add(slot)

    def changes(self, slots: Iterable[str], *, whole: bool) -> dict[str, object]:
        """Return changes since ``begin`` as JSON; ``slots`` can have left, in order."""
        gone = [slot for slot in slots if slot in self._gone]
        came = [[seat, self.at[seat]] for seat in range(self._tail, self.tail) if seat in self.at]
        ends = {"head": self.head, "tail": self.tail}
        if whole or self._length - len(gone) + len(came) != len(self.at):
            return {"all": [[seat, slot] for seat, slot in self.at.items()], **ends}
        return {"gone": gone, "came": came, **ends}

    def apply(self, change: FreeChange) -> None:
        """Apply a change; KeyError for a slot that is not free."""
        came = change.came
        if change.all is not None:
            self.at, self.seat, came = {}, {}, change.all
        for slot in change.gone:
            del self.at[self.seat.pop(slot)]
        for seat, slot in came:
            self.at[seat], self.seat[slot] = slot, seat
        self.head, self.tail = change.head, change.tail
