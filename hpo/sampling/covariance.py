"""Covariance matrix adaptation (CMA-ES), by the package ``cmaes``."""

from typing import Any

import cmaes
import numpy as np

from hydragnn.hpo.sampling.gaussian import normal_scores
from hydragnn.hpo.sampling.sampler import History, RandomSampler, Sampler
from hydragnn.hpo.space.parameters import Choices, FloatRange, IntRange, Parameter
from hydragnn.hpo.space.points import Point, Space, fractions_of, value_at

WIDTH = 1 / 6
"""First standard deviation, in shares of a range."""


class CovarianceAdaptation(Sampler):
    """CMA-ES (Hansen and Ostermeier 2001) over the ranges without conditions.

    Choices and conditional parameters are drawn at random. Generations are the trials with a result in their order, so that the
    state follows from the history; results count by their rank, as those of the Gaussian process.
    """

    def problem(self, space: Space, objectives: int) -> str:
        """Return why it cannot search a space; empty where it can."""
        if objectives > 1:
            return f"CMA-ES knows one objective, and there are {objectives}; take gp, tpe or nsga2"
        if len(_ranges(space)) < 2:
            return "CMA-ES needs two ranges of numbers without when; take tpe"
        return ""

    def propose(self, history: History, number: int) -> Point:
        """Return a point of the next generation."""
        ranges, ended = _ranges(history.space), [t for t in history.trials if t.results or t.status == "failed"]
        if not ended or len(ranges) < 2:
            return RandomSampler().propose(history, number)
        middle, ends = np.full(len(ranges), 0.5), np.tile([0.0, 1.0], (len(ranges), 1))
        state = cmaes.CMA(mean=middle, sigma=WIDTH, bounds=ends, seed=history.seed_of(number))
        columns = [fractions_of(one, np.array([float(t.values[path]) for t in ended])) for path, one in ranges.items()]
        rows, scores, size = np.stack(columns, axis=1), normal_scores(ended), state.population_size
        for first in range(0, len(ended) - size + 1, size):
            state.tell([(rows[index], float(scores[index])) for index in range(first, first + size)])
        fractions = dict(zip(ranges, np.clip(state.ask(), 0.0, 1.0 - 1e-9).tolist()))
        generator = history.generator(number)

        def value_of(path: str, parameter: Parameter) -> Any:
            draw = float(generator.random())  # in any case, so that other parameters do not shift it
            return value_at(parameter, fractions.get(path, draw))

        return history.space.point(value_of)


def _ranges(space: Space) -> dict[str, FloatRange | IntRange]:
    """Return the parameters that can be varied together."""
    return {
        path: one
        for path, one in space.parameters.items()
        if not isinstance(one, Choices) and not one.when and one.low < one.high
    }
