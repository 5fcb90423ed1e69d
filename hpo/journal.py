"""The campaign's memory: an append-only file of events and what was decided about them, one JSON object per line, written by one process at a time.

A line is on disk before its consequences happen. Reading applies decisions and makes none, so that every version reads what another
wrote: ``then`` holds what an event changed (``scheduling/changes.py``, put in place by ``scheduling/replay.py``), ``line`` counts lines, and every opening says format and program.
Lines of the first format have the event alone; the rules of version 1, which never change, decide about them again
(``scheduling/first``), and the next opening writes the whole state down. The last
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
from msgspec import Struct

from hydragnn import __version__
from hydragnn.errors import Busy, InputError
from hydragnn.files import flush_directory, lock_file, open_regular
from hydragnn.hpo.scheduling.changes import Changes
from hydragnn.hpo.scheduling.events import DECODER as EVENT
from hydragnn.hpo.scheduling.events import KINDS, Event, Opened, Tick, event_from_json, event_to_json
from hydragnn.hpo.scheduling.first import first_transition
from hydragnn.hpo.scheduling.replay import Replay, Written, concerned
from hydragnn.hpo.scheduling.scheduler import State, Trial

NAME = "journal.jsonl"

FORMAT = 2

TICK = Tick()

YOUNG = 2_000
"""So many new objects are searched for circular garbage at once; that takes less than a millisecond."""

MANY = 50 * YOUNG
"""New objects that come of a journal only."""


class Entry(NamedTuple):
    """An event, when it happened, and what it changed; None in the first format."""

    time: float
    event: Event
    then: Changes | None = None


class Line(Struct, frozen=True, kw_only=True, gc=False):
    """What a line says besides its event; in the order of the names, in which it is read soonest."""

    event: str
    format: int = FORMAT
    line: int | None = None
    program: str = ""
    then: Written | None = None
    time: float
    crc: int


LINE = msgspec.json.Decoder(Line)

BRIEF = KINDS - {"opened", "reached", "failed"}
"""Events of which a status needs to know nothing but what was decided about them."""


def read_journal(path: Path) -> list[tuple[float, Event]]:
    """(time, event) of every complete line; an absent file is an empty journal, a torn last line is left out."""
    return [(entry.time, entry.event) for entry in read_entries(path)]


def read_entries(path: Path) -> list[Entry]:
    """Every complete line, with its decisions; an absent file is an empty journal, a torn last line is left out."""
    return [entry_of(data, line, path, number) for number, (data, line) in enumerate(_lines(path), start=1)]


def entry_of(data: bytes, line: Line, path: Path, number: int) -> Entry:
    """The entry that a line is; InputError where a newer program wrote it."""
    if line.format > FORMAT:
        raise InputError(
            f"{path}: line {number} was written by a newer program ({line.program}); update this one to read it"
        )
    try:
        event = EVENT.decode(data)
    except msgspec.ValidationError:
        event = event_from_json(msgspec.json.decode(data))
    return Entry(line.time, event, line.then)


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

    Entries that the rules of version 1 cannot follow are left out where a whole state comes later.
    """
    wholes = [number for number, entry in enumerate(entries) if entry.then is not None and "whole" in entry.then]
    campaign = Replay()
    for number, entry in enumerate(entries):
        before = concerned(campaign, entry.event)
        if follows(campaign, entry, path, number + 1):
            yield before, entry, campaign
        elif not any(whole > number for whole in wholes):
            raise gap(path, number + 1)


def follows(campaign: Replay, entry: Entry, path: Path, number: int) -> bool:
    """Let an entry happen to a campaign; False where it does not follow from those before it."""
    if entry.then is None:
        state = campaign.state
        after, actions = first_transition(state, entry.event, entry.time)
        if after is state and not actions:
            return False
        campaign.become(after)
        return True
    put_in_place(campaign, entry.then, path, number, entry.event)
    return True


def put_in_place(campaign: Replay, then: Written, path: Path, number: int, event: Event = TICK) -> None:
    """Let what a line decided happen to a campaign; InputError where it does not fit what was before."""
    try:
        campaign.apply(event, then)
    except InputError as error:
        raise InputError(f"{path}: line {number}: {error}; restore the file from a copy") from error


def state_of(campaign: Replay, path: Path) -> State:
    """The campaign that was read as a value; InputError where it cannot be one."""
    try:
        return campaign.state
    except InputError as error:
        raise InputError(f"{path}: {error}; restore the file from a copy") from error


def gap(path: Path, number: int) -> InputError:
    """What to raise where an event does not follow from those before it."""
    return InputError(
        f"{path}: line {number} does not follow from the lines before it; lines are missing, or another version of this program "
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
            for data, line in _lines(path):
                self._count, self._length = self._count + 1, self._length + len(data)
                self.undecided = line.then is None or (self.undecided and "whole" not in line.then)
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
    """Python does not look for circular garbage: what comes of a journal is a large value without circles, in which it never looks."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > MANY:
            gc.freeze()
        if enabled:
            gc.enable()


def _lines(path: Path) -> Iterator[tuple[bytes, Line]]:
    """Every complete line, and what it says besides its event."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            yield from complete_lines(file, path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def complete_lines(file: Iterable[bytes], path: Path, before: int = 0) -> Iterator[tuple[bytes, Line]]:
    """Every line of those that follow the first ``before``, and what it says besides its event; a torn last one is left out."""
    number, torn = before, b""
    for number, data in enumerate(file, start=before + 1):
        if torn:
            raise damage(path, number - 1)
        line = decode_line(data)
        if line is None:
            if not is_torn(data):
                raise damage(path, number)
            torn = data
            continue
        if line.line not in (None, number):
            raise InputError(
                f"{path}: line {number} was number {line.line} when it was written; lines are missing, restore the file from a copy"
            )
        yield data, line


def brief_changes(line: Line) -> Written | None:
    """What a line decided, where a status needs to know nothing else of it; otherwise None."""
    return line.then if line.event in BRIEF and line.format <= FORMAT else None


def is_torn(line: bytes) -> bool:
    """Return True where a last line without a value is the beginning of one, or lacks blocks (zeros) that a power cut kept from the disk.

    A line that is whole but for bytes that changed says something that had consequences, and is not to be dropped.
    """
    return b"\0\0" in line or not (line.endswith(b"\n") or decode_line(line[:-1] + b"\n"))


def damage(path: Path, number: int) -> InputError:
    """What to raise where a line is not what was written."""
    return InputError(f"{path} is damaged in line {number}; restore the file from a copy, or begin a new campaign")


def _encode_line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def decode_line(data: bytes) -> Line | None:
    """What a line says besides its event; None where the line is incomplete or its checksum does not fit.

    The checksum is that of the bytes before it; where these do not fit, that of what they mean, as sorted JSON.
    """
    if not data.endswith(b"\n"):
        return None
    try:
        line = LINE.decode(data)
        if line.crc == zlib.crc32(b"}", zlib.crc32(data[: data.rfind(b', "crc": ')])):
            return line
        value = json.loads(data)
        del value["crc"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return line if zlib.crc32(json.dumps(value, sort_keys=True).encode()) == line.crc else None
