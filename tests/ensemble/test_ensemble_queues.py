"""Every piece of work is given out exactly once, longest first, however many ranks take and in whatever order."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.ensemble.plan import Units, certificate, makespan, units_where
from hydragnn.ensemble.prediction.group import ClaimQueue, Claims, Heart
from hydragnn.ensemble.prediction.queues import (
    LANES,
    LEAST,
    RELAY,
    SHARE,
    Bundles,
    FlatQueue,
    LocalCounter,
    RelayQueue,
    Stage,
    blocks,
    bundles_of,
    homes,
    lanes_of,
    learned_rates,
    probing,
    queue_for,
    staged,
)
from hydragnn.ensemble.prediction.records import Records
from hydragnn.ensemble.prediction.schedule import make_schedule


def work_of(costs: Sequence[Sequence[float]]) -> tuple[Units, np.ndarray]:
    """Costs per chunk and member as units, and what these cost."""
    table = np.array(costs)
    return units_where(np.ones(table.shape, dtype=np.bool_)), table.reshape(-1)


def names(units: Units) -> list[tuple[int, int]]:
    """Chunk and member of every unit."""
    return list(zip(units.chunk.tolist(), units.member.tolist()))


def every(bundles: Bundles) -> list[list[tuple[int, int]]]:
    """Chunk and member of every unit of every bundle."""
    return [[(unit.chunk, unit.member) for unit in bundles[number]] for number in range(len(bundles))]


@given(st.lists(st.floats(0.1, 9.0), max_size=200), st.integers(1, 7), st.randoms(use_true_random=False))
def test_groups_of_ranks_share_all_positions(costs: list[float], relays: int, choice: Random) -> None:
    root, counters = LocalCounter(), [LocalCounter() for _ in range(relays)]
    queues = [RelayQueue(costs, root, counter, relays) for counter in counters for _ in range(3)]
    taken, open_queues = [], list(queues)
    while open_queues:
        queue = choice.choice(open_queues)
        position = queue.take()
        if position is None:
            open_queues.remove(queue)
        else:
            taken.append(position)
    assert sorted(taken) == list(range(len(costs)))
    assert all(queue.take() is None for queue in queues)


class Locked(LocalCounter):
    """A counter for several threads."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def add(self, amount: int) -> int:
        with self.lock:
            return super().add(amount)

    def put(self, value: int) -> None:
        with self.lock:
            super().put(value)


def taken_by_threads(queues: Sequence[Any]) -> list[int]:
    taken = [[] for _ in queues]

    def take(queue: Any, mine: list[int]) -> None:
        while (position := queue.take()) is not None:
            mine.append(position)

    threads = [threading.Thread(target=take, args=pair) for pair in zip(queues, taken)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in taken)
    return sorted(position for mine in taken for position in mine)


def test_ranks_that_really_run_at_once_share_all_positions(tmp_path: Path) -> None:
    root, counters = Locked(), [Locked(), Locked()]
    grouped = [RelayQueue([1.0] * 500, root, counters[i % 2], relays=2) for i in range(6)]
    assert taken_by_threads(grouped) == list(range(500))
    claims = [ClaimQueue(Claims(tmp_path, rank), "first-0", 200) for rank in range(4)]
    assert taken_by_threads(claims) == list(range(200))


def test_a_rank_that_comes_late_finds_the_next_free_position_without_trying_all(tmp_path: Path) -> None:
    first, late = (ClaimQueue(Claims(tmp_path, rank), "unit", 1000) for rank in range(2))
    assert [first.take() for _ in range(700)] == list(range(700))
    assert late.take() == 700
    assert Claims(tmp_path, 1).owner("unit-700") == 1 and Claims(tmp_path, 1).owner("unit-701") is None


def test_few_ranks_count_at_one_place_and_many_in_groups() -> None:
    assert isinstance(queue_for([1.0] * 9, 256, LocalCounter(), LocalCounter()), FlatQueue)
    assert isinstance(queue_for([1.0] * 9, 257, LocalCounter(), LocalCounter()), RelayQueue)


@given(st.lists(st.floats(0.1, 9.0), max_size=300), st.integers(1, 20))
def test_no_block_is_more_than_an_eighth_of_a_groups_share_of_what_is_left(costs: list[float], relays: int) -> None:
    actual = blocks(costs, relays)
    assert [position for start, end in actual for position in range(start, end)] == list(range(len(costs)))
    for start, end in actual:
        assert end == start + 1 or sum(costs[start:end]) <= sum(costs[start:]) / (SHARE * relays) + 1e-9


def test_the_root_is_asked_seldom_and_at_the_end_at_most_once_per_rank() -> None:
    actual = blocks([1.0] * 81_920, relays=8192 // RELAY)
    shared = [end - start for start, end in actual if end - start > 1]
    assert min(shared) >= LEAST and len(shared) < 81_920 / 20
    assert actual[: len(shared)] == [(start, end) for start, end in actual if end - start > 1]
    assert len(actual) - len(shared) <= 8192


def test_no_rank_waits_at_the_end_for_what_another_fetches() -> None:
    root, relay = LocalCounter(), LocalCounter()
    queue = RelayQueue([1.0] * 20, root, relay, relays=1, pause=lambda: pytest.fail("waited"))
    assert queue.take() == 0  # the first one finds that all are single
    slow = root.add(1)  # another rank of the group is on its way to the root
    assert [queue.take() for _ in range(3)] == [slow + 1, slow + 2, slow + 3]


def test_what_was_published_first_is_what_all_read(tmp_path: Path) -> None:
    one, other = Claims(tmp_path, 0), Claims(tmp_path, 1)
    assert one.publish("rates", lambda: [1.0]) == [1.0]
    assert other.publish("rates", lambda: pytest.fail("made for nothing")) == [1.0]
    one.note("measured", {"a": 1})
    other.note("measured", {"a": 2})
    assert one.notes("measured") == [{"a": 1}, {"a": 2}]


def test_a_heart_that_never_beat_or_whose_process_is_gone_has_stopped(tmp_path: Path) -> None:
    ours = Heart(tmp_path, 0)
    assert not ours.has_stopped(0)
    assert not ours.has_stopped(1)  # perhaps it only starts later
    (tmp_path / "alive-000001").write_text(f"{(tmp_path / 'alive-000000').read_text().split()[0]} 4194303")
    assert ours.has_stopped(1)
    (tmp_path / "alive-000002").write_text("elsewhere 1")
    assert not ours.has_stopped(2)
    os.utime(tmp_path / "alive-000002", (1, 1))
    assert ours.has_stopped(2)


matrices = st.integers(1, 12).flatmap(
    lambda chunks: st.lists(st.lists(st.floats(0.1, 9), min_size=3, max_size=3), min_size=chunks, max_size=chunks)
)


@given(matrices, st.integers(1, 5))
def test_bundles_hold_every_unit_once_and_parts_of_chunks_come_last_the_costliest_first(
    costs: list[list[float]], workers: int
) -> None:
    units, prices = work_of(costs)
    bundles = bundles_of(units, prices, workers)
    parts = every(bundles)
    assert sorted(unit for part in parts for unit in part) == names(units)
    assert all(len({chunk for chunk, _ in part}) == 1 for part in parts)
    np.testing.assert_allclose(bundles.costs, [sum(costs[c][m] for c, m in part) for part in parts])
    is_whole = [len(part) == 3 for part in parts]
    assert is_whole == sorted(is_whole, reverse=True)
    shared = bundles.costs[is_whole.count(True) :].tolist()
    assert shared == sorted(shared, reverse=True)
    assert workers == 1 or len(shared) > 1  # else one works on the last chunk while the others wait
    stage = staged(units, prices, workers, stages=3)
    assert every(stage.bundles) == parts[: len(stage.bundles)]
    cost = stage.bundles.costs.sum()
    assert cost - stage.bundles.costs[-1] < prices.sum() / 3 + 1e-9 and prices.sum() / 3 <= cost + 1e-9
    probed = probing(stage, np.array([costs[c][m] for c, m in names(stage.left)]), workers)
    for one in (stage, probed):
        assert sorted(names(one.bundles.units) + names(one.left)) == names(units)
        assert names(one.left) == sorted(names(one.left))
    assert set(probed.bundles.units.member.tolist()) == set(units.member.tolist())
    assert every(probed.bundles)[len(probed.bundles) - len(stage.bundles) :] == every(stage.bundles)


@given(matrices, st.integers(1, 5))
def test_whole_batches_cost_no_balance(costs: list[list[float]], workers: int) -> None:
    units, prices = work_of(costs)
    queue = bundles_of(units, prices, workers).costs
    mean, largest = sum(queue) / workers, prices.max()
    # list scheduling; whole batches end while a third of the mean load is still to come in single units
    assert makespan(queue.tolist(), workers) <= mean + largest + 1e-9
    assert certificate(prices, queue, workers)["ratio"] >= 1 - 1e-9


def test_whole_batches_are_the_rule_where_there_is_plenty() -> None:
    whole = [part for part in every(bundles_of(*work_of(np.ones((200, 8))), workers=2)) if len(part) == 8]
    assert len(whole) > 190
    scarce = [len(part) for part in every(bundles_of(*work_of(np.ones((128, 8))), workers=128))]
    assert scarce.count(8) <= 1 and max(scarce[1:]) == 4 and scarce[-128:] == [1] * 128  # parts shrink as work runs out


def test_later_stages_follow_what_was_measured_instead_of_what_was_expected() -> None:
    notes = [{"seconds": [1.0, 0.0], "load": [1.0, 0.0], "running": []}]
    notes += [{"seconds": [0.0, 6.0], "load": [0.0, 2.0], "running": [0.0, 1.0, 0.0]}]
    rates = learned_rates([1.0, 1.0], notes, now=50.0)
    assert rates == [1.0, 3.0]
    loads, marks = np.array([5.0, 5.0, 5.0, 7.0]), np.ones((4, 2), dtype=np.bool_)
    (lane,) = make_schedule(loads, marks, ~marks, [1.0, 1.0], held=2, ranks=4).lanes
    last = lane.following(
        lane.stages - 1, Stage(bundles=lane.first(loads, [1.0, 1.0]).bundles, left=lane.units), loads, rates
    )
    assert names(last.bundles.units)[:2] == [(3, 1), (0, 1)]
    assert last.bundles.costs.tolist() == [21.0, 15.0, 15.0, 15.0, 7.0, 5.0, 5.0, 5.0]
    assert not len(last.left)


@given(matrices, st.integers(1, 5), st.integers(1, 3))
def test_all_stages_together_are_all_the_work_once(costs: list[list[float]], ranks: int, held: int) -> None:
    loads, marks = np.ones(len(costs)), np.ones((len(costs), 3), dtype=np.bool_)
    schedule = make_schedule(loads, marks, ~marks, [3.0, 1.0, 2.0], held=held, ranks=ranks)
    actual, queues = [], []
    for lane in schedule.lanes_from(ranks - 1):
        stage = lane.first(loads, [3.0, 1.0, 2.0])
        for number in range(lane.stages):
            stage = lane.following(number, stage, loads, [1.0, 5.0, 0.0]) if number else stage
            actual += names(stage.bundles.units)
            queues.append(lane.queue(number))
        assert not len(stage.left)
    assert sorted(actual) == names(units_where(marks))
    assert len(set(queues)) == len(queues) and min(queues) == LANES


@given(st.lists(st.floats(0.5, 9), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 9))
def test_every_member_lives_in_one_lane_and_ranks_are_shared_by_cost(costs: list[float], held: int, ranks: int) -> None:
    lanes = lanes_of(costs, held)
    assert sorted(m for lane in lanes for m in lane) == list(range(len(costs)))
    assert all(1 <= len(lane) <= held for lane in lanes)
    at_home = homes([sum(costs[m] for m in lane) for lane in lanes], ranks)
    assert at_home == sorted(at_home) and len(at_home) == ranks


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_all_ranks_plan_the_same(ranks: int) -> None:
    loads, marks = np.random.default_rng(0).random(9), np.ones((9, 4), dtype=np.bool_)
    there = np.zeros_like(marks)
    there[:2, 1:] = there[5, 0] = True
    one, other = (make_schedule(loads, marks, there, [1.0, 2.0, 3.0, 4.0], held=2, ranks=ranks) for _ in range(2))
    assert [names(lane.units) for lane in one.lanes] == [names(lane.units) for lane in other.lanes]
    work = [unit for lane in one.lanes for unit in names(lane.units)]
    assert names(one.there.units) == names(units_where(there)) and one.units == marks.size
    assert sorted(work + names(one.there.units)) == names(units_where(marks))


def test_a_rank_that_combines_a_chunk_looks_only_where_its_units_are(tmp_path: Path) -> None:
    for rank in range(5):
        records = Records(tmp_path)
        for chunk in (rank, 9) if rank > 2 else (rank,):
            records.append(chunk, rank, {"energy": np.full(1, float(rank)), "reasons": [""]}, [1.0])
        records.end()
    one, other = Records(tmp_path), Records(tmp_path)
    one.look(all_files=True)
    lone, spread = one.indices_of(np.array([1, 9]))
    assert len(lone) == 1 and len(spread) == 2
    other.look_at(spread)
    assert set(other.counts()) == set(spread) and other.read(1, 1) is None
    assert [other.read(9, rank)["energy"].tolist() for rank in (3, 4)] == [[3.0], [4.0]]
    other.look_at(lone)
    assert other.read(1, 1)["reasons"] == [""]
