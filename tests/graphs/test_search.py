"""Pairs are found alike in both ways, and neighbour lists with a skin are those of a fresh search."""

from collections.abc import Iterator

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.graphs import search
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.search import completed_cell, pairs_within
from hydragnn.graphs.skin import SkinList
from tests.refusals import refuses

CUTOFF = 3.2


def vibrating(atoms: Atoms, steps: int, size: float) -> Iterator[Atoms]:
    """The structure, whose atoms walk about."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        atoms.positions += size * random.normal(size=atoms.positions.shape)
        yield atoms


def strained(atoms: Atoms, steps: int, size: float) -> Iterator[Atoms]:
    """The structure in a cell that changes its lengths and angles, as under a barostat."""
    random = np.random.default_rng(1)
    for one in vibrating(atoms, steps, size):
        one.set_cell(one.cell.array @ (np.eye(3) + size * random.normal(size=(3, 3))), scale_atoms=True)
        yield one


def meeting(steps: int) -> Iterator[Atoms]:
    """Two molecules that pass each other: pairs enter the cutoff and leave it."""
    water, other = molecule("H2O"), molecule("CH4")
    for shift in np.linspace(-8, 8, steps):
        moved = other.copy()
        moved.positions += (shift, 0.0, 2.5)
        yield water + moved


def same(skin: SkinList, atoms: Atoms) -> int:
    cell, periodic = completed_cell(atoms.cell.array, atoms.pbc, "structure"), np.asarray(atoms.pbc)
    topology, shifts = skin.edges(atoms.positions, cell, periodic, CUTOFF)
    fresh = from_ase(atoms, CUTOFF)
    for name in ("senders", "receivers", "by_sender", "sorted_senders"):
        np.testing.assert_array_equal(getattr(topology, name), getattr(fresh.topology, name), err_msg=name)
    np.testing.assert_allclose(shifts, fresh.edge_shifts, rtol=1e-14, atol=1e-12)
    assert topology.num_rows == len(atoms)
    return fresh.num_edges


def slab() -> Atoms:
    atoms = bulk("Cu", cubic=True).repeat((2, 2, 1))
    atoms.center(vacuum=2.0, axis=2)
    atoms.pbc = (True, True, False)
    return atoms


def sheared() -> Atoms:
    atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.set_cell(atoms.cell.array @ [[1, 0, 0], [0.6, 1, 0], [-0.4, 0.7, 1]], scale_atoms=True)
    return atoms


def test_edges_are_the_same_tensors_while_no_pair_comes_or_goes() -> None:
    skin, courses = SkinList(), []
    for length in (3.0, 3.01, 3.3, 3.29, 3.1):
        courses.append(skin.edges(np.array([[0.0, 0, 0], [length, 0, 0]]), np.eye(3), np.zeros(3, dtype=bool), CUTOFF))
    assert courses[0][0] is courses[1][0] and courses[2][0] is courses[3][0]
    assert [topology.num_edges for topology, _ in courses] == [2, 2, 0, 0, 2]


COURSES = {
    "crystal": vibrating(bulk("Cu", cubic=True).repeat(2), 60, 0.01),
    "one atom": vibrating(bulk("Cu"), 30, 0.02),
    "changing cell": strained(bulk("Cu", cubic=True).repeat(2), 60, 0.003),
    "slab": strained(slab(), 40, 0.003),
    "triclinic": strained(sheared(), 40, 0.003),
    "molecules that meet": meeting(200),
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_every_list_is_that_of_a_fresh_search_and_few_are_searched(course: Iterator[Atoms]) -> None:
    skin = SkinList()
    edges = [same(skin, atoms) for atoms in course]
    assert 1 <= skin.searches <= len(edges) / 3
    assert len(edges) < 100 or len(set(edges)) > 3  # molecules: pairs came and went


def pair(length: float) -> Atoms:
    return Atoms("Cu2", [(0, 0, 0), (length, 0, 0)])


def test_pairs_come_and_go_without_a_search_and_one_at_the_cutoff_is_left_to_it() -> None:
    skin = SkinList()  # an atom crosses the cutoff of 3.2 by less than half a skin
    edges = {same(skin, pair(length)) for length in (3.1, 3.19, 3.21, 3.3, 3.19)}
    assert (skin.searches, edges) == (1, {0, 2})
    for length in np.nextafter(CUTOFF, [0.0, CUTOFF, 9.0]):
        same(skin, pair(length))


def test_another_structure_is_searched_anew() -> None:
    skin, cell = SkinList(), bulk("Cu", cubic=True)
    open_cell, wrapped, far = cell.copy(), cell.copy(), cell.copy()
    open_cell.pbc = False
    wrapped.positions[1] += wrapped.cell[0]
    far.positions[0] += 0.3  # more than half a skin
    for atoms in (cell, cell.repeat(2), cell, open_cell, far, wrapped, Atoms("H"), molecule("H2O")):
        same(skin, atoms)
    for scale in (0.6, 1.0, 2.0, 0.8):  # images beyond the first list come in
        squeezed = cell.copy()
        squeezed.set_cell(cell.cell.array * scale, scale_atoms=True)
        same(skin, squeezed)


def test_atoms_that_meet_are_refused_between_searches() -> None:
    skin = SkinList()
    same(skin, pair(0.2))
    refuses("apart; remove the duplicate", same, skin, pair(0.0001))


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
        ([[0, 0, 0], [0, np.nan, 0]], np.eye(3) * 5, "node 1 lies nan cutoffs from the origin"),
        ([[0, 0, 0], [1e300, 1e300, 1e300]], np.eye(3) * 5, "node 1 lies 2e[+]299 cutoffs"),
        ([[0, 0, 0]], np.array([[3, 0, 0], [3, 1e-4, 0], [0, 0, 3]]), "the cell is so flat"),
    ],
    ids=["far", "no number", "farther", "flat"],
)
def test_what_has_no_answer_or_no_end_is_refused(places: list[list[float]], cell: ndarray, sentence: str) -> None:
    with pytest.raises(InputError, match=f"this: {sentence}"):
        pairs_within(np.array(places, dtype=float), cell.astype(float), [True, True, True], 5.0, "this")
