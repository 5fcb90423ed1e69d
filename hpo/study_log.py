"""The campaign as an Optuna study, for optuna-dashboard.

What changed is noted when it happens, put into Optuna's terms between the controller's looks, and flushed beside them. Nobody
else writes the file, so that it needs none of Optuna's locks, which outlive the process that took them. Where it cannot be
written, it is given up until the next controller makes it anew: the campaign needs it for nothing.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_regular
from hydragnn.hpo.sampling.tpe import distribution, optuna_value
from hydragnn.hpo.scheduling.events import Event, Proposed, Reached, Settle
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.space.points import Space

NAME = "optuna.log"
INTERVAL = 0.25  # seconds between two flushes
OUTCOMES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
OUTCOMES |= dict.fromkeys(("failed", "lost"), TrialState.FAIL)


class StudyLog:
    """Writer of ``optuna.log``, made afresh by every controller."""

    def __init__(self, path: Path, space: Space, state: State, files: Executor, objectives: Sequence[str]) -> None:
        """``files`` writes, beside everything else."""
        self._space, self._files = space, files
        self._flushing: Future[None] | None = None
        self._next = 0.0
        self._changed = dict.fromkeys(number for number, trial in sorted(state.trials.items()) if trial.values)
        self._outcomes: dict[int, TrialState] = {}
        self._written: dict[int, tuple[int, int]] = {}
        self._lines = _Lines(path)
        self._storage = JournalStorage(self._lines)
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created"
        name = path.parent.resolve().name
        directions = [optuna.study.StudyDirection.MINIMIZE] * len(objectives)
        self._study = self._storage.create_new_study(directions, name)
        self._storage.set_study_system_attr(self._study, "study:metric_names", [*objectives])
        optuna.logging.set_verbosity(verbosity)
        self._lines.flush()

    @property
    def busy(self) -> bool:
        """Return True where something can be written now."""
        flushed = self._flushing is None or self._flushing.done()
        return bool(self._changed) and not self._lines.given_up and flushed and time.monotonic() >= self._next

    def follow(self, event: Event) -> None:
        """Note what an event, already in the journal, changed."""
        if isinstance(event, Proposed | Reached):
            self._changed[event.trial] = None

    def settle(self, action: Settle) -> None:
        """Note what became of a trial."""
        self._outcomes[action.trial] = OUTCOMES[action.outcome]
        self._changed[action.trial] = None

    def write(self, state: State, seconds: float) -> None:
        """Write what changed, for some seconds at most."""
        if self.busy:
            self._write(state, time.monotonic() + seconds)
            self._next = time.monotonic() + INTERVAL
            self._flushing = self._files.submit(self._lines.flush)

    def complete(self, state: State, seconds: float = math.inf) -> None:
        """Write all that changed, and wait until it is on disk."""
        if self._flushing is not None:
            self._flushing.result()
        if not self._lines.given_up:
            self._write(state, time.monotonic() + seconds)
            self._lines.flush()

    def close(self) -> None:
        """Write nothing more."""
        self._lines.close()

    def _write(self, state: State, deadline: float) -> None:
        while self._changed and time.monotonic() < deadline:
            number = next(iter(self._changed))
            del self._changed[number]
            if number in state.trials and state.trials[number].values:
                self._bring_up_to_date(state, state.trials[number])

    def _bring_up_to_date(self, state: State, trial: Trial) -> None:
        """Write what of a trial is not in the study yet."""
        if trial.number not in self._written:
            self._written[trial.number] = self._storage.create_new_trial(self._study, self._template(trial)), 0
            if trial.status in OUTCOMES:
                self._outcomes.setdefault(trial.number, OUTCOMES[trial.status])
        trial_id, rungs = self._written[trial.number]
        for epoch, value in list(zip(state.plan.rungs, trial.results))[rungs:]:
            self._storage.set_trial_intermediate_value(trial_id, epoch, value)
        self._written[trial.number] = trial_id, len(trial.results)
        outcome = self._outcomes.pop(trial.number, None)
        if outcome is None:
            return
        if trial.reason is not None:
            self._storage.set_trial_user_attr(trial_id, "failure", trial.reason)
        values = None if trial.value is None or outcome == TrialState.FAIL else [*trial.values_at(-1)]
        excess = [one - bound for one, bound in zip(values or [], state.plan.bounds) if bound is not None]
        if excess:
            self._storage.set_trial_system_attr(trial_id, "constraints", excess)
        self._storage.set_trial_state_values(trial_id, outcome, values)

    def _template(self, trial: Trial) -> FrozenTrial:
        """Return a trial without results, as Optuna holds it."""
        parameters = self._space.parameters
        return create_trial(
            state=TrialState.RUNNING,
            params={path: optuna_value(parameters[path], value) for path, value in trial.values.items()},
            distributions={path: distribution(parameters[path]) for path in trial.values},
            user_attrs={"origin": trial.origin},
        )


class _Lines(BaseJournalBackend):
    """Optuna's journal, appended many lines at a time."""

    def __init__(self, path: Path) -> None:
        """Replace an existing file and its lock."""
        self._unread: list[dict[str, Any]] = []
        self._unwritten: list[dict[str, Any]] = []
        self._path, self._file = path, -1
        with suppress(OSError, InputError):
            for old in (path, path.with_name(f"{path.name}.lock")):
                old.unlink(missing_ok=True)
            self._file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    @property
    def given_up(self) -> bool:
        """Return True where the file could not be written: nothing more is."""
        return self._file < 0

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._unread += json.loads(json.dumps(logs))  # as they will be read from the file
        self._unwritten += logs

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        unread, self._unread = self._unread, []
        return unread

    def flush(self) -> None:
        """Append what was collected, as Optuna's own backend writes it."""
        logs, self._unwritten = self._unwritten, []
        data = memoryview("".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode())
        try:
            while data and not self.given_up:
                data = data[os.write(self._file, data) :]
        except OSError:
            self.close()
            with suppress(OSError):  # half a study would be taken for the campaign
                self._path.unlink()

    def close(self) -> None:
        """Write nothing more."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
