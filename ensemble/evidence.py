"""Predictions of candidates for labelled rows, as selection scores them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.metrics import gaussian_crps, gaussian_nll
from hydragnn.ensemble.uncertainty import Array, total_variance

SCORES = {"crps": gaussian_crps, "nll": gaussian_nll}


class Evidence(ABC):
    """Predictions of all candidates for labelled rows of one field."""

    @property
    @abstractmethod
    def candidates(self) -> int:
        """Return the number of candidates."""

    @abstractmethod
    def score(self, picks: Sequence[int], score: str) -> float:
        """Return the mean proper score of the mixture of these picks."""

    @abstractmethod
    def diversity(self, weights: Float[Array, " candidates"]) -> dict[str, float]:
        """Return the correlation of errors, and the gain from averaging.

        ``ambiguity`` is the weighted variance between members over their mean squared error (Krogh and Vedelsby 1994): 0
        for copies, 0.5 where averaging halves the squared error. The correlation of a member alone is 1.
        """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NumberEvidence(Evidence):
    """Predictions of all candidates for labelled rows of one numeric field."""

    target: Float[Array, " rows"]
    means: Float[Array, "candidates rows"]
    variances: Float[Array, "candidates rows"]

    @property
    def candidates(self) -> int:
        """Return the number of candidates."""
        return len(self.means)

    def score(self, picks: Sequence[int], score: str) -> float:
        """Return the mean score of the mixture, normal with unexplained noise."""
        index = list(picks)
        weights = np.full(len(index), 1.0 / len(index))
        moments = total_variance(self.means[index], self.variances[index], weights)
        error = self.target - moments.mean
        unexplained = max(float(np.mean(error**2) - np.mean(moments.variance)), 0.0)
        std = np.sqrt(moments.variance + unexplained)
        tiny = float(np.finfo(np.float64).tiny) ** 0.5
        return float(np.mean(SCORES[score](self.target, moments.mean, np.maximum(std, tiny))))

    def diversity(self, weights: Float[Array, " candidates"]) -> dict[str, float]:
        """From the errors of the means."""
        errors = self.means - self.target
        moments = total_variance(self.means, self.variances, weights)
        mean_mse = float(weights @ np.mean(errors**2, axis=1))
        centred = errors - errors.mean(axis=1, keepdims=True)
        norms = np.sqrt((centred**2).sum(axis=1))
        norms[norms == 0] = 1.0
        correlation = (centred @ centred.T) / np.outer(norms, norms)
        pairs = correlation[np.triu_indices(len(errors), k=1)]
        return {
            "error_correlation": float(pairs.mean()) if len(pairs) else 1.0,
            "ambiguity": float(np.mean(moments.epistemic)) / mean_mse if mean_mse > 0 else 0.0,
        }
