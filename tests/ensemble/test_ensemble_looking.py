"""Ranks look into the files of all together: each into some, and whoever has to know everything knows what one look into all would show."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.ensemble.prediction import looking
from hydragnn.ensemble.prediction.entries import own_name
from hydragnn.ensemble.prediction.group import Alone, Claims
from hydragnn.ensemble.prediction.looking import look_together
from hydragnn.ensemble.prediction.queues import Costs, Queue
from hydragnn.ensemble.prediction.records import Records

RANKS = 6


class Taken:
    """A queue that gives one rank these positions."""

    def __init__(self, positions: Sequence[int]) -> None:
        self._positions = list(positions)

    def take(self) -> int | None:
        return self._positions.pop(0) if self._positions else None


class Hearing(Alone):
    """One of several ranks that hear each other, and its turns."""

    hears = True

    def __init__(self, folder: Path, turns: Sequence[int]) -> None:
        super().__init__()
        self.size, self._claims, self._turns = RANKS, Claims(folder, len(turns)), turns

    def queue(self, number: int, costs: Costs) -> Queue:
        return Taken(self._turns)

    def publish(self, name: str, make: Callable[[], Any]) -> Any:
        return self._claims.publish(name, make)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where every rank has finished two units, and half of them told that this was all."""
    monkeypatch.setattr(looking, "FILES", 2)
    (tmp_path / "ranks").mkdir()
    for rank in range(RANKS):
        kept(tmp_path, rank, ends=bool(rank % 2))
    return tmp_path


def kept(folder: Path, chunk: int, *, ends: bool) -> Records:
    records = Records(folder)
    for member in range(2):
        records.append(chunk, member, {"values": np.arange(3.0)}, [0.1])
    if ends:
        records.end()
    return records


def known(records: Records) -> tuple[list[str], bytes]:
    return list(records.counts()), records.entries().tobytes()


@pytest.mark.parametrize("said", [(0, 1, 2), (1,), ()])
def test_what_others_have_seen_and_what_they_have_not_said_is_known(folder: Path, said: Sequence[int]) -> None:
    """Some ranks hang, or are slower than the one that has to know."""
    look_together(Hearing(folder / "ranks", said), Records(folder), 7)
    records, whole = Records(folder), Records(folder)
    look_together(Hearing(folder / "ranks", ()), records, 7)()
    whole.look(all_files=True)
    assert sorted(known(records)[0]) == known(whole)[0] and len(records.entries()) == 2 * RANKS
    assert records.indices_of(np.arange(RANKS)) == whole.indices_of(np.arange(RANKS))
    assert records.read(3, 1)["values"].tolist() == [0.0, 1.0, 2.0]


def test_a_look_at_what_came_later_leaves_out_the_first_files_of_ranks(folder: Path) -> None:
    later = kept(folder, RANKS, ends=True)
    later.append(RANKS + 1, 0, {"values": np.arange(3.0)}, [0.1])
    later.end()
    records = Records(folder)
    look_together(Hearing(folder / "ranks", (0, 2)), records, 9, later=True)()
    assert records.entries()["chunk"].tolist() == [RANKS + 1]


def test_what_is_known_already_is_not_forgotten_for_less(folder: Path) -> None:
    records, slow = Records(folder), kept(folder, RANKS, ends=False)
    look_together(Hearing(folder / "ranks", (0, 1, 2)), Records(folder), 7)
    slow.append(RANKS, 2, {"values": np.arange(3.0)}, [0.1])
    records.look(all_files=True)
    look_together(Hearing(folder / "ranks", ()), records, 7)()
    assert len(records.entries()) == 2 * RANKS + 3


def test_few_ranks_and_those_that_do_not_hear_each_other_look_for_themselves(folder: Path) -> None:
    for group in (Alone(), Hearing(folder / "ranks", (0,))):
        group.hears = group.hears and group.size > RANKS
        records = Records(folder)
        look_together(group, records, 7)()
        assert len(records.entries()) == 2 * RANKS
    assert not list((folder / "ranks").iterdir())


def test_the_first_file_of_a_process_and_later_ones_are_told_apart() -> None:
    assert own_name(first=True).endswith("-first") and own_name(first=False).endswith("-later")
