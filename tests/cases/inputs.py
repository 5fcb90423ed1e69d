"""Crystals labelled by EMT, with a build file and the configuration of a training."""

from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

TARGETS = """
[[fields]]
name = "energy"
on = "graph"
unit = "eV"
role = "target"
[[fields]]
name = "forces"
on = "node"
shape = [3]
parity = "vector"
unit = "eV/Angstrom"
role = "target"
"""
STRESS = """
[[fields]]
name = "stress"
on = "graph"
shape = [3, 3]
parity = "tensor"
unit = "eV/Angstrom^3"
role = "target"
optional = true
"""
RUN = """
[data]
store = "{store}"
[model]
kind = "schnet"
hidden_dim = 16
num_layers = 2
[[heads]]
kind = "energy"
field = "energy"
references = true
{more}
[train]
epochs = {epochs}
[batch]
max_graphs = 8
"""


def labelled(atoms: Atoms, stress: bool = True) -> Atoms:
    """Return the structure with EMT's energy and forces, and with its stress unless that is left out."""
    copy = atoms.copy()
    copy.calc = EMT()
    results = {"energy": copy.get_potential_energy(), "forces": copy.get_forces()}
    results |= {"stress": copy.get_stress(voigt=True)} if stress else {}
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def crystals(count: int) -> list[Atoms]:
    """Return strained and rattled copper and silver cells of four and eight atoms."""
    rng = np.random.default_rng(0)
    frames = []
    for number in range(count):
        atoms = bulk(("Cu", "Ag")[number % 2], "fcc", cubic=True).repeat((1 + number % 2, 1, 1))
        if number % 3 == 0:
            atoms.numbers[0] = (47, 29)[number % 2]
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.03, (3, 3))), scale_atoms=True)
        atoms.positions += rng.normal(0, 0.08, atoms.positions.shape)
        frames.append(labelled(atoms))
    return frames


def write_crystals(folder: Path, count: int = 40) -> None:
    write(folder / "crystals.xyz", crystals(count), format="extxyz")
    (folder / "crystals.toml").write_text(
        f'kind = "ase"\nfiles = ["crystals.xyz"]\ncutoff = 5.0\n{TARGETS}{STRESS}', encoding="utf-8"
    )
    more = 'forces = "forces"\nstress = "stress"'
    (folder / "run.toml").write_text(RUN.format(store="crystals.h5", more=more, epochs=2), encoding="utf-8")
