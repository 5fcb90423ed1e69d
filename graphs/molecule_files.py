"""Molecules with properties, in SDF and raw files of QM9."""

import re
from collections.abc import Iterator
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError, as_missing
from hydragnn.base.files import open_packed

QM9_UNITS = {"A": "GHz", "B": "GHz", "C": "GHz", "mu": "D", "alpha": "bohr^3", "homo": "Ha", "lumo": "Ha", "gap": "Ha"}
QM9_UNITS |= {"r2": "bohr^2", **dict.fromkeys(("zpve", "U0", "U", "H", "G"), "Ha"), "Cv": "cal/mol/K"}
"""Units of the properties in a file of QM9, in order."""
_TAG = re.compile(r"^>[^\n<]*<([^>\n]*)>[^\n]*\n(.*?)(?=\n[ \t]*\n|\n>|\Z)", re.MULTILINE | re.DOTALL)


def is_qm9(path: Path) -> bool:
    """Return True for a raw file of QM9."""
    if not re.search(r"\.xyz(\.\w+)?$", path.name, re.IGNORECASE):
        return False
    with open_packed(path) as file:
        return re.match(rb".{,20}\ngdb\s+\d+\s", file.read(99)) is not None


def molecules_of_sdf(path: Path) -> Iterator[Any]:
    """Yield the molecules of an SDF file with their SD tags."""
    from ase.io import read

    with open_packed(path, "r") as file:
        records = re.split(r"^\$\$\$\$.*\n?", file.read(), flags=re.MULTILINE)
    for number, record in enumerate(filter(str.strip, records)):
        where, (table, end, rest) = f"{path}: molecule {number}", record.partition("\nM  END")
        title, program, _, counts, *lines = f"{table}\n\n\n".split("\n")
        if program[20:22] == "2D":
            raise InputError(f"{where} is a drawing in two dimensions; give its positions in space")
        if "\nM  END" in rest:
            raise InputError(f"{where} and the next one are not parted; write a line $$$$ between them")
        if "V3000" in counts:
            one = _molecule_of_v3000(record, where)
        else:
            atoms, bonds = (int(f"0{counts[at : at + 3].strip()}") for at in (0, 3))
            body = [*takewhile(lambda line: re.match(r"(?![A-Z]  |>)\s*\S", line), lines)]
            whole = end or record is not records[-1]  # M  END or at least $$$$ stands behind it
            if not whole or len(body) != atoms + bonds:
                raise InputError(f"{where} is cut off or damaged: {atoms} atoms and {bonds} bonds in {len(body)} lines")
            one = read(StringIO(record), format="sdf")
        tags = dict[str, str]()
        for key, value in _TAG.findall(rest if end else table):
            if tags.setdefault(key, value.strip()) != value.strip():
                raise InputError(f"{where} has several values of {key}; keep one")
        one.info |= {"title": title.strip(), **{key: value for key, value in tags.items() if value}}
        yield one


def _molecule_of_v3000(record: str, where: str) -> Any:
    from ase import Atoms

    with as_missing("rdkit", "chemistry", f"{where}, V3000"):
        from rdkit import Chem, rdBase
    with rdBase.BlockLogs():
        molecule = Chem.MolFromMolBlock(record, sanitize=False, removeHs=False)
    if molecule is None:
        raise InputError(f"{where} is cut off or damaged, or no V3000 of elements; RDKit does not read it")
    numbers = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
    return Atoms(numbers, positions=molecule.GetConformer().GetPositions())


def molecule_of_qm9(path: Path) -> Iterator[Any]:
    """Yield the molecule of a raw file of QM9."""
    from ase import Atoms

    with open_packed(path, "r") as file:
        count, properties, *lines = file.read().replace("*^", "e").splitlines()
    rows, rest = [line.split() for line in lines[: int(count)]], [line.split() for line in lines[int(count) :]]
    _, tag, *values = properties.split()
    if {*map(len, rows)} != {5} or len(values) != len(QM9_UNITS) or [*map(len, filter(None, rest[1:]))] != [2, 2]:
        raise InputError(
            f"{path} is no whole file of QM9, or several: {len(rows)} of {count} atoms, {len(values)} properties"
        )
    numbers = np.array([row[1:] for row in rows], dtype=np.float64)
    one = Atoms([row[0] for row in rows], positions=numbers[:, :3], info=dict(zip(QM9_UNITS, map(float, values))))
    one.arrays["mulliken"] = numbers[:, 3]
    one.info |= dict(zip(("gdb", "smiles", "smiles_relaxed", "inchi", "inchi_relaxed"), [tag, *rest[1], *rest[2]]))
    yield one
