"""Microstructures as instruments write them: maps of orientations, polycrystals."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field as Setting

from hydragnn.base.errors import InputError, MissingPackageError, as_input_error, print_note
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.meshio_files import read_abaqus
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.orientations import INVERSE, LAUE, from_bunge, grains_of_map, mean_orientations, with_orientations

Array = Any  # of numpy
Sections = dict[str, list[str]]

_EDAX = "43 m-3m 23 m-3 62 6/mmm 6 6/m 42 4/mmm 4 4/m 32 -3m 3 -3 22 mmm 20 2/m 2 112/m 1 -1"
EDAX = {name: name for name in LAUE} | dict(zip(_EDAX.split()[::2], _EDAX.split()[1::2]))
_LAUE = dict(enumerate([name for name in LAUE if name not in ("112/m", "-31m")], 1))
UNSURE = {"-3m": "-3m or -31m", "2/m": "2/m or 112/m"}  # x lies along a* in Oxford's maps, along a in others
OXFORD = _LAUE | {7: UNSURE["-3m"]}
DREAM3D = {number: _LAUE[one] for number, one in enumerate((9, 11, 8, 10, 1, 2, 3, 4, 5, 6, 7))}
NEPER = {name: name for name in LAUE} | {"cubic": "m-3m", "hexagonal": "6/mmm", "triclinic": "-1"}
"""Laue groups by their names in files."""

LENGTHS = {5: 1e-3, 6: 1.0, 7: 1e3, 100: 1.0, 101: 1.0}
"""Micrometres of DREAM.3D's units. Metres, its default that few files mean, and odd units are asked for."""


class MicrostructureBuild(BuildSettings):
    """Maps of orientations and polycrystals: nodes are grains, edges boundaries."""

    kind: Literal["microstructure"] = "microstructure"

    threshold: float = Setting(default=5.0, gt=0, le=180)
    """Misorientation of neighbouring points, in degrees, from which they belong to different grains."""

    smallest: int = Setting(default=0, ge=0)
    """Points of the smallest grain: smaller ones, and points not indexed, join the nearest grain; 0: none does."""

    symmetry: str | dict[str, str] | None = None
    """Laue group such as ``m-3m``, or one for each name of a phase; absent: as the file says."""

    phases: list[str] | None = None
    """Names of phases, in the order of classes of the field ``phase``; absent: every file has one phase."""

    spacing: float | list[float] | None = None
    """Distance of points, or one each along x, y and z; absent: as the file says."""

    degrees: bool | None = None
    """True for Euler angles in degrees, false for radians; absent: degrees in .ctf, else radians."""

    periodic: bool | list[bool] = False
    """True where a map repeats, or one for each axis."""

    sets: str = "*"
    """Pattern for the names of element sets that are grains (.inp)."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each file; InputError names the file."""
        files = self.named_files()
        if len({path.suffix.lower() for path, _ in files} & {".ctf", ".ang"}) > 1:
            print_note(".ctf and .ang usually have other axes of sample and crystal, which orientation_features mix")
        for path, name in files:
            yield partial(self._graph, path, name)

    def _graph(self, path: Path, name: str) -> GraphBatch:
        if self.fields:
            raise InputError(f"{name}: no value for the field {self.fields[0].name}; name a table of labels")
        if (read := READERS.get(path.suffix.lower())) is None:
            raise InputError(f"{path} is no microstructure; give {', '.join(READERS)}")
        for key, suffixes in TAKEN_BY.items():
            if path.suffix.lower() not in suffixes and getattr(self, key) != type(self).model_fields[key].default:
                raise InputError(f"{path}: {key} is for {', '.join(suffixes)}; leave it out")
        with as_input_error(f"{path} is damaged or incomplete", "export it again"):
            return read(path, self).with_texts(self.texts_of({}, name))

    def of_map(
        self, path: Path, steps: Array, phase: Array, turns: Array, phases: Any, grain: Array = None, cells: int = 1
    ) -> GraphBatch:
        """Return the grains of arrays with the axes x, y, z."""
        from scipy.ndimage import distance_transform_edt

        from hydragnn.graphs.mesoscale import from_labels

        periodic = self.periodic if isinstance(self.periodic, list) else [self.periodic] * phase.ndim
        if len(periodic) != phase.ndim or (cells > 1 and any(periodic)):
            raise InputError(f"{path} has {phase.ndim} axes; periodic has {len(periodic)}, and none on hexagonal grids")
        numbers = [int(number) for number in np.unique(phase) if number > 0]
        names = {number: phases[0].get(number, str(number)) for number in numbers}
        if len({*names.values()}) < len(names):
            raise InputError(f"{path} names several phases alike: {[*names.values()]}; correct its header")
        if {*names.values()} - {*(self.phases or [])} and (self.phases or len(names) > 1):
            raise InputError(f"{path} has the phases {[*names.values()]}; say phases = [...] with all names")
        laue = {} if turns is None else {n: self.group(names[n], phases[1].get(n), path) for n in numbers}
        if grain is not None and self.threshold != type(self).model_fields["threshold"].default:
            raise InputError(f"{path} has grains of its own; leave threshold out, or remove FeatureIds")
        grain = grains_of_map(turns, phase, laue, self.threshold, periodic) if grain is None else grain
        grain = np.where((phase > 0) & (np.bincount(grain.ravel())[grain] >= self.smallest * cells), grain, 0)
        inside = grain > 0
        _, first, owner = np.unique(grain[inside], return_index=True, return_inverse=True)
        kinds = phase[inside][first]
        if not len(first) or (kinds[owner] != phase[inside]).any():
            raise InputError(f"{path} has no grain, or one of several phases; check its phases, grains, and smallest")
        if self.smallest:  # axes that repeat go on as far as the nearest grain can be
            reach = np.ceil(distance_transform_edt(~inside, steps).max() / steps).astype(np.int64) * periodic
            nearest = distance_transform_edt(np.pad(~inside, reach[:, None], "wrap"), steps, False, True)
            own = tuple(slice(far, far + size) for far, size in zip(reach, grain.shape))
            grain = grain[tuple((place[own] - far) % size for place, far, size in zip(nearest, reach, grain.shape))]
        graph = from_labels(grain, steps, periodic, background=0, name=str(path))
        values = {key: graph[key] for key in ("volume", "area", "area_vector")}
        units = ["um", "um^2", "um^3"][graph.dim - 2 :]
        fields = [replace(graph.fields[key], unit=units[key == "volume"]) for key in values]
        if turns is not None:
            means, spread = np.empty((len(first), 4)), np.empty(len(first), dtype=np.float32)
            for number, group in laue.items():
                grains, rows = np.flatnonzero(kinds == number), kinds[owner] == number
                members = np.searchsorted(grains, owner[rows])
                means[grains], spread[grains] = mean_orientations(turns[inside][rows], members, group)
            graph = with_orientations(graph, means, kinds, laue)
            values["orientation_spread"] = torch.from_numpy(spread)
            fields.append(Field(name="orientation_spread", on="node", unit="degree"))
        if self.phases:
            values["phase"] = torch.tensor([self.phases.index(names[int(number)]) for number in kinds])
            fields.append(Field(name="phase", on="node", classes=len(self.phases), dtype="int64"))
        return graph.with_fields(values, fields=fields)

    def of_points(
        self, path: Path, table: Array, counts: list[int], steps: Array, phases: Any, degrees: bool, hexagonal: bool
    ) -> GraphBatch:
        """Return the grains of rows of x, y, Euler angles and phase.

        Points of a hexagonal grid become bricks of two cells in staggered rows, which have the same neighbours.
        """
        names, unit = phases[0] or range(1, 256), steps * [1 - hexagonal / 2, 1]
        if odd := [one for one in np.unique(table[:, 5]) if not (one <= 0 or one in names)]:
            raise InputError(f"{path}: points have phase {odd[0]:g}, and its header lists {[*names]}; correct one")
        columns, rows, others = (*counts, *counts[:1])[:3] if len(counts) > 1 else (0, 0, 0)
        if (points := (rows + 1) // 2 * columns + rows // 2 * others or len(table)) != len(table):
            raise InputError(f"{path} has {len(table):,} points, and its header counts {points:,}; export it again")
        index, fits = np.empty((len(table), 2), dtype=np.int64), True
        for axis, step in enumerate(unit):
            places, member = np.unique(table[:, axis], return_inverse=True)
            gaps = np.diff(places, prepend=places[0]) / step
            index[:, axis] = (number := np.cumsum(gaps > 0.5))[member]
            fits &= bool((np.abs(gaps - (gaps > 0.5)) < 0.25).all())
            fits &= abs((places[-1] - places[0]) / step - number[-1]) <= 0.02 * number[-1]
        shape = index.max(axis=0) + np.array([1 + hexagonal, 1])
        flat = np.ravel_multi_index((*index.T,), (*shape,))
        if not fits or len(np.unique(flat)) < len(table) or (hexagonal and np.ptp(index.sum(axis=1) % 2)):
            form = f"one each on the {'hexagonal' if hexagonal else 'square'} grid of its header"
            raise InputError(f"{path}: points are not {form}; say spacing, or export it again")
        full = np.zeros((shape.prod(), 4))
        for cells in (flat, flat + shape[1])[: 1 + hexagonal]:
            full[cells] = np.maximum(table[:, 2:6], [-np.inf] * 3 + [0])
        phase = full[:, 3].astype(np.int64).reshape(shape)
        turns = self.turns(path, full[:, :3].reshape(*shape, 3), phase > 0, degrees)
        return self.of_map(path, unit, phase, turns, phases, cells=1 + hexagonal)

    def turns(self, path: Path, angles: Array, indexed: Array, degrees: bool = False) -> Array:
        """Return quaternions of Euler angles, usually in ``degrees``."""
        most = np.abs(angles[indexed]).max(initial=0.0)
        if not np.isfinite(most):
            raise InputError(f"{path}: an indexed point has the Euler angle {most}; give it phase 0")
        if self.degrees is None and (0 < most < 6.3 if degrees else most > 12.6):
            units = "degrees" if degrees else "radians"
            raise InputError(f"{path}: Euler angles to {most:.4g} are hardly in {units}; say degrees = true or false")
        flat = np.where(indexed[..., None], angles, 0.0).reshape(-1, 3)
        flat = np.radians(flat) if (degrees if self.degrees is None else self.degrees) else flat
        return from_bunge(flat).reshape(*indexed.shape, 4)

    def group(self, name: str, group: str | None, path: Path) -> str:
        """Return the Laue group of a phase: the user's, else the file's."""
        own = self.symmetry.get(name) if isinstance(self.symmetry, dict) else self.symmetry
        stray = not own and isinstance(self.symmetry, dict) and {*self.symmetry} - {*(self.phases or [])}
        if stray or (own or group) not in LAUE:
            what = f"is {own or group!r}" if own or group else "is not in the file"
            what = f"is not that of {stray}" if stray else what
            example = f'symmetry = "m-3m", or {{ "{name}" = "m-3m" }}, out of {", ".join(LAUE)}'
            raise InputError(f"{path}: the symmetry of phase {name} {what}; say {example}")
        return str(own or group)

    def steps(self, path: Path, stated: Iterable[Any]) -> Array:
        """Return the distances of points: the user's, else the file's."""
        lengths = np.array([*stated], dtype=np.float64)
        if isinstance(self.spacing, list) and len(self.spacing) != len(lengths):
            raise InputError(f"spacing has {len(self.spacing)} lengths; give {len(lengths)}, or one")
        steps = np.broadcast_to(lengths if self.spacing is None else self.spacing, lengths.shape)
        if not ((steps > 0) & np.isfinite(steps)).all():
            raise InputError(
                f"{path}: the distances of points are {steps.tolist()}; say spacing, also one for each axis"
            )
        return steps


def read_ctf(path: Path, settings: MicrostructureBuild) -> GraphBatch:
    """Return the map of a Channel Text File (Oxford, Bruker and others)."""
    text = path.read_text(encoding="latin-1")
    columns = re.search(r"(?m)^Phase\s+X\s+Y\b.*$", text)
    if columns is None:
        raise InputError(f"{path} has no line of columns (Phase X Y ...); export it again")
    header, body = text[: columns.start()], text[columns.end() :].replace(",", ".")  # of German systems
    entries = dict(re.findall(r"(?m)^([XY](?:Cells|Step))\s+(\S+)", header.replace(",", ".")))
    turned = [float(angle) for angle in re.findall(r"(?m)^AcqE[123]\s+(\S+)", header.replace(",", "."))]
    if any(turned):
        print_note(
            f"{path}: its AcqE {turned} turn the axes of Euler angles from those of positions; nothing turns them back"
        )
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


def read_ang(path: Path, settings: MicrostructureBuild) -> GraphBatch:
    """Return the map of an .ang file (EDAX and others)."""
    text = path.read_text(encoding="latin-1")
    header = "\n".join(re.findall(r"(?m)^#.*$", text))
    entries = dict(re.findall(r"(?m)^#\s*(GRID|[XY]STEP|NCOLS_ODD|NCOLS_EVEN|NROWS):?\s+(\S+)", header))
    parts = re.split(r"(?m)^#\s*Phase:?\s+(\d+)\s*$", header)
    parts = ["", "1", header] if len(parts) == 1 and "MaterialName" in header else parts
    names, laue = {int(number): number for number in parts[1::2]}, dict[int, str]()
    for number, part in zip(names, parts[2::2]):
        own = dict(re.findall(r"(?m)^#\s*(MaterialName|Symmetry):?[ \t]+(\S.*?)\s*$", part))
        names[number], group = own.get("MaterialName", names[number]), EDAX.get(own.get("Symmetry", ""))
        laue |= {number: group} if group else {}
    table = np.loadtxt(StringIO(text), usecols=(3, 4, 0, 1, 2, 7, 6), ndmin=2)
    if len(names) < 2 and not table[:, 5].any():  # EDAX gives a single phase the number 0
        table[:, 5] = min(names, default=1)
    table[(table[:, 6] == -1) | (np.abs(table[:, 2] - 4 * np.pi) < 1e-2), 5] = 0
    counts = [int(entries[key]) for key in ("NCOLS_ODD", "NROWS", "NCOLS_EVEN") if key in entries]
    length = 1e-3 if "ACOM" in header else 1.0  # nanometres of electron microscopes in transmission
    table[:, :2] *= length
    steps = settings.steps(path, [float(entries.get(key, 0)) * length for key in ("XSTEP", "YSTEP")])
    hexagonal = entries.get("GRID", "").lower().startswith("hex")
    return settings.of_points(path, table, counts, steps, (names, laue), False, hexagonal)


def read_hdf5(path: Path, settings: MicrostructureBuild) -> GraphBatch:
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


def read_dream3d(path: Path, settings: MicrostructureBuild) -> GraphBatch:
    """Return the cells of a file of DREAM.3D 6 or newer."""
    import h5py

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
        for key, width in {"FeatureIds": 1, "EulerAngles": 3, "Phases": 1}.items():
            shape, expected = cells[0][key].shape if key in cells[0] else None, (*size[::-1], width)
            if shape and expected not in (shape, (*shape, 1)):
                raise InputError(f"{path}: {key} has shape {shape}, and its geometry says {expected}; write it again")
            arrays.append(cells[0][key][()].reshape(expected).transpose(2, 1, 0, 3).squeeze() if shape else None)
        about = next((one for one in own if "CrystalStructures" in one), dict[str, Any]())
        structures = [DREAM3D.get(one) for one in about["CrystalStructures"][()].ravel()] if about else []
        texts = next((about[key] for key in ("PhaseName", "MaterialName") if key in about), None)
        names = [] if texts is None else texts.asstr("latin-1")[()].ravel().tolist()
    ids, angles, phase = arrays
    phase = np.ones(ids.shape if angles is None else angles.shape[:-1], dtype=np.int64) if phase is None else phase
    turns = None if angles is None else settings.turns(path, angles, phase > 0)
    phases = [{number: one for number, one in enumerate(some) if one} for some in (names, structures)]
    return settings.of_map(path, steps[np.array(size) > 1], phase, turns, phases, ids)


def read_tess(path: Path, settings: MicrostructureBuild) -> GraphBatch:
    """Return the cells of a tessellation of Neper."""
    import meshio

    entries = _sections(path, "**vertex", "**face")
    count, vertices, dim = (int(entries[one][0]) for one in ("**cell", "**vertex", "**general"))
    table = np.array(entries["**vertex"][1:], dtype=np.float64).reshape(vertices, 5)
    if (table[:, 0] != np.arange(1, vertices + 1)).any():
        raise InputError(f"{path}: vertices are not numbered from 1; write it again")
    points, faces = table[:, 1:4], _lists(entries["**face"], 12)
    solids = _lists(entries["**polyhedron"], 2) if dim == 3 else [[number] for number in range(1, 1 + len(faces))]
    if len(solids) != count:
        raise InputError(f"{path} has {len(solids)} cells, and counts {count}; write it again")
    fans = [
        [(f[0], *f[k : k + 2]) for n in one for f in [faces[abs(n) - 1]] for k in range(1, len(f) - 1)]
        for one in solids
    ]
    owner = np.repeat(np.arange(count), [len(one) for one in fans])
    corners = np.concatenate(fans) - 1
    if dim == 3:
        middles = [points[np.unique(np.array(one) - 1)].mean(axis=0) for one in fans]
        points, corners = np.concatenate([points, middles]), np.column_stack([corners, vertices + owner])
    graph = _merged(meshio.Mesh(points, [("tetra" if dim == 3 else "triangle", corners)]), owner, path)
    return _of_cells(graph, np.arange(count), entries, settings, path)


def read_tesr(path: Path, settings: MicrostructureBuild) -> GraphBatch:
    """Return the cells of a raster of Neper; its voxels of cell 0 are empty."""
    from hydragnn.graphs.mesoscale import from_labels

    entries = _sections(path, "**data")
    dim, *sizes = entries["**general"]
    size, steps = np.array(sizes[: 2 * int(dim)], dtype=np.float64).reshape(2, int(dim))
    form, *numbers = entries["**data"]
    usual = [str(number) for number in range(1, 1 + int(entries["**cell"][0]))]
    if form != "ascii" or entries.get("**cell*id", usual) != usual:
        what = f"cells {entries['**cell*id'][:3]} ..." if form == "ascii" else f"{form} data"
        raise InputError(f"{path} has {what}; write cells from 1 on, by -tesrformat ascii of neper")
    grain = np.array(numbers, dtype=np.int64).reshape(size.astype(np.int64)[::-1]).T
    graph = from_labels(grain, steps, background=0, name=str(path))
    return _of_cells(graph, np.unique(grain[grain > 0]) - 1, entries, settings, path)


def _sections(path: Path, *needs: str) -> Sections:
    """Return the words of a file of Neper by section; InputError for parts."""
    parts = re.split(r"(?m)^\s*(\*+\w+)\s*$", path.read_text(encoding="latin-1"))
    entries, parent = Sections(), ""
    for name, body in zip(parts[1::2], parts[2::2]):
        parent = name if name.startswith("**") else parent
        entries[name if name == parent else parent + name] = body.split()
    solid = ["**polyhedron"] if "**face" in needs and entries.get("**general", ["2"])[0] == "3" else []
    lacks = [one for one in ("**cell", "**general", *needs, *solid, "***end") if one not in entries]
    if lacks or "**periodicity" in entries:
        what = f"lacks {lacks[0]}" if lacks else "is periodic"
        raise InputError(f"{path} {what}; give a whole file of Neper that is not periodic")
    return entries


def _of_cells(
    graph: GraphBatch, cells: Array, entries: Sections, settings: MicrostructureBuild, path: Path
) -> GraphBatch:
    """Return grains with the orientations of Neper's cells, if it has them."""
    if "**cell*ori" not in entries:
        return graph
    count = int(entries["**cell"][0])
    (kind, _, convention), *numbers = entries["**cell*ori"][0].partition(":"), *entries["**cell*ori"][1:]
    values = np.array(numbers, dtype=np.float64).reshape(count, -1)
    if (kind, values.shape[1]) not in {("rodrigues", 3), ("quaternion", 4), ("euler-bunge", 3)}:
        what = f"{values.shape[1]} numbers of {entries['**cell*ori'][0]}"
        raise InputError(f"{path}: {what} are no orientation here; write rodrigues")
    turns = from_bunge(np.radians(values)) * INVERSE if kind == "euler-bunge" else values
    turns = np.insert(values, 0, 1.0, axis=1) if kind == "rodrigues" else turns
    exchanged = 2.2 if "**data" in entries else 3.5  # format from which the two names stand for each other
    usual = "active" if float(entries.get("**format", [exchanged])[0]) < exchanged else "passive"
    turns = turns / np.linalg.norm(turns, axis=1, keepdims=True) * (INVERSE if convention in ("", usual) else 1)
    group = settings.group("1", NEPER.get(entries.get("**cell*crysym", [""])[0]), path)
    return with_orientations(graph, turns[cells], np.ones(len(cells), dtype=np.int64), {1: group})


def _lists(words: list[str], more: int) -> list[list[int]]:
    """Return lists of numbers that follow an id and their count."""
    lists, place = list[list[int]](), 1
    for _ in range(int(words[0])):
        count = int(words[place + 1])
        if int(words[place]) != len(lists) + 1:
            raise ValueError(f"{words[place]} where number {len(lists) + 1} is due")
        lists.append([int(one) for one in words[place + 2 : place + 2 + count]])
        place += more + count * (1 + (more > 2))  # faces list their edges, too
    if place != len(words):
        raise ValueError(f"{len(words)} numbers where {place} are counted")
    return lists


def read_inp(path: Path, settings: MicrostructureBuild) -> GraphBatch:
    """Return the element sets of an Abaqus input as grains."""
    mesh = read_abaqus(path)
    dim, owner = max(block.dim for block in mesh.cells), []
    names = [name for name in mesh.cell_sets if fnmatch(name, settings.sets)]
    for number, block in enumerate(mesh.cells):
        member = np.zeros((len(names), len(block.data)), dtype=np.int64)
        for row, name in zip(member, names):
            row[[*np.asarray(mesh.cell_sets[name][number], dtype=np.int64)]] = 1
        if block.dim == dim and (member.sum(axis=0) != 1).any():
            bad = int((member.sum(axis=0) != 1).argmax())
            sets = [name for row, name in zip(member, names) if row[bad]]
            raise InputError(f"{path}: an element is in the sets {sets}, not in one; name grains by sets = 'GRAIN*'")
        owner += [member.argmax(axis=0)] * (block.dim == dim)
    return _merged(mesh, np.unique(np.concatenate(owner), return_inverse=True)[1], path)


def _merged(mesh: Any, owner: Array, path: Path) -> GraphBatch:
    """Return grains of a mesh by the grain of every cell."""
    from hydragnn.graphs.continuum import from_mesh
    from hydragnn.graphs.mesoscale import mesoscale_fields
    from hydragnn.graphs.validate import graph_from_arrays

    cells = from_mesh(mesh, cell_centred=True, tags=[], name=str(path))
    sizes, places = cells["volume"].numpy(), cells.positions.numpy()
    volumes = np.bincount(owner, weights=sizes)
    centroids = np.stack([np.bincount(owner, weights=x * sizes) for x in places.T], axis=1) / volumes[:, None]
    ends = owner[np.stack([cells.senders.numpy(), cells.receivers.numpy()])]
    between = ends[0] != ends[1]
    pairs, member = np.unique(ends[:, between], axis=1, return_inverse=True)
    areas = np.bincount(member.ravel(), weights=cells["area"].numpy()[between], minlength=pairs.shape[1])
    fields = mesoscale_fields(cells.dim, source="labels")[:2]
    nodes, edges = {"volume": volumes}, {"area": areas}
    return graph_from_arrays(centroids, *pairs, fields=fields, nodes=nodes, edges=edges, name=str(path))


READERS = {
    ".ctf": read_ctf,
    ".ang": read_ang,
    ".dream3d": read_dream3d,
    ".tess": read_tess,
    ".tesr": read_tesr,
    ".inp": read_inp,
}
READERS |= dict.fromkeys((".h5", ".hdf5", ".h5ebsd"), read_hdf5)
MAPS: tuple[str, ...] = (".ctf", ".ang", ".dream3d", ".h5", ".hdf5", ".h5ebsd")
TAKEN_BY = dict.fromkeys(("threshold", "smallest", "phases", "spacing", "periodic"), MAPS)
TAKEN_BY |= {"symmetry": (*MAPS, ".tess", ".tesr"), "degrees": MAPS[:3], "sets": (".inp",)}
"""Suffixes of the files that a key is for."""
