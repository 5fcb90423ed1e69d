"""Structures of extended XYZ, read by ASE.

Names and texts are the letters of the file, also where they look like numbers, and what ASE would misunderstand is refused.
"""

import re
from collections.abc import Collection
from functools import lru_cache, partial
from io import StringIO
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from ase.io.extxyz import REV_PROPERTY_NAME_MAP, SPECIAL_3_3_KEYS, key_val_str_to_dict, per_config_properties, read_xyz

from hydragnn.graphs.problems import GEOMETRY, SKEW, is_skew
from hydragnn.graphs.texts import NAME_KEYS

ENTRY = re.compile(
    r"""("[^"]*"|[^\s="']{1,200}+)\s*+=\s*+("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\{[^}]*\}|\[[^\]]*\]|\S*)"""
)
"""Key and value in the second line of a structure of extended XYZ; found in time linear in its length."""
_NOT_A_COUNT = re.compile(r"[+-]?(?!(?:0|[1-9][0-9]{0,17})$)[\d_]+")
"""Digits that no program writes for a number, such as 007 and 1_000."""
_NUMBERS = {"numbers", "atomic_number", "atomic_numbers"}
"""Columns with the elements as numbers, beside those of species."""
_KEYS = {"lattice": "Lattice", "pbc": "pbc", "properties": "Properties"}
_COLUMNS = 10**5  # columns of atoms that a file may declare; ASE makes a list of them before it reads one
_CELL = re.compile(GEOMETRY["cell"], re.IGNORECASE)


def read_frame(text: str, texts: Collection[str] = ()) -> Atoms:
    """Return the structure of one frame; ASE's errors where unreadable.

    Names and entries of the keys ``texts`` are the letters of the file, and so is what no program writes for a number.

    >>> read_frame('1\\nenergy=-0.5 pbc="F F F"\\nH 0.0 0.0 0.0\\n').calc.results
    {'energy': np.float64(-0.5)}
    """
    check_elements(text)
    return next(read_xyz(StringIO(text), 0, properties_parser=partial(entries_of, texts=texts)))


def entries_of(comment: str, texts: Collection[str] = ()) -> dict[str, Any]:
    """Return keys and values of a second line; ValueError for misunderstood ones.

    >>> entries_of("id=010 gap=1.10 run = 1e5 group='T'", ["run", "group"])
    {'id': '010', 'gap': np.float64(1.1), 'run': '1e5', 'group': 'T'}
    """
    info, first = key_val_str_to_dict(comment), dict[str, str]()
    for quoted_key, quoted in ENTRY.findall(comment):
        key, closed = quoted_key.strip('"'), quoted[:1] in {*"\"'{["} and len(quoted) > 1
        letters = re.sub(r"\\(.)", r"\1", quoted[1:-1] if closed else quoted)
        if key in _KEYS.values() and first.setdefault(key, letters) != letters:  # ASE would take the last
            raise ValueError(f"{key} stands twice, as {first[key]} and {letters}; keep one")
        if not closed and "=" in quoted and f"{quoted_key}= " in comment:  # ASE writes an empty text so
            raise ValueError(f'{key}= has no value, and would take {quoted} for it; write {key}="", or leave it out')
        if not isinstance(info.get(key, ""), str) and _is_text(key, letters, texts):
            info[key] = letters
    _check_keys(info)
    return info


def _is_text(key: str, letters: str, texts: Collection[str]) -> bool:
    """Return True where an entry is its letters, no number."""
    if key in SPECIAL_3_3_KEYS or key in per_config_properties or letters.startswith("_JSON "):
        return False
    return key in NAME_KEYS or key in texts or _NOT_A_COUNT.fullmatch(letters) is not None


def _check_keys(info: dict[str, Any]) -> None:
    """Raise ValueError for keys that ASE passes over or misunderstands."""
    for key, value in info.items():
        usual = _KEYS.get(key.lower(), key)
        if usual not in info and value is not True:  # a word of a comment is True
            raise ValueError(f"{key} has no meaning; write {usual}")
        if "Lattice" not in info and _CELL.fullmatch(key) and np.size(value) in (3, 6, 9):
            raise ValueError(
                f"{key} is no cell here, and would not be used; write Lattice with three vectors, or leave it out"
            )
    if "Properties" in info and _width_of(str(info["Properties"])) > _COLUMNS:
        raise ValueError(f"Properties declares more than {_COLUMNS:,} columns; correct it")
    if "pbc" in info and not {*np.ravel(info["pbc"]).tolist()} <= {True, False}:
        raise ValueError(f'pbc = {info["pbc"]} is not one flag per axis; write pbc="T T F"')
    stress = np.asarray(info["stress"]) if "stress" in info else None
    if stress is not None and stress.shape == (3, 3) and is_skew(stress[None]).any():
        raise ValueError(f"stress is {SKEW}")


@lru_cache(64)
def _width_of(properties: str) -> int:
    """Return the columns that the entry Properties declares."""
    return sum(map(int, re.findall(r":(\d{1,18})(?=:|$)", properties)))


def check_elements(text: str) -> None:
    """Raise ValueError for contradicting elements and columns."""
    _, comment, *lines = text.split("\n")
    declared = (re.findall(r'Properties="?([^\s"]+)', comment) or [""])[0].split(":")
    names = [REV_PROPERTY_NAME_MAP.get(name, name) for name in declared[::3]]
    if declared[0] and "positions" not in names:  # ASE would put all atoms at the origin
        raise ValueError("Properties names no positions; write pos:R:3 for their columns")
    most = max(map(len, map(str.split, lines)), default=0) if declared[0] else 0
    if most > (width := _width_of(":".join(declared))):  # ASE would drop the last ones
        raise ValueError(f"atoms have {most} columns, and Properties names {width}; name all of them")
    numbers = _NUMBERS.intersection(names)
    if "symbols" not in names or not numbers:
        return
    starts = np.cumsum([0, *map(int, declared[2::3])])
    one, other = (int(starts[names.index(name)]) for name in ("symbols", min(numbers)))
    for row, words in enumerate(map(str.split, lines[: int(text.split("\n")[0])])):
        if atomic_numbers.get(words[one].capitalize()) != int(words[other]):
            raise ValueError(
                f"atom {row} is {words[one]} and has the atomic number {words[other]}; correct one of them"
            )
