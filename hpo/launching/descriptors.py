"""Waiting for thousands of pipes."""

import os
import selectors
from contextlib import suppress
from typing import Any


class PipeSelector:
    """Pipes, each registered once; ``wake`` ends ``wait`` from any thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self.open(self._reading, None)

    def open(self, descriptor: int, owner: object) -> None:
        """Wait for a pipe from now on."""
        self._selector.register(descriptor, selectors.EVENT_READ, owner)

    def close(self, descriptor: int) -> None:
        """Stop to wait for a pipe, before it is closed."""
        self._selector.unregister(descriptor)

    def wake(self) -> None:
        """End a wait, or the next one; calls before it are one."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def wait(self, seconds: float) -> tuple[list[Any], bool]:
        """Return the owners of readable pipes, and True after ``wake``.

        Waits up to ``seconds`` for the first.
        """
        ready = [key.data for key, _ in self._selector.select(seconds)]
        with suppress(BlockingIOError):
            os.read(self._reading, 65536)
        return [owner for owner in ready if owner is not None], None in ready

    def end(self) -> None:
        """Close the selector."""
        if self._selector.get_map() is not None:
            self._selector.close()
            os.close(self._reading)
            os.close(self._writing)
