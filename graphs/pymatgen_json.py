"""Structures in JSON of pymatgen and matbench, without pymatgen."""

import gzip
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError

BEGINNING = 2**16  # letters of a file that are searched for marks of its format


def is_json_lines(path: Path) -> bool:
    """Return True for a file with a JSON value per line."""
    return path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def is_pymatgen(path: Path) -> bool:
    """Return True for JSON of pymatgen or matbench."""
    if is_json_lines(path) or not path.name.endswith((".json", ".json.gz")):
        return is_json_lines(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        beginning = str(file.read(BEGINNING))
    return re.search(r'"@class"|"(columns|sites)"\s*:\s*\[', beginning) is not None


def read_json(path: Path) -> Any:
    """Return the content of JSON, or of its lines; InputError otherwise."""
    values = [*_values(path)]
    return values if is_json_lines(path) else values[0]


def _values(path: Path) -> Iterator[Any]:
    """Yield the value of a file, or of each of its lines."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        for number, text in enumerate(file if is_json_lines(path) else [file.read()], 1):
            try:
                values = [json.loads(text, object_pairs_hook=_table)] if text.strip() else []
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number}, is no JSON ({error}); write it again") from error
            yield from values


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError(f"a name stands twice among {', '.join(key for key, _ in pairs):.80}")
    return table


def pymatgen_structures(path: Path, keys: Collection[str] = ()) -> Iterator[Any]:
    """Yield the structures of a file as ASE's atoms, labels in ``info``.

    A file is a structure; a list, lines or tables by name of structures or of records (a structure among labels); or matbench's
    ``{index, columns, data}``. InputError where a site is occupied by several species or in part, or one of the ``keys`` differs from a property of sites.
    """
    value = None if is_json_lines(path) else read_json(path)
    if isinstance(value, dict) and "columns" in value:
        columns, rows = value["columns"], value["data"]
        names = value.get("index") or range(len(rows))
        if len(names) != len(rows) or any(len(row) != len(columns) for row in rows):
            raise InputError(f"{path}: index, columns and data have different lengths; write the table again")
        records = iter([dict(zip(columns, row)) | {"id": str(name)} for name, row in zip(names, rows)])
    else:
        values = _values(path) if value is None else [value]
        records = (record for one in values for record in _records(one, (), value is not None))
    for number, record in enumerate(records):
        yield _atoms(record, f"{path}: structure {number}", keys)


def _records(value: Any, names: tuple[str, ...], top: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the records of lists and of tables by name."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _records(one, (f"{names[0]}#{number}", *names) if names else (), False)
        return
    firsts = [one[0] if isinstance(one, list) and one else one for one in value.values()]
    is_table = bool(firsts) and all(isinstance(one, dict) for one in firsts) and not {"sites", "structure"} & {*value}
    if is_table and (top or not any("sites" in one for one in firsts)):
        for name, one in value.items():
            yield from _records(one, (name, *names), False)
    else:
        record = {"structure": value} if "sites" in value else value
        outer = dict(zip(("id", "material_id"), names))
        yield {**record, **{key: name for key, name in outer.items() if record.get(key) is None}}


def _atoms(record: dict[str, Any], where: str, keys: Collection[str]) -> Any:
    names = [key for key, value in record.items() if isinstance(value, dict) and "sites" in value]
    if not names:
        raise InputError(f"{where} is no structure of pymatgen; it has {', '.join(record) or 'nothing'}")
    if len(names) > 1 and "structure" not in names:
        raise InputError(
            f"{where} has several structures, {', '.join(names)}; keep one, or call the one to read structure"
        )
    key = "structure" if "structure" in names else names[0]
    atoms = _structure(record[key], where)
    for name, value in record.items():
        if name == key or not isinstance(value, str | int | float | list):
            continue
        atoms.info[name] = value
        try:
            column = np.array(value, dtype=np.float64)  # of atoms, NaN where it is null
        except (ValueError, TypeError):
            continue
        own = atoms.arrays.setdefault(name, column) if column.shape[:1] == (len(atoms),) else column
        if name in keys and not np.array_equal(own, column, equal_nan=True):
            raise InputError(f"{where} has {name} of sites beside another {name}; keep one")
    return atoms


def _structure(table: dict[str, Any], where: str) -> Any:
    """Return the atoms of a structure, with properties of its sites."""
    from ase import Atoms

    sites, lattice = table["sites"], table.get("lattice")
    if not sites or (
        lattice is not None and not np.any(np.linalg.det(np.array(lattice.get("matrix") or np.zeros((3, 3)), float)))
    ):
        problem = f"{where} has no {'matrix of a cell with a volume' if sites else 'sites'}"
        raise InputError(f"{problem}; write it with as_dict() of pymatgen")
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
        info={key: table[key] for key in ("charge", "spin_multiplicity") if table.get(key) is not None},
    )
    for name in dict.fromkeys(name for site in sites for name in site.get("properties") or ()):
        values = [(site.get("properties") or {}).get(name) for site in sites]
        like = next((value for value in values if value is not None), None)
        if isinstance(like, int | float | list):  # missing at some sites where it is null or absent
            atoms.arrays[name] = np.array(
                [np.full_like(like, np.nan, np.float64) if one is None else one for one in values]
            )
    return atoms
