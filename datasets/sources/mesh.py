"""Meshes with fields in any format that meshio reads."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.tables import Table, find_files, read_table, stack_rows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location


class MeshBuild(BuildSettings):
    """Meshes with nodal fields in any format that meshio reads."""

    joins: ClassVar[frozenset[Location]] = frozenset(("graph",))

    beside: ClassVar[tuple[str, ...]] = ("labels",)

    kind: Literal["mesh"] = "mesh"

    labels: str | None = None
    """CSV file with a column ``file`` (name of the mesh file) and one column per graph field."""

    tags: list[str] | None = None
    """Physical groups that become fields ``tag_<name>``; all of them if absent."""

    cell_centred: bool = False
    """Nodes are cells instead of vertices."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each mesh file; InputError names the file."""
        numbers = [key for field in self.fields if field.on == "graph" for key in field.keys]
        optional = {key for field in self.fields if field.optional for key in field.keys}
        labels = read_table(Path(self.labels), numbers, optional) if self.labels else {}
        for path in find_files(self.files):
            yield partial(self._graph, path, labels)

    def _graph(self, path: Path, labels: Table) -> GraphBatch:
        from hydragnn.graphs.continuum import from_mesh

        mesh = read_mesh(path)
        source = mesh.cell_data if self.cell_centred else mesh.point_data
        row = _row_of(labels, path, self.labels)
        graphs = {}
        absent = set()
        for field in self.fields:
            key = field.keys[0]
            if field.on == "node" and key in source:
                source[field.name] = source[key]
            elif field.on == "graph" and all(key in row for key in field.keys):
                value = stack_rows([row[key] for key in field.keys], field)
                if field.optional and value.dtype.kind == "f" and np.isnan(value).all():
                    absent.add(field.name)
                else:
                    graphs[field.name] = value
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
            fields=[field.field for field in self.fields if field.name not in absent],
            graphs=graphs,
            tags=self.tags,
            cell_centred=self.cell_centred,
            optional=self.optional,
            name=path.name,
        )
        return graph.with_texts(self.texts_of(row if self.name_key or self.texts else {}, path.name))


def read_mesh(path: Path) -> Any:
    """The mesh in a file; InputError where meshio cannot read it."""
    import meshio

    try:
        with redirect_stdout(StringIO()):  # some of its readers print
            return meshio.read(path)
    except (SystemExit, Exception) as error:  # meshio exits on unknown formats, and its readers raise what they raise
        raise InputError(f"{path} cannot be read by meshio ({type(error).__name__}: {error}); check it") from error


def _row_of(labels: Table, path: Path, source: str | None) -> dict[str, Any]:
    if not labels:
        return {}
    names = [str(name) for name in labels.get("file", [])]
    if path.name not in names:
        raise InputError(f"{source}: no row whose column file is {path.name}; add one")
    row = names.index(path.name)
    return {key: values[row] for key, values in labels.items() if key != "file"}
