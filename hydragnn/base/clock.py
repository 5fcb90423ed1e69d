"""Clock of a run: its time by phase."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator
from typing import ClassVar, TypeVar

T = TypeVar("T")

WHOLE = ("validation", "saving")
"""Phases that nothing inside divides."""

FIRST, EVERY = 16, 128
"""First step that waits for a device, and steps to the next.

One takes half as long again at most, which is .4 % of all.
"""


class Clock:
    """Seconds of this process by phase.

    A phase suspends the one around it.

    A device computes while the host goes on. There a few steps wait for it at the end of every phase, and the time of all steps is
    divided as theirs. Steps replayed as graphs of the device have no phases: ``forward`` and ``backward`` share their time as
    they shared the host's before they were recorded.
    """

    running: ClassVar["Clock"]

    def __init__(self, wait: Callable[[], object] | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        """``wait`` waits for the device; None where the host computes."""
        self.wait, self.is_host, self.now = wait or int, wait is None, now
        self.seconds, self.measured = defaultdict[str, float](float), defaultdict[str, float](float)
        self.phase, self.since, self.steps, self.waits = "other", now(), 0, False

    def enter(self, phase: str) -> str:
        """Begin a phase; return the one before."""
        if self.waits:
            self.wait()
        outer, now = self.phase, self.now()
        self.seconds[outer] += now - self.since
        if self.waits:
            self.measured[outer] += now - self.since
        self.phase, self.since = phase, now
        return outer

    def phases(self) -> dict[str, float]:
        """Return seconds by phase until now, without ``other``."""
        self.enter(self.phase)
        seconds = {name: value for name, value in self.seconds.items() if name != "other"}
        whole = {name: seconds.pop(name) for name in WHOLE if name in seconds}
        if total := sum(self.measured.values()):
            steps = sum(seconds.values())
            seconds = {name: steps * value / total for name, value in self.measured.items()}
        replays, _ = seconds.pop("replay", 0.0), seconds.pop("step", 0.0)  # gaps in steps are ``other``
        own = {name: self.seconds[name] or 1.0 for name in ("forward", "backward") if replays}
        shared = {name: seconds.get(name, 0.0) + replays * part / sum(own.values()) for name, part in own.items()}
        return whole | seconds | shared


Clock.running = Clock()


class phase(ContextDecorator):
    """Block, or function, that counts as a phase of the run.

    Outside of steps nothing but validation and saving counts. No generator: a step of a small model is short.
    """

    __slots__ = ("clock", "name", "outer")

    def __init__(self, name: str) -> None:
        self.name = name

    def _recreate_cm(self) -> "phase":
        return phase(self.name)  # calls may be nested

    def __enter__(self) -> None:
        clock = self.clock = Clock.running
        self.outer = ""
        if clock.phase not in WHOLE and (clock.phase != "other" or self.name in ("step", *WHOLE)):
            clock.waits = clock.waits and self.name not in WHOLE
            self.outer = clock.enter(self.name)

    def __exit__(self, *error: object) -> None:
        if self.outer:
            self.clock.enter(self.outer)


def steps_of(items: Iterable[T]) -> Iterator[T]:
    """Return items, each of which begins a step; waits are ``data``."""
    clock, iterator = Clock.running, iter(items)
    with phase("step"):
        while True:
            if due := not clock.is_host and clock.steps % EVERY == FIRST:
                clock.wait()  # what earlier steps left to do is not this one's
            clock.enter("data")
            clock.waits, clock.steps = due, clock.steps + 1
            item = next(iterator, None)
            clock.enter("step")
            if item is None:
                break
            yield item
    clock.waits = False
