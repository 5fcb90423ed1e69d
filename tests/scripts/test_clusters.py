"""Clusters of neighbours on the sites of Fe-Pt cells."""

from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from hydragnn.scripts.recipes import fept
from hydragnn.scripts.recipes.clusters import Clusters, clusters_of, correlations

SITES = np.array([[2 * i, 2 * j, 2 * k] for i, j, k in product(range(4), range(2), range(2))])
PLACES = np.concatenate([SITES, SITES + 1])  # in halves of the edges of a body-centred cell
BOX, HALVES = np.array([8, 4, 4]), np.array([2.609, 2.609, 3.529])


@pytest.fixture(scope="module")
def clusters() -> Clusters:
    return fept.lattice(PLACES * HALVES).clusters


def at(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sites that stand there, periodic images counted."""
    keys = {tuple(place): number for number, place in enumerate(PLACES.tolist())}
    return np.array([keys[tuple(place)] for place in (places % BOX).tolist()])


def test_pairs_triples_and_fours_are_as_many_kinds_as_the_recipe_says(clusters: Clusters) -> None:
    assert len(clusters.orbits) == fept.ORBITS
    sizes = [orbit.shape[1] for orbit in clusters.orbits]
    for members, nearest in fept.REACHES:
        together = sum(len(orbit) for orbit, size in zip(clusters.orbits, sizes) if size == members)
        assert together == len(list(combinations(range(nearest), members)))


def test_pairs_of_nearest_neighbours_are_told_apart_by_how_they_stand(clusters: Clusters) -> None:
    """Eight corners around a site: pairs along an edge in the plane, along the axis, across faces and through the middle."""
    spins = np.random.default_rng(0).choice([-1.0, 1.0], size=(3, 32))
    corners = np.array(list(product((-1, 1), repeat=3)))
    expected: dict[tuple[int, bool], list[NDArray[np.float64]]] = {}
    for one, other in combinations(corners, 2):
        apart = one != other
        values = spins[:, at(PLACES + one)] * spins[:, at(PLACES + other)]
        expected.setdefault((int(apart[:2].sum()), bool(apart[2])), []).append(values)
    found = correlations(clusters, spins)[..., :5]  # the nearest come first
    means = [np.mean(values, axis=0) for values in expected.values()]
    assert len(means) == 5
    for mean in means:
        assert np.abs(found - mean[..., None]).max(axis=(0, 1)).min() < 1e-6


@pytest.mark.parametrize("turn", [np.diag([-1, 1, 1]), np.diag([1, -1, 1]), np.diag([1, 1, -1])])
@pytest.mark.parametrize("step", [(0, 0, 0), (2, 0, 0), (1, 1, 1)])
def test_equivalent_orderings_have_equal_clusters_around_equivalent_sites(
    clusters: Clusters, turn: NDArray[np.int64], step: tuple[int, int, int]
) -> None:
    spins = np.random.default_rng(1).choice([-1.0, 1.0], size=(2, 32))
    image = at(PLACES @ turn + np.array(step))  # where each site goes
    turned = np.empty_like(spins)
    turned[:, image] = spins
    np.testing.assert_allclose(correlations(clusters, turned)[:, image], correlations(clusters, spins), atol=1e-6)


def test_a_quarter_turn_of_the_crystal_makes_no_difference(clusters: Clusters) -> None:
    """The cell is twice as long as wide; an ordering that repeats after its width has the same surroundings when turned."""
    half = np.random.default_rng(2).choice([-1.0, 1.0], size=(4, 4, 4))  # by place in half edges
    square = [half[tuple(place % 4)] for place in PLACES]
    turned = [half[tuple((place @ np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])) % 4)] for place in PLACES]
    middle = [0, 16]  # on the diagonal, which stays where it is
    values = correlations(clusters, np.array([square, turned]))[:, middle]
    np.testing.assert_allclose(values[0], values[1], atol=1e-6)


def test_clusters_of_fewer_neighbours_come_first_in_those_of_more() -> None:
    few, more = (clusters_of(fept.lattice(PLACES * HALVES).graph, [(2, nearest)]) for nearest in (8, 54))
    assert len(few.orbits) == 5
    assert all((one == other).all() for one, other in zip(few.orbits, more.orbits))
