"""Maps of electron diffraction: .ctf, .ang, .dream3d, and HDF5 that orix reads."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hydragnn.base.errors import InputError, MissingPackageError, print_note
from hydragnn.datasets.sources.map_settings import MapSettings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.orientations import LAUE

_EDAX = "43 m-3m 23 m-3 62 6/mmm 6 6/m 42 4/mmm 4 4/m 32 -3m 3 -3 22 mmm 20 2/m 2 112/m 1 -1"
EDAX = {name: name for name in LAUE} | dict(zip(_EDAX.split()[::2], _EDAX.split()[1::2]))
UNSURE = {"-3m": "-3m or -31m", "2/m": "2/m or 112/m"}  # x lies along a* in Oxford's maps, along a in others
OXFORD = dict(enumerate(["-1", "2/m", "mmm", "4/m", "4/mmm", "-3", UNSURE["-3m"], "6/m", "6/mmm", "m-3", "m-3m"], 1))
"""Laue groups by their names in files."""

LAUE_GROUPS = dict(enumerate(["6/mmm", "m-3m", "6/m", "m-3", "-1", "2/m", "mmm", "4/m", "4/mmm", "-3", "-3m"]))
LENGTHS = {5: 1e-3, 6: 1.0, 7: 1e3, 100: 1.0, 101: 1.0}
"""Micrometres of DREAM.3D's units. Metres, its default that few files mean, and odd units are asked for."""

COLUMNS = ("phi1", "phi", "phi2", "x", "y", "iq", "ci", "phase")  # columns of an .ang whose header names none


def read_ctf(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the map of a Channel Text File (Oxford, Bruker and others)."""
    text = path.read_text(encoding="latin-1")
    columns = re.search(r"(?m)^(?=.*\bPhase\b).*\bEuler1\b.*$", text)
    if columns is None:
        raise InputError(f"{path} has no line of columns (Phase X Y ...); export it again")
    header, body = text[: columns.start()], text[columns.end() :].replace(",", ".")  # of German systems
    entries = dict(re.findall(r"(?m)^([XY](?:Cells|Step)|AcqE[123])\s+(\S+)", header.replace(",", ".")))
    turned = [float(entries[key]) for key in ("AcqE1", "AcqE2", "AcqE3") if key in entries]
    if any(turned):
        what = f"its AcqE {turned} turn the axes of Euler angles from those of positions"
        print_note(f"{path}: {what}; nothing turns them back")
    listed = re.search(r"(?m)^Phases\s+(\d+).*\n", header)
    lines = header[listed.end() :].splitlines()[: int(listed[1])] if listed else []
    parts = {number: [*line.split("\t"), *[""] * 4] for number, line in enumerate(lines, 1)}
    names = {number: one[2] or str(number) for number, one in parts.items()}
    laue = {number: OXFORD[int(one[3])] for number, one in parts.items() if one[3] in map(str, OXFORD)}
    order = [columns[0].split().index(name) for name in ("X", "Y", "Euler1", "Euler2", "Euler3", "Phase")]
    counts = [int(entries[key]) for key in ("XCells", "YCells") if key in entries]
    steps = settings.steps(path, [entries.get(key, 0) for key in ("XStep", "YStep")])
    table = np.loadtxt(StringIO(body), usecols=order, ndmin=2)
    return settings.of_points(path, table, counts, steps, (names, laue), True, False)


def read_ang(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the map of an .ang file (EDAX and others)."""
    text = path.read_text(encoding="latin-1")
    header = "\n".join(re.findall(r"(?m)^#.*$", text))
    form = r"(?m)^#\s*(GRID|[XY]STEP|NCOLS_ODD|NCOLS_EVEN|NROWS):?\s+(\S+)"
    entries = dict(re.findall(form, header.replace(",", ".")))
    named = re.search(r"(?mi)^#\s*COLUMN[_ ](?:HEADERS|NAMES):(.*)$", header)  # of OIM 8, of orix
    heads = [one.strip().lower() for one in named[1].split(",")] if named else [*COLUMNS]
    heads = [re.sub("^phase.*", "phase", one.replace("confidence_index", "ci")) for one in heads]
    if lacks := [name for name in COLUMNS if name not in ("iq", *heads)]:
        raise InputError(f"{path} has no column {lacks[0]} among {', '.join(heads)}; name it in its header")
    order = [heads.index(name) for name in ("x", "y", "phi1", "phi", "phi2", "phase", "ci")]
    parts = re.split(r"(?m)^#\s*Phase:?\s+(\d+)\s*$", header)
    parts = ["", "1", header] if len(parts) == 1 and "MaterialName" in header else parts
    names, laue = {int(number): number for number in parts[1::2]}, dict[int, str]()
    for number, part in zip(names, parts[2::2]):
        own = dict(re.findall(r"(?m)^#\s*(MaterialName|Symmetry):?[ \t]+(\S.*?)\s*$", part))
        names[number], group = own.get("MaterialName", names[number]), EDAX.get(own.get("Symmetry", ""))
        laue |= {number: group} if group else {}
    table = np.loadtxt(StringIO(text.replace(",", ".")), usecols=order, ndmin=2)
    if len(names) < 2 and table[:, 5].max(initial=0) <= 0:  # EDAX gives a single phase the number 0
        table[table[:, 5] == 0, 5] = min(names, default=1)
    if stray := int(((table[:, 5] == 0) & (table[:, 6] > 0)).sum()):
        print_note(
            f"{path}: {stray:,} points of phase 0 have a confidence and belong to no grain; its header lists {[*names]}"
        )
    table[(table[:, 6] == -1) | (np.abs(table[:, 2] - 4 * np.pi) < 1e-2), 5] = 0
    counts = [int(entries[key]) for key in ("NCOLS_ODD", "NROWS", "NCOLS_EVEN") if key in entries]
    length = 1e-3 if "ACOM" in header else 1.0  # nanometres of electron microscopes in transmission
    table[:, :2] *= length
    steps = settings.steps(path, [float(entries.get(key, 0)) * length for key in ("XSTEP", "YSTEP")])
    hexagonal = entries.get("GRID", "").lower().startswith("hex")
    return settings.of_points(path, table, counts, steps, (names, laue), False, hexagonal)


def read_hdf5(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the map of an HDF5 file that orix reads."""
    try:
        import quaternion  # noqa: F401  # without it orix compiles into a cache that several processes can break
        from orix import io

        one = io.load(path)
    except ImportError as error:
        raise MissingPackageError(error.name or "orix", "ebsd", f"reading {path}") from error
    except (AttributeError, KeyError) as error:  # orix found no reader, or not what it reads
        raise InputError(f"{path} is no whole map of Bruker, EMsoft or orix ({error}); export .ctf or .ang") from error
    groups = {number + 1: phase.point_group for number, phase in one.phases}
    laue = {number: UNSURE.get(group.laue.name, group.laue.name) for number, group in groups.items() if group}
    names = {number + 1: phase.name or str(number + 1) for number, phase in one.phases}
    stated, scale = np.array([one.dx, one.dy]), 1.0 if one.scan_unit == "um" else 0.0
    steps = settings.steps(path, stated * scale)
    places = np.column_stack([one.x, one.y]) / np.where(stated > 0, stated, 1.0) * steps
    turns = one.rotations.reshape(len(places), -1)[:, 0].to_euler()
    table = np.column_stack([places, turns, one.phase_id + 1])
    return settings.of_points(path, table, [], steps, (names, laue), False, False)


def read_dream3d(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the cells of a file of DREAM.3D 6 or newer."""
    groups, arrays = list[Any](), list[Any]()
    with h5py.File(path) as file:
        file.visititems(lambda _, item: groups.append(item) if isinstance(item, h5py.Group) else None)
        images = [one for one in groups if "_DIMENSIONS" in one.attrs or "DIMENSIONS" in one.get("_SIMPL_GEOMETRY", {})]
        own = [one for one in groups if len(images) == 1 and f"{one.name}/".startswith(f"{images[0].name}/")]
        cells = [one for one in own if "FeatureIds" in one or ("EulerAngles" in one and one["EulerAngles"].ndim == 4)]
        if len(cells) != 1:
            what = f"{len(images)} images, and {len(cells)} groups of cells with FeatureIds or EulerAngles"
            raise InputError(f"{path} has {what}; write one into a file")
        older = images[0].get("_SIMPL_GEOMETRY", images[0])
        stated = {**images[0].get("_SIMPL_GEOMETRY", {}), **older.attrs, **images[0].attrs}
        entries = {key.strip("_").upper(): one for key, one in stated.items()}
        size, scale = [int(one) for one in entries["DIMENSIONS"]], LENGTHS.get(int(entries.get("UNITS", 6)), 0.0)
        steps = settings.steps(path, np.multiply(scale, entries.get("SPACING", [0] * 3)))
        for key, width in {"FeatureIds": 1, "EulerAngles": 3, "Phases": 1, "Mask": 1}.items():
            shape, expected = cells[0][key].shape if key in cells[0] else None, (*size[::-1], width)
            if shape and expected not in (shape, (*shape, 1)):
                raise InputError(f"{path}: {key} has shape {shape}, and its geometry says {expected}; write it again")
            arrays.append(cells[0][key][()].reshape(expected).transpose(2, 1, 0, 3).squeeze() if shape else None)
        about = next((one for one in own if "CrystalStructures" in one), dict[str, Any]())
        structures = [LAUE_GROUPS.get(one) for one in about["CrystalStructures"][()].ravel()] if about else []
        texts = next((about[key] for key in ("PhaseName", "MaterialName") if key in about), None)
        names = [] if texts is None else texts.asstr("latin-1")[()].ravel().tolist()
    ids, angles, phase, good = arrays
    phase = np.ones(ids.shape if angles is None else angles.shape[:-1], dtype=np.int64) if phase is None else phase
    phase = phase if good is None else np.where(good, phase, 0)
    turns = None if angles is None else settings.turns(path, angles, phase > 0)
    phases = [{number: one for number, one in enumerate(some) if one} for some in (names, structures)]
    return settings.of_map(path, steps[np.array(size) > 1], phase, turns, phases, ids)
