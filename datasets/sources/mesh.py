"""Meshes with fields in any format that meshio reads."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.tables import find_files
from hydragnn.graphs.batch import GraphBatch


class MeshBuild(BuildSettings):
    """Meshes with nodal fields in any format that meshio reads."""

    kind: Literal["mesh"] = "mesh"

    tags: list[str] | None = None
    """Physical groups that become fields ``tag_<name>``; all of them if absent."""

    cell_centred: bool = False
    """Nodes are cells instead of vertices."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each mesh file; InputError names the file."""
        for path in find_files(self.files):
            yield partial(self._graph, path)

    def _graph(self, path: Path) -> GraphBatch:
        from hydragnn.graphs.continuum import from_mesh

        mesh = read_mesh(path)
        source = mesh.cell_data if self.cell_centred else mesh.point_data
        absent = set()
        for field in self.fields:
            key = field.keys[0]
            if field.on == "node" and key in source:
                source[field.name] = source[key]
            elif field.optional:
                absent.add(field.name)
            else:
                have = ", ".join(sorted(source) if field.on == "node" else []) or "nothing"
                move = "name the right key" if field.on == "node" else "give a table with it as labels"
                raise InputError(
                    f"{path}: no {', '.join(field.keys)} for the {field.on} field {field.name}; there is {have}; {move}, or set "
                    "optional = true where graphs may lack the field"
                )
        graph = from_mesh(
            mesh,
            fields=[field.field for field in self.fields if field.name not in absent],
            tags=self.tags,
            cell_centred=self.cell_centred,
            optional=self.optional,
            name=path.name,
        )
        return graph.with_texts(self.texts_of({}, path.name))


def read_mesh(path: Path) -> Any:
    """The mesh in a file; InputError where meshio cannot read it."""
    import meshio

    try:
        with redirect_stdout(StringIO()):  # some of its readers print
            return meshio.read(path)
    except (SystemExit, Exception) as error:  # meshio exits on unknown formats, and its readers raise what they raise
        raise InputError(f"{path} cannot be read by meshio ({type(error).__name__}: {error}); check it") from error
