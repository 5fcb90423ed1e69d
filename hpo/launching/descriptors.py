"""Pipes by the thousand: which of them have something to say, and room for all of them."""

import os
import resource
import select
from collections.abc import Iterable
from contextlib import suppress


class Bell:
    """A descriptor that can be read once somebody has rung, in whatever thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)

    def ring(self) -> None:
        """Wake who waits; rings that nobody has heard yet are one."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def hush(self) -> None:
        """Forget that somebody has rung."""
        with suppress(BlockingIOError):
            os.read(self._reading, 65536)

    def fileno(self) -> int:
        """What to wait for."""
        return self._reading

    def close(self) -> None:
        """Nobody rings any more."""
        os.close(self._reading)
        os.close(self._writing)


def readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those that can be read or have ended, after waiting up to so many seconds for the first.

    ``select`` refuses descriptors from 1,024 on; these may have any number.
    """
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(1000 * seconds)]


def allow_many_files() -> None:
    """Let this process, and those that it starts, open as many files as the system grants; many sites begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a system that promises more than it gives
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
