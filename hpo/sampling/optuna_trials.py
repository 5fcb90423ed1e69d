"""Trials and parameters in Optuna's terms."""

from collections.abc import Iterable
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.space.parameters import Choice, Choices, IntRange, Parameter
from hydragnn.hpo.space.points import Space

Distributions = dict[str, BaseDistribution]


def frozen_trial(space: Space, rungs: tuple[int, ...], trial: Trial, unfinished: TrialState) -> FrozenTrial:
    """Return a trial as Optuna holds it.

    ``unfinished``: the state of one that has not come to its end.
    """
    state = outcome(trial, unfinished)
    failure = {} if trial.failure is None else {"failure": f"{trial.failure.kind}: {trial.failure.message}"}
    return create_trial(
        state=state,
        value=trial.value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params={path: optuna_value(space.parameters[path], value) for path, value in trial.values.items()},
        distributions={path: distribution(space.parameters[path]) for path in trial.values},
        intermediate_values=dict(zip(rungs, trial.results)),
        user_attrs={"origin": trial.origin, **failure},
    )


def outcome(trial: Trial, unfinished: TrialState) -> TrialState:
    """Return the state of a trial in Optuna's terms."""
    states = {"finished": TrialState.COMPLETE, "failed": TrialState.FAIL, "lost": TrialState.FAIL}
    return states.get(trial.status, unfinished)


def study_of(trials: Iterable[FrozenTrial], storage: BaseStorage | None = None) -> optuna.Study:
    """Return a minimising study in memory that holds the trials."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created" at every request otherwise
    try:
        study = optuna.create_study(storage=storage)
    finally:
        optuna.logging.set_verbosity(verbosity)
    study.add_trials(trials)
    return study


def distributions(space: Space) -> Distributions:
    """Return the ranges of a space by path."""
    return {path: distribution(parameter) for path, parameter in space.parameters.items()}


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return the parameter's range; lists become their text."""
    if isinstance(parameter, Choices):
        return CategoricalDistribution([optuna_value(parameter, choice) for choice in parameter.choices])
    if isinstance(parameter, IntRange):
        high = parameter.high - (parameter.high - parameter.low) % parameter.step
        return IntDistribution(parameter.low, high, log=parameter.log, step=parameter.step)
    top = parameter.high
    if parameter.step is not None:
        top = parameter.low + int((top - parameter.low) / parameter.step + 1e-9) * parameter.step
    return FloatDistribution(parameter.low, top, log=parameter.log, step=parameter.step)


def optuna_value(parameter: Parameter, value: Choice) -> Any:
    """Return a value as Optuna takes it.

    >>> optuna_value(Choices(choices=[[64], [64, 64]]), [64, 64])
    '[64, 64]'
    """
    alike = isinstance(parameter, Choices) and parameter.choices.count(value) > 1  # true and 1
    return str(value) if isinstance(parameter, Choices) and (alike or isinstance(value, list)) else value
