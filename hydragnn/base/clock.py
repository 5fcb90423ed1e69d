"""Clock of a run: its time by phase."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import ClassVar, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

WHOLE = ("validation", "saving")
"""Phases that nothing inside divides."""
FIRST, EVERY, OFTEN = 16, 128, 13
"""First steps, which are all divided; steps to the next that waits for a device, half as long again at most; and on a host."""


class Clock:
    """Seconds of this process by phase.

    A phase suspends the one around it.

    After the first steps of a process only the first of an epoch and every few are divided, since to divide all costs small models
    more than half a percent. The time of the others is divided as theirs. A device computes while the host goes on: there a few steps wait
    for it at the end of every phase, and the time of all is divided as theirs. Steps replayed as graphs of the device have no phases:
    ``forward`` and ``backward`` share their time as they shared the host's before they were recorded.
    """

    running: ClassVar["Clock"]

    def __init__(self, wait: Callable[[], object] | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        """``wait`` waits for the device; None where the host computes."""
        self.wait, self.is_host, self.now = wait or int, wait is None, now
        self.seconds, self.measured = defaultdict[str, float](float), defaultdict[str, float](float)
        self.phase, self.since, self.steps = "other", now(), 0
        self.divides, self.weight = True, int(self.is_host)

    def enter(self, phase: str) -> str:
        """Begin a phase; return the one before."""
        if self.weight:
            self.wait()
        outer, now = self.phase, self.now()
        self.seconds[outer] += now - self.since
        if self.weight:
            self.measured[outer] += self.weight * (now - self.since)
        self.phase, self.since = phase, now
        return outer

    def phases(self) -> dict[str, float]:
        """Return seconds by phase until now, without ``other``."""
        self.enter(self.phase)
        apart, both = ("other", *WHOLE), (self.seconds, self.measured)
        steps, measured = ({name: one for name, one in of.items() if name not in apart} for of in both)
        scale = sum(steps.values()) / (sum(measured.values()) or 1.0)
        seconds = {name: scale * value for name, value in measured.items()} or steps
        replays, _ = seconds.pop("replay", 0.0), seconds.pop("step", 0.0)  # gaps in steps are ``other``
        own = {name: self.seconds[name] or 1.0 for name in ("forward", "backward") if replays}
        shared = {name: seconds.get(name, 0.0) + replays * part / sum(own.values()) for name, part in own.items()}
        return {name: self.seconds[name] for name in WHOLE if name in self.seconds} | seconds | shared


Clock.running = Clock()


class phase:
    """Block, or function, that counts as a phase of the run.

    Outside of steps nothing but validation and saving counts. No generator: a step of a small model is short.
    """

    __slots__ = ("clock", "name", "outer")

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, each of whose calls counts."""
        name = self.name

        @wraps(function)
        def timed(*arguments: P.args, **named: P.kwargs) -> R:
            if not Clock.running.divides and name not in WHOLE:
                return function(*arguments, **named)
            with phase(name):
                return function(*arguments, **named)

        return timed

    def __enter__(self) -> None:
        clock = self.clock = Clock.running
        self.outer = ""
        if self.name in WHOLE:
            clock.weight = 0
        elif self.name != "step" and (clock.phase == "other" or not clock.divides):
            return
        if clock.phase not in WHOLE:
            self.outer = clock.enter(self.name)

    def __exit__(self, *error: object) -> None:
        if self.outer:
            self.clock.enter(self.outer)


def steps_of(items: Iterable[T]) -> Iterator[T]:
    """Return items, each of which begins a step; waits are ``data``."""
    clock, iterator, starts = Clock.running, iter(items), True
    every = OFTEN if clock.is_host else EVERY
    with phase("step"):
        while True:
            starts, early = False, starts or clock.steps < FIRST
            due = not early and clock.steps % every == FIRST % every
            if due:
                clock.wait()  # what earlier steps left to do is not this one's
            if early or due or clock.divides:
                clock.enter("data" if early or due else "step")
                clock.divides, clock.weight = early or due, int(early and clock.is_host) + every * due
            item = next(iterator, None)
            if clock.divides:
                clock.enter("step")
            if item is None:
                break
            clock.steps += 1
            yield item
    clock.weight = 0
