"""Who does what when: the same on all ranks, from the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn.ensemble.plan import Chunk, Unit, certificate
from hydragnn.ensemble.prediction.order import Bundle, bundles_of, homes, lanes_of, second_stage, staged
from hydragnn.ensemble.prediction.together import Late


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Members that live together on a rank, and their work, in two stages."""

    number: int
    members: tuple[int, ...]
    ranks: int
    """Ranks that begin here; the others help when theirs is done."""
    first: tuple[Bundle, ...]
    rest: tuple[Unit, ...]
    """What the second stage orders anew."""

    def second(self, chunks: Sequence[Chunk], rates: Sequence[float]) -> list[Bundle]:
        """The second stage by measured ``rates``."""
        return second_stage(self.rest, [chunk.load for chunk in chunks], rates, self.ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """All units, those that parts were found of, and the lanes of the others."""

    units: tuple[Unit, ...]
    there: tuple[Bundle, ...]
    """Units with a part, chunk by chunk, which has to be looked at, since a power cut may have torn it."""
    lanes: tuple[Lane, ...]
    costs: tuple[float, ...]
    """Expected cost of every member per load."""
    ranks: int

    def order_of_lanes(self, rank: int) -> list[int]:
        """The lanes in the order in which a rank goes through them, its own first."""
        home = homes([sum(self.costs[m] for m in lane.members) for lane in self.lanes], self.ranks)[rank]
        numbers = list(range(len(self.lanes)))
        return [*numbers[home:], *numbers[:home]]

    def late(
        self, stages: Mapping[str, Sequence[Sequence[Bundle]]], chunks: Sequence[Chunk], rates: Sequence[float]
    ) -> list[Late]:
        """Every unit that is not there, with the claim it was taken under and the seconds that its bundle should take."""
        number = {(unit.chunk, unit.member): place for place, unit in enumerate(self.units)}
        return [
            Late(
                number=number[unit.chunk, unit.member],
                claim=f"{stage}-{lane}-{position}",
                seconds=sum(rates[one.member] * chunks[one.chunk].load for one in bundle.units),
            )
            for stage, lists in stages.items()
            for lane, bundles in enumerate(lists)
            for position, bundle in enumerate(bundles)
            for unit in bundle.units
        ]

    def certificate(self) -> dict[str, Any]:
        """How good the plan is on these ranks, by expected costs."""
        waiting = [unit for lane in self.lanes for b in lane.first for unit in b.units]
        waiting += [unit for lane in self.lanes for unit in lane.rest]
        queue = [bundle.cost for bundle in bundles_of(waiting, self.ranks)]
        return {**certificate(waiting, queue, self.ranks), "bundles": len(queue)}


def scheduled(
    units: Sequence[Unit], there: Sequence[Unit], costs: Sequence[float], *, held: int, ranks: int
) -> Schedule:
    """The schedule of ``units``, of which some are ``there``, on ranks that hold so many members each."""
    known = {(unit.chunk, unit.member) for unit in there}
    sets = lanes_of(costs, min(held, len(costs)))
    at_home = homes([sum(costs[member] for member in members) for members in sets], ranks)
    lanes = []
    for number, members in enumerate(sets):
        own = [unit for unit in units if unit.member in members and (unit.chunk, unit.member) not in known]
        begin_here = max(1, at_home.count(number))
        order = staged(own, begin_here if ranks > 1 else 1)
        lanes.append(Lane(number=number, members=tuple(members), ranks=begin_here, first=order.first, rest=order.rest))
    chunks: dict[int, list[Unit]] = {}
    for unit in there:
        chunks.setdefault(unit.chunk, []).append(unit)
    looks = tuple(Bundle(units=tuple(group)) for _, group in sorted(chunks.items()))
    return Schedule(units=tuple(units), there=looks, lanes=tuple(lanes), costs=tuple(costs), ranks=ranks)
