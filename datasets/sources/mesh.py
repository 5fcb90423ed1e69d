"""Meshes with fields in any format that meshio reads, also in time."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.limits import check_readable
from hydragnn.base.places import distinct_names
from hydragnn.datasets.sources.base import LEAD, RUN, TIME, BuildSettings, Make
from hydragnn.datasets.sources.meshio_files import read_abaqus, reading, xml_of
from hydragnn.datasets.sources.table_files import stack_rows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.pymatgen_json import read_json

Frame = tuple[float, str, Callable[[], Any]]  # time of a mesh, its name, and the function that reads it


class MeshBuild(BuildSettings):
    """Meshes with fields in any format of meshio, also in time."""

    takes_columns: ClassVar[bool] = True
    takes_steps: ClassVar[bool] = True

    kind: Literal["mesh"] = "mesh"

    tags: list[str] | None = None
    """Physical groups that become fields ``tag_<name>``; all of them if absent."""

    cell_centred: bool = False
    """Nodes are cells instead of vertices."""

    series: bool = False
    """True where files that differ in their last number are one series."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each mesh or frame; InputError names files."""
        steps = {0, *(field.step for field in self.fields)}
        for run, frames in self._runs():
            if not run and steps != {0}:
                move = "number it" if self.series else "say series = true for numbered files"
                raise InputError(f"{frames[0][1]} is no time series; leave step out, or {move}")
            if steps != {0}:
                self.check_times([time for time, *_ in frames], run)
            for number in range(-min(steps), len(frames) - max(steps)):
                graph = partial(self._graph, frames, number, run)
                yield partial(self.graph_with_texts, {RUN: run} if run else {}, frames[number][1], graph)

    def _runs(self) -> Iterator[tuple[str, Sequence[Frame]]]:
        """Yield time series with their names, and single meshes without."""
        names, numbered = dict(self.named_files()), dict[Path, list[tuple[float, Path]]]()
        listed = [file for path in names if path.suffix in LISTS for _, file in _listed(path)]
        if twice := [file for file, count in Counter([*names, *listed]).items() if count > 1]:
            raise InputError(f"{min(twice)} is in two lists, or in one and a file of its own; name it once")
        for path, name in names.items():
            if (frames := _frames(path)) is not None:
                yield name, [(time, f"{name}#{frame}", read) for frame, (time, read) in enumerate(frames)]
            elif self.series and (parts := re.fullmatch(r"(.*\D|)(\d+)(\D*)", path.stem)):
                if re.search(r"(\d[eE][-+]?|\d\.|[^a-zA-Z0-9]-)$", parts[1]):
                    problem = f"{path}: its last number may be a decimal or signed"
                    raise InputError(f"{problem}; list files with times in a .pvd, or number them")
                pattern = path.with_name(f"{parts[1]}*{parts[3]}{path.suffix}")
                numbered.setdefault(pattern, []).append((float(parts[2]), path))
            else:
                yield "", [(0.0, name, partial(read_mesh, path))]
        steps = [0, *(field.step for field in self.fields)]
        for run, files in zip(distinct_names([*numbered]), numbered.values()):
            if len(files) <= max(steps) - min(steps):
                raise InputError(
                    f"{run} has too few files ({len(files)}) for its steps; number frames last, or add files"
                )
            yield run, [(time, names[file], partial(read_mesh, file)) for time, file in _in_order(files, run)]

    def _graph(self, frames: Sequence[Frame], number: int, run: str) -> GraphBatch:
        from hydragnn.graphs.continuum import from_mesh

        name, steps = frames[number][1], {0, *(field.step for field in self.fields)}
        times = [time for time, *_ in frames]
        meshes = {step: frames[number + step][2]() for step in steps}
        for step, one in meshes.items():
            if not _same_cells(one, meshes[0]):
                problem = f"{name}: the frame {step:+d} later has another mesh, whose nodes are others"
                raise InputError(f"{problem}; leave out step, or map the fields to one mesh")
        mesh = meshes[0]
        sources = {step: one.cell_data if self.cell_centred else one.point_data for step, one in meshes.items()}
        source, values, absent = sources[0], {}, set()
        for field in self.fields:
            key = field.keys[0]
            if field.on == "node" and key in sources[field.step]:
                own = sources[field.step][key]
                blocks = own if isinstance(own, list) else [own]  # cells have an array per block
                columns = [stack_rows([block], field) for block in blocks]
                values[field.name] = columns if blocks is own else columns[0]
            elif field.on == "graph" and key == TIME and run:
                values[field.name] = times[number + field.step]
            elif field.on == "graph" and key == LEAD and run:
                values[field.name] = self.lead_time(field, times, number, name)
            elif field.optional:
                absent.add(field.name)
            else:
                have = ", ".join(sorted(sources[field.step]) if field.on == "node" else []) or "nothing"
                move = "name the right key" if field.on == "node" else "give a table with it as labels"
                raise InputError(
                    f"{frames[number + field.step][1]}: no {', '.join(field.keys)} for the {field.on} field {field.name}; there is {have}; {move}, or set "
                    "optional = true where graphs may lack the field"
                )
        on_graph = [field.name for field in self.fields if field.on == "graph"]
        source.update({name: value for name, value in values.items() if name not in on_graph})
        graph = from_mesh(
            mesh,
            graphs={key: values[key] for key in on_graph if key in values},
            fields=[field.field for field in self.fields if field.name not in absent],
            tags=self.tags,
            cell_centred=self.cell_centred,
            optional=self.optional,
            name=name,
        )
        return graph.with_texts({RUN: [run]} if run else {})


_ZONE = rb"(?m)^[ \t]*(ZONE)\b"
LISTS = (".pvd", ".series")
SEVERAL = {".vtu": rb"<(PIECE)\b", ".msh": rb'\$(?:NODE|ELEMENT)DATA\s+\d+\s+("[^"\n]*")', ".dat": _ZONE, ".tec": _ZONE}
"""Text that stands once for each frame, zone or piece in files of Gmsh, Tecplot and VTK."""

XDMF = (".xdmf", ".xmf")


def _same_cells(one: Any, other: Any) -> bool:
    pairs = zip(one.cells, other.cells)
    same = len(one.points) == len(other.points) and len(one.cells) == len(other.cells)
    return one is other or (same and all(a.type == b.type and np.array_equal(a.data, b.data) for a, b in pairs))


def _frame(path: Path, frame: int) -> Any:
    """Return the mesh of a frame of XDMF."""
    import meshio

    reader, points, cells = _series(path, path.stat().st_mtime_ns)
    with reading(path):
        grid = reader.collection[frame]
        if {"Geometry", "Topology"} & {part.tag for part in grid}:  # of a mesh that moves or is refined
            reader.mesh_grid = grid
            own, blocks = reader.read_points_cells()
            points, cells = points if own is None else own, blocks or cells
            reader.cells = cells
        _, on_points, on_cells = reader.read_data(frame)
    return meshio.Mesh(points, cells, point_data=on_points, cell_data=on_cells)


def _frames(path: Path) -> list[tuple[float, Callable[[], Any]]] | None:
    """Return times and readers of a time series; else None."""
    if path.suffix in LISTS:
        return [(time, partial(read_mesh, file)) for time, file in _listed(path)]
    if path.suffix not in XDMF or "Temporal" not in path.read_text(errors="replace"):
        return None
    grids = _series(path, path.stat().st_mtime_ns)[0].collection
    with reading(path):
        times = [[float(part.get("Value")) for part in grid if part.tag == "Time"] or [np.nan] for grid in grids]
    return [(time, partial(_frame, path, frame)) for frame, (time, *_) in enumerate(times)]


def _listed(path: Path) -> list[tuple[float, Path]]:
    """Return times and files of a list of ParaView."""
    with reading(path):
        if path.suffix == ".series":
            rows = [(one["time"], one["name"]) for one in read_json(path)["files"]]
        else:
            rows = [(one.attrib["timestep"], one.attrib["file"]) for one in xml_of(path).iter("DataSet")]
        files = [(float(time), path.parent / name) for time, name in rows]
    for (_, file), (_, name) in zip(files, rows):
        if Path(name).is_absolute() or ".." in Path(name).parts or not file.is_file():
            raise InputError(f"{path} names {name}, which is no file in its folder; put it there, or off the list")
        check_readable(file)
    return _in_order(files, str(path))


def _in_order(files: list[tuple[float, Path]], where: str) -> list[tuple[float, Path]]:
    """Return files by time; InputError for two of one time."""
    for column in zip(*files):
        if twice := [one for one, count in Counter(column).items() if count > 1 or one != one]:
            raise InputError(f"{where} has {twice[0]} twice, or as a time; keep one, with the parts of its time in it")
    return sorted(files)


def _check_parts(path: Path) -> None:
    """Raise InputError for files of an XDMF that may not end."""
    for item in xml_of(path).iter("DataItem"):
        name = (item.text or "").strip().partition(":")[0]
        if item.get("Format") in ("HDF", "Binary"):
            check_readable(path.parent / name if item.get("Format") == "HDF" else Path(name))


@lru_cache(maxsize=2)
def _series(path: Path, _changed: int) -> tuple[Any, Any, Any]:
    """Return reader, points and cells of a time series."""
    from meshio.xdmf import TimeSeriesReader

    with reading(path):
        _check_parts(path)
        reader = TimeSeriesReader(path)
        points, cells = reader.read_points_cells()
    return reader, points, cells


def read_mesh(path: Path) -> Any:
    """The mesh in a file; InputError where meshio cannot read it."""
    import meshio

    parts = re.findall(SEVERAL[path.suffix], path.read_bytes().upper()) if path.suffix in SEVERAL else []
    if len(parts) > len({*parts}):
        raise InputError(
            f"{path} has several frames, zones or pieces, of which meshio reads one; write each as a file of its own"
        )
    if path.suffix == ".inp":
        return read_abaqus(path)
    with reading(path):
        if path.suffix in XDMF:
            _check_parts(path)
        return meshio.read(path)
