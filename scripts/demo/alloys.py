"""Atomic scale: fcc alloys labelled with ASE's effective-medium potential."""

from functools import partial
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT

from hydragnn.graphs import Field, GraphBatch, from_ase
from hydragnn.scripts.demo.writing import write_samples

ELEMENTS = {"Al": 4.05, "Cu": 3.61, "Ag": 4.09, "Au": 4.08, "Ni": 3.52, "Pd": 3.89, "Pt": 3.92}  # Angstrom
CUTOFF = 4.5  # Angstrom: the first shell and, where compressed, the second
LABELS = (
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
)
REPEATS = ((1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2))


def make_alloys(out: Path, *, samples: int = 1000, seed: int = 0) -> None:
    """Make a store of alloys with EMT energies and forces.

    Half are bulk cells of 4 to 32 atoms, a quarter slabs (periodic in the plane), a quarter clusters of 4 to 20 atoms;
    all are strained and rattled. EMT: Jacobsen et al. 1996, doi:10.1016/0039-6028(96)00816-3.
    """
    attributes = {
        "source": "fcc alloys made by hydragnn.scripts.demo.alloys",
        "labels": "effective-medium theory (ASE's EMT), a model potential",
        "length_unit": "Angstrom",
        "cutoff": CUTOFF,
        "seed": seed,
    }
    write_samples(out, partial(labelled_alloy, seed=seed), samples, title="alloys", attributes=attributes)


def labelled_alloy(number: int, seed: int) -> GraphBatch:
    """Return one structure as a graph with energy (eV) and forces (eV/Angstrom)."""
    atoms = alloy(np.random.default_rng([seed, number]))
    atoms.calc = EMT()
    atoms.get_forces()
    return from_ase(atoms, CUTOFF, fields=LABELS, name=f"alloy {number}")


def alloy(generator: np.random.Generator) -> Atoms:
    """Return a random bulk, slab or cluster of two or three elements."""
    kinds = generator.choice(list(ELEMENTS), size=generator.integers(2, 4), replace=False)
    shares = generator.dirichlet(np.ones(len(kinds)))
    lattice = float(shares @ [ELEMENTS[kind] for kind in kinds])  # Vegard's law
    atoms = SHAPES[generator.choice(list(SHAPES), p=[0.5, 0.25, 0.25])](lattice, generator)
    atoms.symbols[:] = generator.choice(kinds, size=len(atoms), p=shares)
    strain, shear = np.eye(3) * generator.normal(0.0, 0.02), generator.normal(0.0, 0.015, (3, 3))
    strain = strain + (shear + shear.T) / 2
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=False)
    atoms.positions = atoms.positions @ (np.eye(3) + strain)
    atoms.positions += generator.normal(0.0, generator.uniform(0.02, 0.12), atoms.positions.shape)
    return atoms


def _bulk(lattice: float, generator: np.random.Generator) -> Atoms:
    return bulk("Cu", "fcc", a=lattice, cubic=True) * REPEATS[generator.integers(len(REPEATS))]


def _slab(lattice: float, generator: np.random.Generator) -> Atoms:
    size = (2, int(generator.integers(2, 4)), int(generator.integers(2, 4)))
    return fcc111("Cu", size, a=lattice, vacuum=8.0, periodic=False)


def _cluster(lattice: float, generator: np.random.Generator) -> Atoms:
    block = bulk("Cu", "fcc", a=lattice, cubic=True) * (3, 3, 3)
    centre = block.cell.sum(axis=0) / 2 + generator.uniform(-0.5, 0.5, 3) * lattice
    nearest = np.argsort(np.linalg.norm(block.positions - centre, axis=1), kind="stable")
    cluster = block[nearest[: generator.integers(4, 21)]]
    return Atoms(cluster.symbols, cluster.positions)


SHAPES = {"bulk": _bulk, "slab": _slab, "cluster": _cluster}
