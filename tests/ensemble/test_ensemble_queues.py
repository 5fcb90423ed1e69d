"""Every unit is in exactly one batch and given out exactly once; idle ranks hardly look."""

import heapq
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import FileStore, HashStore

from hydragnn.base.errors import InputError
from hydragnn.datasets import Budget, packing
from hydragnn.datasets.packing import costs_of
from hydragnn.datasets.store import Sizes
from hydragnn.distributed import finishing
from hydragnn.distributed import group as groups
from hydragnn.distributed.finishing import Late, finish_together, once
from hydragnn.distributed.group import Group, Table
from hydragnn.ensemble.members.plan import chunks_of, default_budget
from hydragnn.ensemble.prediction.schedule import make_schedule, tasks_of
from tests.ensemble.conftest import refused


@pytest.fixture
def pair(tmp_path: Path) -> list[Group]:
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


@pytest.mark.parametrize("failure", ["the disk is full", "lat\udce9n is no run"])
def test_a_failure_of_rank_0_ends_the_others(pair: list[Group], failure: str) -> None:
    one, other = pair
    for group, words in ((other, "the same"), (one, failure)):
        with pytest.raises(InputError), group:
            raise InputError(words)
    sentence = re.escape(failure.encode(errors="backslashreplace").decode())
    refused(f"rank 0 ended: {sentence}", other.is_signalled, "merge")


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
def test_tasks_have_every_batch_once_and_balance_work(batches: list[tuple[float, bool, bool]], ranks: int) -> None:
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
    largest, free = max(costs.max(), costs.sum() / (8 * ranks)), [0.0] * ranks
    for task in schedule.tasks:
        heapq.heapreplace(free, free[0] + task.cost)
    assert max(free) <= costs.sum() / ranks + 2 * largest + 1e-9


def test_tasks_shrink_towards_the_end_and_large_batches_come_first() -> None:
    costs = np.ones(200)
    costs[[150, 20]] = 60.0, 70.0
    tasks = list(tasks_of(costs, np.ones(200, dtype=np.bool_), ranks=4))
    assert [(task.first, task.stop) for task in tasks[:2]] == [(20, 21), (150, 151)]
    lengths = [task.stop - task.first for task in tasks[2:]]
    assert lengths[0] == 6 and lengths[-1] == 1 and len(tasks) < 120


class Pair(Group):
    """Rank 1 of two, of which rank 0 is dead or alive."""

    def __init__(self, dead: bool) -> None:
        super().__init__(1, 2)
        self.dead = dead

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        return make()

    def owner(self, name: str) -> int:
        return 0

    def gone(self, rank: int) -> bool:
        return self.dead


def test_work_of_the_dead_is_taken_at_once_and_late_work_later(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late(number=5, claim="rest-0-2", seconds=0.0)
    done = []
    monkeypatch.setattr(finishing, "AT_LEAST", 60.0)
    begin = time.monotonic()
    finish_together(Pair(dead=True), "unit", lambda: [] if done else [late], done.append)
    assert done == [5] and time.monotonic() - begin < finishing.AT_LEAST
    monkeypatch.setattr(finishing, "AT_LEAST", 0.1)
    finish_together(Pair(dead=False), "unit", lambda: [] if len(done) > 2 else [late], done.append)
    assert done == [5, 5, 5]  # again, and once more after the same time


def test_what_the_first_rank_does_not_begin_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "HESITATION", 0.1)
    monkeypatch.setattr(finishing, "LOOKS", 200.0)
    done = []
    begin = time.monotonic()
    assert once(Pair(dead=False), "merge", lambda: bool(done), lambda: done.append(1))
    assert time.monotonic() - begin > finishing.HESITATION
    pair = Pair(dead=False)
    assert pair.first_to("merge")  # by rank 0, as ``owner`` says
    looks = iter([False] * 20)
    assert not once(pair, "merge", lambda: next(looks, True), lambda: done.append(2))
    died = Pair(dead=True)
    assert died.first_to("merge")
    assert once(died, "merge", lambda: False, lambda: done.append(3))
    assert done == [1, 3]


class StandIn(Group):
    def __init__(self, rank: int, size: int, store: HashStore) -> None:
        super().__init__(rank, size)
        self.store = store

    def owner(self, name: str) -> None:
        return None


@pytest.mark.parametrize("what", ["units", "the file"])
def test_a_thousand_idle_ranks_hardly_look_at_the_file_system(what: str) -> None:
    looks, store, ready, ended = list[float](), HashStore(), threading.Event(), list[int]()

    def missing() -> list[Late]:
        looks.append(time.monotonic())
        return [] if ready.is_set() else [Late(number=1, claim="rest-0-1", seconds=1000.0)]

    def wait_for(rank: int) -> None:
        group = StandIn(rank, 1000, store)
        if what == "units":
            finish_together(group, "unit", missing, lambda number: None)
        elif rank:
            assert not once(group, "merge", lambda: not missing(), lambda: None)
        else:  # writes the file
            ready.wait()
            group.signal("merge")
        ended.append(rank)

    begin = time.monotonic()
    ranks = [threading.Thread(target=wait_for, args=(rank,), daemon=True) for rank in range(1000)]
    for one in ranks:
        one.start()
    time.sleep(1.0)
    ready.set()
    for one in ranks:
        one.join(timeout=60)
    assert len(ended) == 1000
    assert len(looks) < 50 * (time.monotonic() - begin)


BUDGETS = st.integers(0, 5), st.integers(4, 30)


@pytest.mark.parametrize("window", [1, 3, packing.WINDOW])
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 40), st.booleans()), max_size=40), *BUDGETS)
def test_every_graph_is_in_one_chunk_in_order(window: int, graphs: Any, max_graphs: int, max_nodes: int) -> None:
    built = [(n, e) for n, e, failed in graphs if not failed]
    numbers = np.array([i for i, (_, _, failed) in enumerate(graphs) if not failed], dtype=np.int64)
    failures = {i: "duplicate atoms" for i, (_, _, failed) in enumerate(graphs) if failed}
    nodes, edges = np.array(built, dtype=np.int64).reshape(-1, 2).T
    sizes = Sizes(nodes=nodes, edges=edges)
    budget = Budget(max_graphs=max_graphs, max_nodes=max_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "WINDOW", window)
        chunks = chunks_of(sizes, numbers, budget, failures)
    assert [int(n) for chunk in chunks for n in chunk.numbers] == list(range(len(graphs)))
    assert [int(g) for chunk in chunks for g in chunk.graphs] == list(range(len(built)))
    for chunk in chunks:
        if not chunk.reason:
            assert sizes.nodes[chunk.graphs].sum() <= max_nodes
            assert not max_graphs or len(chunk.graphs) <= max_graphs
    assert [chunk.load for chunk in chunks] == [float(costs_of(sizes)[chunk.graphs].sum()) for chunk in chunks]


def test_a_graph_above_the_budget_stands_alone_and_says_what_it_needs() -> None:
    sizes = Sizes(nodes=np.array([2, 9, 2]), edges=np.array([0, 0, 0]))
    chunks = chunks_of(sizes, np.arange(3), Budget(max_nodes=8), {})
    reason = "9 nodes are more than the budget of 8; raise batch.max_nodes to at least 9"
    assert [chunk.reason for chunk in chunks] == ["", reason, ""]


def test_default_budgets_take_any_graph_and_thousands_of_small_ones() -> None:
    sizes = Sizes(nodes=np.array([5, 5]), edges=np.array([10, 10_000_000]))
    assert not any(chunk.reason for chunk in chunks_of(sizes, np.arange(2), default_budget(sizes), {}))
    sizes = Sizes(nodes=np.full(20_000, 6), edges=np.full(20_000, 30))
    assert 2000 < len(chunks_of(sizes, None, default_budget(sizes), {})[0].graphs) < 3000
