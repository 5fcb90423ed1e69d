"""The campaign's memory: an append-only file of events and what was decided about them, one JSON object per line, written by one process at a time.

A line is on disk before its consequences happen. Reading applies decisions and makes none, so that every version reads what another
wrote: ``then`` holds what an event changed (``scheduling/changes.py``, put in place by ``scheduling/replay.py``), ``line`` counts lines, and every opening says format and program.
Lines of the first format have the event alone; they are decided again, and the next opening writes the whole state down. The last
line may be torn by a kill, a full disk or a power cut and is then dropped; any other damage is an error: what a line said had
consequences, and what follows it cannot be trusted.
"""

import gc
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from hydragnn import __version__
from hydragnn.errors import Busy, InputError
from hydragnn.files import flush_directory, lock_file, open_regular
from hydragnn.hpo.scheduling.changes import Changes
from hydragnn.hpo.scheduling.events import Event, Opened, event_from_json, event_to_json
from hydragnn.hpo.scheduling.replay import Replay, concerned
from hydragnn.hpo.scheduling.scheduler import State, Trial, transition

NAME = "journal.jsonl"

FORMAT = 2

DECODER = msgspec.json.Decoder()

YOUNG = 2_000
"""So many new objects are searched for circular garbage at once; that takes less than a millisecond."""


class Entry(NamedTuple):
    """An event, when it happened, and what it changed; None in the first format."""

    time: float
    event: Event
    then: Changes | None = None


def read_journal(path: Path) -> list[tuple[float, Event]]:
    """(time, event) of every complete line; an absent file is an empty journal, a torn last line is left out."""
    return [(entry.time, entry.event) for entry in read_entries(path)]


def read_entries(path: Path) -> list[Entry]:
    """Every complete line, with its decisions; an absent file is an empty journal, a torn last line is left out."""
    return [entry_of(value, f"{path}: line {number}") for number, (value, _) in enumerate(_lines(path), start=1)]


def entry_of(value: dict[str, Any], where: str) -> Entry:
    """The entry that a line's object describes; InputError where a newer program wrote it."""
    if value.get("format", FORMAT) > FORMAT:
        raise InputError(f"{where} was written by a newer program ({value.get('program')}); update this one to read it")
    return Entry(float(value["time"]), event_from_json(value), value.get("then"))


def replay(path: Path, follow: Callable[[Sequence[Trial], Event, Replay], None] | None = None) -> State:
    """The campaign that a journal tells; InputError where a line does not follow from those before it.

    ``follow`` is told every event, the trials that it concerns as they were before it, and the campaign after it.
    """
    campaign = Replay()
    with no_garbage_collection():
        for before, entry, campaign in courses(path, read_entries(path)):
            if follow is not None:
                follow(before, entry.event, campaign)
        return state_of(campaign, path)


def courses(path: Path, entries: Sequence[Entry]) -> Iterator[tuple[Sequence[Trial], Entry, Replay]]:
    """Every entry with the trials that it concerns as they were before it, and the campaign after it, which is always the same object.

    Entries that today's rules cannot follow are left out where a whole state comes later.
    """
    wholes = [number for number, entry in enumerate(entries) if entry.then is not None and entry.then.get("whole")]
    campaign = Replay()
    for number, entry in enumerate(entries):
        before = concerned(campaign, entry.event)
        if follows(campaign, entry, f"{path}: line {number + 1}"):
            yield before, entry, campaign
        elif not any(whole > number for whole in wholes):
            raise gap(path, f"line {number + 1}")


def follows(campaign: Replay, entry: Entry, where: str) -> bool:
    """Let an entry happen to a campaign; False where it does not follow from those before it."""
    if entry.then is None:
        state = campaign.state
        after, actions = transition(state, entry.event, entry.time)
        if after is state and not actions:
            return False
        campaign.become(after)
        return True
    try:
        campaign.apply(entry.event, entry.then)
    except InputError as error:
        raise InputError(f"{where}: {error}; restore the file from a copy") from error
    return True


def state_of(campaign: Replay, path: Path) -> State:
    """The campaign that was read as a value; InputError where it cannot be one."""
    try:
        return campaign.state
    except InputError as error:
        raise InputError(f"{path}: {error}; restore the file from a copy") from error


def gap(path: Path, where: str) -> InputError:
    """What to raise where an event does not follow from those before it."""
    return InputError(
        f"{path}: {where} does not follow from the lines before it; lines are missing, or another version of this program "
        "wrote it: restore the file from a copy, continue with that version, or begin in another folder"
    )


class Journal:
    """The one writer of a journal; use as a context manager.

    InputError where another process writes it, where it is damaged, or where the disk takes no more. ``undecided`` is true
    where lines have no decisions and no whole state came later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = acquire_lock(path.with_suffix(".lock"))
        try:
            self.undecided, self._count, self._length = False, 0, 0
            for value, self._length in _lines(path):
                self._count += 1
                self.undecided = "then" not in value or (self.undecided and not value["then"].get("whole"))
            self._file = open_regular(path, os.O_RDWR | os.O_CREAT)
            os.ftruncate(self._file, self._length)
            os.lseek(self._file, 0, os.SEEK_END)
            flush_directory(path.parent)
        except OSError as error:
            os.close(self._lock)
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        except InputError:
            os.close(self._lock)
            raise

    def append(self, event: Event, now: float, then: Changes | None = None) -> None:
        """Put an event on disk, with what was decided; once this returns, it survives a kill and a power cut."""
        self.extend([Entry(now, event, then)])

    def extend(self, entries: Iterable[Entry]) -> None:
        """Put several entries on disk with one flush; a kill in between keeps the first ones of them."""
        lines = [self._encode(number, entry) for number, entry in enumerate(entries, start=self._count + 1)]
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(
                f"cannot write {self._path}: {error.strerror or error}; free space, then continue with --resume"
            ) from error
        self._count += len(lines)

    def _encode(self, number: int, entry: Entry) -> bytes:
        value = {"time": entry.time, **event_to_json(entry.event), "line": number}
        if entry.then is not None:
            value["then"] = entry.then
        if isinstance(entry.event, Opened):
            value |= {"format": FORMAT, "program": __version__}
        return _encode_line(value)

    def close(self) -> None:
        """Give the journal free for another process."""
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def acquire_lock(path: Path) -> int:
    """A file descriptor that holds the lock at ``path`` until it is closed or the process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(path)
    except OSError as error:
        raise InputError(f"cannot lock {path}: {error.strerror or error}; choose another folder") from error
    if descriptor is None:
        raise Busy(f"another search runs in {path.parent}; wait for it, or choose another folder")
    return descriptor


@contextmanager
def young_garbage_only() -> Iterator[None]:
    """Python looks for circular garbage among what is new only: what outlives one look is never looked at again.

    A campaign is a large value without circles that changes all the time, and a search through all of it stops the program for
    a fifth of a second. What is not circular is freed at once, as always.
    """

    def keep(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            gc.freeze()

    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, *before[1:])
    gc.callbacks.append(keep)
    try:
        yield
    finally:
        gc.callbacks.remove(keep)
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python does not look for circular garbage: what comes of a journal is a large value without circles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every complete line's object and the position where the line ends."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    position = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        value = decode_line(line)
        position += len(line)
        if value is None and position >= len(data) and is_torn(line):
            return
        if value is None:
            raise damage(path, f"line {number}")
        check_number(value, number, path)
        yield value, position


def is_torn(line: bytes) -> bool:
    """Return True where a last line without a value is the beginning of one, or lacks blocks (zeros) that a power cut kept from the disk.

    A line that is whole but for bytes that changed says something that had consequences, and is not to be dropped.
    """
    return b"\0\0" in line or not (line.endswith(b"\n") or decode_line(line[:-1] + b"\n"))


def damage(path: Path, where: str) -> InputError:
    """What to raise where a line is not what was written."""
    return InputError(f"{path} is damaged in {where}; restore the file from a copy, or begin a new campaign")


def check_number(value: dict[str, Any], number: int, path: Path) -> None:
    """InputError where a line's object was written as another line than the one that it is now."""
    if value.get("line", number) != number:
        raise InputError(
            f"{path}: line {number} was number {value['line']} when it was written; lines are missing, restore the file from a copy"
        )


def _encode_line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None where the line is incomplete or its checksum does not fit.

    The checksum is that of the bytes before it; where these do not fit, that of what they mean, as sorted JSON.
    """
    if not line.endswith(b"\n"):
        return None
    head, _, tail = line.rpartition(b', "crc": ')
    try:
        if tail == b"%d}\n" % zlib.crc32(b"}", zlib.crc32(head)):
            value = DECODER.decode(head + b"}")
            return value if isinstance(value, dict) else None
        value = json.loads(line)
        crc = value.pop("crc")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    text = json.dumps(value, sort_keys=True)
    return value if isinstance(value, dict) and zlib.crc32(text.encode()) == crc else None
