"""Schedules of pipelines for any number of stages, chunks and micro-batches, on a virtual clock and beside those of torch."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import FULL_BACKWARD, ScheduleInterleaved1F1B

from hydragnn.distributed.pipeline import COSTS, Action, Pipeline, force_schedule, stage_schedule

Done = dict[tuple[bool, int, int], float]
"""When (back, piece of layers, micro-batch) was complete; pieces are numbered from the inputs on."""


@dataclass(frozen=True, kw_only=True)
class Course:
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
            clocks[stage] = begin + (backward if action.sweep else forward)
            done[action.sweep, action.chunk * len(orders) + stage, action.number] = clocks[stage]
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
    count = most = 0
    for action in order:
        count += -1 if action.sweep else 1
        most = max(most, count)
    return most


SIZES = (st.integers(2, 8), st.integers(1, 4), st.integers(0, 40))
"""Stages, chunks, micro-batches."""


def schedules(stages: int, chunks: int, parts: int) -> list[list[Action]]:
    return [stage_schedule(stage, stages, chunks, parts) for stage in range(stages)]


@given(*SIZES)
def test_every_pass_is_computed_once_and_forward_passes_first(stages: int, chunks: int, parts: int) -> None:
    for order in schedules(stages, chunks, parts):
        every = {Action(back, chunk, n) for back in (False, True) for chunk in range(chunks) for n in range(parts)}
        assert len(order) == len(every) and set(order) == every
        place = {action: position for position, action in enumerate(order)}
        assert all(place[Action(False, *one[1:])] < place[one] for one in order if one.sweep)


@given(*SIZES)
def test_messages_arrive_in_the_order_in_which_they_are_received(stages: int, chunks: int, parts: int) -> None:
    """Messages between two ranks have no names; those of one direction, of passes forward or back, follow each other."""
    orders = schedules(stages, chunks, parts)
    for back, stage in product((False, True), range(stages)):
        step = -1 if back else 1
        to = (stage + step) % stages
        shift = step * (stage + step != to)  # between the last stage and the first, to another chunk
        sent = [(chunk + shift, n) for side, chunk, n in orders[stage] if side == back and 0 <= chunk + shift < chunks]
        assert sent == [(chunk, n) for side, chunk, n in orders[to] if side == back and 0 <= chunk - shift < chunks]


@given(*SIZES, st.floats(0.1, 4.0), st.floats(0.0, 1.0))
def test_no_stage_waits_for_ever_and_memory_is_bounded(
    stages: int, chunks: int, parts: int, backward: float, latency: float
) -> None:
    course = course_of(schedules(stages, chunks, parts), chunks, 1.0, backward, latency)
    a_round = -(-parts // max(1, parts // stages))
    for stage, most in enumerate(course.in_flight):
        behind = stages - 1 - stage
        assert most <= (behind + 1 if chunks == 1 else (chunks - 1) * a_round + 2 * behind + 1)


@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 32), st.floats(0.1, 4.0))
def test_stages_wait_as_long_as_the_paper_says(stages: int, chunks: int, more: int, backward: float) -> None:
    """(stages - 1) (forward + backward) / chunks, section 2.2.2; here for numbers of micro-batches that stages do not divide, too."""
    course = course_of(schedules(stages, chunks, stages + more), chunks, 1 / chunks, backward / chunks)
    assert course.idle == pytest.approx((stages - 1) * (1 + backward) / chunks)


@pytest.mark.parametrize(
    ("stages", "chunks", "parts"), [(2, 2, 2), (2, 3, 8), (4, 2, 8), (4, 2, 10), (4, 3, 3), (3, 4, 9)]
)
def test_interleaved_schedules_are_those_of_torch(stages: int, chunks: int, parts: int) -> None:
    rounds = max(1, parts // stages)
    sizes = {"n_local_stages": chunks, "microbatches_per_round": parts // rounds, "pp_group_size": stages}
    peer = SimpleNamespace(**sizes, _n_microbatches=parts)
    for stage, order in enumerate(schedules(stages, chunks, parts)):
        theirs = ScheduleInterleaved1F1B._calculate_single_rank_operations(peer, stage)
        assert order == [actions_of(one, stages) for one in theirs if one is not None]


def actions_of(one: Any, stages: int) -> Action:
    return Action(one.computation_type == FULL_BACKWARD, one.stage_index // stages, one.microbatch_index)


@given(st.integers(2, 8), st.integers(0, 40))
def test_one_chunk_is_1f1b(stages: int, parts: int) -> None:
    """As many forward passes as stages follow, then one of each, then the backward passes that are left."""
    for stage, order in enumerate(schedules(stages, 1, parts)):
        ahead = min(stages - 1 - stage, parts)
        assert "".join("b" if one.sweep else "f" for one in order) == "f" * ahead + "fb" * (parts - ahead) + "b" * ahead
        for back in (False, True):
            assert [one.number for one in order if one.sweep == back] == list(range(parts))


@given(*SIZES, st.integers(1, 40))
def test_sweeps_for_forces_follow_each_other_in_the_order_of_messages(
    stages: int, chunks: int, parts: int, most: int
) -> None:
    """Four sweeps of every chunk, up, back, up, back; a link's messages arrive as they are received; none is waited for in vain."""
    orders, seconds = force_schedule(stages, chunks, parts, most)
    rests, clocks = [list(order) for order in orders], [0] * stages
    assert all(len(set(order)) == len(order) == 4 * chunks * parts for order in rests)
    links: dict[tuple[int, int, int, bool], list[tuple[int, int]]] = {}
    done, pieces = dict[tuple[int, int, int], int](), stages * chunks
    while any(rests):
        moved = False
        for stage, order in enumerate(rests):
            while order:
                sweep, chunk, number = order[0]
                piece = chunk * stages + stage
                before = piece + (1 if sweep % 2 else -1)
                inside = not 0 <= before < pieces
                earlier = (sweep - 1, piece, number) if inside else (sweep, before, number)
                if earlier not in done and not (inside and sweep == 0):
                    break
                if not inside:
                    link = links[sweep, before % stages, stage, abs(before % stages - stage) > 1]
                    assert link.pop(0) == (piece, number)
                clocks[stage] = max(clocks[stage], done.get(earlier, 0)) + COSTS[sweep]
                done[sweep, piece, number] = clocks[stage]
                to = piece - (1 if sweep % 2 else -1)
                if 0 <= to < pieces:
                    key = (sweep, stage, to % stages, abs(to % stages - stage) > 1)
                    links.setdefault(key, []).append((to, number))
                order.pop(0)
                moved = True
        assert moved, "all stages wait"
    assert max(clocks) == seconds
    on_way = [one for one in orders[0] if one.chunk == 0]
    counts = [sum((one.sweep == 0) - (one.sweep == 3) for one in on_way[:end]) for end in range(len(on_way) + 1)]
    assert max(counts) <= most


@pytest.mark.parametrize("count", [1, 700, 5000])
def test_any_number_of_states_travels(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wire: deque[torch.Tensor] = deque()
    monkeypatch.setattr(Pipeline, "link", lambda *_: (None, 0))
    monkeypatch.setattr(dist, "isend", lambda tensor, **_: wire.append(tensor) or SimpleNamespace(wait=bool))
    monkeypatch.setattr(dist, "recv", lambda tensor, **_: tensor.copy_(wire.popleft()))
    stage = object.__new__(Pipeline)
    stage.pending, stage.device = [], torch.device("cpu")
    states = {f"layer {number} of degree 1": torch.full((number % 3, 2), float(number)) for number in range(count)}
    stage.send(states, 0)
    received = stage.receive(0)
    assert [*received] == [*states] and all(torch.equal(received[name], states[name]) for name in states)
    assert not wire
