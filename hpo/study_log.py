"""The campaign as an Optuna study on disk, for optuna-dashboard; written from the journal, never read back.

What changed is noted when it happens, put into Optuna's terms between the controller's looks, and flushed beside them.
"""

import json
import math
import time
from collections.abc import Iterable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import TrialState

from hydragnn.errors import InputError
from hydragnn.hpo.sampler import frozen_trial
from hydragnn.hpo.scheduling.events import Event, Proposed, Reached, Settle
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.space import Space

NAME = "optuna.log"
INTERVAL = 0.25  # seconds between two flushes
OUTCOMES = {
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "lost": TrialState.FAIL,
}


class StudyLog:
    """Keeps ``optuna.log`` in step with the campaign; made afresh from the state whenever a controller begins."""

    def __init__(self, path: Path, space: Space, state: State, files: Executor) -> None:
        """``files`` writes, beside everything else."""
        self._path, self._space, self._files = path, space, files
        self._flushing: Future[None] | None = None
        self._next = 0.0
        self._changed = dict.fromkeys(number for number, trial in sorted(state.trials.items()) if trial.values)
        self._outcomes: dict[int, TrialState] = {}
        self._written: dict[int, tuple[int, int]] = {}
        try:
            path.unlink(missing_ok=True)
            self._lines = _Lines(JournalFileBackend(str(path)))
            self._storage = JournalStorage(self._lines)
            verbosity = optuna.logging.get_verbosity()
            optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created"
            name = path.parent.resolve().name
            self._study = self._storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], name)
            optuna.logging.set_verbosity(verbosity)
            self._lines.flush()
        except OSError as error:
            raise self._problem(error) from error

    @property
    def busy(self) -> bool:
        """Return True where something can be written now."""
        flushed = self._flushing is None or self._flushing.done()
        return bool(self._changed) and flushed and time.monotonic() >= self._next

    def follow(self, event: Event) -> None:
        """Note what an event, already in the journal, changed."""
        if isinstance(event, Proposed | Reached):
            self._changed[event.trial] = None

    def settle(self, action: Settle) -> None:
        """Note what became of a trial."""
        self._outcomes[action.trial] = OUTCOMES[action.outcome]
        self._changed[action.trial] = None

    def write(self, state: State, seconds: float) -> None:
        """Write what changed, for so many seconds at most and not too often."""
        if self.busy:
            self._finish_flush()
            self._write(state, time.monotonic() + seconds)
            self._next = time.monotonic() + INTERVAL
            self._flushing = self._files.submit(self._lines.flush)

    def complete(self, state: State, seconds: float = math.inf) -> None:
        """Write all that changed, as far as so many seconds allow, and wait until it is on disk."""
        self._finish_flush()
        self._write(state, time.monotonic() + seconds)
        self._flushing = self._files.submit(self._lines.flush)
        self._finish_flush()

    def _write(self, state: State, deadline: float) -> None:
        while self._changed and time.monotonic() < deadline:
            number = next(iter(self._changed))
            del self._changed[number]
            if number in state.trials and state.trials[number].values:
                self._bring_up_to_date(state, state.trials[number])

    def _finish_flush(self) -> None:
        flushing, self._flushing = self._flushing, None
        try:
            if flushing is not None:
                flushing.result()
        except OSError as error:
            raise self._problem(error) from error

    def _bring_up_to_date(self, state: State, trial: Trial) -> None:
        """Write what of a trial is not in the study yet."""
        if trial.number not in self._written:
            template = frozen_trial(self._space, state.plan.rungs, trial, TrialState.RUNNING)
            trial_id = self._storage.create_new_trial(self._study, template)
            self._written[trial.number] = trial_id, len(trial.results)
            if template.state.is_finished():
                self._outcomes.pop(trial.number, None)
                return
        trial_id, rungs = self._written[trial.number]
        for epoch, value in list(zip(state.plan.rungs, trial.results))[rungs:]:
            self._storage.set_trial_intermediate_value(trial_id, epoch, value)
        self._written[trial.number] = trial_id, len(trial.results)
        outcome = self._outcomes.pop(trial.number, None)
        if outcome is not None:
            self._settle(trial, trial_id, outcome)

    def _settle(self, trial: Trial, trial_id: int, outcome: TrialState) -> None:
        if trial.failure is not None:
            reason = f"{trial.failure.kind}: {trial.failure.message}"
            self._storage.set_trial_user_attr(trial_id, "failure", reason)
        values = None if trial.value is None or outcome == TrialState.FAIL else [trial.value]
        self._storage.set_trial_state_values(trial_id, outcome, values)

    def _problem(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write {self._path}: {error.strerror or error}; free space, then continue with --resume"
        )


class _Lines(BaseJournalBackend):
    """Optuna's journal, collected in memory and written to its file many lines at a time; for one writer."""

    def __init__(self, file: JournalFileBackend) -> None:
        self._file = file
        self._unread: list[dict[str, Any]] = []
        self._unwritten: list[dict[str, Any]] = []

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._unread += json.loads(json.dumps(logs))  # as they will be read from the file
        self._unwritten += logs

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        unread, self._unread = self._unread, []
        return unread

    def flush(self) -> None:
        """Put everything on disk."""
        logs, self._unwritten = self._unwritten, []
        if logs:
            self._file.append_logs(logs)
