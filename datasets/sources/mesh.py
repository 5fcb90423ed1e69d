"""Meshes with fields in any format that meshio reads, also in time."""

import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache, partial
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, Literal
from xml.etree import ElementTree

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.limits import Unpacker, check_readable
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import stack_rows
from hydragnn.graphs.batch import GraphBatch


class MeshBuild(BuildSettings):
    """Meshes with fields in any format of meshio, or frames of XDMF."""

    takes_columns: ClassVar[bool] = True
    takes_steps: ClassVar[bool] = True

    kind: Literal["mesh"] = "mesh"

    tags: list[str] | None = None
    """Physical groups that become fields ``tag_<name>``; all of them if absent."""

    cell_centred: bool = False
    """Nodes are cells instead of vertices."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each mesh or frame; InputError names files."""
        steps = [field.step for field in self.fields]
        for path, name in self.named_files():
            frames = frames_in(path)
            if frames is None and any(steps):
                raise InputError(f"{path} is no time series in XDMF, so that a field has no step; leave it out")
            if frames is None:
                yield partial(self._graph, path, name)
            if frames is not None and any(steps) and all(field.keys[0] not in (TIME, LEAD) for field in self.fields):
                _check_times(path)
            for frame in range(-min([0, *steps]), (frames or 0) - max([0, *steps])):
                yield partial(self._graph, path, name, frame)

    @property
    def first_number(self) -> str:
        """Return the number in the name of a file's first frame."""
        return str(-min([0, *(field.step for field in self.fields)]))

    def _graph(self, path: Path, name: str, frame: int | None = None) -> GraphBatch:
        from hydragnn.graphs.continuum import from_mesh

        meshes = {step: _mesh(path, frame, step) for step in {0, *(field.step for field in self.fields)}}
        for step, (one, _) in meshes.items():
            if not _same_cells(one, meshes[0][0]):
                raise InputError(
                    f"{name}#{frame}: the frame {step:+d} later has another mesh, whose nodes are others; leave out step, or map the fields to one mesh"
                )
        mesh, times = meshes[0][0], {step: time for step, (_, time) in meshes.items()}
        sources = {step: one.cell_data if self.cell_centred else one.point_data for step, (one, _) in meshes.items()}
        source, values, absent = sources[0], {}, set()
        for field in self.fields:
            key = field.keys[0]
            if field.on == "node" and key in sources[field.step]:
                values[field.name] = _columns(sources[field.step][key], field)
            elif field.on == "graph" and key == TIME and frame is not None:
                values[field.name] = times[field.step]
            elif field.on == "graph" and key == LEAD and frame is not None:
                values[field.name] = times[field.step] - times[0]
                if values[field.name] <= 0:
                    raise InputError(
                        f"{name}#{frame}: {field.name} is {values[field.name]:g}, and leads to no later frame; give the field the step of the target"
                    )
            elif field.optional:
                absent.add(field.name)
            else:
                have = ", ".join(sorted(source) if field.on == "node" else []) or "nothing"
                move = "name the right key" if field.on == "node" else "give a table with it as labels"
                raise InputError(
                    f"{name if frame is None else f'{name}#{frame}'}: no {', '.join(field.keys)} for the {field.on} field {field.name}; there is {have}; {move}, or set "
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
        if frame is None:
            return graph.with_texts(self.texts_of({}, name))
        return graph.with_texts({**self.texts_of({RUN: name}, f"{name}#{frame}"), RUN: [name]})


_ZONE = rb"(?m)^[ \t]*(ZONE)\b"
SEVERAL = {".msh": rb'\$(?:NODE|ELEMENT)DATA\s+\d+\s+("[^"\n]*")', ".dat": _ZONE, ".tec": _ZONE}
"""Text that stands once for each frame or zone in files of Gmsh and Tecplot."""

XDMF = (".xdmf", ".xmf")

TIME, LEAD, RUN = "time", "lead_time", "run"
"""Keys of the time of a frame, of that from the frame to the one ``step`` later, and of the text with its file, by which a split groups."""


def _same_cells(one: Any, other: Any) -> bool:
    pairs = zip(one.cells, other.cells)
    same = len(one.points) == len(other.points) and len(one.cells) == len(other.cells)
    return one is other or (same and all(a.type == b.type and np.array_equal(a.data, b.data) for a, b in pairs))


def _columns(values: Any, field: FieldSettings) -> Any:
    """Return the columns of a field; cells have an array per block."""
    return [stack_rows([block], field) for block in values] if isinstance(values, list) else stack_rows([values], field)


def _mesh(path: Path, frame: int | None, step: int) -> tuple[Any, float]:
    """Return a mesh and the time of its frame."""
    if frame is None:
        return read_mesh(path), 0.0
    import meshio

    reader, points, cells = _series(path, path.stat().st_mtime_ns)
    with _reading(path):
        grid = reader.collection[frame + step]
        if {"Geometry", "Topology"} & {part.tag for part in grid}:  # of a mesh that moves or is refined
            reader.mesh_grid = grid
            own, blocks = reader.read_points_cells()
            points, cells = points if own is None else own, blocks or cells
            reader.cells = cells
        time, on_points, on_cells = reader.read_data(frame + step)
    return meshio.Mesh(points, cells, point_data=on_points, cell_data=on_cells), float(time)


def frames_in(path: Path) -> int | None:
    """Return the frames of an XDMF time series; else None."""
    if path.suffix not in XDMF or "Temporal" not in path.read_text(errors="replace"):
        return None
    return int(_series(path, path.stat().st_mtime_ns)[0].num_steps)


def _check_parts(path: Path) -> None:
    """Raise InputError for files of an XDMF that may not end."""
    for item in ElementTree.parse(path).iter("DataItem"):
        name = (item.text or "").strip().partition(":")[0]
        if item.get("Format") in ("HDF", "Binary"):
            check_readable(path.parent / name if item.get("Format") == "HDF" else Path(name))


def _check_times(path: Path) -> None:
    """Raise InputError where frames are not equally spaced in time."""
    collection = _series(path, path.stat().st_mtime_ns)[0].collection
    if len(collection) < 2:
        return
    times = [float(part.get("Value")) for grid in collection for part in grid if part.tag == "Time"]
    gaps = np.diff(times)
    if len(times) < len(collection) or (gaps <= 0).any() or np.ptp(gaps) > 1e-3 * gaps.mean():
        where = int(np.abs(gaps - np.median(gaps)).argmax()) if len(gaps) else 0
        raise InputError(
            f"{path}: frames are not equally spaced in time (times {times[where : where + 2]} of frames {where} and {where + 1}), so that a step has no one "
            "meaning; write equal steps, or declare the graph field time, with the same step, as inputs"
        )


@lru_cache(maxsize=2)
def _series(path: Path, _changed: int) -> tuple[Any, Any, Any]:
    """Return reader, points and cells of a time series."""
    from meshio.xdmf import TimeSeriesReader

    with _reading(path):
        _check_parts(path)
        reader = TimeSeriesReader(path)
        points, cells = reader.read_points_cells()
    return reader, points, cells


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        with redirect_stdout(StringIO()):  # some of meshio's readers print
            yield
    except InputError:
        raise
    except (SystemExit, Exception) as error:  # meshio exits on unknown formats, and its readers raise what they raise
        reason = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else "in no format of its suffix"
        raise InputError(f"{path} cannot be read by meshio ({reason}); check it") from error


def read_mesh(path: Path) -> Any:
    """The mesh in a file; InputError where meshio cannot read it."""
    import meshio
    from meshio.vtu import _vtu

    parts = re.findall(SEVERAL[path.suffix], path.read_bytes().upper()) if path.suffix in SEVERAL else []
    if len(parts) > len({*parts}):
        raise InputError(
            f"{path} has several frames or zones, of which meshio reads one; write each as a file of its own"
        )
    size = path.stat().st_size
    _vtu.zlib, _vtu.lzma = Unpacker(zlib.decompressobj, size), Unpacker(lzma.LZMADecompressor, size)
    try:
        with _reading(path):
            if path.suffix in XDMF:
                _check_parts(path)
            return meshio.read(path)
    finally:
        _vtu.zlib, _vtu.lzma = zlib, lzma
