"""Databases of ASE and runs of VASP, with what ASE leaves out."""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError, ParserCreate

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.limits import check_readable
from hydragnn.graphs.atomic import ReadResults

_ENERGIES = re.compile(r"^\s*\d+ F=\s*(\S+)\s+E0=\s*(\S+)\s+d E", re.MULTILINE)
"""Step of a relaxation in an OSZICAR; those of dynamics begin otherwise."""


def check_xml(path: Path) -> None:
    """Raise InputError for incomplete XML, whose last step may be unfinished."""
    from ase.io.formats import open_with_compression

    with open_with_compression(str(path), "rb") as file:
        try:
            ParserCreate().ParseFile(file)
        except ExpatError as error:
            raise InputError(f"{path} is no complete XML ({error}): was it cut off? Take its OUTCAR") from error


def with_energy(atoms: Any, path: Path) -> Any:
    """Return a CONTCAR's structure with the energy of the OSZICAR beside it.

    A CONTCAR follows the last step, so that it has an energy only where the last two steps agree.
    """
    oszicar = path.with_name("OSZICAR")
    if path.name == "CONTCAR" and oszicar.is_file():
        check_readable(oszicar)
        with suppress(ValueError):  # fewer than two steps, or stars in place of a number
            steps = _ENERGIES.findall(oszicar.read_text("latin-1"))[-2:]
            (before, _), (free, energy) = [map(float, step) for step in steps]
            if abs(free - before) <= 1e-3 * len(atoms):  # eV
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
