"""Covariance matrix adaptation (CMA-ES), by the package ``cmaes``."""

from typing import Any

import cmaes
import numpy as np

from hydragnn.hpo.sampling.gaussian import normal_scores
from hydragnn.hpo.sampling.sampler import History, RandomSampler
from hydragnn.hpo.sampling.tpe import ParzenEstimators
from hydragnn.hpo.space.parameters import Choices, FloatRange, IntRange, Parameter
from hydragnn.hpo.space.points import Point, Space, fractions_of, value_at

WIDTH = 1 / 6  # first standard deviation, in shares of a range


class CovarianceAdaptation(ParzenEstimators):
    """CMA-ES (Hansen and Ostermeier 2001) over the ranges without conditions.

    Choices and conditional parameters are drawn at random. Generations are the trials with a result in their order, so that the
    state follows from the history; results count by their rank, as those of the Gaussian process.
    """

    needs_all = True

    @staticmethod
    def problem(space: Space, objectives: int) -> str:
        """Return why it cannot search a space; empty where it can."""
        if objectives > 1:
            return f"CMA-ES knows one objective, and there are {objectives}; take gp, tpe or nsga2"
        return "" if len(_ranges(space)) > 1 else "CMA-ES needs two ranges of numbers without when; take tpe"

    def _drawn(self, history: History, number: int) -> Point:
        """Return a point of the next generation."""
        ranges, ended = _ranges(history.space), [t for t in history.trials if t.results or t.status == "failed"]
        if not ended:
            return RandomSampler().propose(history, number)
        ends = np.tile([0.0, 1.0], (len(ranges), 1))
        state = cmaes.CMA(mean=ends.mean(1), sigma=WIDTH, bounds=ends, seed=history.seed_of(number))
        columns = [fractions_of(one, np.array([float(t.values[path]) for t in ended])) for path, one in ranges.items()]
        results, size = [*zip(np.stack(columns, axis=1), normal_scores(ended).tolist())], state.population_size
        for first in range(0, len(results) - size + 1, size):
            state.tell(results[first : first + size])
        fractions = dict(zip(ranges, np.clip(state.ask(), 0.0, 1.0 - 1e-9).tolist()))
        generator = history.generator(number)

        def value_of(path: str, parameter: Parameter) -> Any:
            draw = float(generator.random())  # in any case, so that other parameters do not shift it
            return value_at(parameter, fractions.get(path, draw))

        return history.space.point(value_of)


def _ranges(space: Space) -> dict[str, FloatRange | IntRange]:
    """Return the parameters that can be varied together."""
    every = space.parameters.items()
    return {path: one for path, one in every if not (isinstance(one, Choices) or one.when or one.low == one.high)}
