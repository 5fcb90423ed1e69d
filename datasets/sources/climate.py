"""Fields on a sphere in netCDF and zarr, also in time."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Setting

from hydragnn.base.errors import InputError, nearest, print_note
from hydragnn.datasets.sources.base import LEAD, RUN, TIME, BuildSettings, Make
from hydragnn.datasets.sources.climate_files import Variable, open_data, variable_of
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import stack_rows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.graphs.problems import ROUNDING
from hydragnn.graphs.sphere import SphereMesh, grid_mesh, vectors_of

GEOMETRY = ("volume", "normal", "latitude", "longitude", "direction")
"""Keys of fields that the grid gives, on nodes but for the direction of edges."""

STATIC, IRREGULAR = -np.inf, 0.2
"""Time of what does not change; share of unequal steps from which times have no usual one."""

Frames = dict[str, dict[float, tuple[Variable, int]]]
"""Variable and frame with the values, by key and time."""


class ClimateBuild(BuildSettings):
    """Fields on a sphere in netCDF and zarr (extra ``climate``), also in time."""

    takes_steps: ClassVar[bool] = True
    joins: ClassVar[frozenset[Location]] = frozenset(("node",))

    kind: Literal["climate"] = "climate"

    joined: bool = True
    """All files are one series, by months or by variables; False: each is a run of its own."""

    level: float | None = None
    """Level of variables that lie on several, in the unit of their axis."""

    refinement: int | None = Setting(default=None, ge=0, le=7)
    """Nodes are the 10 * 4^refinement + 2 points of an icosahedron, with the means of the parts of cells nearest to each; absent: the cells of the grid."""

    radius: float = Setting(default=1.0, gt=0)
    """Radius of the sphere, in the unit of positions."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each frame; InputError names files."""
        files = self.named_files()
        steps = [0, *(field.step for field in self.fields)]
        for some in [files] if self.joined else [[one] for one in files]:
            frames, run = self._frames([path for path, _ in some]), " to ".join({some[0][1]: 0, some[-1][1]: 0})
            changing = [{*one} for one in frames.values() if STATIC not in one] or [{0.0}]
            times, mesh = np.array(sorted(set.intersection(*changing))), self._mesh(frames)
            numbers = self._complete(times, min(steps), max(steps), run)
            if absent := len(set.union(*changing)) - len(numbers) + min(steps) - max(steps):
                print_note(
                    f"{run}: {absent} frames are left out, for gaps in their steps or fields without values then"
                )
            for number in numbers:
                yield partial(self._graph, frames, mesh, times, number, run)

    def _frames(self, paths: list[Path]) -> Frames:
        """Return where the values of all keys are."""
        nodes = [field for field in self.fields if field.on == "node"]
        frames: Frames = {key: {} for field in nodes for key in field.keys if key not in GEOMETRY}
        calendars, held = set[str](), set[str]()
        for path in paths:
            data = open_data(path)
            held |= {*map(str, data.data_vars)}
            for key in [key for key in frames if key in data.data_vars]:
                one, own = variable_of(data, key, self.level, path), frames[key]
                self.check_units({key: data[key].attrs.get("units", ""), TIME: "h", LEAD: "h"}, str(path))
                for frame, time in enumerate([STATIC] if one.times is None else one.times.tolist()):
                    if time in own and (time > STATIC or not np.array_equal(own[time][0].cells(0), one.cells(0))):
                        move = "give each once, or say joined = false where every file is a run"
                        raise InputError(f"{one.where} and {own[time][0].where} have values of the same time; {move}")
                    own[time] = (one, frame)
                calendars |= {one.calendar} - {""}
        for key in [key for key in frames if not frames[key]]:
            raise InputError(f"{', '.join(map(str, paths[:2]))}: no variable {key}; {nearest(key, sorted(held))}")
        if len(calendars) > 1 or not frames:
            what = "the calendars differ: " + ", ".join(sorted(calendars)) if frames else "declare fields on nodes"
            raise InputError(f"{paths[0]}: {what}; give files of one kind")
        return frames

    def _mesh(self, frames: Frames) -> SphereMesh:
        """Return the mesh of all variables; InputError where their grids differ."""
        variables = [*{id(one): one for own in frames.values() for one, _ in own.values()}.values()]
        first, move = variables[0], "bring them to one, as by `cdo remapbil`"
        for other in variables:
            axes = zip(first.grid[:2], other.grid[:2])
            if not all(one.shape == own.shape and np.allclose(one, own, rtol=0, atol=1e-5) for one, own in axes):
                raise InputError(f"{other.where} and {first.where} lie on other grids; {move}")
        return grid_mesh(*first.grid, refinement=self.refinement, name=first.where)

    def _complete(self, times: Any, lowest: int, highest: int, run: str) -> list[int]:
        """Return the frames whose steps have no gaps."""
        numbers, gaps = range(-lowest, len(times) - highest), np.diff(times)
        odd = np.abs(gaps - np.median(gaps)) > ROUNDING * np.median(gaps) if len(gaps) else np.zeros(0, bool)
        if lowest < highest and len(odd) and odd.mean() > IRREGULAR:
            self.check_times(times.tolist(), run)
            odd[:] = False
        whole = [number for number in numbers if not odd[number + lowest : number + highest].any()]
        if not whole:
            raise InputError(f"{run}: {len(times)} times that all fields have are too few; give more files")
        return whole

    def _graph(self, frames: Frames, mesh: SphereMesh, times: Any, number: int, run: str) -> GraphBatch:
        values: dict[str, Any] = {}
        where = f"{run}#{number}"
        for field in self.fields:
            key, moment = field.keys[0], times[number + field.step]
            if key in GEOMETRY:
                values[field.name] = _of_grid(mesh, key, self.radius)
            elif field.on == "node":
                values[field.name] = self._values([frames[one] for one in field.keys], mesh, field, moment, where)
            elif field.on == "graph" and key in (TIME, LEAD):
                values[field.name] = moment if key == TIME else self.lead_time(field, times, number, where)
            else:
                raise InputError(f"{where}: nothing for {field.name} on {field.on}s; use {TIME}, {LEAD} or labels")
        texts = {**self.texts_of({RUN: run}, where), RUN: [run]}
        return self.graph_of(mesh.positions * self.radius, mesh.edges[0], mesh.edges[1], values, texts, name=where)

    def _values(self, frames: Any, mesh: SphereMesh, field: FieldSettings, time: float, where: str) -> Any:
        """Return a field on the nodes; two speeds become a vector."""
        parts = [own[STATIC] if STATIC in own else own[time] for own in frames]
        if field.step and all(STATIC in own for own in frames):
            raise InputError(f"{where}: {field.name} does not change in time; leave step out")
        cells = [one.cells(frame) for one, frame in parts]
        if len(cells) == 2 and field.shape == [3]:
            names = [str(one.data.attrs.get("standard_name", "")) for one, _ in parts]
            if "northward" in names[0] or "eastward" in names[1]:
                raise InputError(f"{where}: {field.name} takes the eastward part first; turn {', '.join(field.keys)}")
            whole = vectors_of(*cells, *(one.ravel() for one in np.meshgrid(*parts[0][0].grid[:2], indexing="ij")))
        else:
            whole = stack_rows(cells, field)
        values = mesh.values(whole)
        if not field.missing and (bad := int(np.isnan(values.reshape(len(values), -1)).any(1).sum())):
            move = "fill them and add a mask, or set optional = true for a target"
            raise InputError(f"{where}: {' and '.join(field.keys)} lack values on {bad} of {len(values)} nodes; {move}")
        return values


def _of_grid(mesh: SphereMesh, key: str, radius: float) -> Any:
    if key == "direction":
        along = mesh.positions[mesh.edges[0]] - mesh.positions[mesh.edges[1]]
        return along / np.linalg.norm(along, axis=1, keepdims=True)
    x, y, z = mesh.positions.T
    degrees = {"latitude": np.degrees(np.arctan2(z, np.hypot(x, y))), "longitude": np.degrees(np.arctan2(y, x)) % 360}
    return {"volume": mesh.areas * radius**2, "normal": mesh.positions, **degrees}[key]
