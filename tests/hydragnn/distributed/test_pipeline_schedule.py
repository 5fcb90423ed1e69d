"""Schedules of pipelines for any number of stages, chunks and micro-batches, on a virtual clock and beside those of torch."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import FULL_BACKWARD, ScheduleInterleaved1F1B

from hydragnn.distributed.pipeline import Action, stage_schedule
from tests.hydragnn.distributed.virtual_clock import course_of

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
        assert all(place[Action(False, *one[1:])] < place[one] for one in order if one.back)


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
def test_no_stage_waits_for_ever_and_few_activations_are_in_memory(
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
    peer = SimpleNamespace(
        n_local_stages=chunks, microbatches_per_round=parts // rounds, pp_group_size=stages, _n_microbatches=parts
    )
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
        assert "".join("b" if one.back else "f" for one in order) == "f" * ahead + "fb" * (parts - ahead) + "b" * ahead
        for back in (False, True):
            assert [one.number for one in order if one.back == back] == list(range(parts))
