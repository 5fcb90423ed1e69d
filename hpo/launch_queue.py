"""From the decision to start an attempt to the launcher: its folder is made ready beside the controller's loop."""

import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from hydragnn.config import AnyConfig
from hydragnn.errors import InputError
from hydragnn.files import check_no_link, check_own, write_json, write_sealed
from hydragnn.hpo.launching.launcher import Exit, Launcher, Task
from hydragnn.runs.attempt import BEAT_SECONDS, SECONDS_BETWEEN_BEATS

AT_ONCE = 64
"""Folders made ready at once."""


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
