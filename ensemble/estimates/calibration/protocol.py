"""Calibrations of every kind, and errors that grow with distance.

The distance is the training domain's p-value, how far members' doubts about a graph exceed those of held-out graphs, and how much
further it lies from similar training graphs than held-out graphs do. Standard deviations grow with powers of all. Scores are those
of normalised split conformal prediction (Lei et al. 2018, arXiv:1604.04173, section 5.2) with a scale that knows the distance.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypeVar

import numpy as np
import pydantic
from jaxtyping import Bool, Float, Int

from hydragnn.base.errors import InputError
from hydragnn.base.settings import Count, Fraction, NotNegative, Positive
from hydragnn.ensemble.estimates.calibration.cross_validation import FoldScores, guaranteed_level, rank
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.graphs.field import Field

USUAL, POWER, DOUBTS = 0.2, 0.2, 0.75
"""P-value below which uncertainties grow, and exponents of p-values and of doubts.

They were chosen from a grid on six sets: the narrowest intervals of those that cover the fewest kinds of graphs beyond training
to less than 85 % (``docs/measurements/domain.md``). Fits on validation graphs predict the growth outside badly.
"""


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """Growth of a standard deviation with the distances of a graph."""

    power: NotNegative = 0.0
    """0 where errors do not grow."""
    unknown: NotNegative = 0.0
    """P-value up to which a graph is beyond all that calibrate, so that it has no interval; 0 of none."""
    usual: NotNegative = USUAL
    """P-value above which graphs are as usual as others."""
    mean_square: Positive = 1.0
    """Mean square of growth over held-out graphs, with doubts up to their 95 % quantile."""
    doubts: NotNegative = 0.0
    """Exponent of doubts."""
    further: NotNegative = 0.0
    """Exponent of how much further a graph lies from similar ones; 1 of what whole graphs have, where members share an error that is
    smooth in the statistics of graphs; else disagreement about nodes tells more."""

    @classmethod
    def among(cls, distances: Float[Array, "graphs three"], further: float = 0.0) -> "Distance":
        """Return the growth that these held-out graphs calibrate.

        >>> distances = np.stack([np.arange(1, 21) / 20, np.zeros(20), np.zeros(20)], axis=1)
        >>> Distance.among(distances).growth(distances).round(3)[[0, 1, 3, 19]]
        array([1.282, 1.116, 0.972, 0.972])
        """
        one = cls(power=POWER, unknown=1 / (len(distances) + 1), doubts=DOUBTS, further=further)
        most = np.quantile(distances[:, 1:], 0.95, axis=0)  # so that one remote graph makes no others more certain
        return replace(one, mean_square=float(np.mean(one.growth(np.minimum(distances, [np.inf, *most])) ** 2)))

    def growth(self, distances: Float[Array, "items three"]) -> Float[Array, " items"]:
        """Return factors on standard deviations; 1 without a p-value.

        >>> Distance(power=0.25).growth(np.array([[1.0, 0.0, 0.0], [0.2 / 16, 0.0, 0.0], [np.nan, 0.0, 0.0]]))
        array([1., 2., 1.])
        """
        p_values, *logarithms = distances.T
        if not self.power:
            return np.ones_like(p_values)
        rarity = np.maximum(self.usual / np.maximum(p_values, np.finfo(np.float64).tiny), 1.0)
        grown = rarity**self.power * np.exp([self.doubts, self.further] @ np.nan_to_num(logarithms))
        return np.where(np.isnan(p_values), 1.0, grown / np.sqrt(self.mean_square))

    def beyond(self, p_values: Float[Array, "*shape"]) -> Bool[np.ndarray, "*shape"]:
        """Return which graphs have no interval."""
        return np.asarray(p_values <= self.unknown * (1 + 1e-12)) & (self.unknown > 0)


NO_GROWTH: Final = Distance()


def held_out_p_values(p_values: Float[Array, "*shape"], graphs: int) -> Float[Array, "*shape"]:
    """Return p-values of held-out graphs against the others alone.

    The k-th rarest of ``graphs`` has k / graphs. One with what training never showed is as rare as the rarest.

    >>> held_out_p_values(np.array([0.2, 1.0, 0.003]), graphs=9).round(3)
    array([0.222, 1.   , 0.111])
    """
    return np.asarray(np.clip(p_values * (graphs + 1), 1.0, graphs) / graphs)


Part = Literal["valid", "calibration", "held-out"]
"""Graphs that an ensemble was calibrated on."""
Labels = Float[Array, "items *shape"]
"""Labels in the field's unit, classes as whole numbers."""
Owners = Int[np.ndarray, " items"]
"""The number of the graph that each item belongs to."""

SOURCES: dict[Part, str] = {
    "calibration": "graphs that chose nothing",
    "valid": "validation graphs, which also chose the epoch",
    "held-out": "graphs by members that had not seen them",
}


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class AnyCalibration(ABC):
    """Calibration of one target, fitted on held-out graphs."""

    nominal: Fraction
    graphs: Count
    """Graphs behind it."""
    guaranteed: bool
    """False where these are too few for the nominal level: the largest score is used then."""
    part: Part = "valid"
    folds: tuple[FoldScores, ...] = ()
    """Scores by fold of an ensemble whose intervals and sets are CV+; else empty."""
    distance: Distance = NO_GROWTH
    """Growth of uncertainties with the distance from training data, to which quantiles belong."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """Return the words of a report: widths, and graphs behind them."""

    @abstractmethod
    def fits(self, field: Field) -> bool:
        """Return True where it is for fields like this one."""

    @property
    def evidence(self) -> str:
        """Return the words for the calibrating graphs, with guarantees of folds."""
        level, which = f"{self.nominal * 100:g} %", SOURCES[self.part]
        if self.folds and self.guaranteed:
            least = math.floor(100 * guaranteed_level(self.nominal, self.graphs, len(self.folds)))
            which += f" (CV+ over {len(self.folds)} folds: {level} is usual; they also chose the scale, else {least} % would be guaranteed)"
        return f"calibrated on {self.graphs} {which}" + ("" if self.guaranteed else f": too few to guarantee {level}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, which ``calibration_from_json`` reads."""
        return asdict(self)


Fitted = TypeVar("Fitted", bound=AnyCalibration)


def with_fold_scores(
    fitted: Fitted, members: Sequence[tuple[int, ...]], scores: Sequence[tuple[tuple[float, ...], ...]]
) -> Fitted:
    """Return the calibration with the scores of folds, by component."""
    folds = tuple(FoldScores(members=own, scores=of_fold) for own, of_fold in zip(members, scores, strict=True))
    count = sum(len(fold.scores[0]) for fold in folds)
    guaranteed = rank(count, fitted.nominal) <= count
    return replace(fitted, part="held-out", guaranteed=guaranteed, folds=folds)


def check_calibration(field: Field, nominal: float, labels: int) -> None:
    """Raise InputError where nothing can be calibrated."""
    if not 0.0 < nominal < 1.0:
        raise InputError(f"the nominal level is {nominal:g}; give a fraction between 0 and 1, for example 0.9")
    if not labels:
        raise InputError(f"field {field.name} has no labelled graph to calibrate on; enlarge the validation part")
