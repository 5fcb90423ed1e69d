"""Clusters of two, three and four neighbours on a lattice, as inputs.

Sums over shells say how many neighbours of a kind there are, and not which of them stand beside each other. Averages of products
over clusters that are alike by symmetry do: the correlations of a cluster expansion (Sanchez, Ducastelle and Gratias 1984).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from hydragnn.graphs import GraphBatch, edge_vectors


@dataclass(frozen=True, kw_only=True, slots=True)
class Clusters:
    """Neighbours of every site by displacement, and clusters alike.

    The site is in the middle of its clusters.
    """

    neighbours: NDArray[np.int64]
    """[displacements, sites]"""
    orbits: Sequence[NDArray[np.int64]]
    """Numbers of displacements, [clusters, members] each."""


def clusters_of(site: GraphBatch, reaches: Sequence[tuple[int, int]]) -> Clusters:
    """Return clusters of a tetragonal lattice whose fourfold axis is z.

    Each entry is (members, neighbours): clusters among that many nearest neighbours.
    """
    vectors = edge_vectors(site).numpy().round(3)
    by_site = [vectors[site.receivers.numpy() == number] for number in range(site.num_nodes)]
    shells = np.linalg.norm(by_site[0], axis=1).round(2)
    displacements = by_site[0][np.lexsort((*by_site[0].T, shells))]
    senders = site.senders.numpy().reshape(site.num_nodes, -1)
    neighbours = np.stack([senders[i][_places(own, displacements)] for i, own in enumerate(by_site)], axis=1)
    images = np.stack([_places(displacements, displacements @ turn) for turn in _turns()])  # [turns, displacements]
    orbits = [orbit for members, nearest in reaches for orbit in _orbits(images, members, nearest)]
    return Clusters(neighbours=neighbours, orbits=orbits)


def correlations(clusters: Clusters, spins: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the mean product of spins over the clusters of every orbit.

    ``[cells, sites, orbits]`` of ``[cells, sites]``.
    """
    around = np.ascontiguousarray(spins.T)[clusters.neighbours]  # [displacements, sites, cells]
    means = [np.prod(around[orbit.T], axis=0).mean(axis=0) for orbit in clusters.orbits]  # of [clusters, sites, cells]
    return np.stack(means, axis=-1).transpose(1, 0, 2).astype(np.float32)


def _turns() -> list[NDArray[np.float64]]:
    """The sixteen turns and mirrors of a tetragonal lattice."""
    signs = [np.diag(sign) for sign in product((1.0, -1.0), repeat=3)]
    return [turn @ sign for turn in (np.eye(3), np.eye(3)[[1, 0, 2]]) for sign in signs]


def _places(among: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the positions of vectors among others."""
    return np.abs(vectors[:, None] - among[None]).sum(axis=2).argmin(axis=1)


def _orbits(images: NDArray[np.int64], members: int, nearest: int) -> list[NDArray[np.int64]]:
    """Sets of so many of the nearest displacements, those together that symmetry makes of each other."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for cluster in combinations(range(nearest), members):
        first = min(map(tuple, np.sort(images[:, cluster], axis=1).tolist()))
        found.setdefault(first, []).append(cluster)
    return [np.array(orbit) for orbit in found.values()]
