"""Graphs of many structures at once have the bits of those that are made one by one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn.base.errors import InputError
from hydragnn.graphs import Field, concatenate
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.together import from_ase_together
from tests.graphs.geometry import assert_same

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


def structures() -> list[Atoms]:
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
    batch = from_ase_together(structures(), cutoff, **OPTIONS, **more)
    assert batch is not None
    assert_same(batch, concatenate([from_ase(atoms, cutoff, **OPTIONS, **more) for atoms in structures()]))


def test_the_shell_of_a_grid_is_there_as_a_whole() -> None:
    grid = Atoms("Ar27", positions=3.1 * np.stack(np.meshgrid(*3 * [range(3)]), axis=-1).reshape(-1, 3))
    batch = from_ase_together([grid, grid], 3.1)
    assert batch is not None and batch.num_edges == 2 * 108


def changed(change: Callable[[Atoms], Any]) -> Atoms:
    atoms = molecule("CH4")
    change(atoms)
    return atoms


FAULTY: dict[str, Callable[[], Atoms]] = {
    "two atoms at one place": lambda: changed(lambda a: a.positions.__setitem__(1, a.positions[0] + 1e-5)),
    "no number": lambda: changed(lambda a: a.positions.__setitem__((1, 1), np.nan)),
    "flat cell": lambda: Atoms("H", cell=[[1, 0, 0], [1, 1e-12, 0], [0, 0, 1]], pbc=True),
    "no vector": lambda: Atoms("H", pbc=True),
    "a broken class": lambda: changed(lambda a: a.arrays.update(tag=np.array([0, 1, 2, 3, 4]))),
    "values without a number": lambda: changed(lambda a: a.info.update(energy="low")),
    "forces of others": lambda: changed(lambda a: a.arrays.update(forces=np.zeros((4, 3)))),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_what_is_wrong_with_one_structure_is_left_to_the_way_that_names_it(kind: str) -> None:
    assert from_ase_together([molecule("H2O"), FAULTY[kind]()], 3.0, **OPTIONS) is None
    with pytest.raises(InputError):
        from_ase(FAULTY[kind](), 3.0, **OPTIONS)
