"""Tessellations and rasters of Neper."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.map_settings import MapSettings
from hydragnn.datasets.sources.meshio_files import grains_of_mesh
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.mesoscale import from_labels
from hydragnn.graphs.orientations import INVERSE, LAUE, from_bunge, with_orientations

Array = Any  # of numpy
Sections = dict[str, list[str]]

NEPER = {name: name for name in LAUE} | {"cubic": "m-3m", "hexagonal": "6/mmm", "triclinic": "-1"}
"""Laue groups by their names in files."""


def read_tess(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the cells of a tessellation of Neper."""
    import meshio

    entries = _sections(path, "**vertex", "**face")
    count, vertices, dim = (int(entries[one][0]) for one in ("**cell", "**vertex", "**general"))
    table = np.array(entries["**vertex"][1:], dtype=np.float64).reshape(vertices, 5)
    if (table[:, 0] != np.arange(1, vertices + 1)).any():
        raise InputError(f"{path}: vertices are not numbered from 1; write it again")
    points = table[:, 1:4]
    faces = [_triangles(points, face, path) for face in _lists(entries["**face"], 12)]
    solids = _lists(entries["**polyhedron"], 2) if dim == 3 else [[number] for number in range(1, 1 + len(faces))]
    if len(solids) != count:
        raise InputError(f"{path} has {len(solids)} cells, and counts {count}; write it again")
    fans = [[triangle for number in one for triangle in faces[abs(number) - 1]] for one in solids]
    owner = np.repeat(np.arange(count), [len(one) for one in fans])
    corners = np.concatenate(fans) - 1
    if dim == 3:
        middles = [points[np.unique(np.array(one) - 1)].mean(axis=0) for one in fans]
        points, corners = np.concatenate([points, middles]), np.column_stack([corners, vertices + owner])
    graph = grains_of_mesh(meshio.Mesh(points, [("tetra" if dim == 3 else "triangle", corners)]), owner, str(path))
    return _of_cells(graph, np.arange(count), entries, settings, path)


def read_tesr(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the cells of a raster of Neper; its voxels of cell 0 are empty."""
    entries = _sections(path, "**data")
    dim, *sizes = entries["**general"]
    size, steps = np.array(sizes[: 2 * int(dim)], dtype=np.float64).reshape(2, int(dim))
    form, *numbers = entries["**data"]
    count = int(entries["**cell"][0])
    usual = [*map(str, range(1, 1 + count))]
    if form != "ascii" or entries.get("**cell*id", usual) != usual:
        what = f"cells {entries['**cell*id'][:3]} ..." if form == "ascii" else f"{form} data"
        raise InputError(f"{path} has {what}; write cells from 1 on, by -tesrformat ascii of neper")
    grain = np.array(numbers, dtype=np.int64).reshape(size.astype(np.int64)[::-1]).T
    if grain.min() < 0 or grain.max() > count:
        raise InputError(f"{path} has cells {grain.min()} to {grain.max()}, and counts {count}; write it again")
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


def _of_cells(graph: GraphBatch, cells: Array, entries: Sections, settings: MapSettings, path: Path) -> GraphBatch:
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


def _triangles(points: Array, face: list[int], path: Path) -> list[tuple[int, ...]]:
    """Return triangles of a face, from a corner that sees all of it."""
    for turn in range(len(face)):
        own = face[turn:] + face[:turn]
        fan = [(own[0], *own[k : k + 2]) for k in range(1, len(own) - 1)]
        first, *others = points[np.array(fan) - 1].transpose(1, 0, 2)
        normals = np.cross(*(one - first for one in others))
        if (normals @ normals.sum(axis=0) > -1e-9 * (normals**2).sum()).all():
            return fan
    raise InputError(f"{path}: no corner of the face with vertices {face[:6]} sees all of it; cut its cells")


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
