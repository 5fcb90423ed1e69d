"""Tree-structured Parzen estimators and a genetic algorithm, by Optuna."""

import warnings
from collections.abc import Container, Iterable
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from hydragnn.hpo.sampling.sampler import DRAWS, History, Sampler, foreseen
from hydragnn.hpo.scheduling.state import FAILED, Trial
from hydragnn.hpo.space.parameters import Choice, Choices, IntRange, Parameter
from hydragnn.hpo.space.points import Point, Space, near_point, value_at

Distributions = dict[str, BaseDistribution]

POPULATION = 20  # trials of a generation
VALUED = (TrialState.COMPLETE, TrialState.PRUNED)  # states of trials with a value


class ParzenEstimators(Sampler):
    """Joint tree-structured Parzen estimators (Bergstra et al. 2011).

    Of several objectives those of Ozaki et al. (2022, doi:10.1613/jair.1.13188). The study of a history is kept while trials are only added to it, as they are within one answer. A point that cannot be used
    gives way to one near it, since estimators that have converged give the same few points at every draw.
    """

    knows_rungs = True
    """True where results at a rung differ from those at the end, of one objective."""

    def __init__(self) -> None:
        self._begin()
        self._point: Point = {}

    def propose(self, history: History, number: int) -> Point:
        """Return a fresh Optuna sampler's point; later draws lie farther away."""
        if not history.draw:
            self._point = self._drawn(history, number)
            return self._point
        return near_point(history.space, self._point, 2 * history.draw / DRAWS, history.generator(number))

    def _drawn(self, history: History, number: int) -> Point:
        self._learn(history)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate, constant_liar
            self._study.sampler = self._sampler(history, history.seed_of(number))
        return _suggest(history.space, self._study, self._asked, self._groups)

    def _sampler(self, history: History, seed: int) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=history.startup, multivariate=True, constant_liar=True
        )

    def _begin(self, space: Space | None = None, objectives: int = 1) -> None:
        self._learned: tuple[Trial, ...] = ()
        self._allowed = {path: distribution(one) for path, one in space.parameters.items()} if space else {}
        self._memory = Memory()
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created" at every request otherwise
        self._study = optuna.create_study(storage=self._memory, directions=["minimize"] * objectives)
        optuna.logging.set_verbosity(verbosity)
        self._study.ask()
        self._asked = self._memory.get_trial(0)
        self._groups: list[Distributions] = []

    def _learn(self, history: History) -> None:
        if not self._learned or history.trials[: len(self._learned)] != self._learned:
            self._begin(history.space, max(1, len(history.bounds)))
            self._foreseen = foreseen(history.trials) if len(history.bounds) > 1 else {}
        new = [self._trial_of(history, trial) for trial in history.trials[len(self._learned) :]]
        self._memory.trials += new
        self._learned = history.trials
        if any(trial.state in VALUED for trial in new):
            self._groups = _occurring_together(self._memory.trials, self._allowed)

    def _trial_of(self, history: History, trial: Trial) -> FrozenTrial:
        """Return a trial for the estimators, without checks and copies.

        One that ran out of memory or exceeds a bound violates a constraint, so that the like of it becomes improbable.
        """
        values = trial.values_at(-1) if trial.results else None
        if values and len(history.bounds) > 1:
            values = self._foreseen[trial.number]
        broken = trial.status == "failed" and trial.failure is not None and trial.failure.kind == "out_of_memory"
        if trial.status in FAILED and not broken:
            state = TrialState.FAIL
        elif trial.status == "finished" or (values and not (self.knows_rungs and len(history.bounds) < 2)):
            state = TrialState.COMPLETE
        else:  # a rung that was passed counts
            state = TrialState.PRUNED if trial.results or broken else TrialState.RUNNING
        return FrozenTrial(
            number=trial.number + 1,  # the trial that is asked for has 0
            state=state,
            value=None,
            values=values if state in VALUED else None,
            datetime_start=None,
            datetime_complete=None,
            params={path: optuna_value(history.space.parameters[path], v) for path, v in trial.values.items()},
            distributions={path: self._allowed[path] for path in trial.values},
            user_attrs={},
            system_attrs={
                **({"constraints:memory": 1.0} if broken else {}),
                **{
                    f"constraints:{place}": (one - bound) / (abs(bound) or 1.0)
                    for place, (one, bound) in enumerate(zip(values or (), history.bounds))
                    if bound is not None
                },
            },
            intermediate_values=dict(zip(history.rungs, trial.results)),
            trial_id=trial.number + 1,
        )


class Genetic(ParzenEstimators):
    """NSGA-II (Deb et al. 2002); parameters that not every trial has are drawn at random."""

    knows_rungs = False

    def _sampler(self, history: History, seed: int) -> optuna.samplers.BaseSampler:
        size, key = POPULATION, optuna.samplers.NSGAIISampler._get_generation_key()
        for place, trial in enumerate(self._memory.get_all_trials(0, states=(TrialState.COMPLETE,))):
            trial.system_attrs[key] = place // size
        sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=size)
        self._groups = [sampler.infer_relative_search_space(self._study, self._asked)]
        return sampler


class Memory(InMemoryStorage):
    """Storage of a study whose trials are a list without copies."""

    def __init__(self) -> None:
        super().__init__()
        self.trials: list[FrozenTrial] = []

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials in these states."""
        return [trial for trial in self.trials if states is None or trial.state in states]


def _occurring_together(trials: Iterable[FrozenTrial], allowed: Distributions) -> list[Distributions]:
    """Return groups of parameters that always occur together."""
    groups: list[frozenset[str]] = []
    for names in dict.fromkeys(frozenset(trial.params) for trial in trials if trial.state in VALUED):
        parts = [part for group in groups for part in (group & names, group - names)]
        groups = [part for part in (*parts, names.difference(*groups)) if part]
    return [{path: allowed[path] for path in sorted(group) if not allowed[path].single()} for group in groups]


def _suggest(space: Space, study: optuna.Study, request: FrozenTrial, groups: Iterable[Distributions]) -> Point:
    """Return the point that a study's sampler suggests."""
    sampler = study.sampler
    joint = {k: value for group in groups for k, value in sampler.sample_relative(study, request, group).items()}

    def value_of(path: str, parameter: Parameter) -> Any:
        allowed = distribution(parameter)
        if allowed.single():
            return value_at(parameter, 0.0)
        value = joint[path] if path in joint else sampler.sample_independent(study, request, path, allowed)
        choices = parameter.choices if isinstance(parameter, Choices) else ()
        return next((choice for choice in choices if optuna_value(parameter, choice) == value), value)

    return space.point(value_of)


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
