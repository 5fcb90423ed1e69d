"""The journal is the campaign: a torn end is tolerated, damage elsewhere is refused, one process writes."""

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.errors import InputError
from hydragnn.hpo.journal import Entry, Journal, decode_line, read_journal, replay
from hydragnn.hpo.scheduling.events import Event, Exhausted, Failed, Launched, Opened, Plan, Proposed, Reached, Stopping

EVENTS: list[Event] = [
    Opened(plan=Plan(trials=3, rungs=(1, 5), timeout=2.5), slots=("local/0", "local/1")),
    Proposed(trial=0, values={"model.kind": "schnet", "train.learning_rate": 1e-3, "heads.0.hidden_dims": [64, 64]}),
    Launched(trial=0, attempt=1, identity={"host": "here", "pid": 7, "created": 1.5}),
    Reached(trial=0, attempt=1, epochs=1, value=0.1 + 0.2, seconds=3.5),
    Failed(trial=0, attempt=2, kind="diverged", message="loss is nan\nin epoch 2 ✗"),
    Exhausted(trial=1),
    Stopping(reason="SIGINT"),
]


def written(path: Path) -> bytes:
    with Journal(path) as journal:
        journal.append(EVENTS[0], 0.0)
        journal.extend(Entry(float(second), event) for second, event in enumerate(EVENTS[1:], start=1))
    return path.read_bytes()


def test_what_is_written_is_read_back_exactly(tmp_path: Path) -> None:
    written(tmp_path / "journal.jsonl")
    assert read_journal(tmp_path / "journal.jsonl") == [(float(k), event) for k, event in enumerate(EVENTS)]


def test_a_line_is_known_by_its_bytes_and_one_that_another_program_spaced_by_its_meaning(tmp_path: Path) -> None:
    for line in written(tmp_path / "journal.jsonl").splitlines(keepends=True):
        value = decode_line(line)
        assert value is not None
        assert decode_line(json.dumps({**json.loads(line)}, separators=(",", ":")).encode() + b"\n") == value
        for place in range(len(line)):
            damaged = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
            # the last digit of 0.30000000000000004 may change without changing the number
            assert decode_line(damaged) in (None, value), place


@pytest.mark.parametrize("value", [b"[" * 100_000 + b"]" * 100_000, b"NaN", b'"\xff"', b"1, 2"])
def test_a_line_that_is_no_json_object_is_damaged_whatever_its_checksum(value: bytes) -> None:
    head = b'{"a": ' + value
    assert decode_line(head + b', "crc": %d}\n' % zlib.crc32(head + b"}")) is None


def test_many_events_need_one_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    flushed: list[int] = []
    with Journal(tmp_path / "journal.jsonl") as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", flushed.append)
            journal.extend(Entry(0.0, Exhausted(trial=number)) for number in range(1000))
        assert len(flushed) == 1
    assert len(read_journal(tmp_path / "journal.jsonl")) == 1000


def test_an_absent_journal_is_empty(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal.jsonl") == []


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000))
def test_a_journal_cut_anywhere_keeps_every_complete_line_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    data = written(path)
    cut %= len(data) + 1
    path.write_bytes(data[:cut])
    complete = data[:cut].count(b"\n")
    assert [event for _, event in read_journal(path)] == EVENTS[:complete]
    with Journal(path) as journal:
        journal.append(Exhausted(trial=9), 99.0)
    assert [event for _, event in read_journal(path)] == [*EVENTS[:complete], Exhausted(trial=9)]


def test_a_tail_of_zeros_after_a_power_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(written(path) + b"\0" * 300)
    assert len(read_journal(path)) == len(EVENTS)


@pytest.mark.parametrize("line", [0, 3])
def test_damage_in_the_middle_is_refused_with_the_line(tmp_path: Path, line: int) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path).splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"trial": 0', b'"trial": 5').replace(b'"trials": 3', b'"trials": 4')
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=f"damaged in line {line + 1}"):
        read_journal(path)
    with pytest.raises(InputError, match="damaged"):
        Journal(path)


def test_two_searches_never_write_the_same_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl"), pytest.raises(InputError, match="another search runs"):
        Journal(tmp_path / "journal.jsonl")
    with Journal(tmp_path / "journal.jsonl"):
        pass


def test_an_event_of_a_newer_program_is_named(tmp_path: Path) -> None:
    from hydragnn.hpo.scheduling.events import event_from_json

    with pytest.raises(InputError, match="newer program"):
        event_from_json({"event": "teleported"})


def test_a_full_disk_stops_with_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    path = tmp_path / "journal.jsonl"
    written(path)
    with Journal(path) as journal:
        import os

        journal._file, real = os.open(full, os.O_WRONLY), journal._file
        os.close(real)
        with pytest.raises(InputError, match="free space"):
            journal.append(Exhausted(trial=1), 0.0)
    assert len(read_journal(path)) == len(EVENTS)


def test_a_journal_written_under_other_rules_is_not_misread(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append(EVENTS[0], 0.0)
        journal.append(Reached(trial=0, attempt=1, epochs=1, value=0.5), 1.0)  # nothing was started
    with pytest.raises(InputError, match=r"line 2 does not follow.*another version"):
        replay(path)
