"""Which configuration comes next: Optuna's samplers and our own for many workers, whose answer depends on the campaign's history only.

Every request has a fresh sampler, seeded by (campaign seed, trial number), over a study that holds the history. So a
resumed campaign asks exactly as the undisturbed one would, and what Optuna is told can change as trials go on.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from itertools import islice
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.special import erf, log_ndtr

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import without_the_current_folder
from hydragnn.hpo.sampling.gaussian import Outlook
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.scheduling.state import attempts_at_once
from hydragnn.hpo.search_settings import BUILT_IN, sampler_for
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.parameters import Choice, Choices, IntRange, Parameter
from hydragnn.hpo.space.points import Point, Space, all_points, is_point, point_key, random_point, value_at
from hydragnn.hpo.trial_configs import trial_config

DRAWS = 100
"""So many proposals that are invalid or known are thrown away before the sampler counts as exhausted."""

STARTUP = 10
"""Trials drawn at random before a model of the objective is trusted."""

HISTORY = 300
"""So many trials at most teach a model."""

STAND_IN = 1_000_000
"""Draws of stand-ins begin here, so that they are none of the sampler's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What a sampler is told of a campaign."""

    trials: tuple[Trial, ...] = ()
    """In the order of their numbers; empty before there are results enough to learn from."""
    rungs: tuple[int, ...] = ()
    width: int = 1
    """So many attempts can run at once."""


Distributions = dict[str, BaseDistribution]

VALUED = (TrialState.COMPLETE, TrialState.PRUNED)
"""What trials with a value are to Optuna."""

Ask = Callable[[CampaignSettings, Space, History, int, int], Point]


def proposals(
    settings: CampaignSettings, space: Space, history: History, first: int, count: int, known: AbstractSet[str]
) -> list[Point]:
    """Valid configurations for ``count`` trials from number ``first`` on, none of them ``known``; fewer where no more are left.

    The same history gives the same answer. For each, those before it are trials without a result.
    """
    taken, points, ask = set(known), list[Point](), _ask_of(settings, history)
    for number in range(first, first + count):
        point = proposal(settings, space, history, number, taken, ask)
        if point is None:
            break
        points.append(point)
        taken.add(point_key(point))
        if history.trials:
            history = replace(history, trials=(*history.trials, Trial(number=number, status="waiting", values=point)))
    return points


def proposal(
    settings: CampaignSettings,
    space: Space,
    history: History,
    number: int,
    known: AbstractSet[str],
    ask: Ask | None = None,
) -> Point | None:
    """A valid configuration for trial ``number`` that is not ``known``; None where there seems to be none left."""
    ask = ask or _ask_of(settings, history)
    if settings.search.sampler not in ("auto", *BUILT_IN):
        ask = _checked(ask)
    for draw in range(DRAWS):
        point = (ask if draw < DRAWS // 2 else random_ask)(settings, space, history, number, draw)
        if point_key(point) not in known and _is_valid(settings, space, point, number):
            return point
    unknown = [p for p in all_points(space) or [] if point_key(p) not in known]
    return next((point for point in unknown if _is_valid(settings, space, point, number)), None)


def _checked(ask: Ask) -> Ask:
    """A sampler that others wrote, with an InputError where it fails or gives no point of the space."""

    def asked(settings: CampaignSettings, space: Space, history: History, number: int, draw: int) -> Point:
        name = f"search.sampler = {settings.search.sampler!r}"
        try:
            point = ask(settings, space, history, number, draw)
        except Exception as error:
            raise InputError(
                f"{name} failed for trial {number} ({type(error).__name__}: {error}); mend it, or take another sampler"
            ) from error
        if not isinstance(point, dict) or not is_point(space, point):
            raise InputError(
                f"{name} gave {point!r} for trial {number}, which is no point of search.space; it must give a value in range for "
                "every parameter whose conditions hold, and for no other"
            )
        return point

    return asked


def stand_in(settings: CampaignSettings, space: Space, number: int, known: AbstractSet[str]) -> Point | None:
    """A random configuration for trial ``number`` while the sampler thinks; None where chance finds none that is new."""
    for draw in range(STAND_IN, STAND_IN + DRAWS // 10):
        point = random_ask(settings, space, History(), number, draw)
        if point_key(point) not in known and _is_valid(settings, space, point, number):
            return point
    return None


def without_results(ask: Ask) -> Ask:
    """Mark a sampler that asks for no results."""
    vars(ask)["learns"] = False
    return ask


@without_results
def random_ask(settings: CampaignSettings, space: Space, history: History, number: int, draw: int) -> Point:
    """An independent draw."""
    return random_point(space, np.random.default_rng(_seed(settings.search.seed, number, draw)))


@without_results
def sobol_ask(settings: CampaignSettings, space: Space, history: History, number: int, draw: int) -> Point:
    """The next point of a scrambled Sobol sequence; a point that cannot be used is skipped by a random draw."""
    from scipy.stats import qmc

    if draw:
        return random_ask(settings, space, history, number, draw)
    engine = qmc.Sobol(len(space.parameters), scramble=True, rng=np.random.default_rng(settings.search.seed))
    engine = engine.fast_forward(number) if number else engine
    fractions = dict(zip(space.parameters, engine.random(1)[0].tolist()))
    return space.point(lambda path, parameter: value_at(parameter, fractions[path]))


class LearnedSampler(optuna.samplers.TPESampler):
    """Optuna's, which takes the numbers of a trial from where they are kept, and not from the trial at every request.

    An Optuna that asks for them otherwise is left as it is.
    """

    numbers: dict[int, dict[str, int | float]]
    """Of every trial, as Optuna's estimators have them."""

    def _get_internal_repr(
        self, trials: list[FrozenTrial], search_space: Distributions, study: optuna.Study
    ) -> dict[str, np.ndarray]:
        rows = [row for trial in trials if search_space.keys() <= (row := self._row(trial)).keys()]
        return {path: np.asarray([row[path] for row in rows]) for path in search_space}

    def _row(self, trial: FrozenTrial) -> dict[str, int | float]:
        if trial.number not in self.numbers:
            allowed, params = trial.distributions, trial.params
            self.numbers[trial.number] = {p: allowed[p].to_internal_repr(value) for p, value in params.items()}
        return self.numbers[trial.number]


class ParzenEstimators:
    """Tree-structured Parzen estimators (Bergstra et al. 2011), joint over the parameters that occur together.

    The study of a history is kept while trials are only added to it, as they are within one answer.
    """

    def __init__(self) -> None:
        use_compiled_tails()
        self._begin()

    def __call__(self, settings: CampaignSettings, space: Space, history: History, number: int, draw: int) -> Point:
        """The point of a fresh sampler over the history."""
        self._learn(space, history)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate, constant_liar
            sampler = LearnedSampler(
                seed=_seed(settings.search.seed, number, draw),
                n_startup_trials=num_random(settings),
                multivariate=True,
                constant_liar=True,
            )
        sampler.numbers = self._numbers
        self._study.sampler = sampler
        return _suggest(space, self._study, self._asked, self._groups)

    def _begin(self) -> None:
        self._told: tuple[Trial, ...] = ()
        self._study = study_of([])
        self._asked = _asked(self._study)
        self._groups: list[Distributions] = []
        self._numbers: dict[int, dict[str, int | float]] = {}

    def _learn(self, space: Space, history: History) -> None:
        if history.trials[: len(self._told)] != self._told:
            self._begin()
        new = [_tpe_trial(space, one, history.rungs) for one in history.trials[len(self._told) :]]
        self._study.add_trials(new)
        self._told = history.trials
        if any(trial.state in VALUED for trial in new):
            self._groups = _occurring_together(space, self._study)


def _occurring_together(space: Space, study: optuna.Study) -> list[Distributions]:
    """Parameters of which every trial with a value has all or none, in groups; those without a choice are left out."""
    trials = study.get_trials(deepcopy=False, states=VALUED)
    groups: list[frozenset[str]] = []
    for names in dict.fromkeys(frozenset(trial.params) for trial in trials):
        parts = [part for group in groups for part in (group & names, group - names)]
        groups = [part for part in (*parts, names.difference(*groups)) if part]
    allowed = {path: distribution(parameter) for path, parameter in space.parameters.items()}
    return [{path: allowed[path] for path in sorted(group) if not allowed[path].single()} for group in groups]


def use_compiled_tails() -> None:
    """Let Optuna take the normal distribution and its logarithm from scipy; its own, loops of Python, are two thirds of the time of a proposal.

    An Optuna whose estimators are made otherwise is left as it is.
    """
    with suppress(ImportError):
        from optuna.samplers._tpe import _truncnorm

        names = vars(_truncnorm)
        names |= {name: compiled for name, compiled in (("_log_ndtr", log_ndtr), ("erf", erf)) if name in names}


class GaussianProcess:
    """A Gaussian process, fit once for an answer; every request weighs what is not known in its own way (``gaussian.py``)."""

    def __init__(self) -> None:
        self._told: tuple[Trial, ...] | None = None

    def __call__(self, settings: CampaignSettings, space: Space, history: History, number: int, draw: int) -> Point:
        """The best candidate that nobody has; at further draws the next ones. A random point before there are results enough."""
        if not history.trials:
            return random_ask(settings, space, history, number, draw)
        self._learn(settings, space, history, number)
        if draw == 0:
            generator = np.random.default_rng(_seed(settings.search.seed, number, 1))
            self._ranked = self._outlook.ranked(generator)
        return self._ranked[draw] if draw < len(self._ranked) else random_ask(settings, space, history, number, draw)

    def _learn(self, settings: CampaignSettings, space: Space, history: History, number: int) -> None:
        if self._told is None or history.trials[: len(self._told)] != self._told:
            generator = np.random.default_rng(_seed(settings.search.seed, number, 0))
            self._outlook = Outlook(space, history.trials, generator)
        else:
            for trial in history.trials[len(self._told) :]:
                self._outlook.expect(trial.values)
        self._told = history.trials


SAMPLERS: dict[str, Ask | Callable[[], Ask]] = {
    "tpe": ParzenEstimators,
    "gp": GaussianProcess,
    "qmc": sobol_ask,
    "random": random_ask,
}
"""What finds one configuration, or a class of which one is made for every answer. Each is told the results of the campaign, unless its ``learns`` is false."""

GROUP = "hydragnn.samplers"
"""Entry-point group in which packages announce samplers; the name of an entry is what ``search.sampler`` says."""


def sampler_of(name: str) -> Ask | Callable[[], Ask]:
    """The sampler of that name: of this table, or announced by an installed package. InputError names the nearest."""
    if name in SAMPLERS:
        return SAMPLERS[name]
    with without_the_current_folder():
        announced = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name in announced:
            try:
                SAMPLERS[name] = announced[name].load()
            except (ImportError, AttributeError) as error:
                raise InputError(
                    f"search.sampler = {name!r}: {announced[name].value} cannot be loaded ({error}); mend its package"
                ) from error
            return SAMPLERS[name]
    raise InputError(f"unknown sampler {name!r}; {nearest(name, ['auto', *SAMPLERS, *announced])}")


def learns(name: str) -> bool:
    """Return True for a sampler that asks for results; before there are enough, it has none."""
    return name == "auto" or bool(getattr(sampler_of(name), "learns", True))


def is_known_everywhere(name: str) -> bool:
    """Return False for a sampler that only this process knows, because somebody put it into ``SAMPLERS`` here."""
    with without_the_current_folder():
        return name == "auto" or name in BUILT_IN or name in entry_points(group=GROUP).names


def frozen_trial(space: Space, rungs: tuple[int, ...], trial: Trial, unfinished: TrialState) -> FrozenTrial:
    """A trial as Optuna holds it; ``unfinished`` is what a trial counts as that has not come to its end."""
    states = {"finished": TrialState.COMPLETE, "failed": TrialState.FAIL, "lost": TrialState.FAIL}
    outcome = states.get(trial.status, unfinished)
    failure = {} if trial.failure is None else {"failure": f"{trial.failure.kind}: {trial.failure.message}"}
    return create_trial(
        state=outcome,
        value=trial.value if outcome in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params={path: optuna_value(space.parameters[path], value) for path, value in trial.values.items()},
        distributions={path: distribution(space.parameters[path]) for path in trial.values},
        intermediate_values=dict(zip(rungs, trial.results)),
        user_attrs={"origin": trial.origin, **failure},
    )


def study_of(trials: Iterable[FrozenTrial]) -> optuna.Study:
    """A study in memory that holds the trials, minimising."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created" at every request otherwise
    try:
        study = optuna.create_study()
    finally:
        optuna.logging.set_verbosity(verbosity)
    study.add_trials(trials)
    return study


def distribution(parameter: Parameter) -> BaseDistribution:
    """The parameter's range in Optuna's terms; choices that are lists become their JSON text."""
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
    """A value as Optuna takes it.

    >>> optuna_value(Choices(choices=[[64], [64, 64]]), [64, 64])
    '[64, 64]'
    """
    return str(value) if isinstance(parameter, Choices) and isinstance(value, list) else value


def valued_trial(space: Space, values: Point, value: float) -> FrozenTrial:
    """A finished trial in Optuna's terms."""
    return create_trial(
        value=value,
        params={path: optuna_value(space.parameters[path], v) for path, v in values.items()},
        distributions={path: distribution(space.parameters[path]) for path in values},
    )


def _ask_of(settings: CampaignSettings, history: History) -> Ask:
    found: Any = sampler_of(sampler_for(settings.search.sampler, history.width))
    ask: Ask = found() if isinstance(found, type) else found
    return ask


def num_random(settings: CampaignSettings) -> int:
    """Trials that are drawn at random, whatever those before them gave."""
    if not learns(settings.search.sampler):
        return settings.search.trials
    return min(STARTUP, max(4, settings.search.trials // 3))


def _tpe_trial(space: Space, trial: Trial, rungs: tuple[int, ...]) -> FrozenTrial:
    """What TPE learns from: a trial that passed a rung counts with it, even while it is trained further."""
    return frozen_trial(space, rungs, trial, TrialState.PRUNED if trial.results else TrialState.RUNNING)


def history_of(settings: CampaignSettings, state: State) -> History:
    """What a sampler is told: nothing before a model can learn, nothing of trials lost to the machine, and never too much.

    Beyond ``HISTORY`` trials: the best, as many spread evenly over all results, and the latest without a result. A model
    learns little from more, and a proposal stays cheap however many trials there are.
    """
    if not learns(settings.search.sampler) or _results(state) < num_random(settings):
        return History(rungs=state.plan.rungs)
    numbers = set(state.trials) if len(state.trials) <= HISTORY else {*_best_and_spread(state), *_latest_open(state)}
    trials = (state.trials[number] for number in sorted(numbers))
    told = tuple(trial for trial in trials if trial.values and trial.status != "lost")
    return History(trials=told, rungs=state.plan.rungs, width=attempts_at_once(state.plan, state.slots))


def _best_and_spread(state: State) -> set[int]:
    """The best trials, those at the highest rung first, and some of all."""
    share = HISTORY // 3
    best = dict.fromkeys(number for rung in reversed(state.rungs) for _, number in islice(rung.reached, share))
    everyone = state.rungs[0].reached
    some = [number for _, number in islice(everyone, 0, None, -(-len(everyone) // share) or 1)]
    return {*islice(best, share), *some}


def _latest_open(state: State) -> list[int]:
    """The latest trials that have no result yet."""
    latest = range(max(state.trials), max(state.trials) - HISTORY, -1)
    return [n for n in latest if n in state.trials and not state.trials[n].results][: HISTORY // 3]


def _results(state: State) -> int:
    """How many trials have a result."""
    return len(state.rungs[0].reached) if state.rungs else 0


def _asked(study: optuna.Study) -> FrozenTrial:
    """A trial of a study that is asked for and never comes to an end: whoever samples for it may do so again."""
    study.ask()
    return study.get_trials(deepcopy=False)[-1]


def _suggest(space: Space, study: optuna.Study, asked: FrozenTrial, groups: Iterable[Distributions]) -> Point:
    """What a study's sampler suggests for a trial that was asked for, jointly within groups; the study learns nothing of it."""
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


def _is_valid(settings: CampaignSettings, space: Space, point: Point, number: int) -> bool:
    try:
        trial_config(settings, space, point, number)
    except InputError:
        return False
    return True


def _seed(*parts: int) -> int:
    """A seed from whole numbers, well mixed and the same everywhere."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")
