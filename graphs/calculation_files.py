"""Databases of ASE and runs of VASP, with what ASE leaves out."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError, ParserCreate

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_packed
from hydragnn.base.limits import check_readable
from hydragnn.graphs.atomic import ReadResults

_ENERGIES = re.compile(r"(?:^\w+ *: +(\d+).*\n)?^\s*\d+ F=\s*(\S+)\s+E0=\s*(\S+)\s+d E", re.MULTILINE)
"""Last iteration and step of a relaxation in an OSZICAR; those of dynamics begin otherwise."""

_OUTCAR = re.compile(
    rb"Iteration +\d+\( *(?P<last>\d+)|aborting loop (?P<end>.*)|FREE ENERGIE OF"
    rb"|^ +ISTART =\s*(?P<start>\d+)|^ +NELM +=\s*(?P<most>\d+)"
)
FAILURES = {
    "abinit-out": b"was not enough SCF cycles to converge",
    "aims-output": b"SELF-CONSISTENCY CYCLE DID NOT CONVERGE",
    "castep-castep": b"max. SCF cycles performed but system has not reached",
    "espresso-out": b"convergence NOT achieved",
    "gamess-us-out": b"SCF IS UNCONVERGED",
    "gaussian-out": b"Convergence failure -- run terminated",
    "gpaw-out": b"Did not converge!",
    "nwchem-out": b"Calculation failed to converge",
    "orca-output": b"not fully converged",
}
"""Words of outputs about electrons that did not converge, by ASE's name of the format."""

_AXES = re.compile(rb"(Input|Z-Matrix|Standard) orientation:|^ (Dipole  ) +=")
OUTPUTS = frozenset({"vasp-xml", "vasp-out", "abinit-gsr", "castep-geom", "castep-md", "gpw", "onetep-out", *FAILURES})
OUTPUT_UNITS = {"energy": "eV", "free_energy": "eV", "forces": "eV/Angstrom", "stress": "eV/Angstrom^3"}
"""Units to which ASE converts results in outputs of programs."""
_PROGRAMS = {
    "extxyz": (re.compile(rb"[^\n]*\n i = +\d+,.* E = "), {"E": "Ha"}),
    "xsf": (re.compile(rb"#.*total energy"), {"forces": "eV^2/Ha/Angstrom"}),
}
"""Beginning of files of CP2K and aenet by format, and units of their values; ASE takes forces of XSF to be in Ha/Angstrom."""


def units_of(path: Path, kind: str) -> dict[str, str]:
    """Return units of values in a file by name, as far as its program states them."""
    if kind not in _PROGRAMS:
        return OUTPUT_UNITS if kind in OUTPUTS else {}
    mark, units = _PROGRAMS[kind]
    with open_packed(path) as file:
        return units if mark.match(file.read(400)) else {}


def failure(path: Path, kind: str) -> str:
    """Return an output's words about a failure, empty without; not of VASP."""
    if kind not in FAILURES:
        return ""
    with open_packed(path) as file:
        return FAILURES[kind].decode() if any(FAILURES[kind] in line for line in file) else ""


def turned(path: Path, kind: str) -> set[str]:
    """Return the results of Gaussian along other axes than the positions.

    ASE takes positions along the axes of the input where they are printed. Forces are along these, and the dipole of link 601 is
    along those of the standard orientation.
    """
    if kind != "gaussian-out":
        return set()
    with open_packed(path) as file:
        marks = {mark[1] or mark[2] for mark in filter(None, map(_AXES.search, file))}
    own, moved, other_dipole = (bool(some & marks) for some in ({b"Input", b"Z-Matrix"}, {b"Standard"}, {b"Dipole  "}))
    return {key for key, wrong in {"forces": not own, "dipole": own != other_dipole}.items() if moved and wrong}


def converged_steps(path: Path, kind: str, index: str = ":") -> list[bool]:
    """Return for steps in a file of VASP whether their electrons converged.

    They did not where their iterations reached NELM, or an OUTCAR says so. One iteration is enough for the first step
    of a run that asks for no more (NELM = 1) and has orbitals of another one (ISTART). InputError for incomplete XML, whose last step
    may be unfinished, and for steps of force fields. Empty for all other files.
    """
    from ase.io.formats import string2index

    if kind not in ("vasp-out", "vasp-xml"):
        return []
    status = path.stat()
    steps = _steps_of(path, kind, (status.st_size, status.st_mtime_ns))
    some = np.atleast_1d(np.array(steps, object)[string2index(index)]).tolist()
    if None in some:
        what = "has steps without electronic iterations, as of a force field, which ASE does not read"
        raise InputError(f"{path} {what}; take the XDATCAR for its structures")
    return [bool(step) for step in some]


@lru_cache(maxsize=4096)  # notes and makers of a build ask for each file
def _steps_of(path: Path, kind: str, _: tuple[int, int]) -> tuple[bool | None, ...]:
    with open_packed(path) as file:
        return tuple(_steps_of_outcar(file) if kind == "vasp-out" else _steps_of_xml(file.read(), path))


def _steps_of_outcar(file: Any) -> list[bool | None]:
    none = {"last": b"", "end": b""}
    marks, steps = {**none, "most": b"", "start": b"0"}, list[bool | None]()
    for mark in filter(None, map(_OUTCAR.search, file)):
        if mark.lastgroup:
            marks |= {"end": b"", mark.lastgroup: mark[mark.lastgroup]}
        elif len(energy := [*islice(file, 4)]) == 4:  # else ASE has no such step
            last, end, most, start = marks.values()
            asked = not steps and last == most == b"1" and start != b"0"
            converged = asked or (b"EDIFF is reached" in end if end else not last or last != most)
            steps.append(None if b" ML TOTEN" in b"".join(energy) else converged)
            marks |= none
    return steps


def _steps_of_xml(content: bytes, path: Path) -> list[bool | None]:
    try:
        ParserCreate().Parse(content, True)
    except ExpatError as error:
        raise InputError(f"{path} is no complete XML ({error}): was it cut off? Take its OUTCAR") from error
    most, start = (int((re.findall(rb'name="%s">\s*(\d+)' % tag, content) or [0])[-1]) for tag in (b"NELM", b"ISTART"))
    counts = [step.count(b"<scstep>") for step in content.split(b"<calculation>")[1:]]
    first = int(
        most == 1 and start > 0
    )  # steps whose one iteration is enough; counts of response functions are more than NELM
    return [(count != most or number < first) if count else None for number, count in enumerate(counts)]


def check_counts(count: int, lines: Sequence[str], path: Path) -> None:
    """Check that no position follows those that a POSCAR counts."""
    modes = [
        number for number, line in enumerate(lines) if number > 5 and re.match(r"\s*[a-rt-z]", line, re.IGNORECASE)
    ]
    place = modes[0] + 1 + count if modes else len(lines)
    if re.match(r"(\s*[-+]?\d*\.\d*(e[-+]\d+)?){3}", "".join(lines[place : place + 1]), re.IGNORECASE):
        raise InputError(
            f"{path}: line {place + 1} has a position beyond the {count} that are counted; correct the counts, or leave a line empty before velocities"
        )


def with_energy(atoms: Any, path: Path) -> Any:
    """Return a CONTCAR's structure with the energy of the OSZICAR beside it.

    A CONTCAR follows the last step, so that it has an energy only where the last two steps agree. And where the electrons of
    the last one took less than NELM iterations, which an INCAR says, or 60.
    """
    oszicar, incar = path.with_name("OSZICAR"), path.with_name("INCAR")
    if path.name == "CONTCAR" and oszicar.is_file():
        check_readable(oszicar)
        with suppress(ValueError):  # fewer than two steps, or stars in place of a number
            text, incar_text = (one.read_text("latin-1") if one.is_file() else "" for one in (oszicar, incar))
            steps = _ENERGIES.findall(text)[-2:]
            (_, before, _), (last, free, energy) = [(turns, *map(float, step)) for turns, *step in steps]
            most = re.search(r"(?:^|;)[ \t]*NELM\s*=\s*(\d+)", incar_text, re.MULTILINE)
            if abs(free - before) <= 1e-3 * len(atoms) and last != (most[1] if most else "60"):  # eV
                atoms.calc = ReadResults({"energy": energy, "free_energy": free})
    return atoms


def rows_of(path: Path, kind: str, index: str, keys: Collection[str] = ()) -> Iterator[Any]:
    """Yield the structures of an ASE database.

    Key-value pairs and data stand in ``info``, data of all atoms in ``arrays``, too. InputError where one of the ``keys`` differs in both.
    """
    from ase.db import connect
    from ase.io.formats import string2index

    with connect(str(path), type=kind, serial=True) as database:
        rows = range(database.count())
        span = rows[string2index(index)]
        span = span if isinstance(span, range) else range(span, span + 1)
        for row in islice(database.select(), span.start, span.stop, span.step):
            atoms, data = row.toatoms(), row.data
            for both in data.keys() & row.key_value_pairs.keys() & {*keys}:
                if not np.array_equal(data[both], row.key_value_pairs[both]):
                    raise InputError(f"{path}: row {row.id} has {both} as a key-value pair and in its data; remove one")
            atoms.info.update({**data, **row.key_value_pairs})
            for key, value in data.items():
                with suppress(ValueError):  # lists of different lengths
                    column = np.asarray(value)
                    if column.shape[:1] == (len(atoms),) and column.dtype.kind in "biuf" and key not in atoms.arrays:
                        atoms.arrays[key] = column
            yield atoms
