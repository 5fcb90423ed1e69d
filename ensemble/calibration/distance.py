"""Errors that grow with the distance from training data, and end in "unknown".

The distance is the training domain's p-value. Standard deviations are divided by a power of it below ``USUAL``, so that scores are those of
normalised split conformal prediction (Lei et al. 2018, arXiv:1604.04173, section 5.2) with a scale that knows the distance.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pydantic
from jaxtyping import Bool, Float

from hydragnn.base.settings import NotNegative
from hydragnn.ensemble.uncertainty import Array

USUAL = 0.1
"""P-value above which graphs are as usual as others."""

POWER = 0.3
"""Exponent of growth.

It was chosen from a grid measured on alloys, plates, molecules, polycrystals, acetylacetone and the elements of mlearn, all of them seen; no set was kept to judge it. Fits on validation graphs
alone range from 0 to .45 and predict the growth outside badly. Mean widths on graphs like those of training change by -5 to +6 %.
"""


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """Growth of a standard deviation with the p-value of a graph."""

    power: NotNegative = 0.0
    """0 where errors do not grow."""
    unknown: NotNegative = 0.0
    """P-value up to which a graph is beyond all that calibrate, so that it has no interval; 0 of none."""

    def growth(self, p_values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return factors on standard deviations, root mean square 1 over graphs like those of training; 1 without a p-value.

        >>> Distance(power=0.25).growth(np.array([1.0, 0.1 / 16, np.nan])).round(3)
        array([0.953, 1.907, 1.   ])
        """
        if not self.power:
            return np.ones_like(p_values)
        mean_square = 1.0 - USUAL + USUAL / (1.0 - 2.0 * self.power)  # p-values are uniform there
        rarity = np.maximum(USUAL / np.maximum(p_values, np.finfo(np.float64).tiny), 1.0)
        return np.where(np.isnan(p_values), 1.0, rarity**self.power / np.sqrt(mean_square))

    def beyond(self, p_values: Float[Array, "*shape"]) -> Bool[np.ndarray, "*shape"]:
        """Return which graphs have no interval."""
        return np.asarray(p_values <= self.unknown * (1 + 1e-12)) & (self.unknown > 0)


NO_GROWTH: Final = Distance()


def held_out_p_values(p_values: Float[Array, "*shape"], graphs: int) -> Float[Array, "*shape"]:
    """Return p-values of held-out graphs against the others alone.

    Each of ``graphs`` was counted among those that are as rare as itself. One with what training never showed is as rare as the rarest.

    >>> held_out_p_values(np.array([0.2, 1.0, 0.003]), graphs=9).round(3)
    array([0.111, 1.   , 0.111])
    """
    return np.asarray(np.maximum(p_values * (graphs + 1) - 1, 1.0) / graphs)
