"""Reservation of space for ADIOS2, which ends the process where it cannot write."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SLACK_BYTES = 1 << 22  # for chunks that are not full and for the engines' own tables


def reserve(path: Path, size: int) -> None:
    """Reserve ``size`` bytes of disk for a file; OSError without space."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


class Ballast:
    """File that keeps space free for the files beside it."""

    def __init__(self, path: Path) -> None:
        """Make a file of ``SLACK_BYTES``; OSError without space."""
        self._path = path
        reserve(path, SLACK_BYTES)

    def make_room(self, size: int, largest: Path) -> None:
        """Reserve ``size`` bytes, by which ``largest`` may grow; else OSError."""
        allowed = largest.stat().st_size + size if largest.exists() else size
        os.truncate(self._path, max(allowed, SLACK_BYTES))  # takes no space, but meets the limit for sizes of files
        reserve(self._path, SLACK_BYTES + size)
        os.truncate(self._path, SLACK_BYTES)


@contextmanager
def engine_errors(engine: str) -> Iterator[None]:
    """Turn errors of an engine that could not write into OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"{engine} could not write (is the disk full?)") from error


def state_of(file: int | Path) -> tuple[int, int, int]:
    """Return what changes where somebody writes to a file."""
    status = os.fstat(file) if isinstance(file, int) else file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
