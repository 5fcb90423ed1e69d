"""Trial of a calculator of others: do its energy, forces and stress fit together?"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ase import Atoms

from hydragnn.base.errors import InputError, Interrupted, words_of
from hydragnn.graphs.units import in_ase_units

TRIED = 20
"""Structures after which a calculator that refuses all of them remains untried."""
RATTLE, STEP, STRAIN = 0.05, 0.01, 0.01
"""Angstrom of random displacements, and steps of differences: of the atom that moves most, and of a strain."""
PRESTRAIN = 0.02 * np.array([[1, -1, 0], [-1, 0, 1], [0, 1, -1]])
"""Components in another order are other numbers here."""
CLOSE = 0.15
"""Share of a difference that forces and stress may miss: no two units are so near, and forces that are no gradients miss less."""
NOISE, OF_TOTAL = 1e-4, 3e-7
"""eV per atom, and share of the energy, by which a result in single precision may differ."""
UNITS = {
    "energy": ("kcal/mol", "kJ/mol", "Hartree", "Rydberg", "meV"),
    "forces": ("Hartree/Bohr", "Rydberg/Bohr", "eV/Bohr", "eV/nm", "kcal/mol/Angstrom", "kJ/mol/Angstrom", "kJ/mol/nm"),
    "stress": ("GPa", "kbar", "bar", "MPa", "Pa", "Hartree/Bohr^3", "Rydberg/Bohr^3", "kcal/mol/Angstrom^3"),
}
Results = Callable[[Atoms], dict[str, Any]]


def check_calculator(name: str, results: Results, frames: Sequence[Atoms]) -> str:
    """Return a note on what was not tried; InputError where results do not fit together.

    A structure of the user's, the smallest that ``results`` takes, crystals first: repeated, in another order and place, doubled, displaced and strained.
    """
    enough = [one for one in frames if len(one) > 1 or one.pbc.any()]
    reason = "no structure has two atoms"
    for frame in sorted(enough, key=lambda one: (-int(one.pbc.sum()), len(one)))[:TRIED]:
        try:
            problem = next(problems_of(shaken_copy(frame), results), "")
        except Interrupted:
            raise
        except Exception as error:  # whatever that program raises
            reason = words_of(error)
            continue
        if problem:
            raise InputError(
                f"{name} cannot be taken: {problem}. Results of ASE are eV, eV/Angstrom and eV/Angstrom^3 (xx, yy, zz, yz, xz, xy; "
                "positive under tension); convert them in your function"
            )
        try:
            results(Atoms(frame.symbols[:1]))
        except Interrupted:
            raise
        except Exception as error:  # as above
            return f"it refuses an isolated {frame.symbols[0]} ({words_of(error)})"
        return ""
    return f"its units were not checked, since {reason}"


def shaken_copy(frame: Atoms) -> Atoms:
    """Return a copy away from symmetry, of two atoms or more."""
    atoms = frame.copy()
    atoms.set_constraint()
    if len(atoms) == 1:
        atoms = atoms.repeat(np.where(np.arange(3) == np.argmax(atoms.pbc), 2, 1))
    atoms.rattle(RATTLE, seed=1)
    return strained(atoms, PRESTRAIN) if has_stress(atoms) else atoms


def has_stress(atoms: Atoms) -> bool:
    """Return whether a stress is defined."""
    return bool(atoms.pbc.any()) and atoms.cell.rank == 3


def strained(atoms: Atoms, strain: Any) -> Atoms:
    """Return a copy under a strain."""
    atoms = atoms.copy()
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
    return atoms


def moved(atoms: Atoms, by: Any) -> Atoms:
    """Return a copy with other positions."""
    atoms = atoms.copy()
    atoms.positions += by
    return atoms


def problems_of(atoms: Atoms, results: Results) -> Iterator[str]:
    """Yield what does not fit together in the results for a structure."""
    first, again = results(atoms), results(atoms)
    energy, noise = first["energy"], NOISE * len(atoms) + OF_TOTAL * abs(first["energy"])
    if abs(again["energy"] - energy) > noise:
        yield f"one structure has an energy of {energy:.8g} eV, and then {again['energy']:.8g}"
    order = np.roll(np.arange(len(atoms)), 1)
    other = moved(atoms, [1.3, -2.1, 0.7])[order]
    other.wrap()
    elsewhere = results(other)
    if abs(elsewhere["energy"] - energy) > 10 * noise:
        yield f"its energy of atoms in another order and place is {elsewhere['energy']:.8g} eV, and was {energy:.8g}"
    for what, one in (("forces", order), ("stress", slice(None))) if "forces" in first else ():
        if what in first and what in elsewhere:
            error = np.abs(elsewhere[what] - first[what][one]).max()
            if error > CLOSE * np.abs(first[what]).max() + 100 * NOISE:
                yield f"its {what} of atoms in another order and place differ by {error:.3g} of {np.abs(first[what]).max():.3g}"
    if atoms.pbc.any() and not any(atoms.info.get(key) for key in ("charge", "spin")):
        twice = results(atoms.repeat(np.where(np.arange(3) == np.argmax(atoms.pbc), 2, 1)))["energy"]
        if abs(twice - 2 * energy) > CLOSE * abs(2 * energy) + 10 * noise:
            yield f"a cell twice as long has an energy of {twice:.6g} eV, not twice {energy:.6g}; is it per atom?"

    def seen(
        what: str, change: Callable[[Atoms, Any], Atoms], step: Any, stated: float, volume: float
    ) -> Iterator[str]:
        true = (results(change(atoms, step))["energy"] - results(change(atoms, -step))["energy"]) / 2
        if abs(stated - true) > CLOSE * max(abs(stated), abs(true)) + noise:
            factor = stated / true if true else np.inf
            yield (
                f"its {what} is {factor:.4g} times the derivative of its energy"
                f"{unit_of(factor, what, {'energy per atom': float(len(atoms)), 'a virial in eV': volume})}"
            )

    if "forces" in first:
        along = direction(first["forces"], np.random.default_rng(0).normal(size=(len(atoms), 3)))
        step = along * STEP / np.linalg.norm(along, axis=1).max()
        yield from seen("forces", moved, step, -float((first["forces"] * step).sum()), 1.0)
    if "stress" in first:
        mean, volume = np.eye(3) / 3 * np.trace(first["stress"]), atoms.get_volume()
        diagonal = np.diag(np.diag(first["stress"])) - mean
        usual = np.diag(np.diag(PRESTRAIN))
        parts = ((mean, np.eye(3)), (diagonal, usual), (first["stress"] - mean - diagonal, PRESTRAIN - usual))
        for part, default in parts:
            step = STRAIN * direction(part, default)
            yield from seen("stress", strained, step, float((first["stress"] * step).sum()) * volume, volume)


def direction(values: Any, default: Any) -> Any:
    """Return the direction of some numbers; of ``default`` where they vanish."""
    size = np.linalg.norm(values)
    return values / size if size > 1e-9 else default / np.linalg.norm(default)


def unit_of(factor: float, what: str, others: dict[str, float]) -> str:
    """Return the unit that explains a factor, as a question in brackets, or nothing.

    >>> unit_of(160.3, "stress", {}), unit_of(-1.0, "forces", {}), unit_of(7.0, "forces", {})
    (' (GPa?)', ' (the other sign?)', '')
    """
    known = others | {unit: 1 / in_ase_units(unit, what, unit) for unit in UNITS[what]}
    if what != "energy":
        known |= {f"energy in {unit}": in_ase_units(unit, "energy", unit) for unit in UNITS["energy"]}
    near = [unit for unit, value in {"the other sign": -1.0, **known}.items() if abs(factor / value - 1) < 0.1]
    near += [f"{unit}, with the other sign" for unit, value in known.items() if abs(factor / value + 1) < 0.1]
    return f" ({' or '.join(near[:2])}?)" if near else ""
