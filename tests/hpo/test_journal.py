"""The journal is the campaign: a torn end is tolerated, damage is refused, one process writes, and decisions stand."""

import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from campaigns import read_journal
from clockwork import LATER_RULES, Clockwork, play
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.base.errors import InputError, TakenOver
from hydragnn.hpo import lines
from hydragnn.hpo.journal import Entry, Journal, replay
from hydragnn.hpo.lines import cut_apart, decode_line, encode_line
from hydragnn.hpo.scheduling.events import Event, Exhausted, Failed, Opened, Plan, Proposed, Reached, Tick, decode_event
from hydragnn.hpo.scheduling.scheduler import State, decide

EVENTS: list[Event] = [
    Opened(plan=Plan(trials=3, rungs=(1, 5), timeout=2.5), slots=("local/0", "local/1")),
    Proposed(trial=0, values={"model.kind": "schnet", "train.learning_rate": 1e-3, "heads.0.hidden_dims": [64, 64]}),
    Reached(trial=0, attempt=1, epochs=1, value=0.1 + 0.2, seconds=3.5),
    Failed(trial=0, attempt=2, kind="diverged", message="loss is nan\nin epoch 2 ✗"),
    Exhausted(trial=1),
]


def written(path: Path) -> bytes:
    with Journal(path) as journal:
        journal.extend([Entry(0.0, EVENTS[0], {})])
        journal.extend(Entry(float(second), event, {}) for second, event in enumerate(EVENTS[1:], start=1))
    return path.read_bytes()


def test_a_line_of_which_one_bit_changed_is_damaged(tmp_path: Path) -> None:
    for line in written(tmp_path / "journal.jsonl").splitlines(keepends=True):
        assert decode_line(line) is not None
        for place in range(len(line)):
            assert decode_line(line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]) is None, place


DAMAGED = {
    "openings": b'{"',
    "nested": b'{"a":',
    "keys": b'{"time":1,',
    "whole lines": b'{"event":"x","time":1,"crc":1}',
    "lists": b'{"a":[0,0,0,',
    "texts": b'{"a":"',
}


@pytest.mark.parametrize("piece", DAMAGED.values(), ids=DAMAGED)
def test_the_line_behind_a_damaged_one_is_found_in_linear_time(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode_line({"event": "claim", "time": 1.0, "line": 3})
    copied = []
    monkeypatch.setattr(lines, "decode_line", lambda data: copied.append(len(data)) or decode_line(data))
    for count in (500, 5_000):
        before = piece * count
        assert cut_apart(before + whole)[:2] == (before, whole)
        assert cut_apart(before + b"\n") == (before + b"\n", b"", None)
    assert sum(copied) <= 2 * len(whole)  # nothing else is copied or searched for a checksum


@pytest.mark.parametrize("value", [b"[" * 100_000 + b"]" * 100_000, b"NaN", b'"\xff"', b"1, 2"])
def test_a_line_that_is_no_json_object_is_damaged_whatever_its_checksum(value: bytes) -> None:
    head = b'{"a": ' + value
    assert decode_line(head + b', "crc": %d}\n' % zlib.crc32(head + b"}")) is None


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), zeros=st.sampled_from([0, 300]))
def test_a_cut_journal_keeps_all_complete_lines(tmp_path_factory: pytest.TempPathFactory, cut: int, zeros: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    data = written(path)
    cut %= len(data) + 1
    path.write_bytes(data[:cut] + b"\0" * zeros)
    complete = max(0, data[:cut].count(b"\n") - 1)  # the first line is the claim
    known = [(float(second), event) for second, event in enumerate(EVENTS[:complete])]
    assert read_journal(path) == known
    with Journal(path) as journal:
        journal.extend([Entry(99.0, Exhausted(trial=9), {})])
    assert read_journal(path) == [*known, (99.0, Exhausted(trial=9))]


@pytest.mark.parametrize("line", [0, 1, 4])
def test_damage_in_the_middle_is_refused_with_the_line(tmp_path: Path, line: int) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path).splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"trial": 0', b'"trial": 5').replace(b'"trials": 3', b'"trials": 4')
    lines[line] = lines[line].replace(b'"line": 1,', b'"line": 2,')
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=f"damaged in line {line + 1}"):
        read_journal(path)
    with pytest.raises(InputError, match="damaged"):
        Journal(path)


def test_an_event_of_a_newer_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="newer program"):
        decode_event(b'{"event": "teleported"}')


class Stalled(Exception):
    """A process that was stopped or killed within an append."""


@pytest.fixture
def without_locks() -> Iterator[None]:
    """A file system on which every process gets every lock, as with Lustre's ``localflock``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydragnn.base.files.try_lock", lambda descriptor, shared=False: None)
        yield


@pytest.mark.usefixtures("without_locks")
def test_a_session_that_was_replaced_leaves_and_says_who_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as first:
        first.extend([Entry(0.0, EVENTS[0], {})])
        with Journal(path) as second:
            for action in (first.check, lambda: first.extend([Entry(1.0, EVENTS[1], {})])):
                with pytest.raises(
                    TakenOver, match=rf"process {os.getpid()} on \S+ goes on .* look with hydragnn status"
                ):
                    action()
            second.extend([Entry(2.0, EVENTS[2], {})])
    assert read_journal(path) == [(0.0, EVENTS[0]), (2.0, EVENTS[2])]


@pytest.mark.usefixtures("without_locks")
def test_whoever_appends_whenever_the_journal_holds_what_was_acknowledged_in_its_order(tmp_path: Path) -> None:
    """Sessions begin, append and are cut off in the middle of a write, in any order."""
    for seed in range(40):
        chance, path = random.Random(seed), tmp_path / f"{seed}" / "journal.jsonl"
        acknowledged, begun = random_sessions(chance, path)
        read = [event.trial for _, event in read_journal(path) if isinstance(event, Exhausted)]
        assert [number for number in read if number in acknowledged] == acknowledged, seed
        with Journal(path) as journal:
            journal.extend([Entry(0.0, Exhausted(trial=begun), {})])
        assert [event for _, event in read_journal(path)][-1] == Exhausted(trial=begun), seed


def random_sessions(chance: random.Random, path: Path) -> tuple[list[int], int]:
    """The numbers that were acknowledged, and how many were tried."""
    sessions: list[Journal] = []
    holder: Journal | None = None
    acknowledged: list[int] = []
    number, write = 0, os.write
    for _ in range(chance.randrange(2, 25)):
        short = chance.choice([None, None, None, 0, 1, 40, 100, 300])

        def cut(file: int, lines: bytes, short: int | None = short) -> int:
            write(file, lines[:short])
            if short is not None and short < len(lines):
                raise Stalled
            return len(lines)

        chosen = chance.randrange(len(sessions) + 1)
        batch = range(number, number := number + chance.randrange(1, 4))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", cut)
            try:
                if chosen == len(sessions):
                    sessions.append(holder := Journal(path))
                    continue
                sessions[chosen].extend(Entry(float(k), Exhausted(trial=k), {}) for k in batch)
            except Stalled:
                del sessions[chosen : chosen + 1]
            except TakenOver:
                assert sessions[chosen] is not holder, "the latest session was sent away"
            else:
                assert sessions[chosen] is holder, "two sessions go on"
                acknowledged += batch
    return acknowledged, number


def test_a_torn_end_stays_where_it_is_and_the_session_that_goes_on_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = written(path)
    path.write_bytes(data[:-9])
    with Journal(path) as journal:
        assert [note.partition(": ")[2] for note in journal.notes] == [
            "the last line was cut off by a kill or a full disk, and is left out"
        ]
    assert path.read_bytes().startswith(data[:-9])
    with Journal(path) as journal:
        assert journal.notes == []
    assert [event for _, event in read_journal(path)] == EVENTS[:-1]


def test_a_write_in_pieces_is_whole_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Journal(tmp_path / "journal.jsonl") as journal:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:150]))
        journal.extend(Entry(float(second), event, {}) for second, event in enumerate(EVENTS))
    assert [event for _, event in read_journal(tmp_path / "journal.jsonl")] == EVENTS


def campaign(seed: int) -> Clockwork:
    """A campaign with faults of machines and its own, a bad node, a killed and a stopped controller."""
    plan = Plan(trials=40, rungs=(1, 3, 9), finalists=4, max_slots=1 + seed % 4)
    player = play(plan, 12, seed=seed, own=0.08, machine=0.12, bad=("n3",))
    player.session(kill_after=400.0)
    player.session(stop_after=300.0, nodes=10)
    player.session()
    return player


def test_later_rules_leave_a_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player, path, again = campaign(1), tmp_path / "journal.jsonl", State()
    player.write(path)
    assert replay(path) == player.state and player.state.closed
    for name, change in LATER_RULES.items():
        change(monkeypatch)
        assert replay(path) == player.state, name
    for now, event in player.events:
        decide(again, event, now)
    assert again != player.state, "these rules would have decided otherwise"


def test_a_missing_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    campaign(0).write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:30], *lines[31:]]))
    with pytest.raises(InputError, match="line 31 was number 32 when it was written"):
        replay(path)


def test_a_journal_of_a_newer_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    with monkeypatch.context() as patch:
        for module in ("journal", "lines"):
            patch.setattr(f"hydragnn.hpo.{module}.FORMAT", 4)
        patch.setattr("hydragnn.hpo.journal.__version__", "7.1")
        campaign(0).write(path)
    with pytest.raises(InputError, match=r"line 1 was written by another version \(7\.1\)"):
        replay(path)


@pytest.mark.parametrize(
    "then",
    [
        {"trials": {"0": {"results": ["a"]}}},
        {"trials": {"7": None}},
        {"trials": {"0": {"mood": 1}}},
        {"waiting": [0, 1]},
        {"waiting": 3},
        {"free": {"gone": ["nowhere"], "came": [], "head": 0, "tail": 1}},
        {"nodes": {"n1": {"status": "tired"}}},
        {"later": 1},
        {"later": 1, "trials": {"0": {"status": "asked"}}},
        {"trials": {"0": {"identity": 3}}},
        {"free": {"gone": [], "came": [["a", "b"]], "head": 0, "tail": 1}},
        {"trials": []},
    ],
    ids=str,
)
def test_changes_that_do_not_fit_are_refused(tmp_path: Path, then: dict[str, Any]) -> None:
    path, opening = tmp_path / "journal.jsonl", Opened(plan=Plan(trials=1, rungs=(1,)), slots=("n1",))
    with Journal(path) as journal:
        journal.extend([Entry(0.0, opening, decide(State(), opening, 0.0).changes)])
        journal.extend([Entry(1.0, Tick(), then)])
    with pytest.raises(InputError, match=r"journal.jsonl: line 3: its changes do not fit the campaign before them"):
        replay(path)
