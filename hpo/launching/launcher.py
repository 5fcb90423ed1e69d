"""How attempts are started: the protocol that local processes, job steps and packs share, and the queue of those on their way.

An attempt's folder is made ready beside the controller's loop, then a launcher creates its process, which waits; once the
journal knows it, ``go`` lets it work. What it came to is judged in ``attempts.py``.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import psutil

import hydragnn
from hydragnn.config import AnyConfig
from hydragnn.errors import InputError
from hydragnn.files import check_no_link, check_own, write_json, write_sealed
from hydragnn.hpo.scheduling.events import Identity, Probed
from hydragnn.runs.attempt import BEAT_SECONDS, SECONDS_BETWEEN_BEATS

AT_ONCE = 64
"""Folders made ready at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One attempt at one segment: train the run in ``folder`` until ``until`` epochs are done."""

    trial: int
    attempt: int
    until: int
    folder: Path
    slots: tuple[str, ...]
    micro_batches: int = 1
    """Parts in which every batch is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """An attempt's process exists and waits for ``go``."""

    task: Task
    identity: Identity


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """An attempt's processes are gone; ``code`` is a hint, never the verdict. None: they never started."""

    task: Task
    code: int | None
    out_of_memory: bool = False
    """The system killed a process for want of memory."""
    hung: bool = False
    """It was killed because its heartbeat had stopped."""
    suspects: tuple[str, ...] = ()
    """Nodes that are known to be at fault."""
    interrupted: bool = False
    """It ended with its allocation: whatever it left, it has not failed."""
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """The allocation is over, and all that ran in it; its nodes are not to blame."""

    message: str


Report = Begun | Exit | Probed | Revoked
"""What a launcher has to tell."""


@runtime_checkable
class Launcher(Protocol):
    """Starts attempts on slots and sees them end; it neither decides nor judges."""

    @property
    def slots(self) -> tuple[str, ...]:
        """What attempts can run on: whole nodes of an allocation, or shares ``node/number``."""

    @property
    def deadline(self) -> float | None:
        """When the allocation ends, in seconds since 1970; None where it does not."""

    @property
    def beat_seconds(self) -> float:
        """How far apart the heartbeats of each run may be on the file system that all share."""

    def recover(self, identities: Iterable[Identity]) -> None:
        """Make sure that attempts of a dead controller run no more, before anything new is started."""

    def start(self, task: Task) -> None:
        """Create the attempt's process; ``poll`` reports that it begun, or its exit where it never started. Never blocks long."""

    def go(self, task: Task) -> None:
        """Let an attempt that has begun do its work: the journal knows it now."""

    def poll(self, seconds: float, bell: int | None = None) -> list[Report]:
        """What happened, after waiting up to so many seconds for the first, or until the descriptor ``bell`` can be read."""

    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial's attempt to save itself; after ``grace`` seconds it is killed."""

    def probe(self, node: str) -> None:
        """Begin to probe a node; ``poll`` reports what was found."""

    def close(self) -> None:
        """Kill whatever still runs."""


class LaunchQueue:
    """Attempts on their way to the launcher, one per trial.

    Before an attempt starts, ``attempt.json`` in its folder names it, so that an earlier attempt that was thought dead
    writes nothing any more.
    """

    def __init__(
        self,
        launcher: Launcher,
        config_of: Callable[[int], AnyConfig],
        files: Executor,
        store_copy: Path | None = None,
        beat_seconds: float = SECONDS_BETWEEN_BEATS,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        """``files`` writes them side by side, and rings for each; ``store_copy``: where nodes have a copy of the store. Runs beat so often."""
        self._launcher, self._config_of, self._files, self._ring = launcher, config_of, files, ring
        self._told: dict[str, Any] = {} if store_copy is None else {"store": str(store_copy)}
        if beat_seconds > SECONDS_BETWEEN_BEATS:
            self._told[BEAT_SECONDS] = float(beat_seconds)
        self._waiting: dict[int, Task] = {}
        self._preparing: dict[int, tuple[Task, Future[None]]] = {}
        self._to_withdraw: set[int] = set()
        self._withdrawals: list[Exit] = []
        self._configured: set[int] = set()

    @property
    def busy(self) -> bool:
        """Return True where something can be done at once; of what takes its time, the bell will tell."""
        begin = bool(self._waiting) and len(self._preparing) < AT_ONCE
        return begin or bool(self._withdrawals) or any(ready.done() for _, ready in self._preparing.values())

    def add(self, task: Task) -> None:
        """Take an attempt."""
        self._waiting[task.trial] = task

    def withdraw(self, trial: int) -> bool:
        """Do not start a trial's attempt any more; False where none is on its way."""
        if trial in self._waiting:
            self._end(self._waiting.pop(trial))
        elif trial in self._preparing:
            self._to_withdraw.add(trial)  # it ends once nothing of it can be written any more
        else:
            return False
        return True

    def withdrawals(self) -> list[Exit]:
        """The ends of attempts that were given up since the last look."""
        ends, self._withdrawals = self._withdrawals, []
        return ends

    def work(self, deadline: float) -> None:
        """Make folders ready and start what is ready, until the deadline, and at least one."""
        while self._waiting and len(self._preparing) < AT_ONCE and time.monotonic() < deadline:
            trial = next(iter(self._waiting))
            self._prepare(self._waiting.pop(trial))
        for trial, (task, ready) in list(self._preparing.items()):
            if not ready.done():
                continue
            del self._preparing[trial]
            try:
                ready.result()
            except InputError as error:
                raise InputError(f"{error}; then continue with --resume") from error
            if trial in self._to_withdraw:
                self._to_withdraw.remove(trial)
                self._end(task)
            else:
                self._launcher.start(task)
            if time.monotonic() >= deadline:
                break

    def _prepare(self, task: Task) -> None:
        known = task.trial in self._configured
        config = None if known else self._config_of(task.trial).to_json()
        self._configured.add(task.trial)
        ready = self._files.submit(write_folder, task, config, self._told)
        ready.add_done_callback(lambda _: self._ring())
        self._preparing[task.trial] = task, ready

    def _end(self, task: Task) -> None:
        self._withdrawals.append(Exit(task=task, code=-signal.SIGTERM))


def write_folder(task: Task, config: dict[str, Any] | None, told: Mapping[str, Any]) -> None:
    """Write what an attempt reads first, and is ``told``; ``config`` only where it is not there yet. InputError where a link leads elsewhere."""
    for place in (task.folder.parent, task.folder):
        check_no_link(place)
    for name in ("log.txt", "heartbeat"):
        check_own(task.folder / name)
    if config is not None:
        write_json(task.folder / "config.json", config)
    write_sealed(task.folder / "attempt.json", {"attempt": task.attempt, **told})


def importable() -> dict[str, str]:
    """What lets a process import this very package where it runs from a checkout that is not installed."""
    root = Path(hydragnn.__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        return {}
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([inherited] if inherited else [])])}


def is_alive(identity: Identity) -> bool:
    """Return True where the very process exists on this machine and is no zombie, which is nobody's to collect where the controller has died.

    Another process that got its number later has another start time.
    """
    try:
        process = psutil.Process(int(identity["pid"]))
        same = abs(process.create_time() - float(identity["created"])) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, KeyError, ValueError):
        return False
