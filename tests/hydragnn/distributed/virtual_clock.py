"""Pipelines on a virtual clock: stages that wait for what they receive, as ranks do."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydragnn.distributed.pipeline import Action

Done = dict[tuple[bool, int, int], float]
"""When (back, piece of layers, micro-batch) was complete; pieces are numbered from the inputs on."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """What a step has taken."""

    seconds: float
    idle: float
    """Of the first stage."""
    in_flight: list[int]
    """Most forward passes of each stage whose backward passes were not yet complete."""


def course_of(
    orders: Sequence[Sequence[Action]], chunks: int, forward: float = 1.0, backward: float = 1.0, latency: float = 0.0
) -> Course:
    """Return the course of a step; RuntimeError where all stages wait for each other.

    ``forward`` and ``backward`` are the times of one chunk. A message arrives after ``latency``, while its sender goes on.
    """
    done: Done = {}
    clocks, rests = [0.0] * len(orders), [list(order) for order in orders]
    while any(rests):
        ready = [stage for stage, rest in enumerate(rests) if rest and arrival(done, rest[0], stage, orders, chunks)]
        if not ready:
            raise RuntimeError(f"all stages wait: {[rest[:1] for rest in rests]}")
        for stage in ready:
            action = rests[stage].pop(0)
            begin = max([clocks[stage], *(one + latency for one in arrival(done, action, stage, orders, chunks) or [])])
            clocks[stage] = begin + (backward if action.back else forward)
            done[action.back, action.chunk * len(orders) + stage, action.number] = clocks[stage]
    own = len(orders[0]) // 2 * (forward + backward)
    return Course(seconds=max(clocks), idle=max(clocks) - own, in_flight=[most_in_flight(order) for order in orders])


def arrival(
    done: Done, action: Action, stage: int, orders: Sequence[Sequence[Action]], chunks: int
) -> list[float] | None:
    """Return when what an action receives was sent; None where it is not complete."""
    back, chunk, number = action
    piece = chunk * len(orders) + stage
    if back and (False, piece, number) not in done:
        return None
    sender = piece + (1 if back else -1)
    if not 0 <= sender < chunks * len(orders):
        return [0.0]
    return [done[back, sender, number]] if (back, sender, number) in done else None


def most_in_flight(order: Sequence[Action]) -> int:
    """Return the largest number of micro-batches in memory."""
    count = most = 0
    for action in order:
        count += -1 if action.back else 1
        most = max(most, count)
    return most
