"""The processes that predict together: how they begin, share a queue, tell each other what they know, and replace the dead.

Ranks of MPI count at a one-sided counter. Job steps without MPI, torchrun's ranks and local workers claim positions by files
in the folder of the prediction, which all of them see; there, work of a rank that died is taken over by the others.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, runtime_checkable

import torch

from hydragnn.distributed.ranks import join_ranks
from hydragnn.ensemble.prediction.claims import ClaimQueue, Claims, Heart
from hydragnn.ensemble.prediction.queues import Costs, FlatQueue, LocalCounter, Queue
from hydragnn.errors import InputError
from hydragnn.forked import workers_context

Table = dict[str, Any]

WORDS = ("block", "join", "unit", "piece", "merge")
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


LAST_WORDS = 5.0  # seconds that a worker has to leave once everything is done


class ParentGroup(FolderGroup):
    """The group seen from rank 0 of local workers, which it starts; ``work`` is what a worker does with the opening."""

    def __init__(self, workers: int, work: Callable[..., None], *arguments: Any) -> None:
        """So many processes, this one included."""
        super().__init__(0, workers)
        self._work, self._arguments = work, arguments
        self._processes: list[Any] = []

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Start the workers, make the opening while they load their libraries, and send it to them."""
        context = workers_context()
        threads = max(1, torch.get_num_threads() // self.size)
        torch.set_num_threads(threads)
        senders = []
        for rank in range(1, self.size):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (rank, self.size, threads, receiver, folder, *self._arguments)
            self._processes.append(context.Process(target=self._work, args=arguments, daemon=True))
            self._processes[-1].start()
            receiver.close()
            senders.append(sender)
        opening = make_opening(make)
        self.meet(folder / check_opening(opening)["meeting"])
        for sender in senders:
            with sender, suppress(BrokenPipeError):  # of a worker that died
                sender.send_bytes(json.dumps(opening).encode())
        return opening

    def close(self) -> None:
        """End workers that still run: what they do has been done by others."""
        super().close()
        for process in self._processes:
            process.terminate()
            process.join(LAST_WORDS)
            process.kill()  # one that was stopped, or hangs
            process.join()


class ChildGroup(FolderGroup):
    """The group seen from a local worker that rank 0 started."""

    def __init__(self, rank: int, size: int, receiver: Connection) -> None:
        """The opening of rank 0 comes from ``receiver``."""
        super().__init__(rank, size)
        self._receiver = receiver

    def begin(self, make: Callable[[], Table], folder: Path) -> Table:
        """Return the opening of rank 0; from now on this process ends with the one that started it."""
        Thread(target=_end_with_parent, daemon=True).start()
        opening: Table = json.loads(self._receiver.recv_bytes())
        self.meet(folder / opening["meeting"])
        return opening


@contextmanager
def at_work(group: FolderGroup) -> Iterator[Group]:
    """Give the group for the length of the block, and close it."""
    try:
        yield group
    finally:
        group.close()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
