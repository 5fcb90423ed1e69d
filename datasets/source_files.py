"""Graphs from files that other programs write: atoms (ASE), torch_geometric lists, meshes (meshio)."""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import islice, takewhile
from pathlib import Path
from traceback import walk_tb
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import knows_locks
from hydragnn.datasets.atoms_text import ATOMS, atoms_text
from hydragnn.datasets.build_settings import AseBuild, Make, MeshBuild, PygBuild
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.tables import Table, find_files, read_table, stack_rows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field


def ase_graphs(settings: AseBuild) -> Iterator[Make]:
    """One graph per structure of every file; InputError naming file and structure."""
    keys = {field.name: field.keys[0] for field in settings.fields}
    for path in find_files(settings.files):
        for number, read in enumerate(_structures(path, settings)):
            yield partial(
                _graph,
                read,
                settings,
                frame_name(path, settings.index, number),
                settings.cutoff,
                fields=[field.field for field in settings.fields],
                keys=keys,
                optional=[field.name for field in settings.fields if field.optional],
                max_neighbours=settings.max_neighbours,
                name=f"{path.name}, structure {number}",
            )


def _graph(read: Callable[[], Any], settings: AseBuild, number: str, cutoff: float, **how: Any) -> GraphBatch:
    """The graph of a structure that is read now."""
    from hydragnn.graphs.atomic import from_ase

    atoms = read()
    kept = {ATOMS: [atoms_text(atoms)]} if settings.keeps_atoms else {}
    return from_ase(atoms, cutoff, **how).with_texts(settings.texts_of(atoms.info, number) | kept)


def frame_name(path: Path, index: str, number: int) -> str:
    """Return file and frame of the structure that is the ``number``-th among those of the ``index``.

    >>> frame_name(Path("a.xyz"), ":", 3), frame_name(Path("a.xyz"), "1::10", 3), frame_name(Path("a.xyz"), "-5:", 3)
    ('a.xyz#3', 'a.xyz#31', 'a.xyz#-2')
    """
    start, *rest = index.split(":")
    step = int(rest[1] or 1) if len(rest) == 2 else 1
    first = int(start or 0) if step > 0 else int(start or -1)
    return f"{path.name}#{first + number * step}"


def _structures(path: Path, settings: AseBuild) -> Iterator[Callable[[], Any]]:
    """What reads each structure of a file; of extended XYZ the file is divided here, and whoever does not call reads no structure."""
    from ase.io import iread
    from ase.io.formats import open_with_compression

    number = 0
    try:
        if _is_extended_xyz(path, settings.format):
            keys = {*(field.keys[0] for field in settings.fields), *settings.text_keys}
            with open_with_compression(str(path), "r") as file:
                for text in frames_of_xyz(file):
                    _check_entries(text, keys, path, number)
                    if settings.index == ":":
                        yield partial(_read_frame, text, path, number)
                    number += 1
            if settings.index == ":":
                return
            number = 0
        for atoms in iread(str(path), index=settings.index, format=settings.format, parallel=False):
            yield partial(_given, atoms)
            number += 1
    except InputError:
        raise
    except Exception as error:  # ASE's many readers raise whatever their parsing raises
        raise _unreadable(path, number, error) from error


def divides(settings: AseBuild) -> bool:
    """Return True where all files are divided into structures without reading these."""
    return settings.index == ":" and all(_is_extended_xyz(path, settings.format) for path in find_files(settings.files))


def _given(atoms: Any) -> Any:
    return atoms


def _is_extended_xyz(path: Path, given: str | None) -> bool:
    from ase.io.formats import filetype

    return (given or filetype(str(path))) == "extxyz"


def frames_of_xyz(lines: Iterable[str]) -> Iterator[str]:
    """The text of every structure of an (extended) XYZ file: its number of atoms, a comment, a line per atom, perhaps cell vectors.

    ValueError where more follows an empty line.

    >>> list(frames_of_xyz(["1\\n", "first\\n", "H 0 0 0\\n", "1\\n", "second\\n", "H 0 0 0\\n"]))
    ['1\\nfirst\\nH 0 0 0\\n', '1\\nsecond\\nH 0 0 0\\n']
    """
    rest = iter(lines)
    line = next(rest, "")
    while line.strip():
        frame = [line, *islice(rest, int(line) + 1)]
        line = next(rest, "")
        while line.lstrip().startswith("VEC"):
            frame.append(line)
            line = next(rest, "")
        yield "".join(frame)
    if any(line.strip() for line in rest):
        raise ValueError("an empty line stands before it, where readers of XYZ end without a word; remove such lines")


ENTRY = re.compile(r"""("[^"]*"|[^\s="']+)\s*=\s*("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\{[^}]*\}|\[[^\]]*\]|\S*)""")
"""Key and value in the second line of a structure of extended XYZ."""


def _check_entries(text: str, keys: Collection[str], path: Path, number: int) -> None:
    """InputError where a structure gives one of the keys two values, of which readers take the last without a word."""
    comment = text.partition("\n")[2].partition("\n")[0]
    for key in keys:
        if comment.count(key) > 1:
            values = {value for name, value in ENTRY.findall(comment) if name == key}
            if len(values) > 1:
                raise InputError(
                    f"{path}: structure {number} has several values of {key} in its second line: {', '.join(sorted(values))}; keep one"
                )


def _read_frame(text: str, path: Path, number: int) -> Any:
    from ase.io.extxyz import read_xyz

    try:
        return next(read_xyz(StringIO(text), 0))
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
        f"{species_problem(error) or f'cannot be read by ASE ({type(error).__name__}: {error}); check the file and format'}"
    )


def species_problem(error: Exception) -> str:
    """What is wrong with the structure that ASE could not read, to be read after its number; empty where it is not a species."""
    traceback = list(walk_tb(error.__traceback__))
    if not isinstance(error, KeyError) or traceback[-1][0].f_globals["__name__"] != "ase.symbols":
        return ""
    return f"has an atom {error.args[0]!r}, which is no chemical symbol; write {symbol_of(str(error.args[0]))}"


def symbol_of(label: str) -> str:
    """What to write in place of the label of an atom.

    >>> symbol_of("Fe1"), symbol_of("Hw"), symbol_of("Q1")
    ('Fe, and keep labels in a column of their own', 'H, and keep labels in a column of their own', 'the symbol of its element')
    """
    from ase.data import atomic_numbers

    letters = "".join(takewhile(str.isalpha, label))
    symbol = next((known for known in (letters, letters[:1]) if atomic_numbers.get(known)), None)
    return f"{symbol}, and keep labels in a column of their own" if symbol else "the symbol of its element"


def pyg_graphs(settings: PygBuild) -> Iterator[Make]:
    """One graph per ``Data`` of every file; InputError where the file holds anything but data."""
    fields = [field.field for field in settings.fields]
    for field in settings.fields:
        if field.keys != [field.name]:
            raise InputError(f"field {field.name}: torch_geometric attributes keep their names; remove key")
    optional = [field.name for field in settings.fields if field.optional]
    for path in find_files(settings.files):
        for number, data in enumerate(load_pyg(path)):
            yield partial(_pyg_graph, data, settings, path, number, fields, optional)


def _pyg_graph(
    data: Any, settings: PygBuild, path: Path, number: int, fields: list[Field], optional: list[str]
) -> GraphBatch:
    from hydragnn.graphs.pyg import from_pyg

    name, cutoff = f"{path.name}, graph {number}", cutoff_of(settings.attributes)
    graph = from_pyg(data, fields, optional=optional, cutoff=cutoff, name=name)
    return graph.with_texts(settings.texts_of(data.to_dict(), f"{path.name}#{number}"))


def load_pyg(path: Path) -> list[Any]:
    """The ``Data`` objects that were saved with ``torch.save`` (a list) or by an InMemoryDataset; code in the file never runs."""
    from pickle import UnpicklingError

    import torch

    from hydragnn.graphs.pyg import torch_geometric

    data, storage = torch_geometric("data.data"), torch_geometric("data.storage")
    known = [data.Data, data.DataEdgeAttr, data.DataTensorAttr, storage.GlobalStorage]
    try:
        with torch.serialization.safe_globals(known):
            loaded = torch.load(path, weights_only=True, map_location="cpu")
    except UnpicklingError as error:
        raise InputError(
            f"{path} holds more than torch_geometric Data and tensors, and code from files is not run; save a plain list of Data"
        ) from error
    except (OSError, RuntimeError, EOFError, KeyError) as error:
        raise InputError(f"{path} cannot be read by torch.load ({error}); was it cut off?") from error
    if isinstance(loaded, tuple) and len(loaded) >= 2 and isinstance(loaded[0], dict):
        return _separate(data.Data.from_dict(loaded[0]), loaded[1])
    graphs = [loaded] if isinstance(loaded, data.Data) else loaded
    if not isinstance(graphs, list) or not all(isinstance(graph, data.Data) for graph in graphs):
        raise InputError(f"{path} holds {type(loaded).__name__}, not a list of torch_geometric Data; save such a list")
    return graphs


def _separate(collated: Any, slices: Any) -> list[Any]:
    from hydragnn.graphs.pyg import torch_geometric

    separate = torch_geometric("data.separate").separate
    count = len(next(iter(slices.values()))) - 1
    return [separate(type(collated), collated, index, slices, decrement=False) for index in range(count)]


def mesh_graphs(settings: MeshBuild) -> Iterator[Make]:
    """One graph per mesh file, which is read when it is made; InputError naming the file."""
    numbers = [key for field in settings.fields if field.on == "graph" and not field.optional for key in field.keys]
    labels = read_table(Path(settings.labels), numbers) if settings.labels else {}
    for path in find_files(settings.files):
        yield partial(_mesh_graph, path, settings, labels)


def _mesh_graph(path: Path, settings: MeshBuild, labels: Table) -> GraphBatch:
    from hydragnn.graphs.continuum import from_mesh

    mesh = read_mesh(path)
    source = mesh.cell_data if settings.cell_centred else mesh.point_data
    row = _row_of(labels, path, settings.labels)
    graphs = {}
    absent = set()
    for field in settings.fields:
        key = field.keys[0]
        if field.on == "node" and key in source:
            source[field.name] = source[key]
        elif field.on == "graph" and all(key in row for key in field.keys):
            graphs[field.name] = stack_rows([row[key] for key in field.keys], field)
        elif field.optional:
            absent.add(field.name)
        else:
            have = sorted(source if field.on == "node" else row)
            raise InputError(
                f"{path}: no {', '.join(field.keys)} for the {field.on} field {field.name}; there is {', '.join(have) or 'nothing'}; "
                "name the right key, or set optional = true where graphs may lack the field"
            )
    graph = from_mesh(
        mesh,
        fields=[field.field for field in settings.fields if field.name not in absent],
        graphs=graphs,
        tags=settings.tags,
        cell_centred=settings.cell_centred,
        name=path.name,
    )
    return graph.with_texts(settings.texts_of(row if settings.name_key or settings.texts else {}, path.name))


def read_mesh(path: Path) -> Any:
    """The mesh in a file; InputError where meshio cannot read it."""
    import meshio

    try:
        with redirect_stdout(StringIO()):  # some of its readers print
            return meshio.read(path)
    except (SystemExit, Exception) as error:  # meshio exits on unknown formats, and its readers raise what they raise
        raise InputError(
            f"{path} cannot be read by meshio ({type(error).__name__}: {error}); check the file"
        ) from error


def _row_of(labels: Table, path: Path, source: str | None) -> dict[str, Any]:
    """The labels of one mesh file."""
    if not labels:
        return {}
    names = [str(name) for name in labels.get("file", [])]
    if path.name not in names:
        raise InputError(f"{source}: no row whose column file is {path.name}; add one")
    row = names.index(path.name)
    return {key: values[row] for key, values in labels.items() if key != "file"}
