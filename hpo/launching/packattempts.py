"""Attempts in packs, and ends that are not decided yet.

An end waits while a record is being read, or until the scheduler has said that the allocation lives.
"""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from hydragnn.hpo.launching.attempts import LastSigns, Witness, is_complete
from hydragnn.hpo.launching.launcher import Begun, Exit, Task
from hydragnn.hpo.launching.watchdog import SchedulerWatch
from hydragnn.hpo.scheduling.events import Identity, node_of

FILES = 16  # records read side by side, because those of a shared file system take their time
LAST_WORDS = 5.0  # seconds that a killed attempt's worker may take to say so


@dataclass(kw_only=True, slots=True)
class PackAttempt:
    """Attempt of a worker."""

    task: Task
    identity: Identity | None = None
    asked_to_leave: bool = False
    kill_at: float = float("inf")
    killed: float | None = None
    hung: bool = False

    @property
    def node(self) -> str:
        """Node of its slot."""
        return node_of(self.task.slots[0])

    @property
    def ended_by_us(self) -> bool:
        """Return True where it was asked to save itself, or killed."""
        return self.asked_to_leave or self.killed is not None


class PackAttempts(dict[str, PackAttempt]):
    """Attempts by slot, with those that are late or silent."""

    def __init__(self, hang_seconds: float) -> None:
        """Kill runs that are silent for ``hang_seconds``."""
        super().__init__()
        self._hang, self._witness = hang_seconds, Witness()
        self._slot_of: dict[int, str] = {}
        self._unbegun, self._running = LastSigns(), LastSigns()
        self._leaving: dict[str, None] = {}

    def ask(self, task: Task) -> None:
        """Note that a slot's worker was asked for an attempt."""
        [slot] = task.slots
        self[slot], self._slot_of[task.trial] = PackAttempt(task=task), slot
        self._unbegun.note(slot)

    def begin(self, slot: str, identity: Identity) -> Begun:
        """Note the process of an attempt."""
        self._unbegun.forget(slot)
        self[slot].identity = identity
        return Begun(task=self[slot].task, identity=identity)

    def go(self, task: Task) -> bool:
        """Return True where that very attempt may work."""
        attempt = self.get(task.slots[0])
        if attempt is None or attempt.task != task:
            return False
        self._running.note(task.slots[0])
        return True

    def beat(self, slot: str) -> None:
        """Note a sign of life of a run."""
        if slot in self._running:
            self._running.note(slot)

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
        for slot in [slot for slot in self._unbegun if node_of(slot) in nodes] if nodes else ():
            self._unbegun.note(slot)

    def late_to_begin(self, patience: float) -> list[str]:
        """The slots whose workers were asked longer ago and have not begun."""
        return self._unbegun.silent(patience)

    def to_kill(self, now: float) -> list[str]:
        """Return the slots of attempts to be killed, each once."""
        late = [slot for slot in self._leaving if self[slot].killed is None and now >= self[slot].kill_at]
        silent = self._running.silent(self._hang)
        hung = silent if silent and self._are_hung(silent) else []
        for slot in hung:
            self._running.forget(slot)
            self[slot].hung = slot not in late
        for slot in (late := list(dict.fromkeys([*late, *hung]))):
            self[slot].killed = self[slot].killed or now
            self._leaving[slot] = None
        return late

    def _are_hung(self, silent: list[str]) -> bool:
        recent, folder = self._running.num_recent(self._hang / 2), self[silent[0]].task.folder
        judgement = self._witness.judge(recent, len(self._running), folder)
        if judgement == "stall":
            self._running.begin_anew()
        return judgement == "hung"

    def unanswered(self, now: float) -> list[str]:
        """The slots of killed attempts whose workers do not say so."""
        killed = ((slot, self[slot].killed) for slot in self._leaving)
        return [slot for slot, at in killed if at is not None and now - at > LAST_WORDS]

    def end(self, slot: str, code: int | None, message: str, **facts: Any) -> Exit:
        """Remove an attempt, and return its end.

        Where we ended it, its code is no hint unless it is 0.
        """
        attempt = self.pop(slot)
        for signs in (self._unbegun, self._running):
            signs.forget(slot)
        self._leaving.pop(slot, None)
        if attempt.killed is not None or (attempt.asked_to_leave and code not in (0, None)):
            code = -9
        if attempt.hung:
            message = f"no heartbeat for {self._hang / 60:.3g} minutes"
        elif attempt.killed is not None and not message:
            message = "it did not save itself within grace_seconds, and goes on from its last checkpoint"
        return Exit(task=attempt.task, code=code, hung=attempt.hung, message=message, **facts)


class OpenEnds:
    """Ends that wait for their record or for the scheduler."""

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
            elif self._watch.has_spoken((), since):  # of its nodes, the workers themselves tell
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
