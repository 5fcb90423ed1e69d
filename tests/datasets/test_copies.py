"""A structure that is written otherwise is a copy; frames of one trajectory are none."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule

from hydragnn.datasets import MemoryStore, SplitSettings, make_split
from hydragnn.datasets.copies import copy_labels, structure_labels
from hydragnn.datasets.split import copies_across
from hydragnn.graphs import from_ase
from hydragnn.graphs.field import Field


def shaken(atoms: Atoms, size: float, seed: int = 0) -> Atoms:
    copy = atoms.copy()
    copy.positions += np.random.default_rng(seed).normal(0, size, copy.positions.shape)
    return copy


def slab() -> Atoms:
    atoms = fcc111("Cu", (4, 4, 4), vacuum=8.0)
    add_adsorbate(atoms, "O", 1.2, "fcc")
    return atoms


STRUCTURES = {
    "metal": lambda: shaken(bulk("Cu", cubic=True).repeat((3, 2, 2)), 0.1),
    "salt": lambda: shaken(bulk("NaCl", "rocksalt", a=5.64, cubic=True), 0.05),
    "molecule": lambda: shaken(molecule("CH3CH2OH"), 0.05),
    "slab": slab,
    "alloy": lambda: shaken(bulk("AuCu", "cesiumchloride", a=3.1).repeat((2, 1, 1)), 0.05),
}


def wrapped(atoms: Atoms) -> Atoms:
    atoms.positions += np.random.default_rng(1).integers(-2, 3, (len(atoms), 3)) * atoms.pbc @ atoms.cell.array
    return atoms


def permuted(atoms: Atoms) -> Atoms:
    return atoms[np.random.default_rng(2).permutation(len(atoms))]


def shifted(atoms: Atoms) -> Atoms:
    atoms.translate([0.123, -4.56, 7.89])
    atoms.wrap()
    return atoms


def rounded(atoms: Atoms) -> Atoms:
    atoms.positions = np.round(atoms.positions, 4)
    return atoms


def turned(atoms: Atoms) -> Atoms:
    atoms.rotate(37.0, (1, 2, 3), rotate_cell=True)
    return atoms


def doubled(atoms: Atoms) -> Atoms:
    return atoms.repeat([2 if periodic else 1 for periodic in atoms.pbc])


def all_at_once(atoms: Atoms) -> Atoms:
    return rounded(turned(permuted(shifted(wrapped(doubled(atoms))))))


def store_of(structures: Sequence[Atoms]) -> MemoryStore:
    return MemoryStore([from_ase(atoms, 5.0) for atoms in structures], attributes={"cutoff": 5.0})


@pytest.mark.parametrize("change", [wrapped, permuted, shifted, rounded, turned, doubled, all_at_once])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_a_structure_written_otherwise_is_a_copy(kind: str, change: Callable[[Atoms], Atoms]) -> None:
    others = [make() for name, make in STRUCTURES.items() if name != kind]
    store = store_of([STRUCTURES[kind](), *others, change(STRUCTURES[kind]())])
    assert structure_labels(store)[[0, -1]].tolist() == [min(structure_labels(store)[[0, -1]])] * 2
    assert len({*structure_labels(store).tolist()}) == len(store) - 1


@pytest.mark.parametrize("size", [0.01, 0.03])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_frames_of_a_trajectory_are_no_copies(kind: str, size: float) -> None:
    store = store_of([shaken(STRUCTURES[kind](), size, seed) for seed in range(30)])
    assert len({*structure_labels(store).tolist()}) == 30


def test_one_atom_elsewhere_is_another_structure() -> None:
    frames = [slab() for _ in range(6)]
    for number, atoms in enumerate(frames):
        atoms.positions[-1] += [0.02 * number, 0.0, 0.0]
    mixed = bulk("Cu", cubic=True).repeat(2)
    pairs = [mixed.copy(), mixed.copy(), bulk("Ag", a=3.61, cubic=True).repeat(2)]
    pairs[0].symbols[[0, 1]], pairs[1].symbols[[0, 31]] = "Ag", "Ag"
    assert len({*structure_labels(store_of([*frames, *pairs])).tolist()}) == 9


def test_equal_geometry_with_other_inputs_or_without_edges_is_no_copy() -> None:
    charge = Field(name="charge", on="graph", role="input")
    spins = Field(name="spin", on="node", role="input")
    graphs = []
    for number in range(4):
        atoms = permuted(molecule("H2O")) if number % 2 else molecule("H2O")
        atoms.info["charge"] = float(number // 2)
        atoms.arrays["spin"] = np.array([0.5 * (number == 3)] * 3)
        graphs.append(from_ase(atoms, 5.0, fields=[charge, spins]))
    assert structure_labels(MemoryStore(graphs)).tolist()[:2] == [structure_labels(MemoryStore(graphs))[0]] * 2
    assert len({*structure_labels(MemoryStore(graphs)).tolist()}) == 3
    far = [Atoms("CuCu", [[0, 0, 0], [0, 0, length]]) for length in (7.0, 8.0, 9.0)]
    assert len({*structure_labels(store_of(far)).tolist()}) == 3


def test_a_split_keeps_copies_together_and_counts_those_that_are_parted() -> None:
    frames = [shaken(bulk("Cu", cubic=True), 0.1, seed) for seed in range(20)]
    store = store_of([*frames, *map(all_at_once, (atoms.copy() for atoms in frames))])
    assert len({*copy_labels(store).tolist()}) == 40
    random = SplitSettings(train=0.5, valid=0.25)
    assert copies_across(store, make_split(store, random)).count > 5
    together = make_split(store, SplitSettings(kind="group", field="duplicates", train=0.5, valid=0.25))
    assert copies_across(store, together).count == 0
    for part in (together.train, together.valid, together.test):
        assert {*(part % 20)} == {*part[part < 20]}


def test_copies_among_many_frames_are_found() -> None:
    frames = [shaken(bulk("Cu", cubic=True), 0.05, seed) for seed in range(800)]
    copies = [permuted(shifted(frames[number].copy())) for number in range(0, 800, 10)]
    store = store_of([*frames, *copies])
    assert len({*structure_labels(store).tolist()}) == 800
