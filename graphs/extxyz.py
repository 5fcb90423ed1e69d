"""Structures of extended XYZ, read as ASE reads them, but faster.

Plain frames are split here: words, numbers and truth values with an equals sign before them, and atoms in columns of the declared
number. ASE reads all others. Names and texts are the letters of the file, also where they look like numbers.
"""

import re
from collections.abc import Collection
from functools import lru_cache, partial
from io import StringIO
from itertools import chain
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from ase.io.extxyz import REV_PROPERTY_NAME_MAP, SPECIAL_3_3_KEYS, key_val_str_to_dict, per_config_properties, read_xyz
from ase.io.extxyz import all_properties as RESULTS

from hydragnn.graphs.atomic import ReadResults
from hydragnn.graphs.problems import GEOMETRY, SKEW, is_skew
from hydragnn.graphs.texts import NAME_KEYS

ENTRY = re.compile(
    r"""("[^"]*"|[^\s="']{1,200}+)\s*+=\s*+("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\{[^}]*\}|\[[^\]]*\]|\S*)"""
)
"""Key and value in the second line of a structure of extended XYZ; found in time linear in its length."""
_ENTRY = re.compile(r"""([^\s="'\\{}\[\],]+)=(?:"([^"\\]+)"|([^\s="'\\{}\[\]]+))(?:\s+|$)""")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NOT_A_COUNT = re.compile(r"[+-]?(?!(?:0|[1-9][0-9]{0,17})$)[\d_]+")
"""Digits that no program writes for a number, such as 007 and 1_000."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBERS = {"numbers", "atomic_number", "atomic_numbers"}
"""Columns with the elements as numbers, beside those of species."""
_WORD = re.compile(r"[A-Za-z_][^\s,]*")
_TRUTH = {
    word: value
    for value in (True, False)
    for word in (str(value), str(value)[0], str(value).lower(), str(value).upper())
}
_KEYS = {"lattice": "Lattice", "pbc": "pbc", "properties": "Properties"}
_AS_READ = ("energy", "magmom", "free_energy")
_COLUMNS = 10**5
_CELL = re.compile(GEOMETRY["cell"], re.IGNORECASE)
"""Columns of atoms that a file may declare; ASE makes a list of them before it reads one."""
_NUMBERS_IN_WORDS = re.compile(r"(?:nan|inf|infinity|_json)", re.IGNORECASE)


class NotPlain(Exception):
    """The frame is for ASE to read."""


def read_frame(text: str, texts: Collection[str] = ()) -> Atoms:
    """Return the structure of one frame; ASE's errors where unreadable.

    Names and entries of the keys ``texts`` are the letters of the file, and so is what no program writes for a number.

    >>> read_frame('1\\nenergy=-0.5 pbc="F F F"\\nH 0.0 0.0 0.0\\n').calc.results
    {'energy': np.float64(-0.5)}
    """
    try:
        return _plain_frame(text, texts)
    except (NotPlain, ValueError, KeyError, OverflowError):
        check_elements(text)
        return next(read_xyz(StringIO(text), 0, properties_parser=partial(entries_of, texts=texts)))


def entries_of(comment: str, texts: Collection[str] = ()) -> dict[str, Any]:
    """Return keys and values of a second line; ValueError for misunderstood ones.

    >>> entries_of("id=010 gap=1.10 run = 1e5 group='T'", ["run", "group"])
    {'id': '010', 'gap': np.float64(1.1), 'run': '1e5', 'group': 'T'}
    """
    info = key_val_str_to_dict(comment)
    for quoted_key, quoted in ENTRY.findall(comment):
        key, closed = quoted_key.strip('"'), quoted[:1] in {*"\"'{["} and len(quoted) > 1
        letters = re.sub(r"\\(.)", r"\1", quoted[1:-1] if closed else quoted)
        if (
            not isinstance(info.get(key, ""), str)
            and not letters.startswith("_JSON ")
            and _is_text(key, letters, texts)
        ):
            info[key] = letters
    _check_keys(info)
    return info


def _is_text(key: str, letters: str, texts: Collection[str]) -> bool:
    """Return True where an entry is its letters, no number."""
    if key in SPECIAL_3_3_KEYS or key in per_config_properties:
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
    """Raise ValueError for contradicting elements and missing positions."""
    _, comment, *lines = text.split("\n")
    declared = (re.findall(r'Properties="?([^\s"]+)', comment) or [""])[0].split(":")
    names = [REV_PROPERTY_NAME_MAP.get(name, name) for name in declared[::3]]
    if declared[0] and "positions" not in names:  # ASE would put all atoms at the origin
        raise ValueError("Properties names no positions; write pos:R:3 for their columns")
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


def _plain_frame(text: str, texts: Collection[str] = ()) -> Atoms:
    first, comment, *lines = text.split("\n")
    count = int(first)
    info = _entries(comment.strip(), texts)
    _check_keys(info)
    rows = [line.split() for line in (lines if lines[-1] else lines[:-1])]
    names, width = _columns(info.pop("Properties", "species:S:1:pos:R:3"))
    if count < 1 or len(rows) != count or set(map(len, rows)) != {width}:
        raise NotPlain
    columns = list(zip(*rows))
    arrays = {name: _values(kind, columns[start:stop]) for name, kind, start, stop in names}
    cell = info.pop("Lattice").T if "Lattice" in info else None
    pbc = info.pop("pbc", None if cell is None else True)
    numbers = [atomic_numbers[symbol.capitalize()] for symbol in arrays.pop("symbols").tolist()]
    atoms = Atoms(numbers=np.array(numbers), positions=arrays.pop("positions"), cell=cell, pbc=pbc, info=info)
    results = {name: arrays.pop(name) for name in [name for name in arrays if name in RESULTS]}
    for name, values in arrays.items():
        atoms.new_array(name, values)
    for key in [key for key in info if key in per_config_properties]:
        results[key] = atoms.info.pop(key)
        if key == "stress":
            results[key] = results[key][[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    if results:
        atoms.calc = ReadResults(
            {key: value if key in _AS_READ else np.array(value, float) for key, value in results.items()}
        )
    return atoms


def _entries(comment: str, texts: Collection[str]) -> dict[str, Any]:
    """Return keys and values of a plain second line."""
    entries, place = dict[str, Any](), 0
    while place < len(comment):
        match = _ENTRY.match(comment, place)
        if match is None:
            raise NotPlain
        key, place = match[1], match.end()
        letters = match[2] or match[3]
        value = letters if _is_text(key, letters, texts) else _value(letters)
        if key in SPECIAL_3_3_KEYS:
            if not isinstance(value, np.ndarray) or value.shape != (9,) or value.dtype.kind not in "if":
                raise NotPlain
            value = value.reshape((3, 3), order="F")
        entries[key] = value if key.lower() != "uid" else letters
    return entries


def _value(text: str) -> Any:
    parts = re.findall(r"[^\s,]+", text)
    if not parts:
        raise NotPlain
    if all(map(_INTEGER.fullmatch, parts)):
        numbers = np.array(list(map(int, parts)))
        return numbers if len(parts) > 1 else numbers[0]
    if all(map(_NUMBER.fullmatch, parts)):
        numbers = np.array(list(map(float, parts)))
        return numbers if len(parts) > 1 else numbers[0]
    if all(part in _TRUTH for part in parts):
        return [_TRUTH[part] for part in parts] if len(parts) > 1 else _TRUTH[parts[0]]
    if text.startswith("_JSON ") or not any(
        _WORD.fullmatch(part) and not _NUMBERS_IN_WORDS.match(part) for part in parts
    ):
        raise NotPlain  # what numpy may or may not take for a number
    return text


@lru_cache(maxsize=64)
def _columns(declared: Any) -> tuple[tuple[tuple[str, str, int, int], ...], int]:
    """Return name, type and columns of every property, and their number."""
    fields = str(declared).split(":")
    names, start = [], 0
    for name, kind, width in zip(fields[::3], fields[1::3], map(int, fields[2::3]), strict=True):
        names.append((REV_PROPERTY_NAME_MAP.get(name, name), kind, start, start + width))
        start += width
    known = {name: (kind, stop - first) for name, kind, first, stop in names}
    usual = known.get("symbols") == ("S", 1) and known.get("positions") == ("R", 3) and len(known) == len(names)
    if (
        not usual
        or {*_NUMBERS, "move_mask", "initial_charges"} & {*known}
        or not {kind for kind, _ in known.values()} <= {*"SRI"}
    ):
        raise NotPlain
    return tuple(names), start


def _values(kind: str, columns: list[tuple[str, ...]]) -> Any:
    if kind == "S":
        values = np.array(columns, dtype=object)
    elif kind == "I":
        values = np.array([list(map(int, column)) for column in columns], dtype="i")
    else:
        values = np.array(list(map(float, chain(*columns)))).reshape(len(columns), -1)
    return values[0] if len(columns) == 1 else values.T
