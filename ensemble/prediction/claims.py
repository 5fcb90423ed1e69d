"""Claims, notes and heartbeats as files in a folder that all ranks see."""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hydragnn.distributed.launch import host_name
from hydragnn.errors import InputError

BEAT = 2.0
"""Seconds between two beats of a heart."""

SILENCE = 30.0
"""Seconds without a beat after which a rank counts as dead."""


class Claims:
    """Files of one rank in the folder: whoever makes a claim's file first has it."""

    def __init__(self, folder: Path, rank: int) -> None:
        """The folder exists."""
        self.folder, self.rank = folder, rank

    def first_to(self, name: str) -> bool:
        """Return True where this rank made the file."""
        try:
            descriptor = os.open(self.folder / f"claim-{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        except OSError as error:
            raise _refusal(self.folder, error) from error
        with os.fdopen(descriptor, "w") as file:
            file.write(str(self.rank))
        return True

    def is_taken(self, name: str) -> bool:
        """Return True where anybody has it."""
        return (self.folder / f"claim-{name}").exists()

    def owner(self, name: str) -> int | None:
        """The rank that has it; None where nobody has, or where it died between claiming and signing."""
        try:
            text = (self.folder / f"claim-{name}").read_text()
        except FileNotFoundError:
            return None
        return int(text) if text else None

    def tell(self, word: str) -> None:
        """Leave a file that says it; a folder that is gone says more."""
        with suppress(FileNotFoundError):
            (self.folder / f"told-{word}").touch()

    def told(self, word: str) -> bool:
        """Return True where it was said, or where the folder is gone: then all work is done."""
        return (self.folder / f"told-{word}").exists() or not self.folder.exists()

    def publish(self, name: str, make: Callable[[], Any]) -> Any:
        """The value that came first, made only where there is none yet; files appear with their content, because they are linked into place."""
        final, own = self.folder / f"said-{name}.json", self.folder / f".said-{name}.{self.rank}"
        if not final.exists():
            try:
                own.write_text(json.dumps(make()))
                os.link(own, final)
            except FileExistsError:
                pass
            except OSError as error:
                raise _refusal(self.folder, error) from error
            finally:
                own.unlink(missing_ok=True)
        return json.loads(final.read_text())

    def note(self, name: str, value: Any) -> None:
        """This rank's note, in place of an earlier one."""
        own = self.folder / f".{name}.{self.rank}"
        try:
            own.write_text(json.dumps(value))
            own.replace(self.folder / f"{name}-{self.rank:06d}.json")
        except OSError as error:
            raise _refusal(self.folder, error) from error

    def notes(self, name: str) -> list[Any]:
        """The notes of all ranks, in their order."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob(f"{name}-*.json"))]


class ClaimQueue:
    """Positions claimed by files; claims are always a run from the beginning, so the next free one is found by bisection."""

    def __init__(self, claims: Claims, name: str, count: int) -> None:
        """``count`` positions under ``name``."""
        self._claims, self._name, self._count, self._next = claims, name, count, 0

    def take(self) -> int | None:
        """The next position that nobody has."""
        while self._next < self._count:
            position = self._next
            if self._claims.first_to(f"{self._name}-{position}"):
                self._next = position + 1
                return position
            self._next = self._free_after(position)
        return None

    def _free_after(self, position: int) -> int:
        low, step = position, 1
        while low + step < self._count and self._is_taken(low + step):
            low, step = low + step, 2 * step
        high = min(low + step, self._count)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_taken(middle) else (low, middle)
        return high

    def _is_taken(self, position: int) -> bool:
        return self._claims.is_taken(f"{self._name}-{position}")


class Heart(threading.Thread):
    """Shows that a rank lives, and sees whether others do."""

    def __init__(self, folder: Path, rank: int) -> None:
        """It beats once ``start`` is called."""
        super().__init__(daemon=True)
        self._folder, self._rank = folder, rank
        self._over = threading.Event()
        self._began = time.monotonic()
        self._path(rank).write_text(f"{host_name()} {os.getpid()}")

    def run(self) -> None:
        """Beat until the end; a folder that is gone means that all work is done."""
        while not self._over.wait(BEAT):
            try:
                os.utime(self._path(self._rank))
            except OSError:
                return

    def end(self) -> None:
        """Stop."""
        self._over.set()

    def has_stopped(self, rank: int) -> bool:
        """Return True where that rank is dead: its process is gone from this machine, or it gave no sign of life for long.

        Ages are differences between files, since clocks of machines differ.
        """
        try:
            text, beat = self._path(rank).read_text(), self._path(rank).stat().st_mtime
            now = self._path(self._rank).stat().st_mtime
        except OSError:
            return time.monotonic() - self._began > SILENCE
        host, _, number = text.partition(" ")
        if host == host_name() and number and not _runs(int(number)):
            return True
        return now - beat > SILENCE

    def _path(self, rank: int) -> Path:
        return self._folder / f"alive-{rank:06d}"


def unique_name() -> str:
    """A name that no other process on any machine has."""
    return f"{host_name()}-{os.getpid()}"


def _runs(process: int) -> bool:
    """Return True where the process is there and no zombie."""
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _refusal(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {folder}: {error.strerror or error}; free space, then --resume")
