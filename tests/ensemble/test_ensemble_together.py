"""What idle ranks do about the work of dead and late ones, and how seldom they look."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import HashStore

from hydragnn.distributed.group import Group, Table
from hydragnn.ensemble.prediction import schedule
from hydragnn.ensemble.prediction.schedule import Late, finish_together, once


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


def test_work_of_the_dead_is_taken_over_at_once_and_late_work_of_the_living_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Late(number=5, claim="rest-0-2", seconds=0.0)
    done = []
    monkeypatch.setattr(schedule, "AT_LEAST", 60.0)
    begin = time.monotonic()
    finish_together(Pair(dead=True), "unit", lambda: [] if done else [late], done.append)
    assert done == [5] and time.monotonic() - begin < schedule.AT_LEAST
    monkeypatch.setattr(schedule, "AT_LEAST", 0.1)
    finish_together(Pair(dead=False), "unit", lambda: [] if len(done) > 2 else [late], done.append)
    assert done == [5, 5, 5]  # again, and once more after the same time


def test_the_first_living_rank_does_what_only_one_may_do() -> None:
    done = []
    assert once(Pair(dead=True), "merge", lambda: bool(done), lambda: done.append(1))
    assert not once(Pair(dead=False), "merge", lambda: True, lambda: done.append(1))
    assert done == [1]


def test_what_the_first_rank_does_not_begin_in_time_another_does_and_what_it_has_begun_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "HESITATION", 0.1)
    done = []
    begin = time.monotonic()
    assert once(Pair(dead=False), "merge", lambda: bool(done), lambda: done.append(1))
    assert time.monotonic() - begin > schedule.HESITATION
    pair = Pair(dead=False)
    assert pair.first_to("merge")  # by rank 0, as ``owner`` says
    looks = iter([False] * 20)
    assert not once(pair, "merge", lambda: next(looks, True), lambda: done.append(2))
    died = Pair(dead=True)
    assert died.first_to("merge")
    assert once(died, "merge", lambda: False, lambda: done.append(3))
    assert done == [1, 3]


class StandIn(Group):
    """One of a thousand ranks."""

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
    time.sleep(2.0)
    ready.set()
    for one in ranks:
        one.join(timeout=60)
    assert len(ended) == 1000
    assert len(looks) < 50 * (time.monotonic() - begin)
