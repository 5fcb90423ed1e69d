"""Attempts: signs of life, and ends that are not decided yet."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from hydragnn.hpo.launching.launcher import Begun, Exit, Task
from hydragnn.hpo.launching.verdict import is_complete
from hydragnn.hpo.launching.watchdog import Clock, SchedulerWatch
from hydragnn.hpo.scheduling.events import Identity, node_of

FILES = 16  # records read side by side, because those of a shared file system take their time
LAST_WORDS = 5.0  # seconds that a killed attempt's worker may take to say so
STALLS = 5  # consecutive stalls that are excused
OPERATIONS_A_SECOND = 45.0  # of the file system, for the heartbeats of a whole campaign
OPERATIONS_OF_A_BEAT = 10.0  # with its checks and the record's part


def seconds_between_beats(runs: int, patience: float) -> float:
    """Return seconds between heartbeats of each run, more for many runs.

    A run that hangs is told from one that does not within the patience by four beats at least; where nobody looks, ``patience`` is infinite.

    >>> [round(seconds_between_beats(runs, 600.0)) for runs in (4, 90, 500, 9_408)], round(seconds_between_beats(9_408, float("inf")))
    ([1, 20, 111, 150], 2091)
    """
    return max(1.0, min(runs * OPERATIONS_OF_A_BEAT / OPERATIONS_A_SECOND, patience / 4))


class LastSigns(dict[str, float]):
    """Times of the last signs of life of thousands, the oldest first."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self._clock, self._stalls = clock, 0

    def note(self, name: str) -> None:
        """Note a sign of life."""
        self.pop(name, None)
        self[name] = self._clock()

    def silence(self, name: str) -> float:
        """Return the seconds since the last sign."""
        return self._clock() - self[name]

    def silent(self, patience: float) -> list[str]:
        """Return the names without a sign for longer than the patience.

        >>> signs = LastSigns(iter([0.0, 1.0, 5.0, 11.5]).__next__)
        >>> for name in ("a", "b", "a"):
        ...     signs.note(name)
        >>> signs.silent(10.0)
        ['b']
        """
        earliest = self._clock() - patience
        return [name for name, _ in takewhile(lambda sign: sign[1] < earliest, self.items())]

    def hung(self, patience: float) -> list[str]:
        """Return the silent names, unless most are silent at once.

        Then the silence of all begins anew.
        """
        silent = self.silent(patience)
        if not silent:
            return []
        earliest = self._clock() - patience / 2
        recent = sum(1 for _ in takewhile(lambda time: time >= earliest, reversed(self.values())))
        if self.is_stall(recent, len(self)):
            self.update(dict.fromkeys(self, self._clock()))
            return []
        return silent

    def is_stall(self, recent: int, watched: int) -> bool:
        """Return True where all stand still, and no run hangs.

        ``recent`` of ``watched`` runs showed life in the latter half of the patience. Those that stay silent for ``STALLS`` patiences in a row hang after all.
        """
        plausible = 2 * recent >= watched  # at least as many show life as do not
        if plausible or watched == 1 or self._stalls >= STALLS:
            self._stalls = 0 if plausible else self._stalls
            return False
        self._stalls += 1
        return True


@dataclass(kw_only=True, slots=True)
class Attempt:
    """Attempt of a launcher."""

    task: Task
    identity: Identity | None = None
    asked_to_leave: bool = False
    kill_at: float = float("inf")
    killed: float | None = None
    hung: bool = False

    @property
    def ended_by_us(self) -> bool:
        """Return True where it was asked to save itself, or killed."""
        return self.asked_to_leave or self.killed is not None


class Attempts(dict[str, Attempt]):
    """Attempts by their first slots, with those that are late or silent."""

    def __init__(self, hang_seconds: float) -> None:
        """Kill runs that are silent for ``hang_seconds``."""
        super().__init__()
        self._hang = hang_seconds
        self._slot_of: dict[int, str] = {}
        self.unbegun, self.running = LastSigns(), LastSigns()
        self._leaving: dict[str, None] = {}

    def ask(self, task: Task) -> None:
        """Note that an attempt was requested."""
        slot = task.slots[0]
        self[slot], self._slot_of[task.trial] = Attempt(task=task), slot
        self.unbegun.note(slot)

    def begin(self, slot: str, identity: Identity) -> Begun:
        """Note the process of an attempt."""
        self.unbegun.pop(slot, None)
        self[slot].identity = identity
        return Begun(task=self[slot].task, identity=identity)

    def holds(self, task: Task) -> bool:
        """Return True for the very attempt that has its slot."""
        attempt = self.get(task.slots[0])
        return attempt is not None and attempt.task == task

    def beat(self, slot: str) -> None:
        """Note a sign of life of a run."""
        if slot in self.running:
            self.running.note(slot)

    def cancel(self, trial: int, grace: float) -> str | None:
        """Return the slot of a trial to be ended, if it runs."""
        slot = self._slot_of.get(trial, "")
        attempt = self.get(slot)
        if attempt is None or attempt.task.trial != trial or attempt.asked_to_leave:
            return None
        attempt.asked_to_leave, attempt.kill_at = True, time.monotonic() + grace
        self._leaving[slot] = None
        return slot

    def be_patient(self, nodes: Collection[str]) -> None:
        """Begin the wait for attempts on these nodes anew."""
        for slot in [slot for slot in self.unbegun if node_of(slot) in nodes] if nodes else ():
            self.unbegun.note(slot)

    def to_kill(self, now: float) -> list[str]:
        """Return the slots of attempts to be killed, each once."""
        late = [slot for slot in self._leaving if self[slot].killed is None and now >= self[slot].kill_at]
        hung = self.running.hung(self._hang)
        for slot in hung:
            self.running.pop(slot, None)
            self[slot].hung = slot not in late
        for slot in (late := list(dict.fromkeys([*late, *hung]))):
            self[slot].killed = self[slot].killed or now
            self._leaving[slot] = None
        return late

    def unanswered(self, now: float) -> list[str]:
        """Return the slots of killed attempts whose workers do not say so."""
        killed = ((slot, self[slot].killed) for slot in self._leaving)
        return [slot for slot, at in killed if at is not None and now - at > LAST_WORDS]

    def end(self, slot: str, code: int | None, message: str, **facts: Any) -> Exit:
        """Remove an attempt, and return its end.

        Where we ended it, its code is no hint unless it is 0.
        """
        attempt = self.pop(slot)
        for signs in (self.unbegun, self.running):
            signs.pop(slot, None)
        self._leaving.pop(slot, None)
        if attempt.killed is not None or (attempt.asked_to_leave and code not in (0, None)):
            code = -9
        if attempt.hung:
            message = f"no heartbeat for {self._hang / 60:.3g} minutes"
        elif attempt.killed is not None and not message:
            message = "it did not save itself within grace_seconds, and goes on from its last checkpoint"
        return Exit(task=attempt.task, code=code, hung=attempt.hung, message=message, **facts)


class OpenEnds:
    """Ends in packs that wait for a record or the scheduler."""

    def __init__(self, watch: SchedulerWatch, ring: Callable[[], None]) -> None:
        """``ring`` is called, in another thread, when a record was read."""
        self._watch, self._ring = watch, ring
        self._files = ThreadPoolExecutor(FILES, "packs")
        self._reading: list[tuple[Exit, Future[bool]]] = []
        self._waiting: list[tuple[Exit, float]] = []

    def add(self, end: Exit) -> None:
        """Add an end; its record is read in another thread."""
        if end.code != 0:
            self._wait_for_word(end)
            return
        complete = self._files.submit(is_complete, end.task)
        self._reading.append((end, complete))
        complete.add_done_callback(lambda _: self._ring())

    def ready(self, revoked: str) -> list[Exit]:
        """Return ends whose record is complete or whose allocation is decided."""
        ready: list[Exit] = []
        reading, self._reading = self._reading, []
        for end, complete in reading:
            if not complete.done():
                self._reading.append((end, complete))
            elif complete.result():
                ready.append(end)
            else:
                self._wait_for_word(end)
        waiting, self._waiting = self._waiting, []
        for end, since in waiting:
            if revoked:
                ready.append(replace(end, interrupted=True, message=revoked))
            elif self._watch.has_spoken((), since):  # the workers themselves report on their nodes
                ready.append(end)
            else:
                self._waiting.append((end, since))
        return ready

    def close(self) -> None:
        """Forget those that are left."""
        self._files.shutdown(cancel_futures=True)

    def _wait_for_word(self, end: Exit) -> None:
        self._waiting.append((end, time.monotonic()))
        self._watch.hurry()
