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
from hydragnn.distributed import group as groups
from hydragnn.distributed.group import Group
from hydragnn.ensemble.prediction.schedule import make_schedule, tasks_of


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
        while (position := group.take("tasks", 200)) is not None:
            taken[rank].append(position)
            assert group.owner(f"tasks-{position}") == rank

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


@given(st.lists(st.tuples(st.floats(0.1, 9), st.booleans(), st.booleans()), min_size=1, max_size=60), st.integers(1, 5))
def test_tasks_have_every_batch_that_is_left_once_and_balance_the_work(
    batches: list[tuple[float, bool, bool]], ranks: int
) -> None:
    loads, every, finished = (np.array(column) for column in zip(*batches))
    schedule = make_schedule(loads, every, finished, ranks=ranks)
    assert make_schedule(loads, every, finished, ranks=ranks).tasks == schedule.tasks
    chunks = [chunk for task in schedule.tasks for chunk in range(task.first, task.stop)]
    assert sorted(chunks) == np.flatnonzero(~finished).tolist()
    assert (schedule.units, schedule.resumed) == (every.sum(), (every & finished).sum())
    costs = loads * (every & ~finished)
    for task in schedule.tasks:
        assert task.cost == pytest.approx(costs[task.first : task.stop].sum())
    # list scheduling: the last task is a batch, or an eighth of a rank's share
    largest = max(costs.max(), costs.sum() / (8 * ranks))
    assert schedule.certificate["makespan"] <= costs.sum() / ranks + 2 * largest + 1e-9


def test_tasks_shrink_towards_the_end_and_large_batches_come_first() -> None:
    costs = np.ones(200)
    costs[[150, 20]] = 60.0, 70.0
    tasks = list(tasks_of(costs, np.ones(200, dtype=np.bool_), ranks=4))
    assert [(task.first, task.stop) for task in tasks[:2]] == [(20, 21), (150, 151)]
    lengths = [task.stop - task.first for task in tasks[2:]]
    assert lengths[0] == 6 and lengths[-1] == 1 and len(tasks) < 120
