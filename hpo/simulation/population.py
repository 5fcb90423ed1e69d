"""Configurations of a simulated campaign: costs, curves and failures."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from hydragnn.base.errors import InputError
from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.hpo.records import campaign_records
from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.record import FailureKind, RunRecord

DEFAULT_NODE_HOURS = 128.0
OWN_FAULTS: tuple[FailureKind, ...] = ("diverged", "configuration", "defect")


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
    def epochs(self) -> int:
        """Epochs of the full training."""
        return len(self.curve)

    @property
    def final(self) -> float:
        """The objective after the full training; infinite for a configuration that fails."""
        return self.curve[-1] if math.isinf(self.fails_at) else math.inf

    def epoch_seconds(self, slots: int) -> float:
        """Duration of an epoch on so many slots.

        >>> Course(work=100.0, scaling=9.0, curve=(1.0,)).epoch_seconds(10)
        20.0
        """
        return self.work / slots * (1 + (slots - 1) / self.scaling)


Population = Callable[[int], Course]
"""The configuration with a number; the same for every policy."""


def drawn_population(assumptions: Assumptions, epochs: int, seed: int, shares: int = 1) -> Population:
    """Return configurations drawn from distributions, with curves that cross.

    The objective after e epochs is final * (1 + a * (e ** -b - E ** -b)). ``shares``: slots per node.
    """
    node_hours = assumptions.median_node_hours or DEFAULT_NODE_HOURS
    cache: dict[int, Course] = {}

    def course(number: int) -> Course:
        if number not in cache:
            draw = random.Random(f"course {seed} {number}")
            work = node_hours * shares * 3600 / epochs * draw.lognormvariate(0, assumptions.cost_sigma)
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


def recorded_population(
    folder: Path, objective: Objective, assumptions: Assumptions, epochs: int, seed: int
) -> Population:
    """Return configurations of a recorded campaign.

    Beyond them, they are drawn again with slight changes.

    Curves that end early go on like the mean of the complete ones. InputError where fewer than two trials have a curve.
    """
    records = [course for _, record, _ in campaign_records(folder) if (course := _recorded(record, objective))]
    if len(records) < 2:
        raise InputError(f"{folder} has {len(records)} trials with a learning curve; a simulation needs at least 2")
    shape = _mean_shape([course.curve for course in records], epochs)
    scale = 1.0
    if assumptions.median_node_hours is not None:
        scale = assumptions.median_node_hours * 3600 / epochs / median(course.work for course in records)
    whole = [
        replace(c, work=c.work * scale, scaling=assumptions.scaling_nodes, curve=_continued(c.curve, shape))
        for c in records
    ]
    return lambda number: whole[number] if number < len(whole) else _varied(whole, f"again {seed} {number}")


def _recorded(record: RunRecord, objective: Objective) -> Course | None:
    values = [objective_value(record, objective, epoch + 1) for epoch in range(record.epochs)]
    curve = tuple(value for value in values if value is not None)
    if not curve or record.cost.seconds <= 0:
        return None
    failed = record.failure is not None and record.failure.kind in OWN_FAULTS
    return Course(
        work=record.cost.seconds / record.epochs * max(1, record.cost.nodes),
        scaling=1.0,
        curve=curve,
        fails_at=record.epochs + 0.5 if failed else math.inf,
        failure=record.failure.kind if failed and record.failure else "diverged",
    )


def _mean_shape(curves: Sequence[tuple[float, ...]], epochs: int) -> list[float]:
    shape = []
    for epoch in range(epochs):
        steps = [c[epoch] / c[epoch - 1] for c in curves if 0 < epoch < len(c) and c[epoch - 1] > 0]
        shape.append(fmean(steps) if steps else 1.0)
    return shape


def _continued(curve: tuple[float, ...], shape: list[float]) -> tuple[float, ...]:
    """A curve cut or lengthened to the length of ``shape``.

    >>> _continued((8.0, 4.0), [1.0, 0.5, 0.5, 1.0])
    (8.0, 4.0, 2.0, 2.0)
    """
    values = list(curve[: len(shape)])
    for factor in shape[len(values) :]:
        values.append(values[-1] * factor)
    return tuple(values)


def _varied(courses: list[Course], key: str) -> Course:
    draw = random.Random(key)
    course = draw.choice(courses)
    better, cost = draw.lognormvariate(0, 0.05), draw.lognormvariate(0, 0.1)
    return replace(course, work=course.work * cost, curve=tuple(value * better for value in course.curve))
