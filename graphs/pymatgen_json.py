"""Structures in JSON of pymatgen and matbench, without pymatgen."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError

BEGINNING = 2**16
"""Letters of a file that are searched for marks of its format."""


def is_pymatgen(path: Path) -> bool:
    """Return True for JSON of pymatgen or matbench."""
    if not path.name.endswith((".json", ".json.gz")):
        return False
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        beginning = str(file.read(BEGINNING))
    return '"@class"' in beginning or '"columns"' in beginning


def pymatgen_structures(path: Path) -> Iterator[Any]:
    """Yield the structures of a file as ASE's atoms, labels in ``info``.

    A file is a structure, a list or table by name of structures or of records (a structure among labels), or matbench's
    ``{index, columns, data}``. InputError where a site is occupied by several species or in part.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        value = json.load(file)
    if isinstance(value, dict) and "columns" in value:
        columns, rows = value["columns"], value["data"]
        names = value.get("index") or range(len(rows))
        if len(names) != len(rows) or any(len(row) != len(columns) for row in rows):
            raise InputError(f"{path}: index, columns and data have different lengths; write the table again")
        records = [dict(zip(columns, row)) | {"id": str(name)} for name, row in zip(names, rows)]
    elif isinstance(value, dict) and "sites" not in value and "structure" not in value:
        records = [{"id": name, **_record(one)} for name, one in value.items()]
    else:
        records = [_record(one) for one in (value if isinstance(value, list) else [value])]
    for number, record in enumerate(records):
        yield _atoms(record, f"{path}: structure {number}")


def _record(one: Any) -> dict[str, Any]:
    return {"structure": one} if isinstance(one, dict) and "sites" in one else dict(one)


def _atoms(record: dict[str, Any], where: str) -> Any:
    from ase import Atoms

    keys = [key for key, value in record.items() if isinstance(value, dict) and "sites" in value]
    if not keys:
        raise InputError(f"{where} is no structure of pymatgen; it has {', '.join(record) or 'nothing'}")
    if len(keys) > 1 and "structure" not in keys:
        raise InputError(
            f"{where} has several structures, {', '.join(keys)}; keep one, or call the one to read structure"
        )
    key = "structure" if "structure" in keys else keys[0]
    sites, lattice = record[key]["sites"], record[key].get("lattice")
    if not sites or (
        lattice is not None and not np.any(np.linalg.det(np.array(lattice.get("matrix") or np.zeros((3, 3)), float)))
    ):
        raise InputError(
            f"{where} has no {'matrix of a cell with a volume' if sites else 'sites'}; write it with as_dict() of pymatgen"
        )
    for site, one in enumerate(sites):
        species = one["species"]
        if len(species) != 1 or species[0].get("occu", 1) != 1:
            raise InputError(f"{where}: site {site} is occupied by {species}; order it: one species with occu 1")
    atoms = Atoms(
        [site["species"][0]["element"] for site in sites],
        cell=lattice and lattice["matrix"],
        pbc=lattice and lattice.get("pbc", True),
        positions=None if lattice and "abc" in sites[0] else [site["xyz"] for site in sites],
        scaled_positions=[site["abc"] for site in sites] if lattice and "abc" in sites[0] else None,
    )
    for name in dict.fromkeys(name for site in sites for name in site.get("properties") or ()):
        values = [(site.get("properties") or {}).get(name) for site in sites]
        like = next((value for value in values if value is not None), None)
        if isinstance(like, int | float | list):  # missing at some sites where it is null or absent
            atoms.arrays[name] = np.array(
                [np.full_like(like, np.nan, np.float64) if one is None else one for one in values]
            )
    for name, value in record.items():
        if name != key and isinstance(value, str | int | float | list):
            atoms.info[name] = value
    return atoms
