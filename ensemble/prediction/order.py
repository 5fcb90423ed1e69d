"""In which order work is taken: whole batches while there is plenty, single units towards the end, the longest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from hydragnn.ensemble.plan import Unit, Units

PLENTY = 3.0
"""A batch goes to one rank with all its members while every rank has that many more such batches before it."""

STAGES = 5
"""Equal parts of the work; after each of them, what is left is ordered anew by what was measured meanwhile."""

POSTS = 256
"""Ranks that tell what they measured; more would not make it more exact."""


Note = Mapping[str, Sequence[float]]
"""What a rank tells: ``seconds`` and ``load`` per member of finished units, and of a single unit that is ``running`` its
member, its load and when it began (empty otherwise)."""


Costs = Float[NDArray[np.float64], " units"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bundles:
    """What is taken at once, in order: units of one chunk each, so that its batch is read once for all of them."""

    units: Units
    """Bundle after bundle."""
    stops: Int[NDArray[np.int64], " bundles"]
    """One past the last unit of every bundle."""
    costs: Float[NDArray[np.float64], " bundles"]

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


def bundles_by_chunk(units: Units, costs: Costs) -> Bundles:
    """Units, which come in the order of chunks, in bundles of all of a chunk."""
    stops = np.flatnonzero(np.diff(units.chunk, append=-1))  # of every chunk the last unit
    starts = np.concatenate([[0], stops[:-1] + 1]) if len(stops) else stops
    return Bundles(units=units, stops=stops + 1, costs=np.add.reduceat(costs, starts) if len(stops) else costs)


def ordered(units: Units, costs: Costs, workers: int) -> tuple[Bundles, Int[NDArray[np.int32], " units"]]:
    """The bundles of ``bundles_of``, and the position in ``units`` of each of theirs."""
    whole = bundles_by_chunk(units, costs)
    order = np.argsort(-whole.costs, kind="stable")
    falling = whole.costs[order]
    left = falling.sum() - np.concatenate([[0.0], falling.cumsum()[:-1]]) if len(order) else falling
    scarce = left < PLENTY * workers * falling
    order = order[: int(scarce.argmax()) if scarce.any() else len(order)]
    lengths = np.diff(whole.stops, prepend=0)
    ends = lengths[order].cumsum()
    shifts = (whole.stops[order] - ends).astype(np.int32)
    places = np.repeat(shifts, lengths[order]) + np.arange(ends[-1] if len(ends) else 0, dtype=np.int32)
    single = np.ones(len(units), dtype=np.bool_)
    single[places] = False
    rest = np.flatnonzero(single).astype(np.int32)
    rest = rest[np.argsort(-costs[rest], kind="stable")]
    every = np.concatenate([places, rest])
    stops = np.concatenate([ends, len(places) + np.arange(1, len(rest) + 1)])
    return Bundles(units=units[every], stops=stops, costs=np.concatenate([whole.costs[order], costs[rest]])), every


def bundles_of(units: Units, costs: Costs, workers: int) -> Bundles:
    """All units, once each: whole chunks while there is plenty of work for every worker, then single ones, longest first.

    ``units`` come in the order of chunks and members; ties are broken in that order.

    >>> units = Units(chunk=np.repeat(np.arange(5, dtype=np.int32), 2), member=np.tile(np.arange(2, dtype=np.int32), 5))
    >>> np.diff(bundles_of(units, np.ones(10), workers=1).stops, prepend=0).tolist()
    [2, 2, 2, 1, 1, 1, 1]
    """
    return ordered(units, costs, workers)[0]


def staged(units: Units, costs: Costs, workers: int, stages: int) -> Stage:
    """The first of so many equal ``stages`` of the work, in the order for so many workers."""
    bundles, places = ordered(units, costs, workers)
    if stages == 1 or not len(bundles):
        return Stage(bundles=bundles, left=units[:0])
    reached = bundles.costs.cumsum()
    stop = int(np.searchsorted(reached, reached[-1] / stages)) + 1
    taken = int(bundles.stops[stop - 1])
    first = Bundles(units=bundles.units[:taken], stops=bundles.stops[:stop], costs=bundles.costs[:stop])
    return Stage(bundles=first, left=units[np.sort(places[taken:])])


def probing(stage: Stage, costs: Costs, workers: int) -> Stage:
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
