"""Space that is reserved before HDF5 or ADIOS2 writes: neither survives a write that fails, and both end the process in C."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SLACK_BYTES = 1 << 22  # for chunks that are not full and for the engines' own tables


def reserve(path: Path, size: int) -> None:
    """Let a file that is there take up ``size`` bytes of its disk; OSError where there is no space for them."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


class Ballast:
    """A file that keeps space for files beside it, which grow in ways that only an engine knows; whoever deletes it gives the space free."""

    def __init__(self, path: Path) -> None:
        """A new file at ``path`` of ``SLACK_BYTES``; OSError where there is no space."""
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        os.close(descriptor)
        reserve(path, SLACK_BYTES)

    def make_room(self, size: int, largest: Path) -> None:
        """See that ``size`` bytes are free beside the slack, and that ``largest`` may grow by them; OSError where not."""
        allowed = largest.stat().st_size + size if largest.exists() else size
        os.truncate(self._path, max(allowed, SLACK_BYTES))  # takes no space, but meets the limit for sizes of files
        reserve(self._path, SLACK_BYTES + size)
        os.truncate(self._path, SLACK_BYTES)


@contextmanager
def engine_errors(engine: str) -> Iterator[None]:
    """OSError for what an engine says that could not write; its own message is a line of a log, without a number."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"{engine} could not write (is the disk full?)") from error
