"""The campaign's memory: an append-only file of events, one JSON object per line, written by one process at a time.

A line is on disk before its consequences happen. The last line may be torn by a kill or a full disk and is then dropped;
damage anywhere else is an error, because what follows it cannot be trusted.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from hydragnn.errors import Busy, InputError
from hydragnn.files import flush_directory, lock_file
from hydragnn.hpo.scheduling.events import Event, event_from_json, event_to_json
from hydragnn.hpo.scheduling.scheduler import State, transition

NAME = "journal.jsonl"


def read_journal(path: Path) -> list[tuple[float, Event]]:
    """(time, event) of every complete line; an absent file is an empty journal, a torn last line is left out."""
    return [(float(value["time"]), event_from_json(value)) for value, _ in _lines(path)]


def replay(path: Path, follow: Callable[[State, Event, State], None] | None = None) -> State:
    """The campaign that a journal tells; InputError where a line does not follow from those before it.

    ``follow`` is told every event with the states before and after it.
    """
    state = State()
    for number, (now, event) in enumerate(read_journal(path), start=1):
        after, actions = transition(state, event, now)
        if after is state and not actions:
            raise gap(path, f"line {number}")
        if follow is not None:
            follow(state, event, after)
        state = after
    return state


def gap(path: Path, where: str) -> InputError:
    """What to raise where an event does not follow from those before it."""
    return InputError(
        f"{path}: {where} does not follow from the lines before it; lines are missing, or another version of this program "
        "wrote it: restore the file from a copy, continue with that version, or begin in another folder"
    )


class Journal:
    """The one writer of a journal; use as a context manager.

    InputError where another process writes it, where it is damaged, or where the disk takes no more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = acquire_lock(path.with_suffix(".lock"))
        try:
            self._length = max((end for _, end in _lines(path)), default=0)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._file, self._length)
            os.lseek(self._file, 0, os.SEEK_END)
            flush_directory(path.parent)
        except OSError as error:
            os.close(self._lock)
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        except InputError:
            os.close(self._lock)
            raise

    def append(self, event: Event, now: float) -> None:
        """Put an event on disk; once this returns, the event survives a kill and a power cut."""
        self.extend([(now, event)])

    def extend(self, lines: Iterable[tuple[float, Event]]) -> None:
        """Put several (time, event) on disk with one flush; a kill in between keeps the first ones of them."""
        data = memoryview(b"".join(_encode_line({"time": now, **event_to_json(event)}) for now, event in lines))
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(
                f"cannot write {self._path}: {error.strerror or error}; free space, then continue with --resume"
            ) from error

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


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every complete line's object and the position where the line ends."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    position = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        value = decode_line(line)
        position += len(line)
        if value is None and position >= len(data):
            return  # torn by whatever ended the writer
        if value is None:
            raise InputError(
                f"{path} is damaged in line {number}; restore the file from a copy, or begin a new campaign"
            )
        yield value, position


def _encode_line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None where the line is incomplete or its checksum does not fit."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
        crc = value.pop("crc")
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    text = json.dumps(value, sort_keys=True)
    return value if isinstance(value, dict) and zlib.crc32(text.encode()) == crc else None
