"""The journal: an append-only file of events and their changes.

One JSON object per line, for one writer at a time.

A line is on disk before its consequences happen. Reading applies changes and decides nothing, so that every version reads what
another wrote: ``then`` holds what an event changed (``scheduling/state.py``), ``line`` counts lines, and every opening has the
format and the program. ``lines.py`` defines which lines count. The last line may be torn by a kill, a full disk or a power cut
and is then dropped; any other damage is an error, since a damaged line had consequences.
"""

import gc
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

from hydragnn import __version__
from hydragnn.base.errors import Busy, InputError, TakenOver
from hydragnn.base.files import digest, file_errors, flush_directory, knows_locks, lock_file, open_regular
from hydragnn.hpo.lines import CLAIM, FORMAT, TORN, Counted, LineChain, check_format, damage, encode_line
from hydragnn.hpo.scheduling.events import KINDS, Event, Opened, Tick, decode_event
from hydragnn.hpo.scheduling.state import Changes, State

NAME = "journal.jsonl"

TICK = Tick()

YOUNG = 2_000  # new objects that are searched for circular garbage at once; that takes less than a millisecond

FREE, READABLE = "free space, then continue with --resume", "make it readable, then continue with --resume"
"""Remedies where a journal cannot be written or read."""

BLOCK = 2**20  # bytes that are read at once


class Entry(NamedTuple):
    """An event, when it happened, and what it changed."""

    time: float
    event: Event
    then: Changes
    line: int = 0
    """Line of the journal that it was read from; the first is 1."""


BRIEF = KINDS - {"opened", "reached", "failed"}
"""Events of which a status needs to know nothing but what was decided about them."""


def entry_of(counted: Counted, path: Path, *, brief: bool = False) -> Entry:
    """Return the entry of a line.

    ``brief``: without the content of events in ``BRIEF``. InputError where another version wrote it.
    """
    data, line, number = counted
    if brief and line.event in BRIEF:
        return Entry(line.time, TICK, line.then, number)
    check_format(line, path, number)
    return Entry(line.time, decode_event(data), line.then, number)


def replay(path: Path, follow: Callable[[Event, State], object] = lambda event, state: None) -> State:
    """Return the campaign of a journal; ``follow`` is called after every event."""
    state = State()
    with young_garbage_only():
        for entry in followed(path, LineChain(path), state):
            follow(entry.event, state)
    return state


def followed(path: Path, chain: LineChain, state: State, *, brief: bool = False) -> Iterator[Entry]:
    """Yield new entries once the campaign has their changes."""
    for counted in read_lines(path, chain):
        entry = entry_of(counted, path, brief=brief)
        try:
            state.apply(entry.event, entry.then)
        except InputError as error:
            raise InputError(f"{path}: line {entry.line}: {error}; restore the file from a copy") from error
        yield entry


class Journal(AbstractContextManager["Journal"]):
    """A session's hold on a journal; use as a context manager.

    InputError where another process writes it, where it is damaged, or where the disk takes no more. Lines are only ever
    appended, and nothing follows from them before they were read back: where another session has claimed the journal, with
    locks or without, TakenOver is raised.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with file_errors(f"cannot lock {path.with_suffix('.lock')}", "choose another folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = lock_file(path.with_suffix(".lock"))
        if lock is None:
            raise Busy(f"another search runs in {path.parent}; wait for it, or choose another folder")
        self._lock = lock
        try:
            self._chain = LineChain(path)
            for _ in read_lines(path, self._chain):
                pass
            self._file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            flush_directory(path.parent)
            self._torn, self._void = os.fstat(self._file).st_size > self._chain.length, self._chain.void
            self._claim()
        except (OSError, InputError) as error:
            os.close(self._lock)
            with file_errors(f"cannot write {path}", FREE):
                raise error

    @property
    def notes(self) -> list[str]:
        """Return notes for the user on the journal's past and place."""
        notes = []
        if self._torn:
            notes.append(f"{self._path}: the last line was cut off by a kill or a full disk, and is left out")
        if self._void:
            notes.append(f"{self._path}: {self._void} line(s) of a search that had been replaced are left out")
        if not knows_locks(self._path.parent):
            notes.append(
                f"{self._path.parent}: this file system knows no locks, so that a search which is resumed takes the campaign over "
                "from one that still runs"
            )
        return notes

    @property
    def campaign(self) -> str:
        """Return the campaign's name, which a copied folder does not share."""
        return digest([self._chain.campaign, self._path.parent.stat().st_ino])[:8]

    def extend(self, entries: Iterable[Entry]) -> None:
        """Write several entries to disk with one flush."""
        self._write([self._encode(number, entry) for number, entry in enumerate(entries, start=self._chain.count + 1)])

    def check(self) -> None:
        """Raise TakenOver where another session has claimed the journal."""
        with self._reopened() as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._chain.length:
                raise damage(self._path, self._chain.count)
            if size > self._chain.length:
                self._look(file)

    def _claim(self) -> None:
        """Claim the journal, so that lines of earlier sessions no longer count."""
        self._session = secrets.token_hex(4)
        value = {"event": CLAIM, "time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
        value |= {"line": self._chain.count + 1, "session": self._session, "format": FORMAT, "program": __version__}
        self._write([(TORN if self._torn else b"") + encode_line(value)])

    def _write(self, lines: list[bytes]) -> None:
        data, count = b"".join(lines), self._chain.count + len(lines)
        with file_errors(f"cannot write {self._path}", FREE):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        with self._reopened() as file:
            if self._chain.session == self._session and file.read() == data:
                self._chain.advance(data, count - self._chain.count)
            else:
                self._look(file)
        if self._chain.count < count:
            raise InputError(
                f"{self._path}: another process wrote over what was appended; end it, then continue with --resume"
            )

    def _reopened(self) -> BinaryIO:
        """The journal as other machines see it, from where it was left."""
        with file_errors(f"cannot read {self._path}", READABLE):
            file = os.fdopen(open_regular(self._path), "rb")
        file.seek(self._chain.length)
        return file

    def _look(self, file: BinaryIO) -> None:
        """Read what was appended; TakenOver where another session holds the journal."""
        file.seek(self._chain.length)
        for _ in self._chain.read(file):
            pass
        if self._chain.session != self._session:
            claim = json.loads(self._chain.claim)
            since = time.strftime("%H:%M:%S", time.localtime(claim["time"]))
            raise TakenOver(
                f"{self._path.parent}: process {claim['pid']} on {claim['host']} goes on with this search since {since}, so that this "
                f"one leaves with its own trials, and nothing is lost; look with hydragnn status {self._path.parent}"
            )

    def _encode(self, number: int, entry: Entry) -> bytes:
        event = msgspec.to_builtins(entry.event, enc_hook=np.generic.item)
        value = {"time": entry.time, **event, "line": number, "session": self._session, "then": entry.then}
        if isinstance(entry.event, Opened):
            value |= {"format": FORMAT, "program": __version__}
        return encode_line(value)

    def close(self) -> None:
        """Give the journal free for another process."""
        os.close(self._file)
        os.close(self._lock)

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def young_garbage_only() -> Iterator[None]:
    """Let Python search for circular garbage among new objects only.

    A campaign is a large value without circles that changes all the time, and a search through all of it stops the program for
    a fifth of a second. What is not circular is freed at once, as always.
    """

    def keep(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            gc.freeze()

    threshold = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, *threshold[1:])
    gc.callbacks.append(keep)
    try:
        yield
    finally:
        gc.callbacks.remove(keep)
        gc.set_threshold(*threshold)
        gc.unfreeze()


def read_lines(path: Path, chain: LineChain) -> Iterator[Counted]:
    """Yield every line that counts after those of ``chain``, which takes it."""
    with file_errors(f"cannot read {path}", READABLE):
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb", buffering=BLOCK) as file:
            file.seek(chain.length)
            yield from chain.read(file)
