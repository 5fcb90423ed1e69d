"""Who does what when: the same on all ranks, from the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydragnn.ensemble.plan import Chunk, Unit, certificate
from hydragnn.ensemble.prediction.order import STAGES, Bundle, Stage, bundles_of, homes, lanes_of, probing, staged
from hydragnn.ensemble.prediction.queues import LANES
from hydragnn.ensemble.prediction.together import Late


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Members that live together on a rank, and their work."""

    number: int
    members: tuple[int, ...]
    ranks: int
    """Ranks that begin here; the others help when theirs is done."""
    units: tuple[Unit, ...]
    stages: int
    """How often work is ordered; one rank alone has no use for a second time."""

    def first(self) -> Stage:
        """The first stage, by expected costs."""
        return probing(staged(self.units, self.ranks, self.stages), self.ranks)

    def following(self, number: int, before: Stage, chunks: Sequence[Chunk], rates: Sequence[float]) -> Stage:
        """Stage ``number``, by measured seconds: a member's ``rates`` times a chunk's load."""
        units = [replace(unit, cost=rates[unit.member] * chunks[unit.chunk].load) for unit in before.left]
        return staged(units, self.ranks, self.stages - number)

    def queue(self, stage: int) -> int:
        """The number of the queue of a stage."""
        return LANES + self.number * self.stages + stage


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

    def lanes_from(self, rank: int) -> list[Lane]:
        """The lanes in the order in which a rank goes through them, its own first."""
        home = homes([sum(self.costs[m] for m in lane.members) for lane in self.lanes], self.ranks)[rank]
        return [*self.lanes[home:], *self.lanes[:home]]

    def late(
        self, taken: Mapping[int, Sequence[Bundle]], chunks: Sequence[Chunk], rates: Sequence[float]
    ) -> list[Late]:
        """Every unit of these queues, with the claim it was taken under and the seconds that its bundle should take."""
        number = {(unit.chunk, unit.member): place for place, unit in enumerate(self.units)}
        return [
            Late(
                number=number[unit.chunk, unit.member],
                claim=f"{queue}-{position}",
                seconds=sum(rates[one.member] * chunks[one.chunk].load for one in bundle.units),
            )
            for queue, bundles in taken.items()
            for position, bundle in enumerate(bundles)
            for unit in bundle.units
        ]

    def certificate(self) -> dict[str, Any]:
        """How good the plan is on these ranks, by expected costs."""
        waiting = [unit for lane in self.lanes for unit in lane.units]
        queue = [bundle.cost for bundle in bundles_of(waiting, self.ranks)]
        return {**certificate(waiting, queue, self.ranks), "bundles": len(queue)}


def make_schedule(
    units: Sequence[Unit], there: Sequence[Unit], costs: Sequence[float], *, held: int, ranks: int
) -> Schedule:
    """The schedule of ``units``, of which some are ``there``, on ranks that hold so many members each."""
    known = {(unit.chunk, unit.member) for unit in there}
    sets = lanes_of(costs, min(held, len(costs)))
    at_home = homes([sum(costs[member] for member in members) for members in sets], ranks)
    lanes, stages = [], STAGES if ranks > 1 else 1
    for number, members in enumerate(sets):
        own = [unit for unit in units if unit.member in members and (unit.chunk, unit.member) not in known]
        begin_here = max(1, at_home.count(number))
        lanes.append(Lane(number=number, members=tuple(members), ranks=begin_here, units=tuple(own), stages=stages))
    chunks: dict[int, list[Unit]] = {}
    for unit in there:
        chunks.setdefault(unit.chunk, []).append(unit)
    looks = tuple(Bundle(units=tuple(group)) for _, group in sorted(chunks.items()))
    return Schedule(units=tuple(units), there=looks, lanes=tuple(lanes), costs=tuple(costs), ranks=ranks)
