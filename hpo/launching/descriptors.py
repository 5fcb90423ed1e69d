"""Pipes by the thousand: which of them have something to say, and room for all of them."""

import resource
import select
from collections.abc import Iterable
from contextlib import suppress


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
