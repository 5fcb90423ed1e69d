"""What befalls a simulated machine: a function of the seed, and the same for every policy."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from hydragnn.hpo.simulation.assumptions import Assumptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """What befalls one attempt by chance, whatever its nodes do."""

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
    """A node fails; it may work again at once."""

    time: float
    """Seconds since the allocation began."""
    node: int
    transient: bool


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
    """The failures of an allocation's nodes in order of time, without end."""
    draw = random.Random(f"faults {seed} {allocation}")
    rate = nodes / (assumptions.node_mtbf_hours * 3600) if assumptions.node_mtbf_hours else 0.0
    time = 0.0
    while rate > 0:
        time += draw.expovariate(rate)
        yield NodeFault(time=time, node=draw.randrange(nodes), transient=draw.random() < assumptions.transient)


def black_holes(assumptions: Assumptions, nodes: int, seed: int, allocation: int) -> frozenset[int]:
    """The nodes on which every launch fails."""
    draw = random.Random(f"holes {seed} {allocation}")
    exact = nodes * assumptions.black_holes
    count = int(exact) + (draw.random() < exact - int(exact))
    return frozenset(draw.sample(range(nodes), count))


def _exponential(draw: random.Random, rate: float) -> float:
    chance = draw.random()  # drawn in any case, so that switching one fault off leaves the others as they are
    return -math.log(1 - chance) / rate if rate > 0 else math.inf
