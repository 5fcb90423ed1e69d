"""Waiting for thousands of pipes."""

import os
import selectors
from contextlib import suppress
from typing import Any


class WakeupPipe:
    """Pipe that is readable after ``wake``, from any thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Wake the waiting thread; calls before ``clear`` are one."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def clear(self) -> None:
        """Clear earlier wakeups."""
        with suppress(BlockingIOError):
            os.read(self._reading, 65536)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reading

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reading)
        os.close(self._writing)


class PipeSelector:
    """Pipes, each registered once; ``wake`` ends ``wait`` from any thread."""

    def __init__(self) -> None:
        self._selector, self._bell = selectors.DefaultSelector(), WakeupPipe()
        self.wake = self._bell.wake
        self.open(self._bell.fileno(), self._bell)

    def open(self, descriptor: int, owner: object) -> None:
        """Wait for a pipe from now on."""
        self._selector.register(descriptor, selectors.EVENT_READ, owner)

    def close(self, descriptor: int) -> None:
        """Stop to wait for a pipe, before it is closed."""
        self._selector.unregister(descriptor)

    def wait(self, seconds: float, bell: int | None = None) -> tuple[list[Any], bool]:
        """Return the owners of readable pipes, and True where ``bell`` is readable.

        Waits up to ``seconds`` for the first, or for ``wake``.
        """
        if bell is not None:
            self.open(bell, None)
        try:
            ready = [key.data for key, _ in self._selector.select(seconds)]
        finally:
            if bell is not None:
                self.close(bell)
        self._bell.clear()
        return [owner for owner in ready if owner not in (None, self._bell)], None in ready

    def end(self) -> None:
        """Close the selector."""
        if self._selector.get_map() is not None:
            self._selector.close()
            self._bell.close()
