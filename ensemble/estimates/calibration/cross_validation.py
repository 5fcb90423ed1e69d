"""CV+: intervals and sets of classes from members trained on folds.

Members that held out the same graphs, a fold, are one submodel with mean m_k and scale s_k, and the score of a graph is its
error over the scale of its fold. With n graphs the interval at x reaches from the floor((1 - nominal) (n + 1))-th smallest
m_k(i)(x) - R_i s_k(i)(x) to the ceil(nominal (n + 1))-th smallest m_k(i)(x) + R_i s_k(i)(x): Barber, Candes, Ramdas and
Tibshirani 2021, arXiv:1905.02928; with scales Gupta, Kuchibhotla and Ramdas 2022, arXiv:1910.10562; for members that
hold out overlapping parts Kim, Xu and Barber 2020, arXiv:2002.09025. It widens where the folds' predictions lie apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pydantic
from jaxtyping import Float, Int
from numpy.typing import NDArray

from hydragnn.base.settings import Count, NotNegative
from hydragnn.ensemble.estimates.moments import Array

MOST = 1000
"""Scores that are kept of one component; of more graphs several share one, rounded up."""
BLOCK = 2**22
"""Numbers that are sorted at once."""


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class FoldScores:
    """Members of a fold, and scores of graphs they have not seen."""

    members: Annotated[tuple[Count, ...], pydantic.Field(min_length=1)]
    """Positions in the ensemble."""
    scores: tuple[Annotated[tuple[NotNegative, ...], pydantic.Field(min_length=1)], ...]
    """Per component, one for every graph or so many graphs: |error| in calibrated standard deviations, for classes the
    probability of all classes but the true one."""

    def fits(self, components: int) -> bool:
        """Return True where components match and no member counts twice."""
        counts = {len(scores) for scores in self.scores}
        return len(self.scores) == components and len(counts) == 1 and len(set(self.members)) == len(self.members)


def shares(weights: Float[Array, " members"], members: Sequence[int]) -> Float[Array, " some"]:
    """Return the weights of some members among themselves; of none, those of all.

    >>> shares(np.array([0.2, 0.2, 0.6]), [0, 2])
    array([0.25, 0.75])
    """
    own = weights[list(members)] if members else weights
    return own / own.sum()


def graph_scores(scores: Float[Array, " rows"], graph: Int[np.ndarray, " rows"], total: int) -> tuple[float, ...]:
    """Return one score per graph from scores of items, all graphs alike.

    With one item per graph these are the scores. Where the folds have a ``total`` of more than ``MOST`` graphs, one in several.

    >>> graph_scores(np.array([3.0, 1.0, 5.0, 2.0]), np.array([0, 1, 1, 2]), total=3)
    (2.0, 3.0, 5.0)
    """
    _, inverse, counts = np.unique(graph, return_inverse=True, return_counts=True)
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(1.0 / counts[inverse[order]])
    each = math.ceil(total / MOST)
    ranks = np.minimum(np.arange(each, len(counts) + each, each), len(counts))
    positions = np.minimum(np.searchsorted(reached, ranks * (1 - 1e-9)), len(scores) - 1)
    return tuple(scores[order[positions]].tolist())


def rank(count: int, nominal: float) -> int:
    """Return the rank of the score that bounds an interval.

    >>> rank(19, 0.9), rank(5, 0.9)
    (18, 6)
    """
    return math.ceil((count + 1) * nominal * (1 - 1e-12))


def guaranteed_level(nominal: float, graphs: int, folds: int) -> float:
    """Return the coverage that CV+ guarantees for exchangeable graphs; often 0.

    1 - 2 (1 - nominal) and a little less for folds of several graphs (Barber et al. 2021, theorem 4).

    >>> round(guaranteed_level(0.9, 400, 5), 2), guaranteed_level(0.9, 50, 50)
    (0.78, 0.8)
    """
    of_folds = 2 * (1 - 1 / folds) / (graphs / folds + 1)
    of_graphs = (1 - folds / graphs) / (folds + 1)
    return round(max(0.0, 1 - 2 * (1 - nominal) - min(of_folds, of_graphs)), 12)


def cross_interval(
    means: Float[Array, "folds items"],
    stds: Float[Array, "folds items"],
    scores: Sequence[Sequence[float]],
    nominal: float,
) -> tuple[Float[Array, " items"], Float[Array, " items"]]:
    """Return lower and upper ends; NaN where a fold has no prediction.

    >>> cross_interval(np.array([[0.0], [10.0]]), np.ones((2, 1)), [[1.0, 2.0], [1.0, 2.0]], nominal=0.6)
    (array([-1.]), array([11.]))
    """
    fold = np.repeat(np.arange(len(scores)), [len(of_fold) for of_fold in scores])
    every = np.concatenate([np.asarray(of_fold, dtype=np.float64) for of_fold in scores])
    count = len(every)
    upper_rank = min(rank(count, nominal), count)
    lower, upper = np.empty(means.shape[1]), np.empty(means.shape[1])
    step = max(1, BLOCK // count)
    for start in range(0, means.shape[1], step):
        rows = slice(start, start + step)
        centres, widths = means.T[rows][:, fold], every * stds.T[rows][:, fold]  # [items, scores]
        lower[rows] = np.partition(centres - widths, count - upper_rank, axis=1)[:, count - upper_rank]
        upper[rows] = np.partition(centres + widths, upper_rank - 1, axis=1)[:, upper_rank - 1]
    return lower, upper


def cross_sets(
    others: Float[Array, "folds *shape classes"], scores: Sequence[Sequence[float]], nominal: float
) -> NDArray[np.bool_]:
    """Return True for each class in the CV+ set (arXiv:2006.02544).

    ``others`` is the score of every class with each fold; a class belongs where fewer scores than their rank lie below its own.
    """
    below = sum(np.searchsorted(np.asarray(of_fold), score) for of_fold, score in zip(scores, others, strict=True))
    count = sum(len(of_fold) for of_fold in scores)
    return np.asarray(below < min(rank(count, nominal), count))
