"""In which order work is taken, and the shared queue that gives out every position once, in order.

Whole batches come first, while there is plenty, then parts of them, with ever fewer members each, the longest first. What is counted (an MPI window, a number
in this process, a number on a simulated clock) is a ``Counter``; how ranks count together is the same for all of them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from hydragnn.ensemble.plan import Unit, Units

PLENTY = 1.0
"""A batch goes to one rank with all its members while every rank has that many more such batches before it."""

PARTS = 1.5
"""Then it goes to several, its members in parts: so many of them are what every rank has before it."""

TINY = float(np.finfo(np.float64).tiny)

STAGES = 5
"""Equal parts of the work; after each of them, what is left is ordered anew by what was measured meanwhile."""

POSTS = 256
"""Ranks that tell what they measured; more would not make it more exact."""


Note = Mapping[str, Sequence[float]]
"""What a rank tells: ``seconds`` and ``load`` per member of finished units, and of a single unit that is ``running`` its
member, its load and when it began (empty otherwise)."""


UnitCosts = Float[np.ndarray, " units"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bundles:
    """What is taken at once, in order: units of one chunk each, so that its batch is read once for all of them."""

    units: Units
    """Bundle after bundle."""
    stops: Int[np.ndarray, " bundles"]
    """One past the last unit of every bundle."""
    costs: Float[np.ndarray, " bundles"]

    def __len__(self) -> int:
        return len(self.stops)

    def __getitem__(self, number: int) -> list[Unit]:
        return list(self.units[self.stops[number - 1] if number else 0 : self.stops[number]])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stage:
    """What is taken now, and what later stages order anew."""

    bundles: Bundles
    left: Units
    """In the order of chunks and members."""


def bundles_by_chunk(units: Units, costs: UnitCosts) -> Bundles:
    """Units, which come in the order of chunks, in bundles of all of a chunk."""
    stops = np.flatnonzero(np.diff(units.chunk, append=-1))  # of every chunk the last unit
    starts = np.concatenate([[0], stops[:-1] + 1]) if len(stops) else stops
    return Bundles(units=units, stops=stops + 1, costs=np.add.reduceat(costs, starts) if len(stops) else costs)


def ordered(units: Units, costs: UnitCosts, workers: int) -> tuple[Bundles, Int[np.ndarray, " units"]]:
    """The bundles of ``bundles_of``, and the position in ``units`` of each of theirs."""
    whole = bundles_by_chunk(units, costs)
    order = np.argsort(-whole.costs, kind="stable")
    falling = whole.costs[order]
    left = falling.sum() - np.concatenate([[0.0], falling.cumsum()[:-1]]) if len(order) else falling
    scarce = left < PLENTY * workers * falling
    count = int(scarce.argmax()) if scarce.any() else len(order)
    lengths = np.diff(whole.stops, prepend=0)
    places = _runs((whole.stops - lengths)[order[:count]], lengths[order[:count]])
    shared = np.ones(len(units), dtype=np.bool_)
    shared[places] = False
    rest = np.flatnonzero(shared).astype(np.int32)
    wanted = np.zeros(len(whole.costs))
    wanted[order[count:]] = np.ceil(PARTS * workers * falling[count:] / np.maximum(left[count:], TINY))
    starts = _starts_of_parts(np.searchsorted(whole.stops, rest, side="right"), costs[rest], wanted)
    sizes, sums = np.diff(starts, append=len(rest)), np.add.reduceat(costs[rest], starts) if len(rest) else costs[:0]
    turns = np.argsort(-sums, kind="stable")
    every = np.concatenate([places, rest[_runs(starts[turns], sizes[turns])]])
    stops = np.concatenate([lengths[order[:count]], sizes[turns]]).cumsum()
    return Bundles(units=units[every], stops=stops, costs=np.concatenate([falling[:count], sums[turns]])), every


def _runs(starts: Int[np.ndarray, " runs"], lengths: Int[np.ndarray, " runs"]) -> Int[np.ndarray, " places"]:
    """So many numbers from each of the starts on.

    >>> _runs(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = lengths.cumsum()
    shifts = (starts + lengths - ends).astype(np.int32)
    return np.repeat(shifts, lengths) + np.arange(ends[-1] if len(ends) else 0, dtype=np.int32)


def _starts_of_parts(
    chunk: Int[np.ndarray, " units"], costs: UnitCosts, wanted: Float[np.ndarray, " chunks"]
) -> Int[np.ndarray, " parts"]:
    """Where parts begin, if the units of every chunk, which come one after the other, make as many of equal cost as ``wanted``, or nearly.

    >>> _starts_of_parts(np.zeros(4, dtype=np.int64), np.array([1.0, 1.0, 2.0, 4.0]), np.array([2.0])).tolist()
    [0, 3]
    """
    begins = np.diff(chunk, prepend=-1) != 0
    reached = costs.cumsum()
    before = (reached - costs)[begins][begins.cumsum() - 1]  # costs of other chunks
    total = np.bincount(chunk, weights=costs, minlength=len(wanted))[chunk]
    part = np.floor((reached - costs / 2 - before) / np.maximum(total, TINY) * wanted[chunk])
    return np.flatnonzero(begins | (np.diff(part, prepend=0) != 0))


def bundles_of(units: Units, costs: UnitCosts, workers: int) -> Bundles:
    """All units, once each: whole chunks while there is plenty of work for every worker, then ever smaller parts of them, longest first.

    ``units`` come in the order of chunks and members; ties are broken in that order.

    >>> units = Units(chunk=np.repeat(np.arange(5, dtype=np.int32), 4), member=np.tile(np.arange(4, dtype=np.int32), 5))
    >>> np.diff(bundles_of(units, np.ones(20), workers=2).stops, prepend=0).tolist()
    [4, 4, 4, 4, 2, 1, 1]
    """
    return ordered(units, costs, workers)[0]


def staged(units: Units, costs: UnitCosts, workers: int, stages: int) -> Stage:
    """The first of so many equal ``stages`` of the work, in the order for so many workers."""
    bundles, places = ordered(units, costs, workers)
    if stages == 1 or not len(bundles):
        return Stage(bundles=bundles, left=units[:0])
    reached = bundles.costs.cumsum()
    stop = int(np.searchsorted(reached, reached[-1] / stages)) + 1
    taken = int(bundles.stops[stop - 1])
    first = Bundles(units=bundles.units[:taken], stops=bundles.stops[:stop], costs=bundles.costs[:stop])
    return Stage(bundles=first, left=units[np.sort(places[taken:])])


def probing(stage: Stage, costs: UnitCosts, workers: int) -> Stage:
    """The same stage after as many units of every member as let a rank that tells measure it, or so.

    A member that was wrongly thought to be cheap would else not be met before the end. ``costs`` are those of units that are left.

    >>> a, b = (Units(chunk=np.zeros(1, dtype=np.int32), member=np.array([member], dtype=np.int32)) for member in range(2))
    >>> bundles = Bundles(units=a, stops=np.ones(1, dtype=np.int64), costs=np.ones(1))
    >>> probed = probing(Stage(bundles=bundles, left=b), np.ones(1), workers=2)
    >>> probed.bundles.units.member.tolist(), len(probed.left)
    ([1, 0], 0)
    """
    enough = max(1, workers // POSTS)
    members = np.unique(stage.left.member)
    missing = [max(0, enough - int((stage.bundles.units.member == member).sum())) for member in members]
    probes = np.concatenate(
        [np.flatnonzero(stage.left.member == one)[:count] for one, count in zip(members, missing)]
        or [np.zeros(0, dtype=np.int64)]
    )
    probed = join_bundles(
        Bundles(units=stage.left[probes], stops=np.arange(1, len(probes) + 1), costs=costs[probes]), stage.bundles
    )
    left = np.ones(len(stage.left), dtype=np.bool_)
    left[probes] = False
    return Stage(bundles=probed, left=stage.left[left])


def join_bundles(first: Bundles, second: Bundles) -> Bundles:
    """The bundles of both, one after the other."""
    chunk, member = (
        np.concatenate([getattr(one.units, name) for one in (first, second)]) for name in ("chunk", "member")
    )
    return Bundles(
        units=Units(chunk=chunk, member=member),
        stops=np.concatenate([first.stops, len(first.units) + second.stops]),
        costs=np.concatenate([first.costs, second.costs]),
    )


def learned_rates(expected: Sequence[float], notes: Sequence[Note], now: float) -> list[float]:
    """Seconds per load of every member, by what ranks have noted until ``now``.

    A member that nobody has finished a unit of gets its expected cost on the scale of the measured ones, or twice what its
    longest running unit has taken so far, if that is more.

    >>> learned_rates([1.0, 2.0], [{"seconds": [6.0, 0.0], "load": [2.0, 0.0], "running": []}], now=0.0)
    [3.0, 6.0]
    >>> learned_rates([1.0, 2.0], [{"seconds": [6.0, 0.0], "load": [2.0, 0.0], "running": [1, 2.0, 90.0]}], now=100.0)
    [3.0, 10.0]
    """
    members = range(len(expected))
    seconds = [sum(note["seconds"][member] for note in notes) for member in members]
    load = [sum(note["load"][member] for note in notes) for member in members]
    foreseen = sum(expected[member] * load[member] for member in members)
    scale = sum(seconds) / foreseen if foreseen > 0 else 1.0
    rates = [seconds[m] / load[m] if load[m] > 0 else scale * expected[m] for m in members]
    for note in notes:
        if note["running"]:
            member, heavy, since = note["running"]
            if not load[int(member)]:
                rates[int(member)] = max(rates[int(member)], 2.0 * (now - since) / heavy)
    return rates


def lanes_of(costs: Sequence[float], held: int) -> list[list[int]]:
    """Members in sets of at most ``held`` that live together on a rank, of nearly equal cost: the costliest first.

    >>> lanes_of([1.0, 1.0, 3.0], held=2)
    [[2], [0, 1]]
    """
    lanes: list[list[int]] = [[] for _ in range(-(-len(costs) // held))]
    for member in sorted(range(len(costs)), key=lambda member: (-costs[member], member)):
        free = [lane for lane in lanes if len(lane) < held]
        min(free, key=lambda lane: sum(costs[one] for one in lane)).append(member)
    return [sorted(lane) for lane in lanes]


def homes(costs: Sequence[float], ranks: int) -> list[int]:
    """The lane in which each rank begins, ranks in proportion to the lanes' costs.

    >>> homes([1.0, 3.0], ranks=4)
    [0, 1, 1, 1]
    """
    total, ends = sum(costs), []
    for lane in range(len(costs)):
        ends.append(sum(costs[: lane + 1]) / total if total > 0 else (lane + 1) / len(costs))
    places = [(rank + 0.5) / ranks for rank in range(ranks)]
    return [next((lane for lane, end in enumerate(ends) if place < end), len(costs) - 1) for place in places]


Costs = Sequence[float] | NDArray[np.float64]

BLOCKS, FOUND, LOOK, SPREAD, PIECES, MADE, SEGMENTS, LANES = range(8)
"""The first numbers of queues: for structures to be built, for files of an earlier sitting, for parts to be looked at, for files of ranks that tell of units, for pieces of the file,
for files of ranks that tell of pieces, for segments of it, for stages of the lanes."""

RELAY = 64
"""Ranks that share a relay, a counter of their own, once there are too many for one."""

MANY = 256
"""More ranks than these do not all count at the root."""

SHARE = 8
"""A block is this part of a relay's share of what is left; smaller ones ask the root more often."""

LEAST = 4
"""Positions that make a block: the ranks of a relay wait while one of them fetches it. What would be less is given out singly."""

_HALF = 1 << 32
_SINGLY = -(1 << 61)
"""What a relay holds when its ranks are to ask the root themselves; negative, however often it is counted up."""
_DONE = -(1 << 62)
"""The same when the root has nothing left; less than the other, however often it is counted up."""


@runtime_checkable
class Queue(Protocol):
    """Positions of a list of work that ranks share."""

    def take(self) -> int | None:
        """The next position that nobody has; None when all are taken."""


@runtime_checkable
class Counter(Protocol):
    """A number that any rank can count up at once."""

    def add(self, amount: int) -> int:
        """Count up; gives the number from before."""

    def put(self, value: int) -> None:
        """Replace the number."""


class LocalCounter:
    """A number in this process."""

    def __init__(self) -> None:
        """Begins at zero."""
        self.value = 0

    def add(self, amount: int) -> int:
        """Count up; gives the number from before."""
        before, self.value = self.value, self.value + amount
        return before

    def put(self, value: int) -> None:
        """Replace the number."""
        self.value = value


class FlatQueue:
    """All ranks count at one place."""

    def __init__(self, count: int, root: Counter) -> None:
        """``count`` positions, given out by ``root``."""
        self._count, self._root = count, root

    def take(self) -> int | None:
        """The next position that nobody has."""
        position = self._root.add(1)
        return position if position < self._count else None


class RelayQueue:
    """Ranks count at their relay, and a relay that has run dry takes a block of positions from the root.

    A relay holds the next position and the end of its block in one number, so that one addition both
    takes a position and says whether it is still inside. The rank that finds itself exactly at the end fetches the next
    block; those behind it look again. Towards the end, when a block would hold fewer than ``LEAST`` positions, ranks ask
    the root themselves, so that none waits for another's request: once for every other rank, or so.
    """

    def __init__(
        self,
        costs: Costs,
        root: Counter,
        relay: Counter,
        relays: int,
        pause: Callable[[], None] = lambda: time.sleep(1e-4),
    ) -> None:
        """``root`` counts blocks; ``relay`` is the counter of this rank, one of ``relays``."""
        self._blocks = blocks(costs, relays)
        self._singles = _first_of_singles(self._blocks)
        self._root, self._relay, self._pause = root, relay, pause

    def take(self) -> int | None:
        """The next position that nobody has."""
        while True:
            state = self._relay.add(1)
            if state < _SINGLY:
                return None
            if state < 0:
                return self._single()
            end, position = divmod(state, _HALF)
            if position < end:
                return position
            if position == end:
                return self._refill()
            self._pause()

    def _single(self) -> int | None:
        """The next position of the root, whose blocks have all been given out."""
        number = self._root.add(1)
        if number < len(self._blocks):
            return self._blocks[number][0]
        self._relay.put(_DONE)
        return None

    def _refill(self) -> int | None:
        """The first position of the root's next block, the rest of which is the relay's."""
        number = self._root.add(1)
        if number >= len(self._blocks):
            self._relay.put(_DONE)
            return None
        start, end = self._blocks[number]
        self._relay.put(_SINGLY if number >= self._singles else end * _HALF + start + 1)
        return start


def blocks(costs: Costs, relays: int) -> list[tuple[int, int]]:
    """Positions in blocks that shrink towards the end: an eighth of the relay's share of what is left; one at least.

    After the last block of ``LEAST`` positions all are single.

    >>> blocks([1.0] * 40, relays=1)[:4]
    [(0, 5), (5, 9), (9, 10), (10, 11)]
    """
    edges, left, inside = [0], float(np.sum(costs)), 0.0
    for position, cost in enumerate(np.asarray(costs).tolist()):
        if position > edges[-1] and inside + cost > left / (SHARE * relays):
            edges.append(position)
            left, inside = left - inside, 0.0
        inside += cost
    shrinking = list(pairwise([*edges, len(costs)])) if len(costs) else []
    shared = max((number + 1 for number, (start, end) in enumerate(shrinking) if end - start >= LEAST), default=0)
    rest = range(shrinking[shared - 1][1] if shared else 0, len(costs))
    return [*shrinking[:shared], *((position, position + 1) for position in rest)]


def _first_of_singles(all_blocks: Sequence[tuple[int, int]]) -> int:
    """The number of the first block behind which, itself included, all are single."""
    return max((number + 1 for number, (start, end) in enumerate(all_blocks) if end - start > 1), default=0)


def queue_for(costs: Costs, size: int, root: Counter, relay: Counter) -> Queue:
    """The queue for so many ranks."""
    if size <= MANY:
        return FlatQueue(len(costs), root)
    return RelayQueue(costs, root, relay, relays=-(-size // RELAY))
