"""The campaign as an Optuna study on disk, for optuna-dashboard; written from the journal, never read back."""

from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from hydragnn.errors import InputError
from hydragnn.hpo.events import Action, Event, Proposed, Reached, Settle
from hydragnn.hpo.sampler import frozen_trial
from hydragnn.hpo.scheduler import State
from hydragnn.hpo.space import Space

NAME = "optuna.log"
OUTCOMES = {
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "lost": TrialState.FAIL,
}


class Mirror:
    """Keeps ``optuna.log`` in step with the campaign; made afresh from the state whenever a controller begins."""

    def __init__(self, path: Path, space: Space, state: State) -> None:
        self._path, self._space = path, space
        try:
            path.unlink(missing_ok=True)
            self._storage = JournalStorage(JournalFileBackend(str(path)))
            verbosity = optuna.logging.get_verbosity()
            optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created"
            self._study = optuna.create_study(storage=self._storage, study_name=path.parent.resolve().name)
            optuna.logging.set_verbosity(verbosity)
            for _, trial in sorted(state.trials.items()):
                if trial.values:
                    self._study.add_trial(frozen_trial(space, state, trial, TrialState.RUNNING))
        except OSError as error:
            raise self._problem(error) from error

    def follow(self, state: State, event: Event, actions: tuple[Action, ...]) -> None:
        """Write what an event, already in the journal, changed."""
        try:
            if isinstance(event, Proposed):
                self._study.add_trial(frozen_trial(self._space, state, state.trials[event.trial], TrialState.RUNNING))
            if isinstance(event, Reached):
                trial_id = self._trial_id(event.trial)
                rung = len(state.trials[event.trial].results) - 1
                self._storage.set_trial_intermediate_value(trial_id, state.plan.rungs[rung], event.value)
            for action in actions:
                if isinstance(action, Settle):
                    self._settle(state, action)
        except OSError as error:
            raise self._problem(error) from error

    def _settle(self, state: State, action: Settle) -> None:
        trial, trial_id = state.trials[action.trial], self._trial_id(action.trial)
        if trial.failure is not None:
            reason = f"{trial.failure.kind}: {trial.failure.message}"
            self._storage.set_trial_user_attr(trial_id, "failure", reason)
        values = None if trial.value is None or action.outcome in ("failed", "lost") else [trial.value]
        self._storage.set_trial_state_values(trial_id, OUTCOMES[action.outcome], values)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)

    def _problem(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write {self._path}: {error.strerror or error}; free space, then continue with --resume"
        )
