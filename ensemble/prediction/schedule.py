"""Who does what when: the same on all ranks, from the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydragnn.ensemble.plan import Chunk, Unit, certificate
from hydragnn.ensemble.prediction.order import STAGES, Bundle, Stage, bundles_of, homes, lanes_of, probing, staged
from hydragnn.ensemble.prediction.together import Late


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Members that live together on a rank, and their work."""

    number: int
    members: tuple[int, ...]
    ranks: int
    """Ranks that begin here; the others help when theirs is done."""
    units: tuple[Unit, ...]


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

    @property
    def stages(self) -> int:
        """How often work is ordered; one rank alone has no use for a second time."""
        return STAGES if self.ranks > 1 else 1

    def first(self) -> list[Stage]:
        """The first stage of every lane, by expected costs."""
        return [probing(staged(lane.units, lane.ranks, self.stages), lane.ranks) for lane in self.lanes]

    def following(
        self, number: int, before: Sequence[Stage], chunks: Sequence[Chunk], rates: Sequence[float]
    ) -> list[Stage]:
        """Stage ``number`` of every lane, by measured seconds: a member's ``rates`` times a chunk's load."""
        stages = []
        for lane, stage in zip(self.lanes, before):
            units = [replace(unit, cost=rates[unit.member] * chunks[unit.chunk].load) for unit in stage.left]
            stages.append(staged(units, lane.ranks, self.stages - number))
        return stages

    def order_of_lanes(self, rank: int) -> list[int]:
        """The lanes in the order in which a rank goes through them, its own first."""
        home = homes([sum(self.costs[m] for m in lane.members) for lane in self.lanes], self.ranks)[rank]
        numbers = list(range(len(self.lanes)))
        return [*numbers[home:], *numbers[:home]]

    def late(
        self, taken: Mapping[str, Sequence[Sequence[Bundle]]], chunks: Sequence[Chunk], rates: Sequence[float]
    ) -> list[Late]:
        """Every unit that is not there, with the claim it was taken under and the seconds that its bundle should take."""
        number = {(unit.chunk, unit.member): place for place, unit in enumerate(self.units)}
        return [
            Late(
                number=number[unit.chunk, unit.member],
                claim=f"{stage}-{lane}-{position}",
                seconds=sum(rates[one.member] * chunks[one.chunk].load for one in bundle.units),
            )
            for stage, lists in taken.items()
            for lane, bundles in enumerate(lists)
            for position, bundle in enumerate(bundles)
            for unit in bundle.units
        ]

    def certificate(self) -> dict[str, Any]:
        """How good the plan is on these ranks, by expected costs."""
        waiting = [unit for lane in self.lanes for unit in lane.units]
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
        lanes.append(Lane(number=number, members=tuple(members), ranks=begin_here, units=tuple(own)))
    chunks: dict[int, list[Unit]] = {}
    for unit in there:
        chunks.setdefault(unit.chunk, []).append(unit)
    looks = tuple(Bundle(units=tuple(group)) for _, group in sorted(chunks.items()))
    return Schedule(units=tuple(units), there=looks, lanes=tuple(lanes), costs=tuple(costs), ranks=ranks)
