"""Dumps of LAMMPS, and the thermo output of their log."""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_packed
from hydragnn.base.limits import check_readable

_ENERGIES = "PotEng KinEng TotEng E_pair E_mol E_vdwl E_coul E_bond E_angle E_dihed E_impro E_long E_tail Enthalpy Econserve Ecouple"
KINDS = dict.fromkeys(_ENERGIES.split(), "energy")
KINDS |= dict.fromkeys(("Press", "Pxx", "Pyy", "Pzz", "Pxy", "Pxz", "Pyz"), "pressure")
LAMMPS_UNITS = {key: {"energy": "eV", "pressure": "eV/Angstrom^3"}[kind] for key, kind in KINDS.items()}
LAMMPS_UNITS["forces"] = "eV/Angstrom"
"""Units of what is read, whatever the style of units."""
NO_ELEMENTS = (
    "has types of LAMMPS without their elements, and ASE would read type 1 as H; name those of a dump's types in the build file, such as "
    'elements = ["Cu", "Ni"], or write them: dump_modify ID element Cu Ni with the column element'
)


def frames_of_dump(
    path: Path, elements: Sequence[str] = (), units: str = "metal", log: str | None = None, keys: Collection[str] = ()
) -> Iterator[Any]:
    """Yield frames of a text dump in units of ASE.

    ``elements`` are those of the types 1, 2 and so on; the ``log`` stands beside the dump, and every frame needs its columns ``keys``.
    """
    from ase.calculators.lammps import convert
    from ase.io.lammpsrun import read_lammps_dump_text

    items = dict[str, list[str]]()
    with open_packed(path, "r") as file:
        for line in filter(str.strip, file):
            name = line[6:].partition(" ")[0].strip() if line.startswith("ITEM: ") else ""
            count = {"BOX": 3, "ATOMS": int(items.get("NUMBER", "00")[1])}.get(name, 1)
            items[name] = [line, *islice(file, count)]
            if not name or len(items[name]) <= count or not items[name][-1].endswith("\n"):
                raise InputError(f"{path} was cut off or counts wrong: {line.strip()!r:.60} begins no whole item")
            if name == "UNITS" and (stated := items[name][1].strip()) != units:
                raise InputError(
                    f'{path} is in units {stated}; say units = "{stated}", or convert what has no Angstrom'
                )
            if name != "ATOMS":
                continue
            step = items["TIMESTEP"][1].strip()
            _check(items["ATOMS"], elements, path, step)
            text = "".join(line for name in ("TIMESTEP", "NUMBER", "BOX", "ATOMS") for line in items[name])
            if elements:  # ASE would guess them by mass
                text = re.sub(r" mass(?=\s)", " own_mass", text)
            atoms = read_lammps_dump_text(StringIO(text), index=0, specorder=elements or None, units=units)
            if atoms.calc is not None:
                del atoms.calc.results["energy"]  # a zero that ASE puts there
            for key, value in _row(path.parent / log, step, keys, atoms, units).items() if log else ():
                atoms.info[key] = convert(value, KINDS[key], units, "ASE") if key in KINDS else value
            yield atoms
            items = {}
    if items:
        raise InputError(f"{path} was cut off inside a frame; remove the rest")


def _check(lines: list[str], elements: Sequence[str], path: Path, step: str) -> None:
    """Raise InputError for unknown or contradicting elements, or equal ids."""
    columns = dict(zip(lines[0].split()[2:], zip(*map(str.split, lines[1:]))))
    if not elements and not {"element", "mass"} & {*columns}:
        raise InputError(f"{path} {NO_ELEMENTS}")
    by_type, ids = {str(number): one for number, one in enumerate(elements, 1)}, columns.get("id", ())
    symbols = [by_type.get(one, "") for one in columns.get("type", ())]
    if elements and (not symbols or "" in symbols or symbols != [*columns.get("element", symbols)]):
        raise InputError(
            f"{path}, step {step}: elements = {[*elements]} does not fit its types; give one for each type"
        )
    if len({*ids}) < len(ids):
        raise InputError(f"{path}, step {step}: two atoms have one id; repair the dump")


def _row(log: Path, step: str, keys: Collection[str], atoms: Any, units: str) -> dict[str, float]:
    """Return the thermo output of a step; InputError without its keys."""
    if not log.exists():
        raise InputError(f"{log}: no such file; the log stands beside its dump")
    rows, counts = _thermo(log, units, log.stat().st_mtime_ns)
    row = rows.get(step, {})
    if lacking := [key for key in keys if not row.get(key)]:
        problem = f"{log} has no {lacking[0]} at step {step} of the dump, or several that differ"
        raise InputError(f"{problem}; print it at each step of the dump, or leave others out")
    if row and counts and str(len(atoms)) not in counts:
        raise InputError(
            f"{log} is of {' or '.join(counts)} atoms, and the dump has {len(atoms)} at step {step}; dump all of them"
        )
    return {key: float(word) for key, word in row.items() if word}


@lru_cache(maxsize=4)
def _thermo(log: Path, units: str, _changed: int) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Return thermo output by step, empty where rows differ; numbers of atoms."""
    check_readable(log)
    text, columns, rows = log.read_text(errors="replace").rpartition("\n")[0], list[str](), dict[str, dict[str, str]]()
    text = re.sub(r"&[ \t]*\n", " ", text)  # commands over several lines
    runs = [set[int]()]
    if re.search(r"^\s*thermo_modify\b.*\bnorm\s+(yes|on|true)\b", text, re.MULTILINE):
        raise InputError(f"{log} has energies per atom (thermo_modify norm yes); print them with norm no")
    if (stated := re.search(r"^\s*units\s+(\w+)", text, re.MULTILINE)) and stated[1] != units:
        raise InputError(f'{log} is in units {stated[1]}; say units = "{stated[1]}"')
    for words in map(str.split, text.splitlines()):
        if words[:1] in (["Step"], ["Loop"]):
            columns = words if words[0] == "Step" else []
            runs.append(set())
        elif columns and len(words) == len(columns) and words[0].isdigit():
            runs[-1].add(int(words[0]))
            row = rows.setdefault(words[0], {})
            row |= {key: word if row.get(key, word) == word else "" for key, word in zip(columns, words)}
    steps, end = set[int](), -1
    for run in filter(None, runs):
        first, last = min(run), min(max(run), end)
        if first < end and any(first <= step <= last for step in steps ^ run):
            raise InputError(f"{log} has two runs with steps from {first} to {last}; keep the part of the dump's run")
        steps |= run
        end = max(end, *run)
    return rows, {*re.findall(r"^Loop time .* with (\d+) atoms", text, re.MULTILINE)}
