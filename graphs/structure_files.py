"""Files of structures that ASE reads."""

import re
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_packed
from hydragnn.base.limits import check_readable
from hydragnn.graphs.calculation_files import check_counts, converged_steps, failure, rows_of, with_energy
from hydragnn.graphs.lammps_files import NO_ELEMENTS, frames_of_dump
from hydragnn.graphs.molecule_files import is_qm9, molecule_of_qm9, molecules_of_sdf
from hydragnn.graphs.pymatgen_json import is_pymatgen, pymatgen_structures

DUMP = "lammps-dump-text"
_NEVER, _BY_NAME = re.compile(r"$^"), "names its atoms without their elements, and CA may be carbon or calcium; write"
MARKS_OF_ELEMENTS = {
    "lammps-data": (
        re.compile(r"^\s*(Masses|Atom Type Labels)\b", re.MULTILINE),
        f"{NO_ELEMENTS}, or Masses in a data file",
    ),
    "lammps-dump-binary": (_NEVER, NO_ELEMENTS),
    "proteindatabank": (
        re.compile(r"\A(?![\s\S]*^(ATOM  |HETATM)(?!.{70}(?! [DT])[ A-Z][A-Z]))", re.MULTILINE | re.IGNORECASE),
        f"{_BY_NAME} columns 77 and 78, H for D",
    ),
    "gromacs": (_NEVER, f"{_BY_NAME} a PDB or XYZ file with elements"),
}
"""Pattern of what states elements, and the fault of files without it.

For formats where ASE would guess elements by types or names."""


def format_of(path: Path, format: str | None = None) -> str:
    """Return the format of a file: ASE's name, ``pymatgen`` or ``qm9``."""
    from ase.io.formats import filetype

    if format is None and (is_pymatgen(path) or is_qm9(path)):
        return "pymatgen" if is_pymatgen(path) else "qm9"
    kind = format or str(filetype(str(path)))
    return DUMP if kind == "lammpstrj" else kind  # a suffix, where line ends of Windows hide the content


def structures_of(
    path: Path,
    index: str = ":",
    format: str | None = None,
    texts: Collection[str] = (),
    dumps: Mapping[str, Any] = MappingProxyType({}),
    keys: Collection[str] = (),
) -> Iterator[Any]:
    """Yield the structures of a file of ASE, pymatgen or QM9.

    Names and entries of the keys ``texts`` in extended XYZ are the letters of the file. ``dumps``: arguments of ``frames_of_dump``;
    ``keys``: names whose values must not differ.

    Steps of VASP whose electrons did not converge have no results, nor have outputs that say so. InputError where the file has numbers
    of types in place of elements, or reading it might not end.
    """
    check_readable(path)
    from ase.io import iread
    from ase.io.formats import string2index

    from hydragnn.graphs.extxyz import check_elements, entries_of

    kind = format_of(path, format)
    if kind in MARKS_OF_ELEMENTS:
        mark, fault = MARKS_OF_ELEMENTS[kind]
        with open_packed(path) as file:
            head = file.read(1 << 20).rpartition(b"\n")[0].decode("latin-1")
        if not mark.search(head):
            raise InputError(f"{path} {fault}")
    if kind == DUMP or kind in READERS:
        own = {"pymatgen": partial(pymatgen_structures, keys=keys), DUMP: partial(frames_of_dump, **dumps)}
        read = (READERS | own)[kind]
        some = read(path) if index == ":" else [*read(path)][string2index(index)]
        yield from some if isinstance(some, list | Iterator) else [some]
        return
    if kind in ("db", "json"):
        yield from rows_of(path, kind, index, keys)
        return
    converged = repeat(False) if failure(path, kind) else iter(converged_steps(path, kind, index))
    if kind == "extxyz":
        with open_packed(path, "r") as file:
            deque(map(check_elements, frames_of_xyz(file)), 0)
    reader = {"properties_parser": partial(entries_of, texts=texts)} if kind == "extxyz" else {}
    # parallel=False: under MPI, ASE would let rank 0 read for all ranks, which read different files
    for atoms in iread(str(path), index=index, format=format, parallel=False, **reader):
        if kind == "lammps-dump-binary" and atoms.calc is not None:
            atoms.calc.results.pop("energy", None)  # a zero that ASE puts there
        if not next(converged, True):
            atoms.calc = None
        if kind == "vasp":
            with open_packed(path, "r") as file:
                check_counts(len(atoms), [*file], path)
            atoms = with_energy(atoms, path)
        yield atoms


def frames_of_xyz(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of every structure of an (extended) XYZ file.

    That is its number of atoms, a comment, a line per atom, perhaps cell vectors.

    ValueError where more follows an empty line, or atoms are missing.

    >>> list(frames_of_xyz(["1\\n", "first\\n", "H 0 0 0\\n", "1\\n", "second\\n", "H 0 0 0\\n"]))
    ['1\\nfirst\\nH 0 0 0\\n', '1\\nsecond\\nH 0 0 0\\n']
    """
    rest = iter(lines)
    line = next(rest, "")
    while line.strip():
        frame = [line, *islice(rest, int(line) + 1)]
        if len(frame) < int(line) + 2:  # ASE would go on to the last of them
            raise ValueError(f"the file ends before its {int(line)} atoms; it was cut off, or the number is wrong")
        line = next(rest, "")
        while line.lstrip().startswith("VEC"):
            frame.append(line)
            line = next(rest, "")
        yield "".join(frame)
    if any(line.strip() for line in rest):
        raise ValueError("an empty line stands before it, where readers of XYZ end without a word; remove such lines")


def _crystals(path: Path) -> Iterator[Any]:
    """Yield all crystals of a CIF; InputError where elements share a site."""
    import numpy as np
    from ase.io.cif import parse_cif

    with open_packed(path) as file:
        blocks = [block for block in parse_cif(file) if block.has_structure()]
    for number, block in enumerate(blocks):
        with warnings.catch_warnings(action="ignore"):  # ASE's, of sites that it leaves out since another is there
            atoms = block.get_atoms()
        if words := _other_symmetry(block):
            raise InputError(f"{path}: structure {number} {words}; list all operations, or write all atoms as P 1")
        sites, kinds = block.get_unsymmetrized_structure(), atoms.arrays.get("spacegroup_kinds")
        for site in [] if kinds is None else np.setdiff1d(np.arange(len(sites)), kinds):
            away = atoms.get_scaled_positions() - sites.get_scaled_positions()[site]
            elements = {sites.symbols[site], atoms.symbols[np.abs(away - np.rint(away)).max(axis=1).argmin()]}
            if len(elements) > 1:
                both = " and ".join(sorted(elements))
                raise InputError(f"{path}: structure {number}: a site is occupied by {both}; order it: one element")
        yield atoms


def _other_symmetry(block: Any) -> str:
    """Return the symmetry of a CIF that ASE takes otherwise; else empty."""
    from ase.spacegroup import Spacegroup

    hall = block._get_any(("_space_group_name_hall", "_symmetry_space_group_name_hall"))
    stated = (block._get_spacegroup_number(), block._get_spacegroup_name(), hall)
    number, symbol, hall = (re.sub(r"\s|:[1h]$|[?.]", "", str(one or "").lower()) for one in stated)
    symbol = re.sub(r"^([a-z])1(.*)1$", r"\1\2", symbol)  # P 1 21/c 1 is P 21/c
    operations = [re.sub(r"[\s+]", "", one).lower() for one in block._get_sitesym() or ()]
    group = number or symbol.replace("p1", "") or hall.replace("p1", "") or "1"
    if operations == ["x,y,z"] and group != "1":
        return f"is of space group {group}, and lists no operation but x, y, z"
    if not operations and group == hall:
        return f"states its symmetry by the Hall symbol {hall} alone"
    standard = re.sub(r"\s", "", Spacegroup(int(number)).symbol.lower()) if number and not operations else symbol
    other = f"lists no operations, and {symbol} is not {standard}, as which ASE takes its space group {number}"
    return other if symbol not in ("", standard) else ""


READERS = {"pymatgen": pymatgen_structures, "sdf": molecules_of_sdf, "cif": _crystals, "qm9": molecule_of_qm9}
"""Readers of formats that ASE does not read, or not in full."""
