"""Energies of isolated atoms, as references of energies."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hydragnn.base.errors import InputError, as_input_error, nearest


def isolated_atoms(path: Path, key: str) -> dict[str, float]:
    """Return each element's energy, by symbol, from a file of single atoms.

    ASE reads the file; the energy stands under ``key``. InputError where the file cannot be read, a structure is no
    single atom or lacks the energy, or an element comes twice.
    """
    from hydragnn.graphs.structure_files import structures_of

    if not path.is_file():
        raise InputError(f"{path} does not exist; name a file of isolated atoms or a table of one energy per element")
    energies: dict[str, float] = {}
    with as_input_error(f"{path} cannot be read by ASE", "check the file"):
        structures = list(structures_of(path))
    for number, atoms in enumerate(structures):
        where = f"{path}, structure {number}"
        if len(atoms) != 1:
            raise InputError(f"{where}: it has {len(atoms)} atoms; name a file in which each structure is one atom")
        symbol = str(atoms.symbols[0])
        if symbol in energies:
            raise InputError(f"{where}: {symbol} comes a second time; keep one isolated atom of each element")
        entries = {**atoms.info, **getattr(atoms.calc, "results", {})}
        value = np.asarray(entries.get(key), dtype=object)
        if value.size != 1 or not isinstance(value.item(), int | float | np.number) or not np.isfinite(value.item()):
            raise InputError(
                f"{where}: no number under {key}, the field that is predicted; it has {', '.join(sorted(entries)) or 'nothing'}. "
                "Rename the key, or give a table of one energy per element"
            )
        energies[symbol] = float(value.item())
    if not energies:
        raise InputError(f"{path} holds no structure; name a file of isolated atoms")
    return energies


def by_atomic_number(energies: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """Return atomic number and energy of every element, ascending.

    ValueError where a key is neither a symbol nor an atomic number.

    >>> by_atomic_number({"O": -2.0, "1": -1.0})
    ((1, -1.0), (8, -2.0))
    """
    from ase.data import atomic_numbers

    elements = {symbol: number for symbol, number in atomic_numbers.items() if number}
    numbers: dict[int, float] = {}
    for name, energy in energies.items():
        number = int(name) if name.isascii() and name.isdigit() else elements.get(name, 0)
        if number not in elements.values():
            raise ValueError(f"{name} is no element; {nearest(name, sorted(elements))}")
        if number in numbers:
            raise ValueError(f"{name} comes a second time; keep one energy of each element")
        numbers[number] = energy
    return tuple(sorted(numbers.items()))
