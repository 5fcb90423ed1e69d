"""Faults of a simulated machine: functions of the seed."""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from hydragnn.hpo.simulation.assumptions import Assumptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """Fate of an attempt, whatever its nodes do."""

    startup: float
    save: float
    launch_fails: bool
    slowness: float
    hangs_after: float
    """Node-seconds of training; infinite where it does not hang."""
    preempted_after: float
    """Node-seconds of training."""
    suspect_known: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFault:
    """Nodes fail together: one, or those of a cabinet."""

    time: float
    """Seconds since the allocation began."""
    nodes: tuple[int, ...]
    seconds: float
    """After so long they work again; 0: at once, infinite: never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Pace of training, which falls on a slow node."""

    factor: float = 1.0
    """Seconds that one of training takes after the turn."""
    turn: float = 0.0
    """Time at which it becomes slow."""

    def trained(self, begin: float, end: float) -> float:
        """Seconds that the same training takes where nothing delays it.

        >>> Pace(factor=3.0, turn=3600.0).trained(3000.0, 4200.0)
        800.0
        """
        if self.factor == 1.0:
            return end - begin
        normal = min(end, self.turn) - min(begin, self.turn)
        return normal + (max(end, self.turn) - max(begin, self.turn)) / self.factor

    def end(self, begin: float, seconds: float) -> float:
        """Return the end of training of this length.

        >>> Pace(factor=3.0, turn=3600.0).end(3000.0, 800.0)
        4200.0
        """
        normal = seconds if self.factor == 1.0 else min(seconds, max(0.0, self.turn - begin))
        return begin + seconds if normal == seconds else max(begin, self.turn) + (seconds - normal) * self.factor


def fate_of(assumptions: Assumptions, seed: int, trial: int, attempt: int) -> Fate:
    """The fate of an attempt; equal arguments give equal fates."""
    draw = random.Random(f"fate {seed} {trial} {attempt}")
    spread = 0.5 + draw.random()
    return Fate(
        startup=assumptions.startup_seconds * spread,
        save=assumptions.save_seconds * spread,
        launch_fails=draw.random() < assumptions.launch_failure,
        slowness=assumptions.straggler_factor if draw.random() < assumptions.stragglers else 1.0,
        hangs_after=_exponential(draw, assumptions.hangs / 3.6e6),
        preempted_after=_exponential(draw, assumptions.preemptions / 3.6e6),
        suspect_known=draw.random() < assumptions.suspect_known,
    )


def node_faults(assumptions: Assumptions, nodes: int, seed: int, allocation: int) -> Iterator[NodeFault]:
    """Yield failures of nodes and cabinets in order of time, without end."""
    single = _single_faults(assumptions, nodes, seed, allocation)
    return heapq.merge(single, _cabinet_faults(assumptions, nodes, seed, allocation), key=lambda fault: fault.time)


def _single_faults(assumptions: Assumptions, nodes: int, seed: int, allocation: int) -> Iterator[NodeFault]:
    draw = random.Random(f"faults {seed} {allocation}")
    rate = nodes / (assumptions.node_mtbf_hours * 3600) if assumptions.node_mtbf_hours else 0.0
    time = 0.0
    while rate > 0:
        time += draw.expovariate(rate)
        node, transient = draw.randrange(nodes), draw.random() < assumptions.transient
        yield NodeFault(time=time, nodes=(node,), seconds=0.0 if transient else math.inf)


def _cabinet_faults(assumptions: Assumptions, nodes: int, seed: int, allocation: int) -> Iterator[NodeFault]:
    draw = random.Random(f"cabinets {seed} {allocation}")
    size, time = min(assumptions.cabinet_nodes, nodes), 0.0
    while assumptions.cabinet_minutes > 0:
        time += draw.expovariate(1 / (60 * assumptions.cabinet_minutes))
        first = size * draw.randrange(nodes // size)
        back = 60 * assumptions.cabinet_back_minutes
        yield NodeFault(time=time, nodes=tuple(range(first, first + size)), seconds=back)


def is_storm(assumptions: Assumptions, seconds: float) -> bool:
    """Return True where every launch fails at that time.

    >>> [is_storm(Assumptions(storm_minutes=10), 60.0 * minutes) for minutes in (59, 60, 69, 70, 420)]
    [False, True, True, False, True]
    """
    since = seconds - 3600 * assumptions.storm_first_hours
    return since >= 0 and since % (3600 * assumptions.storm_every_hours) < 60 * assumptions.storm_minutes


def bad_nodes(assumptions: Assumptions, nodes: int, seed: int, allocation: int) -> Iterator[frozenset[int]]:
    """Yield nodes whose launches fail, whose attempts fail late, that become slow."""
    parts = {"holes": assumptions.black_holes, "late": assumptions.late_failures, "slow": assumptions.slow_nodes}
    for key, part in parts.items():
        draw = random.Random(f"{key} {seed} {allocation}")
        exact = nodes * part
        yield frozenset(draw.sample(range(nodes), int(exact) + (draw.random() < exact - int(exact))))


def _exponential(draw: random.Random, rate: float) -> float:
    chance = draw.random()  # drawn in any case, so that switching one fault off leaves the others as they are
    return -math.log(1 - chance) / rate if rate > 0 else math.inf
