"""The search of pairs: both ways find the same, and structures that one of them dies of go the other way or are refused."""

import numpy as np
import pytest
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.graphs import search
from hydragnn.graphs.search import pairs_within


def rows(pairs: search.Pairs) -> ndarray:
    table = np.column_stack([*pairs[:2], pairs[2], np.round(pairs[3], 9)])
    return table[np.lexsort(table.T[::-1])]


@pytest.mark.parametrize("seed", range(12))
def test_trees_find_what_vesin_finds(seed: int) -> None:
    generator = np.random.default_rng(seed)
    cell = generator.normal(size=(3, 3)) * generator.choice([2, 20]) + np.eye(3) * 4
    places, periodic = generator.normal(size=(20, 3)) * 8, generator.random(3) < 0.6
    theirs, ours = (way(places, cell, periodic, 2.7) for way in (search._by_vesin, search._by_tree))
    np.testing.assert_allclose(rows(ours), rows(theirs), atol=2e-9)


@pytest.mark.parametrize(
    ("cell", "periodic", "far", "neighbours"),
    [
        ([1, 1, 1], [False, False, False], 1e6, 0),  # a structure that flew apart
        ([3, 3, 1], [True, True, False], 1e6, 8),
        ([0.1, 1000, 1000], [True, True, True], 500.0, 40),
        ([0.5, 1e4, 300], [True, True, True], 100.0, 8),
    ],
    ids=str,
)
def test_long_structures_end_no_process(cell: list[float], periodic: list[bool], far: float, neighbours: int) -> None:
    places, reach = np.array([[0, 0, 0], [0, 0, far]]), 2.0 if periodic[2] else 5.0
    first, *_ = pairs_within(places, np.diag(cell).astype(float), periodic, reach + 1e-6, "this")
    assert np.bincount(first, minlength=2).tolist() == [neighbours, neighbours]


@pytest.mark.parametrize(
    ("places", "cell", "sentence"),
    [
        ([[0, 0, 0], [0, 1e9, 0]], np.eye(3) * 5, "node 1 lies 2e[+]08 cutoffs from the origin"),
        ([[0, 0, 0], [1e300, 1e300, 1e300]], np.eye(3) * 5, "node 1 lies 2e[+]299 cutoffs"),
        ([[0, 0, 0]], np.array([[3, 0, 0], [3, 1e-4, 0], [0, 0, 3]]), "the cell is so flat"),
    ],
    ids=["far", "farther", "flat"],
)
def test_what_has_no_answer_or_no_end_is_refused(places: list[list[float]], cell: ndarray, sentence: str) -> None:
    with pytest.raises(InputError, match=f"this: {sentence}"):
        pairs_within(np.array(places, dtype=float), cell.astype(float), [True, True, True], 5.0, "this")
