"""Every unit is given out exactly once, however many ranks take and in whatever order."""

import json
import os
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import FileStore

from hydragnn.base.errors import InputError
from hydragnn.ensemble.plan import certificate
from hydragnn.ensemble.prediction import group as groups
from hydragnn.ensemble.prediction.group import Group
from hydragnn.ensemble.prediction.schedule import Schedule, Task, homes, lanes_of, make_schedule, tasks_of

matrices = st.integers(1, 12).flatmap(
    lambda chunks: st.lists(st.lists(st.floats(0.1, 9), min_size=3, max_size=3), min_size=chunks, max_size=chunks)
)


def units_in(tasks: list[Task]) -> list[tuple[int, int]]:
    """Return batch and member of every unit of the tasks."""
    return [(chunk, member) for task in tasks for chunk in range(task.first, task.stop) for member in task.members]


@pytest.fixture
def pair(tmp_path: Path) -> list[Group]:
    """Return two ranks that share a file."""
    ranks = [Group(rank, 2) for rank in range(2)]
    for one in ranks:
        one.store = FileStore(str(tmp_path / "store"), -1)
        one._began = 0.0
    return ranks


def test_ranks_that_run_at_once_share_all_positions(tmp_path: Path) -> None:
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(rank: int) -> None:
        group = Group(rank, 4)
        group.store = FileStore(str(tmp_path / "store"), -1)
        while (position := group.take("lane 0", 200)) is not None:
            taken[rank].append(position)
            assert group.owner(f"lane 0-{position}") == rank

    threads = [threading.Thread(target=take, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(position for own in taken for position in own) == list(range(200))


def test_ranks_share_claims_signals_notes_and_counts(pair: list[Group]) -> None:
    one, other = pair
    assert one.first_to("merge") and not other.first_to("merge")
    assert other.owner("merge") == 0 and other.owner("nothing") is None
    assert not other.is_signalled("unit")
    one.signal("unit")
    assert other.is_signalled("unit")
    one.note("done", {"a": 1})
    other.note("done", {"a": 2})
    assert one.notes("done") == [{"a": 1}, {"a": 2}]
    assert not one.is_last_at("unit") and other.is_last_at("unit")


@pytest.mark.parametrize(
    "failure, sentence",
    [("the disk is full", "the disk is full"), ("lat\udce9n is no run", r"lat\\udce9n is no run")],
    ids=["a sentence", "a name that is no UTF-8"],
)
def test_a_failure_of_rank_0_ends_the_others(pair: list[Group], failure: str, sentence: str) -> None:
    one, other = pair
    other.close(InputError("the same"))
    one.close(InputError(failure))
    with pytest.raises(InputError, match=f"rank 0 ended: {sentence}"):
        other.is_signalled("merge")


def test_a_rank_that_is_dead_stopped_or_silent_is_gone(pair: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    group, now = pair[0], [0.0]
    monkeypatch.setattr(groups.time, "monotonic", lambda: now[0])
    assert not group.gone(0) and not group.gone(1)  # it may begin later
    group.store.set("process-1", json.dumps([groups.machine_name(), 4194303]))
    assert group.gone(1)
    group.store.set("process-1", json.dumps([groups.machine_name(), os.getpid()]))
    assert not group.gone(1)
    monkeypatch.setattr(groups.psutil, "Process", lambda _: Mock(status=lambda: psutil.STATUS_STOPPED))
    assert not group.gone(1)
    now[0] = 1 + groups.STOPPED
    assert group.gone(1)
    group.store.set("process-1", json.dumps(["another machine", 7]))
    assert not group.gone(1)
    now[0] += 1 + groups.BEAT * groups.SILENT_BEATS
    assert group.gone(1)
    group.store.add("beats of 1", 1)
    assert not group.gone(1)


@given(matrices, st.integers(1, 5))
def test_tasks_hold_every_unit_once_and_balance_the_work(costs: list[list[float]], ranks: int) -> None:
    table = np.array(costs)
    tasks = list(tasks_of(table, np.ones(len(table), dtype=np.bool_), [0, 1, 2], ranks))
    assert sorted(units_in(tasks)) == [(chunk, member) for chunk in range(len(table)) for member in range(3)]
    for task in tasks:
        assert task.cost == pytest.approx(table[task.first : task.stop, list(task.members)].sum())
        assert task.stop == task.first + 1 or len(task.members) == 3
    plan = certificate(table.reshape(-1), np.array([task.cost for task in tasks]), ranks)
    # list scheduling: the last task is a unit, or an eighth of a rank's share
    assert plan["makespan"] <= table.sum() / ranks + max(table.max(), table.sum() / (8 * ranks)) * 3 + 1e-9


def test_tasks_shrink_towards_the_end_and_large_batches_come_first_member_by_member() -> None:
    costs = np.ones((200, 2))
    costs[150] = 60.0
    tasks = list(tasks_of(costs, np.ones(200, dtype=np.bool_), [0, 1], ranks=4))
    assert [(task.first, task.members) for task in tasks[:2]] == [(150, (0,)), (150, (1,))]
    lengths = [task.stop - task.first for task in tasks[2:]]
    assert lengths[0] == 6 and lengths[-1] == 1 and len(tasks) < 120


@given(matrices, st.integers(2, 5), st.integers(1, 3))
def test_members_that_are_computed_as_one_are_never_split_over_ranks(
    costs: list[list[float]], ranks: int, held: int
) -> None:
    """Of large batches, where each is computed alone, any rank may take any member."""
    every, table = np.ones((len(costs), 3), dtype=np.bool_), np.array(costs)
    schedule = make_schedule(
        table.sum(axis=1),
        every,
        ~every,
        np.zeros(len(costs), dtype=np.bool_),
        [3.0, 1.0, 2.0],
        held=held,
        ranks=ranks,
        units_of=lambda chunk: [(0, 2), (1,)] if chunk is None or chunk % 2 else [(0,), (1,), (2,)],
    )
    tasks = [task for lane in schedule.lanes for task in lane]
    assert sorted(units_in(tasks)) == [(chunk, member) for chunk in range(len(costs)) for member in range(3)]
    for task in tasks:
        assert (task.first % 2 == 0 and task.stop == task.first + 1) or (0 in task.members) == (2 in task.members)


def schedule_of(finished: np.ndarray, *, held: int, ranks: int) -> Schedule:
    """Return the schedule of these units of equal batches."""
    every = np.ones_like(finished)
    return make_schedule(
        np.ones(len(finished)), every, finished, finished.all(axis=1), [3.0, 1.0, 2.0], held=held, ranks=ranks
    )


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1), st.integers(1, 5), st.integers(1, 3))
def test_a_schedule_has_all_that_is_not_finished_and_is_the_same_on_all_ranks(
    marks: list[list[bool]], ranks: int, held: int
) -> None:
    finished = np.array(marks)
    one, other = (schedule_of(finished, held=held, ranks=ranks) for _ in range(2))
    assert one.lanes == other.lanes and one.spread == other.spread
    assert {len(task.members) for lane in one.lanes for task in lane} <= set(range(1, held + 1))
    units = units_in([task for number in one.lanes_from(ranks - 1) for task in one.lanes[number]])
    assert len(units) == len(set(units)) and set(units) >= {(int(c), int(m)) for c, m in np.argwhere(~finished)}
    combined = {chunk for task in one.spread for chunk in range(task.first, task.stop)}
    combined |= {
        task.first + n
        for lane in one.lanes
        for task in lane
        if len(task.members) == 3
        for n in range(task.stop - task.first)
    }
    assert combined == set(np.flatnonzero(~finished.all(axis=1)).tolist())
    assert (one.units, one.resumed) == (finished.size, finished.sum())


@given(st.lists(st.floats(0.5, 9), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 9))
def test_every_member_has_one_lane_and_ranks_are_shared_by_cost(costs: list[float], held: int, ranks: int) -> None:
    lanes = lanes_of(costs, held)
    assert sorted(m for lane in lanes for m in lane) == list(range(len(costs)))
    assert all(1 <= len(lane) <= held for lane in lanes)
    at_home = homes([sum(costs[m] for m in lane) for lane in lanes], ranks)
    assert at_home == sorted(at_home) and len(at_home) == ranks
