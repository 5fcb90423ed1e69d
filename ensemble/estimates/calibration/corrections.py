"""Factors on the scale of errors by size of graph and prediction.

Conformal intervals keep their promise over all graphs; the thirds of a quantity may still share it unequally. Each third gets the factor
that its own errors ask for, shrunk towards none by ``PRIOR`` graphs (in the manner of Mondrian conformal prediction, Vovk,
Lindsay, Nouretdinov and Gammerman 2003, but as a part of the scale). They are fitted on validation, so that the promise over all
graphs, which the calibration part keeps, is not touched.
"""

from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import pydantic
from jaxtyping import Float, Int

from hydragnn.base.settings import Positive
from hydragnn.ensemble.estimates.moments import Array

TINY = 1e-300
"""Smallest mean square, in units of any scale."""

PRIOR = 10.0
"""Number of graphs without a need for a factor that count in every third."""

LARGEST = 10.0
"""Largest factor, and the inverse of the smallest, that a third asks for."""

ROUNDS = 5
"""Times that the factors of every quantity follow what all factors leave."""

Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]
Owners = Int[np.ndarray, " rows"]


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """Factor by one quantity: geometric interpolation between knots, constant outside."""

    knots: tuple[Finite, ...] = (0.0,)
    factors: tuple[Positive, ...] = (1.0,)

    def __post_init__(self) -> None:
        rising = all(one < other for one, other in zip(self.knots, self.knots[1:]))
        if not self.knots or len(self.knots) != len(self.factors) or not rising:
            raise ValueError(f"factors {self.factors} do not belong to rising knots {self.knots}")

    def of(self, values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the factor of every value; NaN of NaN.

        >>> Correction(knots=(1.0, 3.0), factors=(1.0, 4.0)).of(np.array([0.0, 2.0, 9.0]))
        array([1., 2., 4.])
        """
        return np.exp(np.interp(values, self.knots, np.log(self.factors)))


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Corrections:
    """Factors by nodes of the graph and magnitude of the prediction."""

    nodes: Correction = Correction()
    magnitude: Correction = Correction()

    def of(self, nodes: Float[Array, "*shape"], magnitude: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the factor of every item."""
        return self.nodes.of(nodes) * self.magnitude.of(magnitude)


NONE: Final = Corrections()


def fit_corrections(
    scores: Float[Array, " rows"], nodes: Float[Array, " rows"], magnitude: Float[Array, " rows"], graph: Owners
) -> Corrections:
    """Return factors that equalise the root mean square scores of all thirds.

    In every third the graphs that have items there weigh the same, however many these are: else the third of the smallest forces would
    follow the few graphs that consist of such. Neither the order of items nor a unit matters, nor how the axes of vectors lie.
    """
    weights = _weights(graph)
    quantities = {"nodes": nodes, "magnitude": magnitude}
    cut = {name: np.digitize(one, np.quantile(one, (1 / 3, 2 / 3)), right=True) for name, one in quantities.items()}
    thirds = {name: [third == number for number in np.unique(third)] for name, third in cut.items()}
    within = {name: [_weights(graph[own]) for own in owns] for name, owns in thirds.items()}
    full = {name: np.zeros(len(own)) for name, own in thirds.items()}  # logarithms of factors before they are shrunk

    def correction(name: str, logarithms: Array) -> Correction:
        knots = [float(np.median(quantities[name][own])) for own in thirds[name]]
        return Correction(knots=tuple(knots), factors=tuple(np.exp(logarithms).tolist()))

    for _ in range(ROUNDS):
        for name, owns in thirds.items():
            now = Corrections(**{other: correction(other, full[other]) for other in quantities})
            squares = (scores / now.of(nodes, magnitude)) ** 2
            every = max(float(np.average(squares, weights=weights)), TINY)
            shares = [np.average(squares[own], weights=own_weights) for own, own_weights in zip(owns, within[name])]
            wanted_logs = full[name] + 0.5 * np.log(np.maximum(np.array(shares) / every, LARGEST**-4))
            full[name] = np.clip(wanted_logs, -np.log(LARGEST), np.log(LARGEST))
    graphs = {name: np.array([own_weights.sum() for own_weights in of]) for name, of in within.items()}
    return Corrections(**{name: correction(name, full[name] * (n / (n + PRIOR))) for name, n in graphs.items()})


def _weights(graph: Owners) -> Float[Array, " rows"]:
    """Return weights of items that sum to 1 in every graph.

    >>> _weights(np.array([7, 7, 9]))
    array([0.5, 0.5, 1. ])
    """
    _, inverse, counts = np.unique(graph, return_inverse=True, return_counts=True)
    return 1.0 / counts[inverse]
