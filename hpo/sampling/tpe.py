"""Tree-structured Parzen estimators, by Optuna."""

import warnings
from collections.abc import Iterable
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from hydragnn.hpo.sampling.optuna_trials import Distributions, distribution, frozen_trial, study_of
from hydragnn.hpo.sampling.sampler import History, Sampler
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.space.parameters import Choices, Parameter
from hydragnn.hpo.space.points import Point, Space

VALUED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of trials with a value."""


class ParzenEstimators(Sampler):
    """Joint tree-structured Parzen estimators (Bergstra et al. 2011).

    The study of a history is kept while trials are only added to it, as they are within one answer.
    """

    def __init__(self) -> None:
        self._begin()

    def propose(self, history: History, number: int) -> Point:
        """Return the point of a fresh Optuna sampler over the history."""
        self._learn(history)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate, constant_liar
            self._study.sampler = optuna.samplers.TPESampler(
                seed=history.seed_of(number),
                n_startup_trials=history.startup,
                multivariate=True,
                constant_liar=True,
            )
        return _suggest(history.space, self._study, self._asked, self._groups)

    def _begin(self) -> None:
        self._learned: tuple[Trial, ...] = ()
        self._study = study_of([])
        self._study.ask()
        self._asked = self._study.get_trials(deepcopy=False)[-1]
        self._groups: list[Distributions] = []

    def _learn(self, history: History) -> None:
        if history.trials[: len(self._learned)] != self._learned:
            self._begin()
        new = [
            frozen_trial(history.space, history.rungs, one, TrialState.PRUNED if one.results else TrialState.RUNNING)
            for one in history.trials[len(self._learned) :]  # a rung that was passed counts
        ]
        self._study.add_trials(new)
        self._learned = history.trials
        if any(trial.state in VALUED for trial in new):
            self._groups = _occurring_together(history.space, self._study)


def _occurring_together(space: Space, study: optuna.Study) -> list[Distributions]:
    """Return groups of parameters that always occur together."""
    trials = study.get_trials(deepcopy=False, states=VALUED)
    groups: list[frozenset[str]] = []
    for names in dict.fromkeys(frozenset(trial.params) for trial in trials):
        parts = [part for group in groups for part in (group & names, group - names)]
        groups = [part for part in (*parts, names.difference(*groups)) if part]
    allowed = {path: distribution(parameter) for path, parameter in space.parameters.items()}
    return [{path: allowed[path] for path in sorted(group) if not allowed[path].single()} for group in groups]


def _suggest(space: Space, study: optuna.Study, asked: FrozenTrial, groups: Iterable[Distributions]) -> Point:
    """Return the point that a study's sampler suggests."""
    sampler = study.sampler
    joint = {k: value for group in groups for k, value in sampler.sample_relative(study, asked, group).items()}

    def value_of(path: str, parameter: Parameter) -> Any:
        allowed = distribution(parameter)
        if path in joint:
            value = joint[path]
        elif allowed.single():
            value = allowed.choices[0] if isinstance(allowed, CategoricalDistribution) else allowed.low
        else:
            value = sampler.sample_independent(study, asked, path, allowed)
        if isinstance(parameter, Choices) and isinstance(allowed, CategoricalDistribution):
            return parameter.choices[allowed.choices.index(value)]
        return value

    return space.point(value_of)
