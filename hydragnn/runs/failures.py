"""Reasons of failed runs, from exceptions and from peers."""

import mmap
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.base.files import empty_folders_removed, read_json, write_json
from hydragnn.distributed.launch import LaunchError, this_launch
from hydragnn.distributed.ranks import Ranks
from hydragnn.record import Failure, read_record, write_record
from hydragnn.runs.attempt import Fenced, RunAttempt
from hydragnn.training.context import Diverged

OUT_OF_MEMORY: tuple[str, ...] = ("out of memory", "out_of_device_memory", "out_of_host_memory", "bad_alloc")
OUT_OF_MEMORY += ("can't allocate memory", "cannot allocate memory", "unable to allocate", "failed to map segment")
OUT_OF_MEMORY += ("status_alloc_failed",)
NO_MEMORY_FOR_A_MESSAGE = "[enforce fail a"  # of "[enforce fail at alloc_cpu.cpp": what a string holds without the heap
PEER_LOST = ("connection closed by peer", "connection reset", "gloo", "nccl", "broken pipe", "timed out")
SECONDS_FOR_PEERS = 5.0
RESERVE = 2**24  # bytes


class PeerFailed(Exception):
    """A failure that began on another rank, in its words."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of(error: BaseException) -> Failure:
    """Return kind and message of a failure; defects name their place."""
    if isinstance(error, PeerFailed):
        return error.failure
    message = str(error).strip()
    low, first = message.lower(), message.partition("\n")[0]
    if isinstance(error, Diverged):
        return Failure(kind="diverged", message=f"{message}; lower the learning rate or clip the gradient")
    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError) or low == NO_MEMORY_FOR_A_MESSAGE
    if lacks or any(text in low for text in OUT_OF_MEMORY):
        message = f"{first or 'no memory left'}; use smaller batches or a smaller model"
        return Failure(kind="out_of_memory", message=message)
    if isinstance(error, LaunchError):
        return Failure(kind="launch", message=message)
    if isinstance(error, InputError):
        return Failure(kind="configuration", message=message)
    of_torch = isinstance(error, RuntimeError) and any(text in low for text in PEER_LOST)
    if of_torch or isinstance(error, dist.DistError):
        # gloo has a place in its source in front, and wishes good luck behind
        reason, _, _ = re.sub(r"^\[[^]]*\] ", "", first).partition(". ")
        return Failure(kind="lost_node", message=f"another rank is gone: {reason}")
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return Failure(kind="defect", message="\n".join(lines[-12:]))


def of_peer(error: Exception) -> str | None:
    """Return a sentence for an error of another rank; else None."""
    if isinstance(error, PeerFailed):
        return f"another rank has failed: {error}"
    if failure_of(error).kind == "lost_node":
        return "another rank has ended, and this one cannot go on alone; see what that one printed, then start again, a training with --resume"
    return None


def first_failure(failure: Failure, folder: Path, ranks: Ranks) -> Failure:
    """Return the failure of the rank where it began."""
    if ranks.size == 1:
        return failure
    if not ranks.first:
        if failure.kind != "lost_node":
            with suppress(InputError):  # a full disk must not hide what happened
                write_json(folder / f".failure-{ranks.rank}.json", asdict(failure))
        return failure
    deadline = time.monotonic() + (SECONDS_FOR_PEERS if failure.kind == "lost_node" else 0.0)
    while True:
        notes = sorted(folder.glob(".failure-*.json"))
        if notes:
            failure = Failure(**read_json(notes[0]))
        if notes or time.monotonic() >= deadline:
            forget_failures(folder)
            return failure
        time.sleep(0.05)


def note_stopped_rank(attempt: RunAttempt, rank: int, sentence: str) -> None:
    """Record that a stopped rank was lost, and notify the first one."""
    failure = Failure(kind="lost_node", message=sentence)
    with suppress(Fenced, InputError, OSError):
        attempt.check()
        write_json(attempt.folder / f".failure-{rank}.json", asdict(failure))
        record = read_record(attempt.folder)
        if record.status == "running":
            write_record(replace(record, status="failed", failure=failure), attempt.folder, attempt.check)


def reserve_memory() -> mmap.mmap:
    """Return memory to hold in reserve, to report why an allocation failed."""
    return mmap.mmap(-1, RESERVE)


@contextmanager
def propagate_failure(attempt: RunAttempt, ranks: Ranks) -> Iterator[None]:
    """Fail on the first rank with another rank's failure."""
    try:
        with reserve_memory():
            yield
    except (Fenced, Interrupted):
        raise
    except Exception as error:
        attempt.check()
        own = failure_of(error)
        agreed = first_failure(own, attempt.folder, ranks)
        if agreed.kind != own.kind:
            raise PeerFailed(agreed) from error
        raise


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Remove notes of ranks and empty new folders of refused runs."""
    with empty_folders_removed(folder):
        try:
            yield
        except InputError:
            if this_launch().rank == 0:  # all that failed have written theirs
                forget_failures(folder)
            raise


def forget_failures(folder: Path) -> None:
    """Remove what ranks of an earlier attempt said."""
    for path in folder.glob(".failure-*.json"):
        path.unlink(missing_ok=True)
