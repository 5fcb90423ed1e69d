"""Fields on a sphere in netCDF and zarr, also in time."""

import json
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Setting

from hydragnn.base.errors import InputError, as_missing, nearest, print_note, words_of
from hydragnn.datasets.sources.base import LEAD, RUN, TIME, Make, ObjectsBuild
from hydragnn.datasets.sources.climate_axes import MOST, Variable, variable_of
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import stack_rows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.graphs.problems import ROUNDING
from hydragnn.graphs.sphere import SphereMesh, grid_mesh, vectors_of

GEOMETRY: dict[str, Callable[[SphereMesh], Any]] = {
    "volume": lambda mesh: mesh.areas,
    "normal": lambda mesh: mesh.positions,
    "latitude": lambda mesh: np.degrees(np.arctan2(mesh.positions[:, 2], np.hypot(*mesh.positions.T[:2]))),
    "longitude": lambda mesh: np.degrees(np.arctan2(*mesh.positions.T[1::-1])) % 360,
    "direction": lambda mesh: (
        (along := np.subtract(*mesh.positions[mesh.edges])) / np.linalg.norm(along, axis=1, keepdims=True)
    ),
}
"""Fields that the grid gives, on nodes but for the direction of edges, by their keys."""

STATIC, IRREGULAR = -np.inf, 0.2
"""Time of what does not change; share of unequal steps from which times have no usual one."""

Frames = dict[str, dict[float, tuple[Variable, int]]]  # variable and frame with the values, by key and time


class ClimateBuild(ObjectsBuild):
    """Fields on a sphere in netCDF, zarr or xarray's data sets, also in time."""

    takes_steps: ClassVar[bool] = True
    joins: ClassVar[frozenset[Location]] = frozenset(("node",))

    kind: Literal["climate"] = "climate"

    joined: bool = True
    """All files are one series, by months or by variables; False: each is a run of its own."""

    level: float | None = None
    """Level of variables that lie on several, in the unit of their axis."""

    refinement: int | None = Setting(default=None, ge=0, le=7)
    """Nodes are the 10 * 4^refinement + 2 points of an icosahedron, with the means of the parts of cells nearest to each; absent: the cells of the grid."""

    def load(self, path: Path) -> list[Any]:
        """Return the data set of a file."""
        return [open_data(path)]

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each frame; InputError names files."""
        groups, own = [(name, [*some]) for name, some in self._groups()], self._objects is not None
        pairs = [(f"{name} {n}" if own else name, one) for name, some in groups for n, one in enumerate(some)]
        files = [(name, decoded(one, name) if own else one) for name, one in pairs]
        steps, firsts = [0, *(field.step for field in self.fields)], dict[str, Variable]()
        for some in [files] if self.joined else [[one] for one in files]:
            run, frames = " to ".join({some[0][0]: 0, some[-1][0]: 0}), self._frames(some, firsts)
            changing = {key: [*one] for key, one in frames.items() if STATIC not in one} or {"every constant": [0.0]}
            times = np.array(sorted(set.intersection(*map(set, changing.values()))))
            whole = self._complete(times, min(steps), max(steps), run)
            if not whole:
                key, few = min(changing.items(), key=lambda one: len(one[1]))
                move = f"{key} has {len(few)}; give more files, and constants without a time axis"
                raise InputError(f"{run}: {len(times)} times that all fields have are too few; {move}")
            if absent := len(set().union(*changing.values())) - len(whole) + min(steps) - max(steps):
                print_note(f"{run}: {absent} frames are left out, for gaps in their steps or absent fields")
            mesh = self._mesh(frames)
            yield from (self.maker(frames, (mesh, times), run, number) for number in whole)

    def _frames(self, data_sets: list[tuple[str, Any]], firsts: dict[str, Variable]) -> Frames:
        """Return where values of keys are, in units of the first variable."""
        keys = [key for field in self.fields if field.on == "node" for key in field.keys if key not in GEOMETRY]
        frames: Frames = {key: {} for key in keys}
        calendars, held = set[str](), set[str]()
        for file, data in data_sets:
            held |= {*map(str, data.data_vars)}
            for key in [key for key in frames if key in data.data_vars]:
                one, own = variable_of(data, key, self.level, file), frames[key]
                self.check_units({key: one.unit, TIME: "h", LEAD: "h"}, file)
                if (first := firsts.setdefault(key, one)).unit != one.unit:
                    what = f"{one.where} is in {one.unit or 'no unit'}, and {first.where} in {first.unit or 'no unit'}"
                    raise InputError(f"{what}; bring them to one")
                for frame, time in enumerate([STATIC] if one.times is None else one.times.tolist()):
                    if own and (time == STATIC or STATIC in own or time in own):
                        other = own.get(time) or next(iter(own.values()))
                        if time == STATIC and STATIC in own and np.array_equal(other[0].cells(0), one.cells(0), True):
                            continue
                        move = "give each once, or say joined = false where every file is a run"
                        raise InputError(f"{one.where} and {other[0].where} have values of the same time; {move}")
                    own[time] = (one, frame)
                calendars |= {one.calendar} - {""}
        for key in [key for key in frames if key not in held]:
            files = ", ".join(file for file, _ in data_sets[:2])
            raise InputError(f"{files}: no variable {key}; {nearest(key, sorted(held))}")
        if self.level is not None and not any(one.on_levels for own in frames.values() for one, _ in own.values()):
            raise InputError(f"{data_sets[0][0]}: no variable lies on levels; leave level out")
        if len(calendars) > 1 or not frames:
            what = "the calendars differ: " + ", ".join(sorted(calendars)) if frames else "declare fields on nodes"
            raise InputError(f"{data_sets[0][0]}: {what}; give files of one kind")
        return frames

    def _mesh(self, frames: Frames) -> SphereMesh:
        """Return the mesh of all variables; InputError where their grids differ."""
        variables = [*{id(one): one for own in frames.values() for one, _ in own.values()}.values()]
        first, move = variables[0], "bring them to one, as by `cdo remapbil`"
        for other in variables:
            axes = zip(first.grid, other.grid)
            if not all(one.shape == own.shape and np.allclose(one, own, rtol=0, atol=1e-5) for one, own in axes):
                raise InputError(f"{other.where} and {first.where} lie on other grids; {move}")
        return grid_mesh(*first.grid, refinement=self.refinement, name=first.where)

    def _complete(self, times: Any, lowest: int, highest: int, run: str) -> list[int]:
        """Return the frames whose steps have no gaps."""
        gaps = np.diff(times)
        odd = np.abs(gaps - np.median(gaps)) > ROUNDING * np.median(gaps) if len(gaps) else np.zeros(0, bool)
        if lowest < highest and len(odd) and odd.mean() > IRREGULAR:
            self.check_times(times.tolist(), run)
            odd[:] = False
        return [n for n in range(-lowest, len(times) - highest) if not odd[n + lowest : n + highest].any()]

    def graph(self, one: Any, first: Any, name: str, number: int) -> GraphBatch:
        """Return the graph of a frame of a run."""
        (mesh, times), where = first, f"{name}#{number}"
        values: dict[str, Any] = {}
        for field in self.fields:
            key, moment = field.keys[0], times[number + field.step]
            if key in GEOMETRY:
                values[field.name] = GEOMETRY[key](mesh)
            elif field.on == "node":
                values[field.name] = self._values([one[key] for key in field.keys], mesh, field, moment, where)
            elif field.on == "graph" and key in (TIME, LEAD):
                values[field.name] = moment if key == TIME else self.lead_time(field, times, number, where)
            else:
                raise InputError(f"{where}: nothing for {field.name} on {field.on}s; use {TIME}, {LEAD} or labels")
        graph = self.graph_of(mesh.positions, mesh.edges[0], mesh.edges[1], values, name=where)
        return graph.with_texts({RUN: [name]})

    def _values(self, frames: Any, mesh: SphereMesh, field: FieldSettings, time: float, where: str) -> Any:
        """Return a field on the nodes; two speeds become a vector."""
        parts = [own[STATIC] if STATIC in own else own[time] for own in frames]
        if field.step and all(STATIC in own for own in frames):
            raise InputError(f"{where}: {field.name} does not change in time; leave step out")
        cells = [field.without_fill(one.cells(frame)) for one, frame in parts]
        if len(cells) == 2 and field.shape == [3]:
            names = [str(one.data.attrs.get("standard_name", "")) for one, _ in parts]
            if "northward" in names[0] or "eastward" in names[1]:
                raise InputError(f"{where}: {field.name} takes the eastward part first; turn {', '.join(field.keys)}")
            whole = vectors_of(*cells, *(one.ravel() for one in np.meshgrid(*parts[0][0].grid, indexing="ij")))
        else:
            whole = stack_rows(cells, field)
        values = mesh.values(whole)
        if not field.missing and (bad := int(np.isnan(values.reshape(len(values), -1)).any(1).sum())):
            move = "fill them and add a mask, or set optional = true for a target"
            raise InputError(f"{where}: {' and '.join(field.keys)} lack values on {bad} of {len(values)} nodes; {move}")
        return values


def open_data(path: Path) -> Any:
    """Return the data set of a file; only axes are read."""
    with as_missing("xarray", "climate", str(path)):
        import xarray
    more: Any = {"engine": "zarr", "consolidated": False} if path.is_dir() else {}  # so that what was checked is read
    try:
        for file in [file for name in (".zarray", "zarr.json") for file in path.rglob(name)]:
            header = json.loads(file.read_text())
            if re.search(r"'(numcodecs\.)?pickle'", str(header)):
                raise InputError(f"{file} holds pickle, which might run code; write numbers by zstd or blosc")
            if len(shape := header.get("shape", ())) == 1 and shape[0] > MOST:  # axes are read as a whole
                raise InputError(f"{file} claims shape {shape}; check it, or write a smaller one")
        data = xarray.open_dataset(path, cache=False, decode_timedelta=False, **more)
        groups = {} if data.data_vars else xarray.open_groups(path, decode_cf=False, **more)
    except InputError:
        raise
    except Exception as error:  # of several readers
        move = "check it, or convert it (GRIB by `cdo -f nc4 copy`)"
        if "decode time units" in str(error):
            move = "write times in hours since a date, as by `cdo settunits,hours`, and name a calendar of CF"
        raise InputError(f"{path} is no readable netCDF or zarr ({words_of(error):.300}); {move}") from error
    if inner := [name for name, one in groups.items() if one.data_vars]:
        raise InputError(f"{path} has variables in groups alone; write {inner[0]} to a file of its own")
    for name, one in data.variables.items():
        if prod(chunks := one.encoding.get("preferred_chunks", {}).values()) > MOST:
            raise InputError(f"{path}: {name} claims chunks {[*chunks]}; check it, or write smaller ones")
    return data


def decoded(data: Any, name: str) -> Any:
    """Return a data set in memory, whose numbers and times are decoded."""
    if not hasattr(data, "data_vars"):
        raise InputError(f"{name} is a {type(data).__name__}; give data sets of xarray")
    import xarray

    return xarray.decode_cf(data, decode_timedelta=False)
