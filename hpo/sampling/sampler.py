"""Samplers: the protocol, and classes by name.

Every answer has a fresh sampler whose proposals depend on the history and the trial's number only. So a resumed campaign asks
exactly as the undisturbed one would.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from hydragnn.base.errors import InputError, own_code
from hydragnn.base.imports import class_of_kind
from hydragnn.hpo.fronts import Bounds
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.search_settings import sampler_for
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.points import Point, Space, all_points, is_point, point_key, random_point, value_at
from hydragnn.hpo.trial_configs import MISSES, problem_of

STARTUP = 10  # trials drawn at random before a model of the objective is trusted
HISTORY = 300  # largest number of trials in a history
DRAWS = 100  # proposals that are invalid or excluded before a sampler counts as exhausted
STAND_IN = 1_000_000  # first draw of stand-ins; samplers have smaller ones


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Everything that a proposal may depend on."""

    space: Space
    seed: int = 0
    startup: int = STARTUP
    """Trials drawn at random before a model of the objective is trusted."""
    trials: tuple[Trial, ...] = ()
    """Ordered by number; empty before there are ``startup`` results."""
    rungs: tuple[int, ...] = ()
    bounds: Bounds = ()
    """Bounds of several objectives; empty where there is one."""
    width: int = 1
    """Number of attempts that can run at once."""
    draw: int = 0
    """Number of proposals for the same trial that could not be used."""

    def generator(self, number: int, draw: int | None = None) -> np.random.Generator:
        """Return the random numbers of a trial; each draw has its own."""
        return np.random.default_rng(self.seed_of(number, draw))

    def seed_of(self, number: int, draw: int | None = None) -> int:
        """Return a seed for a trial and a draw."""
        parts = (self.seed, number, self.draw if draw is None else draw)
        return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


def foreseen(trials: Sequence[Trial]) -> dict[int, tuple[float, ...]]:
    """Return all objectives by trial as expected at the highest rung passed.

    A trial that rests lower gets the median change of those that went on, so that what went on does not look better for that alone; one that stopped early keeps its values.
    Objectives that are positive change by a factor, as errors do: a difference would take small ones below zero.
    """
    passed = {
        one.number: np.array([one.values_at(n) for n in range(len(one.results))]) for one in trials if one.results
    }
    positive = np.all([(values > 0).all(0) for values in passed.values()], axis=0)
    changes, ends = [], dict[int, tuple[float, ...]]()
    for level in range(1, max(map(len, passed.values()), default=0)):
        both = np.array([values[level - 1 : level + 1] for values in passed.values() if len(values) > level])
        before, after = both[:, 0], both[:, 1]
        changes.append(np.median(np.where(positive, after / np.where(positive, before, 1.0), after - before), axis=0))
    finished = {one.number for one in trials if one.status == "finished"}
    for number, values in passed.items():
        end = values[-1]
        for change in () if number in finished else changes[len(values) - 1 :]:
            end = np.where(positive, end * change, end + change)
        ends[number] = tuple(end.tolist())
    return ends


class Sampler(ABC):
    """A rule that gives the configuration of the next trial.

    An object is made for every answer and asked for one trial after the other, each from the history before it.
    """

    learns = True
    """True where it needs results: its history has trials as soon as there are enough."""

    needs_all = False
    """True where its history must not be a selection of trials."""

    @staticmethod
    def problem(space: Space, objectives: int) -> str:
        """Return why it cannot search a space; empty where it can."""
        return ""

    @abstractmethod
    def propose(self, history: History, number: int) -> Point:
        """Return a point of the space for trial ``number``.

        Asked again with a larger ``history.draw`` where it cannot be used.
        """


class RandomSampler(Sampler):
    """Independent draws."""

    learns = False

    def propose(self, history: History, number: int) -> Point:
        """Return a point drawn at random."""
        return random_point(history.space, history.generator(number))


class SobolSampler(Sampler):
    """A scrambled Sobol sequence; unusable points become random ones."""

    learns = False

    def propose(self, history: History, number: int) -> Point:
        """Return the point of the sequence at a position."""
        from scipy.stats import qmc

        if history.draw:
            return RandomSampler().propose(history, number)
        space = history.space
        engine = qmc.Sobol(len(space.parameters), scramble=True, rng=np.random.default_rng(history.seed))
        engine = engine.fast_forward(number) if number else engine
        fractions = dict(zip(space.parameters, engine.random(1)[0].tolist()))
        return space.point(lambda path, parameter: value_at(parameter, fractions[path]))


SAMPLERS: dict[str, type[Sampler] | str] = {
    "tpe": "hydragnn.hpo.sampling.tpe:ParzenEstimators",
    "nsga2": "hydragnn.hpo.sampling.tpe:Genetic",
    "cmaes": "hydragnn.hpo.sampling.covariance:CovarianceAdaptation",
    "gp": "hydragnn.hpo.sampling.gaussian:GaussianProcess",
    "qmc": SobolSampler,
    "random": RandomSampler,
}
"""Classes by name; the name of one is imported when it is first used."""

GROUP = "hydragnn.samplers"  # entry-point group of samplers; ``search.sampler`` is the name of an entry


def sampler_class(name: str) -> type[Sampler]:
    """Return the sampler of that name; InputError names the nearest."""
    words = {"where": "search.sampler", "noun": "sampler", "parent": "hydragnn.hpo.sampling.Sampler"}
    return class_of_kind(name, {"auto": Sampler, **SAMPLERS}, Sampler, group=GROUP, **words)


def learns(name: str) -> bool:
    """Return True for a sampler that needs results."""
    return name == "auto" or sampler_class(name).learns


def num_random(settings: CampaignSettings) -> int:
    """Return how many trials are drawn at random, whatever the results."""
    trials = settings.search.trials
    return min(STARTUP, max(4, trials // 3)) if learns(settings.search.sampler) else trials


def history_of(settings: CampaignSettings, space: Space, state: State) -> History:
    """Return the history that a sampler gets.

    It has no trials before a model can learn, none that were lost to the machine, and at most ``HISTORY`` unless a sampler needs
    all: the best, as many spread evenly over all results, and the latest without a result.
    """
    search, startup = settings.search, num_random(settings)
    rungs, bounds = state.plan.rungs, state.plan.bounds
    history = History(space=space, seed=search.seed, startup=startup, rungs=rungs, bounds=bounds)
    results = len(state.rungs[0].reached) if state.rungs else 0
    if not learns(search.sampler) or results < startup:
        return history
    whole = len(state.trials) <= HISTORY or (search.sampler != "auto" and sampler_class(search.sampler).needs_all)
    numbers = set(state.trials) if whole else _best_and_others(state)
    trials = (state.trials[number] for number in sorted(numbers))
    included = tuple(trial for trial in trials if trial.values and trial.status != "lost")
    return replace(history, trials=included, width=state.at_once)


def _best_and_others(state: State) -> set[int]:
    """Return the best trials, some of all, and the latest without a result."""
    share = HISTORY // 3
    best = dict.fromkeys(number for rung in reversed(state.rungs) for _, number in islice(rung.reached, share))
    everyone = state.rungs[0].reached
    some = [number for _, number in islice(everyone, 0, None, -(-len(everyone) // share) or 1)]
    latest = range(max(state.trials), max(state.trials) - HISTORY, -1)
    unfinished = [n for n in latest if n in state.trials and not state.trials[n].results]
    return {*islice(best, share), *some, *unfinished[:share]}


def proposals(
    settings: CampaignSettings, history: History, first: int, count: int, excluded: AbstractSet[str]
) -> list[Point]:
    """Return valid new points for ``count`` trials; fewer where none are left.

    For each, those before it are trials without a result.
    """
    cls = sampler_class(sampler_for(settings.search.sampler, history.width, len(history.bounds)))
    with own_code(f"search.sampler = {settings.search.sampler!r}"):
        sampler = cls()
    used, points = set(excluded), list[Point]()
    for number in range(first, first + count):
        point = _first_new(settings, history, _draws(settings, sampler, history, number), number, used)
        if point is None:
            break
        points.append(point)
        used.add(point_key(point))
        if history.trials:
            history = replace(history, trials=(*history.trials, Trial(number=number, status="waiting", values=point)))
    return points


def _draws(settings: CampaignSettings, sampler: Sampler, history: History, number: int) -> Iterator[Point]:
    """Yield points of the sampler, then of chance, then all."""
    for draw in range(DRAWS // 2):
        yield _checked(settings, sampler, replace(history, draw=draw), number)
    yield from _random_points(history, number, range(DRAWS // 2, DRAWS))
    finite = all_points(history.space)
    yield from _random_points(history, number, range(DRAWS, MISSES)) if finite is None else finite


def _random_points(history: History, number: int, draws: Iterable[int]) -> Iterator[Point]:
    return (RandomSampler().propose(replace(history, draw=draw), number) for draw in draws)


def _first_new(
    settings: CampaignSettings, history: History, points: Iterable[Point], number: int, excluded: AbstractSet[str]
) -> Point | None:
    """Return the first valid new point, or None."""
    for point in points:
        if point_key(point) not in excluded and not problem_of(settings, history.space, point, number):
            return point
    return None


def _checked(settings: CampaignSettings, sampler: Sampler, history: History, number: int) -> Point:
    """Return the sampler's point; InputError where it gives none of the space."""
    name = f"search.sampler = {settings.search.sampler!r}"
    with own_code(f"{name} for trial {number}", "repair it, or take another sampler"):
        point = sampler.propose(history, number)
    if isinstance(point, dict):
        point = {path: one.item() if isinstance(one, np.generic) else one for path, one in point.items()}
    if not isinstance(point, dict) or not is_point(history.space, point):
        raise InputError(
            f"{name} gave {point!r} for trial {number}, which is no point of search.space; it must give a value in range for "
            "every parameter whose conditions hold, and for no other"
        )
    return point


def stand_in(settings: CampaignSettings, history: History, number: int, excluded: AbstractSet[str]) -> Point | None:
    """Return a random new point; None where none is found."""
    draws = range(STAND_IN, STAND_IN + DRAWS)
    return _first_new(settings, history, _random_points(history, number, draws), number, excluded)
