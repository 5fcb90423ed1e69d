"""Training graphs as points, and how far the nearest of them is."""

from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.spatial import KDTree

from hydragnn.ensemble.domain.view import Array


class References:
    """Points of training graphs, whose distances say what training showed."""

    def __init__(self, points: Float[Array, "references features"], power: int) -> None:
        """Distances are sums of differences (``power`` 1) or Euclidean (2)."""
        self.points, self.power = points, power

    @cached_property
    def _tree(self) -> KDTree:
        return KDTree(self.points)

    def distances(self, points: Float[Array, "graphs features"]) -> Float[Array, " graphs"]:
        """Return the distance of every point from the nearest training graph."""
        result = np.full(len(points), np.nan)
        finite = np.isfinite(points).all(axis=1)
        if finite.any() and len(self.points):
            distinct, which = np.unique(points[finite], axis=0, return_inverse=True)
            result[finite] = self._tree.query(distinct, p=self.power)[0][which.reshape(-1)]
        return result
