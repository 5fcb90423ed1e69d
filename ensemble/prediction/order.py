"""In which order work is taken: whole batches while there is plenty, single units towards the end, the longest first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydragnn.ensemble.plan import Unit

PLENTY = 3.0
"""A batch goes to one rank with all its members while every rank has that many more such batches before it."""

STAGES = 5
"""Equal parts of the work; after each of them, what is left is ordered anew by what was measured meanwhile."""

POSTS = 256
"""Ranks that tell what they measured; more would not make it more exact."""


Note = Mapping[str, Sequence[float]]
"""What a rank tells: ``seconds`` and ``load`` per member of finished units, and of a single unit that is ``running`` its
member, its load and when it began (empty otherwise)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """What is taken at once: units of one chunk, so that its batch is read once for all of them."""

    units: tuple[Unit, ...]

    @property
    def cost(self) -> float:
        """What all of it costs."""
        return sum(unit.cost for unit in self.units)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What is taken now, and what later stages order anew."""

    bundles: tuple[Bundle, ...]
    left: tuple[Unit, ...]


def bundles_of(units: Sequence[Unit], workers: int) -> list[Bundle]:
    """All units, once each: whole chunks while there is plenty of work for every worker, then single ones, longest first.

    >>> units = [Unit(member=m, chunk=c, cost=1.0) for c in range(5) for m in range(2)]
    >>> [len(bundle.units) for bundle in bundles_of(units, workers=1)]
    [2, 2, 2, 1, 1, 1, 1]
    """
    chunks: dict[int, list[Unit]] = {}
    for unit in units:
        chunks.setdefault(unit.chunk, []).append(unit)
    whole = [Bundle(units=tuple(group)) for group in chunks.values()]
    whole.sort(key=lambda bundle: (-bundle.cost, bundle.units[0].chunk))
    left, taken = sum(bundle.cost for bundle in whole), 0
    while taken < len(whole) and left >= PLENTY * workers * whole[taken].cost:
        left -= whole[taken].cost
        taken += 1
    single = sorted((unit for bundle in whole[taken:] for unit in bundle.units), key=longest_first)
    return whole[:taken] + [Bundle(units=(unit,)) for unit in single]


def longest_first(unit: Unit) -> tuple[float, int, int]:
    """Sorts costliest units to the front; ties in order of chunk and member."""
    return -unit.cost, unit.chunk, unit.member


def staged(units: Sequence[Unit], workers: int, stages: int) -> Stage:
    """The first of so many equal ``stages`` of the work, in the order for so many workers."""
    bundles = bundles_of(units, workers)
    if stages == 1:
        return Stage(bundles=tuple(bundles), left=())
    enough, reached, stop = sum(bundle.cost for bundle in bundles) / stages, 0.0, 0
    while stop < len(bundles) and reached < enough:
        reached += bundles[stop].cost
        stop += 1
    return Stage(bundles=tuple(bundles[:stop]), left=tuple(unit for bundle in bundles[stop:] for unit in bundle.units))


def probing(stage: Stage, workers: int) -> Stage:
    """The same stage after as many units of every member as let a rank that tells measure it, or so.

    A member that was wrongly thought to be cheap would else not be met before the end.

    >>> a, b = (Unit(member=member, chunk=0, cost=2.0 - member) for member in range(2))
    >>> [bundle.units for bundle in probing(Stage(bundles=(Bundle(units=(a,)),), left=(b,)), workers=2).bundles] == [(b,), (a,)]
    True
    """
    enough = max(1, workers // POSTS)
    met = Counter(unit.member for bundle in stage.bundles for unit in bundle.units)
    probes: list[Unit] = []
    left: list[Unit] = []
    for unit in stage.left:
        (probes if met[unit.member] < enough else left).append(unit)
        met[unit.member] += 1
    return Stage(bundles=(*(Bundle(units=(unit,)) for unit in probes), *stage.bundles), left=tuple(left))


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
