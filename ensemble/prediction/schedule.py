"""Who does what when: the same on all ranks, from the same numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from hydragnn.ensemble.plan import Units, certificate, units_where
from hydragnn.ensemble.prediction.order import (
    STAGES,
    Bundles,
    Stage,
    bundles_by_chunk,
    bundles_of,
    homes,
    lanes_of,
    probing,
    staged,
)
from hydragnn.ensemble.prediction.queues import LANES
from hydragnn.ensemble.prediction.together import Late

Loads = Float[NDArray[np.float64], " chunks"]
Marks = Bool[NDArray[np.bool_], "chunks members"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lane:
    """Members that live together on a rank, and their work."""

    number: int
    members: tuple[int, ...]
    ranks: int
    """Ranks that begin here; the others help when theirs is done."""
    units: Units
    stages: int
    """How often work is ordered; one rank alone has no use for a second time."""

    def first(self, loads: Loads, rates: Sequence[float]) -> Stage:
        """The first stage, by expected costs."""
        stage = staged(self.units, self.units.costs(loads, rates), self.ranks, self.stages)
        return probing(stage, stage.left.costs(loads, rates), self.ranks)

    def following(self, number: int, before: Stage, loads: Loads, rates: Sequence[float]) -> Stage:
        """Stage ``number``, by measured seconds: a member's ``rates`` times a chunk's load."""
        return staged(before.left, before.left.costs(loads, rates), self.ranks, self.stages - number)

    def queue(self, stage: int) -> int:
        """The number of the queue of a stage."""
        return LANES + self.number * self.stages + stage


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """All units, those that were found finished, and the lanes of the others."""

    loads: Loads
    every: Marks
    """The units of this prediction: none of a chunk that nothing can be predicted of."""
    there: Bundles
    """Units with a part, chunk by chunk, which has to be looked at, since a power cut may have torn it."""
    lanes: tuple[Lane, ...]
    costs: tuple[float, ...]
    """Expected cost of every member per load."""
    ranks: int

    @property
    def units(self) -> int:
        """How many units there are."""
        return int(self.every.sum())

    def lanes_from(self, rank: int) -> list[Lane]:
        """The lanes in the order in which a rank goes through them, its own first."""
        home = homes([sum(self.costs[m] for m in lane.members) for lane in self.lanes], self.ranks)[rank]
        return [*self.lanes[home:], *self.lanes[:home]]

    def late(self, taken: Mapping[int, Bundles], rates: Sequence[float], there: Marks) -> Iterator[Late]:
        """Every unit of these queues that is not ``there``, with the claim it was taken under and the seconds that its bundle should take."""
        members = len(self.costs)
        for queue, bundles in taken.items():
            absent = np.flatnonzero(~there[bundles.units.chunk, bundles.units.member])
            for place, position in zip(absent, np.searchsorted(bundles.stops, absent, side="right").tolist()):
                units = bundles[position]
                yield Late(
                    number=int(bundles.units.chunk[place]) * members + int(bundles.units.member[place]),
                    claim=f"{queue}-{position}",
                    seconds=sum(rates[one.member] * float(self.loads[one.chunk]) for one in units),
                )

    @cached_property
    def certificate(self) -> dict[str, Any]:
        """How good the plan is on these ranks, by expected costs."""
        marks = self.every.copy()
        marks[self.there.units.chunk, self.there.units.member] = False
        waiting = units_where(marks)
        costs = waiting.costs(self.loads, self.costs)
        queue = bundles_of(waiting, costs, self.ranks).costs
        return {**certificate(costs, queue, self.ranks), "bundles": len(queue)}


def make_schedule(
    loads: Loads, every: Marks, there: Marks, costs: Sequence[float], *, held: int, ranks: int
) -> Schedule:
    """The schedule of the units ``every``, of which some are ``there``, on ranks that hold so many members each."""
    sets = lanes_of(costs, min(held, len(costs)))
    at_home = homes([sum(costs[member] for member in members) for members in sets], ranks)
    lanes, stages = [], STAGES if ranks > 1 else 1
    for number, members in enumerate(sets):
        own = np.zeros_like(every)
        own[:, members] = every[:, members] & ~there[:, members]
        begin_here = max(1, at_home.count(number))
        lanes.append(
            Lane(number=number, members=tuple(members), ranks=begin_here, units=units_where(own), stages=stages)
        )
    found = units_where(every & there)
    looks = bundles_by_chunk(found, found.costs(loads, costs))
    return Schedule(loads=loads, every=every, there=looks, lanes=tuple(lanes), costs=tuple(costs), ranks=ranks)
