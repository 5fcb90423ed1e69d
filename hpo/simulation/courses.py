"""Configurations of a simulated campaign: costs, curves and failures."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from hydragnn.hpo.scheduling.sizing import Load
from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.record import FailureKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """The truth about one configuration, which the scheduler never sees."""

    work: float
    """Seconds per epoch on one slot."""
    scaling: float
    curve: tuple[float, ...]
    """Objective after 1, 2, ... epochs of the full training."""
    fails_at: float = math.inf
    """Epochs, with a fraction, after which it fails by itself."""
    failure: FailureKind = "diverged"
    micro_batches: int = 1
    """Parts into which its batches must be cut to fit into memory."""

    @property
    def final(self) -> float:
        """The objective after the full training; infinite for a configuration that fails."""
        return self.curve[-1] if math.isinf(self.fails_at) else math.inf

    def epoch_seconds(self, slots: int) -> float:
        """Duration of an epoch on so many slots."""
        return Load(self.work, self.scaling).on(slots)


CourseOf = Callable[[int], Course]  # the configuration with a number


def drawn_courses(assumptions: Assumptions, epochs: int, seed: int, shares: int = 1) -> CourseOf:
    """Return configurations drawn from distributions, with curves that cross.

    The objective after e epochs is final * (1 + a * (e ** -b - E ** -b)). ``shares``: slots per node.
    """
    cache: dict[int, Course] = {}

    def course(number: int) -> Course:
        if number not in cache:
            draw = random.Random(f"course {seed} {number}")
            work = assumptions.median_node_hours * shares * 3600 / epochs
            work *= draw.lognormvariate(0, assumptions.cost_sigma)
            final, a, b = draw.lognormvariate(0, 0.5), draw.lognormvariate(1.0, 0.5), draw.uniform(0.4, 1.0)
            diverges, at, memory_draw = draw.random() < assumptions.diverged, draw.random(), draw.random()
            cache[number] = Course(
                work=work,
                scaling=assumptions.scaling_nodes * shares,
                curve=tuple(final * (1 + a * ((e + 1) ** -b - epochs**-b)) for e in range(epochs)),
                fails_at=at * epochs if diverges else math.inf,
                micro_batches=2 if memory_draw < assumptions.out_of_memory else 1,
            )
        return cache[number]

    return course
