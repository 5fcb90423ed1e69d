"""Calibrated probabilities and conformal sets of classes, per field."""

from dataclasses import dataclass

import numpy as np
import pydantic
from jaxtyping import Float, Int
from scipy.special import log_softmax, softmax

from hydragnn.base.settings import NotNegative, Positive
from hydragnn.ensemble.estimates.calibration.numbers import conformal_quantile
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration, Labels, Owners, check_calibration
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.graphs.field import Field

TINY = float(np.finfo(np.float64).tiny)
HOTTEST = 20.0
"""Largest temperature that least NLL may choose, and one over the smallest."""
SATURATED = 1e4
"""A temperature at which probabilities of any members are nearly equal, since logarithms reach no further than that of ``TINY``."""

Rows = Float[Array, "rows classes"]


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class ClassCalibration(AnyCalibration):
    """Temperature of one categorical field, and the threshold of its sets."""

    temperature: Positive
    """Logarithms of probabilities are divided by it: above 1 the members were too sure."""
    threshold: NotNegative
    """A class belongs to the set where all other classes together have at most this probability."""
    method: str = "temperature"

    def fits(self, field: Field) -> bool:
        """Return True for every field of classes."""
        return bool(field.classes) and all(fold.fits(1) for fold in self.folds)

    @property
    def sentence(self) -> str:
        """Return the words for the graphs behind the sets."""
        return f"sets of classes {self.evidence}"


def temper(probabilities: Float[Array, "... classes"], temperature: float) -> Float[Array, "... classes"]:
    """Return probabilities whose logarithms are divided by the temperature."""
    return np.asarray(softmax(np.log(np.maximum(probabilities, TINY)) / temperature, axis=-1))


def others(probabilities: Float[Array, "... classes"]) -> Float[Array, "... classes"]:
    """Return the probability of all other classes together.

    Summed up, since 1 minus a probability near 1 has no digits left.

    >>> others(np.array([0.2, 0.3, 0.5]))
    array([0.8, 0.7, 0.5])
    """
    return probabilities @ (1.0 - np.eye(probabilities.shape[-1]))


def fit_classes(
    field: Field,
    labels: Labels,
    probabilities: Float[Array, "items *shape_and_classes"],
    graph: Owners,
    *,
    nominal: float,
    temperature: float | None = None,
) -> ClassCalibration:
    """Return temperature and threshold of the sets (LAC) from labelled items.

    All components of a field share both. InputError where there is no labelled item.
    """
    check_calibration(field, nominal, len(labels))
    temperature = fit_temperature(field, labels, probabilities) if temperature is None else temperature
    scores = label_scores(field, labels, probabilities, temperature)
    threshold, guaranteed = conformal_quantile(scores, np.repeat(graph, field.width), nominal)
    return ClassCalibration(
        temperature=temperature,
        threshold=threshold,
        nominal=nominal,
        graphs=len(np.unique(graph)),
        guaranteed=guaranteed,
    )


def label_scores(
    field: Field, labels: Labels, probabilities: Float[Array, "items *shape_and_classes"], temperature: float
) -> Float[Array, " rows"]:
    """Return the probability of all classes but the true one."""
    truth, flat = _rows(field, labels, probabilities)
    return others(temper(flat, temperature))[np.arange(len(truth)), truth]


def fit_temperature(field: Field, labels: Labels, probabilities: Float[Array, "items *shape_and_classes"]) -> float:
    """Return the temperature of least NLL, bounded by Laplace's rule.

    Where all labels are right, NLL falls with the temperature without end. Yet after n right of n, the next is right with probability
    (n + 1) / (n + 2): the mean of the Beta(n + 1, 1) that a uniform prior leaves (Laplace's rule of succession; Platt 1999 has the same
    targets). The mean probability of the likeliest class says how many labels will be right, so it is at most that. InputError without any item.
    """
    from scipy.optimize import brentq, minimize_scalar  # a quarter of a second, which predictions do not need

    truth, flat = _rows(field, labels, probabilities)
    logs, row = np.log(np.maximum(flat, TINY)), np.arange(len(truth))

    def nll(log_temperature: float) -> float:
        return float(-log_softmax(logs / np.exp(log_temperature), axis=1)[row, truth].mean())

    def excess(log_temperature: float) -> float:
        sure = softmax(logs / np.exp(log_temperature), axis=1).max(axis=1).mean()
        return float(sure - (len(row) + 1) / (len(row) + 2))

    reach = np.log(HOTTEST)
    best = float(minimize_scalar(nll, bounds=(-reach, reach), method="bounded").x)
    if excess(best) > 0:
        best = float(brentq(excess, best, np.log(SATURATED)))
    return float(np.exp(best))


def _rows(field: Field, labels: Labels, probabilities: Array) -> tuple[Int[np.ndarray, " rows"], Rows]:
    """Return true classes and probabilities of all components."""
    check_calibration(field, 0.5, len(labels))
    return labels.ravel().astype(np.int64), probabilities.reshape(-1, field.classes)
