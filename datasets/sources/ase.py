"""Structures in any format that ASE reads."""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from traceback import walk_tb
from typing import Any, Literal

from pydantic import Field as Setting
from pydantic import PrivateAttr

from hydragnn.base.errors import InputError
from hydragnn.base.files import knows_locks, open_packed
from hydragnn.datasets.sources.atoms_text import ATOMS, atoms_text
from hydragnn.datasets.sources.base import Make, MakerOfMany, ObjectsBuild
from hydragnn.datasets.sources.table_files import find_files
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.calculation_files import converged_steps, failure, turned, units_of
from hydragnn.graphs.lammps_files import LAMMPS_UNITS
from hydragnn.graphs.molecule_files import QM9_UNITS
from hydragnn.graphs.objects import library_of
from hydragnn.graphs.structure_files import DUMP, format_of, frames_of_xyz, structures_of
from hydragnn.graphs.texts import naming
from hydragnn.graphs.units import FAILED_STEPS


class AseBuild(ObjectsBuild):
    """Structures in formats of ASE, above all extended XYZ, and pymatgen."""

    _keeps_atoms: bool = PrivateAttr(False)
    """True where graphs keep everything that structures have, as a text."""

    kind: Literal["ase"] = "ase"

    cutoff: float = Setting(gt=0)
    """Pairs within this distance are edges, Angstrom."""

    max_neighbours: int | None = Setting(default=None, ge=1)
    """Keep only so many nearest neighbours of each atom."""

    index: str = ":"
    """Structures of each file, as a Python slice: ``:`` all, ``::10`` every tenth, ``-1`` the last."""

    format: str | None = None
    """ASE's name of the format, where the file name does not tell."""

    elements: list[str] = Setting(default_factory=list)
    """Elements of the types 1, 2 and so on, for dumps of LAMMPS without them."""

    units: Literal["metal", "real", "electron", "si", "cgs", "micro", "nano"] | None = None
    """Style of units of a dump of LAMMPS; needed for forces, energies, pressures, momenta."""

    log: str | None = None
    """Log of LAMMPS beside each dump: its thermo output has graph fields, by step."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each structure; InputError names file and structure."""
        labelled = dict[tuple[str, int], str]()
        for make in super().makers():
            if self.log and isinstance(make, MakerOfMany):
                read, file, number = make.item
                step, own = read().info["timestep"], f"{file}#{number}"
                if (other := labelled.setdefault((self.folders[file], step), own)) != own:
                    raise InputError(f"{other} and {own} are both of step {step} of {self.log}; keep one")
            yield make

    def load(self, path: Path) -> Iterator[tuple[int, Callable[[], Any]] | None]:
        """Yield number of atoms and reader of each structure, unparsed where possible.

        None for a step of VASP that did not converge.
        """
        number, keys = 0, {*(field.keys[0] for field in self.fields), *self.text_keys}
        try:
            kind = format_of(path, self.format)
            self.check_units(QM9_UNITS if kind == "qm9" else units_of(path, kind), str(path))
            self.check_dump(path, kind == DUMP)
            if self.divides(path):
                with open_packed(path, "r") as file:
                    for text in frames_of_xyz(file):
                        _check_entries(text, keys, path, number)
                        if self.index == ":":
                            read = partial(_read_frame, text, path, number, self.text_keys)
                            yield int(text.partition("\n")[0]), read
                        number += 1
                if self.index == ":":
                    return
                number = 0
            failed = self.unconverged(path)
            if self.needs_labels and (words := failure(path, kind)):
                raise InputError(f"{path} says {words!r}, and what did not converge is no label; leave it out")
            for key in sorted(turned(path, kind) & keys):
                raise InputError(f"{path} has the {key} along other axes than its positions; run it with nosymm")
            for atoms in structures_of(path, self.index, self.format, self.text_keys, self.dumps, keys):
                yield None if number in failed else (len(atoms), partial(lambda one: one, atoms))
                number += 1
            if number == len(failed) and (number or self.index == ":"):
                raise InputError(
                    f"{path} has no structure, or no finished step whose electrons converged; remove it, or repair it"
                )
        except InputError:
            raise
        except Exception as error:  # ASE's many readers raise whatever their parsing raises
            raise _unreadable(path, number, error) from error

    def maker(self, one: Any, first: Any, name: str, number: int) -> Make:
        """Return the maker of the structure of a file, or of ``Atoms``."""
        if self._objects is None:
            return MakerOfMany(self.graphs, (one[1], name, number), one[0])
        from hydragnn.graphs.atomic import snapshot

        if library_of(one) != "ase":
            raise InputError(f"{name}, structure {number}: a {type(one).__name__} is no Atoms of ASE; give such")
        if stated := self.model_fields_set & {"index", "format", "elements", "units", "log"}:
            raise InputError(f"{', '.join(sorted(stated))}: this is about files; leave it out where data are in memory")
        atoms = snapshot(one)
        return MakerOfMany(self.graphs, (lambda: atoms, name, number), len(one))

    def graph(self, one: Any, first: Any, name: str, number: int) -> GraphBatch:
        """Return the graph of one structure; InputError names file and structure."""
        from hydragnn.graphs.atomic import from_ase

        texts = self.entries(one, name, number)
        with naming(texts):
            return from_ase(one, name=f"{name}, structure {number}", **self.rule).with_texts(texts)

    def graphs(self, items: Sequence[tuple[Callable[[], Any], str, int]]) -> GraphBatch | None:
        """Return the graphs of structures; None to make them singly."""
        from hydragnn.graphs.together import from_ase_together

        (read, file, number), *more = items
        if not more:
            return self.graph(read(), None, file, number)
        structures = [read() for read, *_ in items]
        batch = from_ase_together(structures, **self.rule)
        if batch is None:
            return None
        texts = [self.entries(atoms, file, number) for atoms, (_, file, number) in zip(structures, items)]
        return batch.with_texts({key: [own[key][0] for own in texts] for key in texts[0]})

    def entries(self, atoms: Any, name: str, number: int) -> dict[str, list[str]]:
        """Return the texts of a structure."""
        texts = {ATOMS: [atoms_text(atoms)]} if self._keeps_atoms else {}
        return self.texts_of(atoms.info, frame_name(name, self.index, number)) | texts

    @property
    def needs_labels(self) -> bool:
        """True where structures without labels are of no use."""
        return any(field.role == "target" and not field.optional for field in self.fields)

    def unconverged(self, path: Path) -> list[int]:
        """Return which steps of a file lack their labels, since they did not converge."""
        named = self.format or re.search("OUTCAR|vasp", path.name)  # other files are none of VASP
        if not self.needs_labels or not named:
            return []
        steps = converged_steps(path, format_of(path, self.format), self.index)
        return [number for number, converged in enumerate(steps) if not converged]

    def notes(self) -> Mapping[str, Any]:
        """Return what is left out of the files."""
        files = [] if self._objects is not None else self.named_files()
        names = [frame_name(name, self.index, number) for path, name in files for number in self.unconverged(path)]
        some = ", ".join([*names[:3], *(["..."] if names[3:] else [])])
        note = f"steps whose electrons did not converge are left out: {len(names)}, namely {some}"
        return {FAILED_STEPS: [note]} if names else {}

    def check_dump(self, path: Path, is_dump: bool) -> None:
        """Raise InputError for idle or missing settings of dumps."""
        stated = [key for key in ("elements", "units", "log") if getattr(self, key)]
        own = {*LAMMPS_UNITS, "momenta"}
        raw = [one for one in self.fields if one.unit and one.keys[0] not in own and (one.on == "node" or self.log)]
        physical = raw or any(field.keys[0] in own for field in self.fields)
        if stated and not is_dump:
            raise InputError(f"{path} is no text dump of LAMMPS; leave {' and '.join(stated)} out")
        if is_dump and physical and not self.units:
            raise InputError(f'{path} does not say its style of units; say units = "metal", "real" or another')
        for one in raw if is_dump and self.units != "metal" else ():
            if one.scale == 1 and ("eV" in one.unit or ("Angstrom" in one.unit and self.units != "real")):
                problem = f"{path}: {one.keys[0]} is as written, in units {self.units}, not in {one.unit}"
                raise InputError(f"{problem}; give scale, or its own unit")
        self.check_units(LAMMPS_UNITS if is_dump else {}, str(path))

    @property
    def dumps(self) -> dict[str, Any]:
        """Return what dumps of LAMMPS do not state."""
        keys = {field.keys[0] for field in self.fields if field.on == "graph" and not field.optional} - {"timestep"}
        return {"elements": self.elements, "units": self.units or "metal", "log": self.log, "keys": keys}

    @property
    def first_number(self) -> str:
        """Return the number in the name of a file's first structure."""
        return frame_name("", self.index, 0)[1:]

    def count(self) -> int | None:
        """Return the number of structures; None where counting would read them."""
        return super().count() if self.index == ":" and all(map(self.divides, find_files(self.files))) else None

    def divides(self, path: Path) -> bool:
        """Return True for extended XYZ, which is divided without parsing."""
        return format_of(path, self.format) == "extxyz"

    @property
    def rule(self) -> dict[str, Any]:
        """Return the arguments by which structures become graphs."""
        return {
            "cutoff": self.cutoff,
            "fields": [field.field for field in self.fields],
            "keys": {field.name: field.keys[0] for field in self.fields},
            "optional": self.optional,
            "max_neighbours": self.max_neighbours,
        }


def frame_name(file: str, index: str, number: int) -> str:
    """Return file and frame of a structure among those of the ``index``.

    >>> frame_name("a.xyz", ":", 3), frame_name("a.xyz", "1::10", 3), frame_name("a.xyz", "-5:", 3)
    ('a.xyz#3', 'a.xyz#31', 'a.xyz#-2')
    """
    start, *rest = index.split(":")
    step = int(rest[1] or 1) if len(rest) == 2 else 1
    first = int(start or 0) if step > 0 else int(start or -1)
    return f"{file}#{first + number * step}"


def _check_entries(text: str, keys: Collection[str], path: Path, number: int) -> None:
    from hydragnn.graphs.extxyz import ENTRY

    comment = text.partition("\n")[2].partition("\n")[0]
    for key in keys:
        if comment.count(key) > 1:
            values = {value for name, value in ENTRY.findall(comment) if name == key}
            if len(values) > 1:
                raise InputError(
                    f"{path}: structure {number} has several values of {key} in its second line: {', '.join(sorted(values))}; keep one"
                )


def _read_frame(text: str, path: Path, number: int, texts: list[str]) -> Any:
    from hydragnn.graphs.extxyz import read_frame

    try:
        return read_frame(text, texts)
    except Exception as error:  # whatever parsing raises
        raise _unreadable(path, number, error) from error


def _unreadable(path: Path, number: int, error: Exception) -> InputError:
    if isinstance(error, sqlite3.OperationalError) and not knows_locks(path.parent):
        return InputError(
            f"{path}: structure {number} cannot be read ({error}): SQLite needs locks, which this file system does not know; "
            "copy the file to another one"
        )
    return InputError(
        f"{path}: structure {number} "
        f"{known_problem(error) or f'cannot be read by ASE ({type(error).__name__}: {error}); check the file and format'}"
    )


def known_problem(error: Exception) -> str:
    """Return the fault of a species, or of a file beside; else empty."""
    traceback = list(walk_tb(error.__traceback__))
    for frame, _ in traceback:
        if frame.f_code.co_name == "read_constraints_from_file":  # ASE's, for an OUTCAR
            return f"cannot be read, since {frame.f_locals['path']} beside it is damaged; repair or remove that one"
    if not isinstance(error, KeyError) or traceback[-1][0].f_globals["__name__"] != "ase.symbols":
        return ""
    label = str(error.args[0])
    return f"has an atom {label!r}, which is no chemical symbol; write {symbol_of(label)}"


def symbol_of(label: str) -> str:
    """Return the advice for an atom's label.

    >>> symbol_of("Fe1"), symbol_of("D"), symbol_of("Q1")
    ('Fe, and keep labels in a column of their own', 'H, and keep labels in a column of their own', 'the symbol of its element')
    """
    from ase.data import atomic_numbers

    letters = "".join(takewhile(str.isalpha, label))
    letters = {"D": "H", "T": "H"}.get(letters, letters)  # isotopes are no elements
    symbol = next((known for known in (letters, letters[:1]) if atomic_numbers.get(known)), None)
    return f"{symbol}, and keep labels in a column of their own" if symbol else "the symbol of its element"
