"""Pipes by the thousand: which of them have something to say, and room for all of them."""

import os
import select
import selectors
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


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


class Ears:
    """Pipes that stay open for long, each known to the system once, by who is at their other ends; ``ring`` wakes who listens, in whatever thread."""

    def __init__(self) -> None:
        self._selector, self._bell = selectors.DefaultSelector(), Bell()
        self.ring = self._bell.ring
        self.open(self._bell.fileno(), self._bell)

    def open(self, descriptor: int, speaker: object) -> None:
        """Hear a pipe from now on."""
        self._selector.register(descriptor, selectors.EVENT_READ, speaker)

    def close(self, descriptor: int) -> None:
        """Hear a pipe no more; before it is closed itself."""
        self._selector.unregister(descriptor)

    def listen(self, seconds: float, bell: int | None = None) -> tuple[list[Any], bool]:
        """Who speaks or has ended, after waiting up to so many seconds for the first or a ring; and True where ``bell`` can be read."""
        if bell is not None:
            self.open(bell, None)
        try:
            ready = [key.data for key, _ in self._selector.select(seconds)]
        finally:
            if bell is not None:
                self.close(bell)
        self._bell.hush()
        return [speaker for speaker in ready if speaker not in (None, self._bell)], None in ready

    def end(self) -> None:
        """Hear nothing any more, for good."""
        if self._selector.get_map() is not None:
            self._selector.close()
            self._bell.close()


def readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Those that can be read or have ended, after waiting up to so many seconds for the first.

    ``select`` refuses descriptors from 1,024 on; these may have any number.
    """
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(1000 * seconds)]
