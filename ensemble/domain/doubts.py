"""How unsure an ensemble is about whole graphs, from its estimates of items."""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from hydragnn.ensemble.domain.view import Array, Numbers
from hydragnn.ensemble.estimates import Estimate


def graph_doubt(doubt: Float[Array, "items *shape"], graph: Int[Numbers, " items"], graphs: int) -> Array:
    """The largest doubt within every graph; NaN for graphs without values."""
    largest = doubt.reshape(len(graph), math.prod(doubt.shape[1:])).max(axis=1, initial=-np.inf)
    result = np.full(graphs, -np.inf)
    np.maximum.at(result, graph, np.nan_to_num(largest, nan=-np.inf))
    return np.where(np.isfinite(result), result, np.nan)


def graph_doubts(
    estimates: Mapping[str, Estimate], owners: Mapping[str, Int[Numbers, " items"]], graphs: int
) -> dict[str, Float[Array, " graphs"]]:
    """The largest doubt within every graph, by target; ``owners`` has the graph of every item."""
    return {name: graph_doubt(one.doubt, owners[name], graphs) for name, one in estimates.items()}
