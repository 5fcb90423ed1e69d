"""Uncertainty about whole graphs, from estimates of items and final states."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from hydragnn.ensemble.domain.view import Array, Numbers
from hydragnn.ensemble.estimates import Estimate
from hydragnn.ensemble.members import Outcome

STATES = "final states"
"""What goes by this name among doubts, which no field can have: how far states are from those of training."""


def graph_doubt(doubt: Float[Array, "items *shape"], graph: Int[Numbers, " items"], graphs: int) -> Array:
    """The largest doubt within every graph; NaN for graphs without values."""
    largest = doubt.reshape(len(graph), math.prod(doubt.shape[1:])).max(axis=1, initial=-np.inf)
    result = np.full(graphs, -np.inf)
    np.maximum.at(result, graph, np.nan_to_num(largest, nan=-np.inf))
    return np.where(np.isfinite(result), result, np.nan)


def graph_doubts(
    estimates: Mapping[str, Estimate], owners: Mapping[str, Int[Numbers, " items"]], graphs: int
) -> dict[str, Float[Array, " graphs"]]:
    """Return the largest uncertainty within every graph, by target."""
    return {name: graph_doubt(one.doubt, owners[name], graphs) for name, one in estimates.items()}


def state_doubts(outcomes: Sequence[Outcome], weights: Float[Array, " members"]) -> dict[str, Float[Array, " graphs"]]:
    """Return the mean distance of final states from those of training."""
    distances = np.stack([one.distances for one, weight in zip(outcomes, weights, strict=True) if weight > 0])
    return {STATES: np.average(distances, axis=0, weights=weights[weights > 0])}
