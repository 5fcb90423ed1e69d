"""Trial of a calculator: do its energy, forces and stress fit together?"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ase import Atoms

from hydragnn.base.errors import InputError, as_note
from hydragnn.graphs.units import in_ase_units

TRIED = 20
"""Structures after which a calculator that refuses all of them remains untried."""
STEP = 0.01
"""Steps of differences: Angstrom of the atom that moves most, or a strain."""
PRESTRAIN = 0.02 * np.array([[1, -1, 0], [-1, 0, 1], [0, 1, -1]])
"""Components in another order are other numbers here."""
CLOSE = 0.15
"""Share of a difference that forces and stress may miss: no two units are so near, and forces that are no gradients miss less."""
WEIGHTS = {"strain": {1: 0.5, -1: -0.5}, "shift": {1: 2 / 3, -1: -2 / 3, 2: -1 / 12, -2: 1 / 12}}
"""Weights of the energies of steps in a derivative. Small forces need the third order, too."""
NOISE, OF_TOTAL = 1e-4, 3e-7
"""eV per atom (a fifth of it under a shift), and share of the energy, by which a result in single precision may differ."""
ENERGIES = ("kcal/mol", "kJ/mol", "Hartree", "Rydberg", "meV")
UNITS = {
    "forces": ("Hartree/Bohr", "Rydberg/Bohr", "eV/Bohr", "eV/nm", "kcal/mol/Angstrom", "kJ/mol/Angstrom", "kJ/mol/nm"),
    "stress": ("GPa", "kbar", "bar", "MPa", "Pa", "Hartree/Bohr^3", "Rydberg/Bohr^3", "kcal/mol/Angstrom^3"),
}
Results = Callable[[Atoms], dict[str, Any]]


def check_calculator(name: str, results: Results, frames: Sequence[Atoms]) -> str:
    """Return a note on what was not tried; InputError for wrong results.

    The smallest structure that ``results`` takes, crystals first, is repeated, in another order and place, doubled, displaced and strained.
    """
    notes = ["its units were not checked: no structure has two atoms"]
    enough = [one for one in frames if len(one) > 1 or one.pbc.any()]
    for frame in sorted(enough, key=lambda one: (-int(one.pbc.sum()), len(one)))[:TRIED]:
        notes, problem = [], None
        with as_note("its units were not checked", notes.append):
            problem = next(problems_of(shaken(frame), results), "")
        if problem:
            raise InputError(
                f"{name} cannot be taken: {problem}. Results of ASE are eV, eV/Angstrom and eV/Angstrom^3 (xx, yy, zz, yz, xz, xy; "
                "positive under tension); convert them in your function"
            )
        if not notes:
            with as_note(f"it refuses an isolated {frame.symbols[0]}", notes.append):
                results(Atoms(frame.symbols[:1]))
            break
    return "".join(notes)


def doubled(atoms: Atoms) -> Atoms:
    """Return two copies along a periodic axis."""
    return atoms.repeat(np.where(np.arange(3) == np.argmax(atoms.pbc), 2, 1))


def changed(atoms: Atoms, shift: Any = 0.0, strain: Any = 0.0) -> Atoms:
    """Return a copy with other positions, in a strained cell."""
    atoms = atoms.copy()
    atoms.positions += shift
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=bool(np.any(strain)))
    return atoms


def shaken(frame: Atoms) -> Atoms:
    """Return a copy away from symmetry, of two atoms or more."""
    atoms = doubled(frame) if len(frame) == 1 else frame.copy()
    atoms.set_constraint()
    atoms.rattle(0.05, seed=1)
    return changed(atoms, strain=PRESTRAIN) if atoms.pbc.any() and atoms.cell.rank == 3 else atoms


def problems_of(atoms: Atoms, results: Results) -> Iterator[str]:
    """Yield what does not fit together in the results for a structure."""
    first, second, order = results(atoms), results(atoms), np.roll(np.arange(len(atoms)), 1)
    energy, noise = first["energy"], NOISE * len(atoms) + OF_TOTAL * abs(first["energy"])
    other = changed(atoms, [1.3, -2.1, 0.7])[order]
    other.wrap()
    for words, one, own, allowed in (
        ("a second time", second, slice(None), noise),
        ("in another order and place", results(other), order, 10 * noise),
    ):
        if abs(one["energy"] - energy) > allowed:
            yield f"its energy of a structure is {energy:.8g} eV, and {words} {one['energy']:.8g} eV"
        if "forces" in first and "forces" in one:
            error, size = np.abs(one["forces"] - first["forces"][own]).max(), np.abs(first["forces"]).max()
            if error > CLOSE * size + 100 * NOISE:
                yield f"its forces differ {words} by {error:.3g} of {size:.3g} eV/Angstrom"
    if atoms.pbc.any() and not any(atoms.info.get(key) for key in ("charge", "spin")):
        twice = results(doubled(atoms))["energy"]
        if abs(twice - 2 * energy) > CLOSE * abs(2 * energy) + 10 * noise:
            yield f"a cell twice as long has an energy of {twice:.6g} eV, not twice {energy:.6g}; is it per atom?"
    steps: list[tuple[str, str, Any, float]] = []
    if "forces" in first:
        along = direction(first["forces"], np.random.default_rng(0).normal(size=(len(atoms), 3)))
        steps.append(("forces", "shift", along * STEP / np.linalg.norm(along, axis=1).max(), -1.0))
    if "stress" in first:
        mean, usual = np.eye(3) / 3 * np.trace(first["stress"]), np.diag(np.diag(PRESTRAIN))
        rest = np.diag(np.diag(first["stress"])) - mean
        parts = ((mean, np.eye(3)), (rest, usual), (first["stress"] - mean - rest, PRESTRAIN - usual))
        steps += [("stress", "strain", STEP * direction(*part), atoms.get_volume()) for part in parts]
    for what, how, step, scale in steps:
        stated = scale * float((first[what] * step).sum())
        ends = {sign: results(changed(atoms, **{how: sign * step}))["energy"] for sign in WEIGHTS[how]}
        true = sum(WEIGHTS[how][sign] * ends[sign] for sign in ends)
        allowed = noise if how == "strain" else noise - 0.8 * NOISE * len(atoms)
        if abs(stated - true) > CLOSE * max(abs(stated), abs(true)) + allowed:
            factor = stated / (true or 1e-12)
            unit = unit_of(factor, what, {"energies per atom": float(len(atoms)), "a virial in eV": abs(scale)})
            yield f"its {what} and the derivative of its energy differ by a factor of {factor:.4g}{unit}"


def direction(values: Any, default: Any) -> Any:
    """Return the direction of some numbers; of ``default`` where they vanish."""
    size = np.linalg.norm(values)
    return values / size if size > 1e-9 else default / np.linalg.norm(default)


def unit_of(factor: float, what: str, others: dict[str, float]) -> str:
    """Return the units that explain a factor, as a question, or nothing.

    >>> unit_of(160.3, "stress", {}), unit_of(-1.0, "forces", {}), unit_of(7.0, "forces", {})
    (' (GPa?)', ' (the other sign?)', '')
    """
    units = {"the other sign": -1.0, **others} | {unit: 1 / in_ase_units(unit, what, unit) for unit in UNITS[what]}
    units |= {f"energies in {unit}": in_ase_units(unit, "energy", unit) for unit in ENERGIES}
    units |= {f"{unit} with the other sign": -value for unit, value in units.items() if value > 1.1 or 0 < value < 0.9}
    near = [unit for unit, value in units.items() if abs(factor / value - 1) < 0.1]
    return f" ({' or '.join(near[:2])}?)" if near else ""
