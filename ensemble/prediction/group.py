"""The processes that predict together: how they begin, share a queue, tell each other what they know, and replace the dead.

Here are what every kind of group can do, a process alone, and ranks that meet in a folder, which all of them see: they claim
positions by files made exclusively, and work of a rank that died is taken over by the others.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import psutil
import torch

from hydragnn.base.errors import InputError
from hydragnn.distributed.launch import host_name
from hydragnn.distributed.ranks import join_ranks
from hydragnn.ensemble.prediction.queues import Costs, FlatQueue, LocalCounter, Queue

Table = dict[str, Any]

WORDS = ("block", "join", "unit", "spread", "piece", "outline", "segment", "merge")
"""What ranks tell each other: that all of these are there."""


@runtime_checkable
class Group(Protocol):
    """Ranks that predict together, seen from one of them."""

    rank: int
    size: int
    speaks: bool
    """True on the rank that wrote the file, has the result, and so decides when the job is over."""
    hears: bool
    """True where this rank knows what was told without a look at a folder."""

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Return the opening that rank 0 makes, on all ranks, and meet where it says; an InputError of rank 0 is raised by all."""

    def queue(self, number: int, costs: Costs) -> Queue:
        """Return the shared queue of this number, with a position for each of ``costs``, which are the same on all ranks."""

    def first_to(self, name: str) -> bool:
        """Claim ``name``; return True where this rank is the first."""

    def owner(self, name: str) -> int | None:
        """Return the rank that claimed ``name``; None where it is free, or where claims of queues are not known."""

    def gone(self, rank: int) -> bool:
        """Return True where the rank is known to be dead."""

    def tell(self, word: str) -> None:
        """Say one of ``WORDS`` to all ranks."""

    def told(self, word: str) -> bool:
        """Return True where any rank has said it."""

    def last_at(self, word: str) -> bool:
        """Count this rank as at ``word``; return True where all others were counted before, False also where ranks are not counted."""

    def publish(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value that was published first under ``name``: that of ``make`` if no other rank was faster."""

    def note(self, name: str, value: Any) -> None:
        """Leave a note of this rank for the others."""

    def notes(self, name: str) -> list[Any]:
        """Return the notes of all ranks so far, in the order of ranks."""


class Alone:
    """One process."""

    rank, size, speaks, hears = 0, 1, False, True

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._claim_names: set[str] = set()
        self._words: set[str] = set()
        self._notes: dict[str, Any] = {}

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """What was made."""
        return make()

    def queue(self, number: int, costs: Costs) -> Queue:
        """A queue in this process."""
        return FlatQueue(len(costs), LocalCounter())

    def first_to(self, name: str) -> bool:
        """True once."""
        fresh = name not in self._claim_names
        self._claim_names.add(name)
        return fresh

    def owner(self, name: str) -> int | None:
        """Always this process."""
        return 0

    def gone(self, rank: int) -> bool:
        """Never."""
        return False

    def tell(self, word: str) -> None:
        """Keep it."""
        self._words.add(word)

    def told(self, word: str) -> bool:
        """Whether it was said."""
        return word in self._words

    def last_at(self, word: str) -> bool:
        """Return True where there are no others."""
        return self.size == 1

    def publish(self, name: str, make: Callable[[], Any]) -> Any:
        """The value."""
        return make()

    def note(self, name: str, value: Any) -> None:
        """Keep it."""
        self._notes[name] = value

    def notes(self, name: str) -> list[Any]:
        """What was kept."""
        return [self._notes[name]] if name in self._notes else []


class FolderGroup:
    """Ranks that meet in a folder: claims are files made exclusively, notes are files, a beating heart is a file's age."""

    hears = False

    def __init__(self, rank: int, size: int) -> None:
        """Rank ``rank`` of ``size``; ``begin`` comes before everything else."""
        self.rank, self.size, self.speaks = rank, size, False

    def meet(self, folder: Path) -> None:
        """From now on the ranks meet in ``folder``, and this rank's heart beats there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._claims = Claims(folder, self.rank)
        self._heart = Heart(folder, self.rank)
        self._heart.start()

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Give all ranks the opening of rank 0, by torch.distributed, which is left again at once."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with join_ranks(folder.parent) as ranks:
            opening = _broadcast(make_opening(make) if self.rank == 0 else {}, ranks.sum_in_place, self.rank)
        self.meet(folder / check_opening(opening)["meeting"])
        return opening

    def queue(self, number: int, costs: Costs) -> Queue:
        """Positions are claimed by files."""
        return ClaimQueue(self._claims, str(number), len(costs))

    def first_to(self, name: str) -> bool:
        """Return True where this rank made the claim's file."""
        return self._claims.first_to(name)

    def owner(self, name: str) -> int | None:
        """Who made the claim's file."""
        return self._claims.owner(name)

    def gone(self, rank: int) -> bool:
        """Return True where the rank's heart has stopped."""
        return self._heart.has_stopped(rank)

    def tell(self, word: str) -> None:
        """By a file."""
        self._claims.tell(word)

    def told(self, word: str) -> bool:
        """Return True where there is such a file, or where all is over and nobody meets here any more."""
        return self._claims.told(word)

    def last_at(self, word: str) -> bool:
        """Not counted: ranks may die."""
        return False

    def publish(self, name: str, make: Callable[[], Any]) -> Any:
        """The value whose file came first."""
        return self._claims.publish(name, make)

    def note(self, name: str, value: Any) -> None:
        """A file of this rank."""
        self._claims.note(name, value)

    def notes(self, name: str) -> list[Any]:
        """The files of all ranks."""
        return self._claims.notes(name)

    def close(self) -> None:
        """The heart stops."""
        if hasattr(self, "_heart"):
            self._heart.end()


@contextmanager
def at_work(group: FolderGroup) -> Iterator[Group]:
    """Give the group for the length of the block, and close it."""
    try:
        yield group
    finally:
        group.close()


def make_opening(make: Callable[[], Table]) -> Table:
    """Return what ``make`` gives with the name of a new meeting folder, or the reason why it cannot be made."""
    meeting = f"ranks-{time.time_ns():x}-{os.getpid()}"
    try:
        return {**make(), "meeting": meeting, "error": ""}
    except InputError as error:
        return {"meeting": meeting, "error": str(error)}


def check_opening(opening: Table) -> Table:
    """Return the opening; raise the InputError that rank 0 met instead."""
    if opening["error"]:
        raise InputError(opening["error"])
    return opening


def _broadcast(value: Table, sum_in_place: Callable[[torch.Tensor], torch.Tensor], rank: int) -> Table:
    """Return rank 0's value on all ranks, by way of a sum."""
    text = json.dumps(value).encode() if rank == 0 else b""
    length = int(sum_in_place(torch.tensor(len(text))))
    letters = torch.zeros(length, dtype=torch.uint8)
    letters[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else 0
    value_of_first: Table = json.loads(bytes(sum_in_place(letters).tolist()))
    return value_of_first


BEAT = 2.0
"""Seconds between two beats of a heart."""

SILENCE = 30.0
"""Seconds without a beat after which a rank counts as dead."""

STOPPED = 5.0
"""Seconds after which a rank of this machine that was stopped (SIGSTOP) counts as dead; what is stopped together also goes on together."""


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
                with suppress(OSError):
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
        self._began, self._watch = time.monotonic(), Watch()
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
        if host == host_name() and number and (not _runs(int(number)) or self._watch.is_stopped(int(number))):
            return True
        return now - beat > SILENCE

    def _path(self, rank: int) -> Path:
        return self._folder / f"alive-{rank:06d}"


class Watch:
    """Knows since when processes of this machine are stopped, as far as it was asked."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def is_stopped(self, process: int) -> bool:
        """Return True where the process has been stopped for ``STOPPED`` seconds."""
        try:
            stopped = psutil.Process(process).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            stopped = False
        if not stopped:
            self._since.pop(process, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(process, now) > STOPPED


def _runs(process: int) -> bool:
    """Return True where the process is there and no zombie."""
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _refusal(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {folder}: {error.strerror or error}; free space, then --resume")
