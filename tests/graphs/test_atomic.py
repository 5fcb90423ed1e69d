"""Structures, one by one and together: parity with ASE's neighbour list, symmetries, labels and their units."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read
from ase.neighborlist import neighbor_list
from ase.stress import voigt_6_to_full_3x3_stress

from hydragnn.base.errors import InputError
from hydragnn.graphs import ATOMIC_NUMBERS, Field, concatenate, edge_vectors, validate
from hydragnn.graphs.atomic import from_ase, neighbour_list
from hydragnn.graphs.together import from_ase_together
from tests.graphs.geometry import assert_same
from tests.refusals import refuses

ENERGY = Field(name="energy", on="graph", unit="eV", role="target", dtype="float64")
FORCES = Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target")
STRESS = Field(name="stress", on="graph", shape=(3, 3), unit="eV/Angstrom^3", parity="tensor", role="target")


def rattled(atoms: Atoms, seed: int = 0) -> Atoms:
    atoms = atoms.copy()
    atoms.rattle(0.1, seed=seed)
    return atoms


def slab() -> Atoms:
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.pbc = (True, True, False)
    return rattled(atoms)


def skewed() -> Atoms:
    cell = [[3.0, 0.1, 0.0], [1.4, 2.5, 0.3], [-1.0, 0.5, 4.0]]
    return Atoms("CuAgAu", scaled_positions=[[0.1, 0.2, -3.3], [1.4, 7.7, 0.6], [-0.3, 0.9, 0.1]], cell=cell, pbc=True)


STRUCTURES = {
    "molecule": lambda: molecule("C2H6"),
    "one atom alone": lambda: Atoms("He"),
    "one atom in a small periodic cell": lambda: bulk("Cu"),
    "bulk": lambda: rattled(bulk("Cu", cubic=True) * (2, 2, 2)),
    "slab": slab,
    "wire without other cell vectors": lambda: Atoms("Cu2", [[0, 0, -5], [1.0, 1.0, 7]], cell=[3, 0, 0], pbc=[1, 0, 0]),
    "skewed cell, atoms far outside": skewed,
    "molecule in a box, not periodic": lambda: Atoms("H2", [[0, 0, 0], [0, 0, 9.5]], cell=[10, 10, 10]),
}


@pytest.mark.parametrize("place", ["as it is", "moved", "turned"])
@pytest.mark.parametrize(
    ("lattice", "shells"), [("fcc", {0.5**0.5: 12, 1.0: 18, 1.5**0.5: 42}), ("bcc", {0.75**0.5: 8, 1.0: 14})]
)
def test_a_shell_of_a_crystal_at_the_cutoff_is_whole(lattice: str, shells: dict[float, int], place: str) -> None:
    atoms = bulk("Cu", lattice, a=3.61, cubic=True) * (3, 1, 2)
    if place == "moved":
        atoms.positions += [0.1, -7.3, 2.7]
    elif place == "turned":
        atoms.rotate(37, (1, 2, 3), rotate_cell=True)
    for distance, neighbours in shells.items():
        degrees = np.bincount(from_ase(atoms, 3.61 * distance).receivers)
        assert (degrees == neighbours).all()


@pytest.mark.parametrize("spacing", [1e-9, 1 / 30, 4e6])
def test_points_of_a_grid_have_the_same_neighbours_in_every_unit(spacing: float) -> None:
    numbers = np.stack(np.meshgrid(np.arange(9), np.arange(9), [0], indexing="ij"), axis=-1).reshape(-1, 3)
    points, cell = (numbers + 0.3) * spacing, np.diag([9 * spacing, 9 * spacing, 1.0])
    for distance, neighbours in ((1.0, 4), (2**0.5, 8), (2.0, 12)):
        _, receivers, _ = neighbour_list(points, cell, [True, True, False], spacing * distance)
        assert (np.bincount(receivers) == neighbours).all()
    senders, receivers, shifts = neighbour_list(points, cell, [True, True, False], 2 * spacing, 4)
    lengths = np.linalg.norm(points[senders] + shifts @ cell - points[receivers], axis=1)
    np.testing.assert_allclose(lengths, spacing)  # the nearest are kept
    points[1] = points[0]
    refuses("nodes 0 and 1 are 0 apart", neighbour_list, points, cell, [True, True, False], spacing)


@pytest.mark.parametrize("cutoff", [1.5, 3.2, 6.1])
@pytest.mark.parametrize("case", STRUCTURES)
def test_edges_are_those_of_ase(case: str, cutoff: float) -> None:
    atoms = STRUCTURES[case]()
    graph = validate(from_ase(atoms, cutoff))
    receivers, senders, vectors = neighbor_list("ijD", atoms, cutoff)
    ours = np.column_stack([graph.receivers, graph.senders, edge_vectors(graph).numpy().round(9)])
    theirs = np.column_stack([receivers, senders, vectors.round(9)])
    # +0.0 turns -0.0 into 0.0, which sort apart
    np.testing.assert_allclose(*(rows[np.lexsort((rows + 0.0).T[::-1])] for rows in (ours, theirs)), atol=2e-9)


def test_truncation_keeps_the_nearest_at_every_receiver() -> None:
    graph, full = from_ase(slab(), 5.0, max_neighbours=7), from_ase(slab(), 5.0)
    assert (graph.topology.degrees == torch.minimum(full.topology.degrees, torch.tensor(7))).all()
    for node in range(graph.num_nodes):
        lengths = edge_vectors(graph)[graph.receivers == node].norm(dim=1)
        every = edge_vectors(full)[full.receivers == node].norm(dim=1).sort().values
        torch.testing.assert_close(lengths.sort().values, every[:7])


def test_truncation_of_equal_distances_does_not_depend_on_rounding() -> None:
    atoms = bulk("Cu", cubic=True)
    moved = atoms.copy()
    moved.translate([0.123, 0.456, 0.789])
    first, second = (from_ase(a, 3.0, max_neighbours=5) for a in (atoms, moved))
    assert torch.equal(first.senders, second.senders)
    torch.testing.assert_close(first.edge_shifts, second.edge_shifts)


def test_labels_come_from_a_calculator_in_ase_units_and_signs() -> None:
    atoms = rattled(bulk("Cu", cubic=True))
    atoms.calc = EMT()
    atoms.get_stress(), atoms.get_forces()
    graph = from_ase(atoms, 4.0, fields=[ENERGY, FORCES, STRESS])
    assert float(graph["energy"]) == pytest.approx(atoms.get_potential_energy())
    np.testing.assert_allclose(graph["forces"], atoms.get_forces(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(graph["stress"][0], voigt_6_to_full_3x3_stress(atoms.get_stress()), rtol=1e-6)


def test_labels_come_from_info_and_arrays_under_other_names_and_optional_ones_may_be_absent() -> None:
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])
    atoms.info["REF_energy"] = -31.0
    atoms.arrays["F"] = np.ones((2, 3))
    graph = from_ase(atoms, 2.0, fields=[ENERGY, FORCES], keys={"energy": "REF_energy", "forces": "F"})
    assert float(graph["energy"]) == -31.0
    assert graph["forces"].sum() == 6.0
    assert list(from_ase(Atoms("H"), 2.0, fields=[ENERGY], optional=["energy"]).fields) == [ATOMIC_NUMBERS]


COLUMNS = """2
Lattice="4 0 0 0 4 0 0 0 4" Properties=species:S:1:pos:R:3:{column}:R:1 pbc="T T T" total=-3.0
H 0 0 0 0.25
H 1 0 0 -0.5
"""


@pytest.mark.parametrize("column", ["charge", "charges", "magmom", "magmoms", "initial_charges", "mine"])
def test_a_column_of_a_file_is_found_wherever_ase_puts_it(column: str) -> None:
    atoms = read(StringIO(COLUMNS.format(column=column)), format="extxyz")
    field = Field(name=column, on="node", role="target")
    assert from_ase(atoms, 2.0, fields=[field], optional=[column])[column].tolist() == [0.25, -0.5]


def test_two_labels_that_differ_are_refused() -> None:
    atoms = read(StringIO(COLUMNS.format(column="charge")), format="extxyz")
    field = Field(name="charge", on="node", role="target")
    atoms.arrays["charge"] = np.array([0.25, -0.5])
    assert from_ase(atoms, 2.0, fields=[field])["charge"].tolist() == [0.25, -0.5]
    atoms.arrays["charge"][1] = 0.5
    with pytest.raises(InputError, match=r"two values of charge that differ: .* one in atoms.arrays; remove one"):
        from_ase(atoms, 2.0, fields=[field], optional=["charge"])


def changed(atoms: Atoms, calculator: Any = None, **changes: Any) -> Atoms:
    atoms.calc = calculator
    for name, value in changes.items():
        setattr(atoms, name, value)
    return atoms


def stressed(**changes: Any) -> Atoms:
    atoms = changed(bulk("Cu", cubic=True), **changes)
    return changed(atoms, SinglePointCalculator(atoms, energy=1.0, stress=np.zeros(6)))


HYDROGEN = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])
BOTTOM = Atoms("H2", [[0, 0, 0], [5, 0, 0]], cell=[5, 5, 5], pbc=True)
VOLUMELESS = {"fields": [STRESS], "optional": ["stress"]}
FLAT = [[1, 0, 0], [2, 0, 0], [0, 0, 3]]
MOVED = SinglePointCalculator(HYDROGEN, energy=-31.0)
WRONG: list[tuple[Callable[[], Atoms], dict[str, Any], str]] = [
    (lambda: Atoms(), {}, "no atoms"),
    (lambda: Atoms("H3", [[0, 0, 0], [1, 1, 1], [0, 0, 1e-6]]), {}, "nodes 0 and 2 are"),
    (lambda: BOTTOM, {}, "remove the duplicate"),  # through the cell
    (lambda: changed(HYDROGEN.copy(), positions=[[0, 0, 0], [np.nan] * 3]), {}, "NaN or infinite"),
    (lambda: changed(bulk("Cu"), EMT()), {"fields": [ENERGY]}, "no energy for the field energy"),
    (lambda: changed(HYDROGEN.copy(), MOVED, positions=np.eye(2, 3)), {"fields": [ENERGY]}, "other positions"),
    (lambda: stressed(pbc=False), VOLUMELESS, "has a stress and no volume"),
    (lambda: stressed(cell=[3.6, 3.6, 0], pbc=(True, True, False)), VOLUMELESS, "has a stress and no volume"),
    (lambda: Atoms("H", cell=[5, 5, 0], pbc=True), {}, "periodic along c"),
    (lambda: Atoms("H", cell=FLAT, pbc=True), {}, "singular"),
    (lambda: Atoms("H"), {"cutoff": 0.0}, "not a positive length"),
    (lambda: Atoms("H"), {"cutoff": float("nan")}, "not a positive length"),
    (lambda: Atoms("H"), {"max_neighbours": 0}, "at least 1"),
    (lambda: Atoms("H"), {"fields": [FORCES]}, "no forces .* atoms.arrays has numbers, positions"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_what_is_wrong_is_named(make: Callable[[], Atoms], arguments: dict[str, Any], message: str) -> None:
    refuses(message, from_ase, make(), **{"cutoff": 3.0, **arguments})


FIELDS = [
    Field(name="energy", on="graph", dtype="float64", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target"),
    Field(name="tag", on="node", classes=4, dtype="int64"),
]
OPTIONS: dict[str, Any] = {"fields": FIELDS, "optional": [one.name for one in FIELDS]}
MOLECULES = ("H2O", "CH4", "C6H6", "CH3CH2OH", "H2O", "O2")


def labelled(atoms: Atoms, seed: int) -> Atoms:
    """The structure with an energy and forces, and a stress where it has a volume; every third has none of them."""
    rng = np.random.default_rng(seed)
    atoms.rattle(0.02, seed=seed)
    results = {"energy": rng.normal(), "forces": rng.normal(size=(len(atoms), 3))}
    if atoms.pbc.all():
        results["stress"] = rng.normal(size=6)
    if seed % 3:
        atoms.calc = SinglePointCalculator(atoms, **results)
    if seed % 2:
        atoms.arrays["tag"] = rng.integers(0, 4, len(atoms))
    return atoms


def mixed_structures() -> list[Atoms]:
    """Molecules, some of one size, clusters beyond the size where all pairs are looked at, crystals, a slab, a wire and far atoms."""
    some = [molecule(name) for name in MOLECULES] + [Atoms("He")]
    some += [bulk("Cu", "fcc", a=3.6), bulk("NaCl", "rocksalt", a=5.6, cubic=True), bulk("Fe", "bcc", a=2.9).repeat(3)]
    wire = Atoms("C2", [[0, 0, 0], [0, 0, 1.3]], cell=[0, 0, 2.6], pbc=[False, False, True])
    some += [fcc111("Al", (2, 2, 3), vacuum=6.0), wire]
    cluster = bulk("Cu", "fcc", a=3.6, cubic=True).repeat(3)
    cluster.pbc = False
    unwrapped = bulk("Cu", "fcc", a=3.6, cubic=True)
    unwrapped.positions[1] += 40 * unwrapped.cell[0]
    return [labelled(atoms, seed) for seed, atoms in enumerate([*some, cluster, unwrapped, *map(molecule, MOLECULES)])]


@pytest.mark.parametrize("more", [{}, {"max_neighbours": 6}], ids=["all neighbours", "six neighbours"])
@pytest.mark.parametrize("cutoff", [1.5, 5.0])
def test_graphs_made_together_are_those_made_one_by_one(cutoff: float, more: dict[str, Any]) -> None:
    batch = from_ase_together(mixed_structures(), cutoff, **OPTIONS, **more)
    assert batch is not None
    assert_same(batch, concatenate([from_ase(atoms, cutoff, **OPTIONS, **more) for atoms in mixed_structures()]))


def test_the_shell_of_a_grid_is_there_as_a_whole() -> None:
    grid = Atoms("Ar27", positions=3.1 * np.stack(np.meshgrid(*3 * [range(3)]), axis=-1).reshape(-1, 3))
    batch = from_ase_together([grid, grid], 3.1)
    assert batch is not None and batch.num_edges == 2 * 108


def methane(change: Callable[[Atoms], Any]) -> Atoms:
    atoms = molecule("CH4")
    change(atoms)
    return atoms


FAULTY: dict[str, Callable[[], Atoms]] = {
    "two atoms at one place": lambda: methane(lambda a: a.positions.__setitem__(1, a.positions[0] + 1e-5)),
    "no number": lambda: methane(lambda a: a.positions.__setitem__((1, 1), np.nan)),
    "flat cell": lambda: Atoms("H", cell=[[1, 0, 0], [1, 1e-12, 0], [0, 0, 1]], pbc=True),
    "no vector": lambda: Atoms("H", pbc=True),
    "a broken class": lambda: methane(lambda a: a.arrays.update(tag=np.array([0, 1, 2, 3, 4]))),
    "values without a number": lambda: methane(lambda a: a.info.update(energy="low")),
    "forces of others": lambda: methane(lambda a: a.arrays.update(forces=np.zeros((4, 3)))),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_what_is_wrong_with_one_structure_is_left_to_the_way_that_names_it(kind: str) -> None:
    assert from_ase_together([molecule("H2O"), FAULTY[kind]()], 3.0, **OPTIONS) is None
    with pytest.raises(InputError):
        from_ase(FAULTY[kind](), 3.0, **OPTIONS)
