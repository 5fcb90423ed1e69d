"""Everything that a structure has beside its geometry, as a text of its graph: for files that are to keep it."""

from typing import Any

import numpy as np

from hydragnn.errors import InputError

ATOMS = "atoms"
"""Key of that text."""

GEOMETRY = ("numbers", "positions")
PER_ATOM = ("forces", "stresses", "charges", "magmoms", "energies")
PREFIX = "input_"
"""Of results that came with a structure, and of names that something else has taken."""


def atoms_text(atoms: Any) -> str:
    """Return ``info``, other arrays and stored results of ASE's atoms as JSON."""
    arrays = {key: np.asarray(values).tolist() for key, values in atoms.arrays.items() if key not in GEOMETRY}
    results = dict(getattr(atoms.calc, "results", {})) if atoms.calc is not None else {}
    if results.get("free_energy") == results.get("energy"):
        results.pop("free_energy", None)  # which ASE's readers add
    return _encoded({"info": dict(atoms.info), "arrays": arrays, "results": results})


def _encoded(tables: dict[str, dict[str, Any]]) -> str:
    from ase.io.jsonio import encode

    def plain(value: Any) -> Any:
        try:
            encode(value)
        except TypeError:
            return str(value)
        return value

    return str(encode({name: {str(key): plain(v) for key, v in table.items()} for name, table in tables.items()}))


def restore_atoms(atoms: Any, text: str, taken: set[str]) -> None:
    """Give atoms what ``atoms_text`` kept of them; names among ``taken``, and results, get the ``PREFIX``."""
    from ase.io.jsonio import decode

    try:
        tables = {name: dict(table) for name, table in decode(text, always_array=False).items()}
        info, arrays, results = (tables[name] for name in ("info", "arrays", "results"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"what was kept of a structure is damaged ({error}); delete the parts and predict again"
        ) from error
    for key, values in results.items():
        (arrays if key in PER_ATOM else info)[f"{PREFIX}{key}"] = values
    for key, values in info.items():
        atoms.info[f"{PREFIX}{key}" if key in taken else key] = values
    for key, values in arrays.items():
        column = np.asarray(values)
        if len(column) == len(atoms) and column.ndim <= 2 and column.dtype.kind in "biufU":
            wide = column.astype(np.int64) if column.dtype.kind in "iu" else column
            atoms.arrays[f"{PREFIX}{key}" if key in taken else key] = wide
