"""Structures apart from their geometry, as texts of graphs."""

import re
from typing import Any

import numpy as np
from ase.io.extxyz import per_atom_properties, per_config_properties

from hydragnn.base.errors import InputError

ATOMS = "atoms"  # key of that text
NOTHING = '{"info": {}, "arrays": {}, "results": {}}'  # text of a structure that is its geometry alone
GEOMETRY = ("numbers", "positions")
PER_ATOM = ("forces", "stresses", "charges", "magmoms", "energies")
READ_OTHERWISE = frozenset(("Lattice", "Properties", "pbc", "species", "symbols", "pos", "Z", "move_mask")).union(
    per_config_properties, per_atom_properties
)
"""Names that readers of extended XYZ take for geometry or for results."""
PREFIX = "input_"  # beginning of names of results that came with a structure, and of names that are taken


def atoms_text(atoms: Any) -> str:
    """Return ``info``, other arrays and stored results of ASE's atoms as JSON."""
    from ase.io.jsonio import encode

    arrays = {key: np.asarray(values).tolist() for key, values in atoms.arrays.items() if key not in GEOMETRY}
    results = dict(getattr(atoms.calc, "results", {})) if atoms.calc is not None else {}
    if results.get("free_energy") == results.get("energy"):
        results.pop("free_energy", None)  # which ASE's readers add
    tables = {"info": dict(atoms.info), "arrays": arrays, "results": results}
    if not any(tables.values()):
        return NOTHING

    def plain(value: Any) -> Any:
        try:
            encode(value)
        except TypeError:
            return str(value)
        return value

    try:
        return str(encode({name: {str(key): v for key, v in table.items()} for name, table in tables.items()}))
    except TypeError:
        return str(encode({name: {str(key): plain(v) for key, v in table.items()} for name, table in tables.items()}))


def restore_atoms(atoms: Any, text: str, reserved: set[str]) -> None:
    """Restore what ``atoms_text`` kept; names ``taken`` and results get the ``PREFIX``."""
    from ase.io.jsonio import decode

    if text == NOTHING:
        return
    try:
        tables = {name: dict(table) for name, table in decode(text, always_array=False).items()}
        info, arrays, results = (tables[name] for name in ("info", "arrays", "results"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the text of a structure is damaged ({error}); delete the parts and predict again") from error
    reserved = reserved | READ_OTHERWISE
    for key, values in results.items():
        (arrays if key in PER_ATOM else info)[f"{PREFIX}{key}"] = values
    for key, values in info.items():
        name, value = one_line(str(key)), one_line(values) if isinstance(values, str) else values
        # after an empty text readers would take the next entry for its value
        if name and not (isinstance(value, str) and not value):
            atoms.info[f"{PREFIX}{name}" if name in reserved else name] = value
    for key, values in arrays.items():
        column = np.asarray(values)
        if column.size and len(column) == len(atoms) and column.ndim <= 2 and column.dtype.kind in "biufU":
            wide = column.astype(np.int64) if column.dtype.kind in "iu" else column
            if column.dtype.kind == "U":
                wide = np.array([one_line(word, "_") or "_" for word in column.ravel().tolist()]).reshape(column.shape)
            name = one_line(str(key).replace(":", "_"), "_")
            atoms.arrays[f"{PREFIX}{name}" if name in reserved else name] = wide


def one_line(text: str, space: str = " ") -> str:
    """Return a text as a line of extended XYZ can hold it.

    >>> one_line("two\\nlines"), one_line("a b", "_"), one_line("_JSON is its mark of other values")
    ('two lines', 'a_b', 'JSON is its mark of other values')
    """
    return (
        re.sub(r"\s", space, text.strip()).removeprefix("_" if text.startswith("_JSON") else "").replace("\\", "\\\\")
    )
