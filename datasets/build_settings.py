"""What a BUILD.toml may say: one typed model per kind of source."""

from glob import escape
from pathlib import Path
from typing import Any, Literal

from pydantic import Field as Setting
from pydantic import model_validator

from hydragnn.errors import InputError, nearest
from hydragnn.graphs.field import Dtype, Field, Location, Parity, Role
from hydragnn.settings import Settings


class FieldSettings(Settings):
    """One field of the store and where its values come from."""

    name: str
    """Name in the store."""

    on: Location
    """node, edge or graph."""

    shape: list[int] = Setting(default_factory=list)
    """Shape of one item's value; empty for one number."""

    unit: str = ""
    """Unit, as it shall stand in tables and plots."""

    parity: Parity = "scalar"
    """How the value turns under rotation: scalar, vector or tensor."""

    role: Role = "input"
    """input, target or auxiliary (kept, but not given to models)."""

    classes: int = Setting(default=0, ge=0)
    """Number of classes of a categorical field (dtype int64); 0 for numbers."""

    dtype: Dtype = "float32"
    """float32, float64 or int64."""

    key: str | list[str] | None = None
    """Name in the source (default: the field's own name); several names become the last axis of the value."""

    column: int | None = Setting(default=None, ge=0)
    """Take this column of an array whose last axis holds several quantities (npz only)."""

    scale: float = 1.0
    """Factor on the source's values, for units and signs."""

    optional: bool = False
    """True where graphs may lack the field; else a missing value is an error."""

    @model_validator(mode="after")
    def _check(self) -> "FieldSettings":
        _ = self.field
        return self

    @property
    def field(self) -> Field:
        """The description that goes into the store."""
        return Field(
            name=self.name,
            on=self.on,
            shape=tuple(self.shape),
            unit=self.unit,
            parity=self.parity,
            role=self.role,
            classes=self.classes,
            dtype=self.dtype,
        )

    @property
    def keys(self) -> list[str]:
        """Names in the source."""
        return [self.key or self.name] if not isinstance(self.key, list) else self.key


class _Build(Settings):
    """What every kind of source has."""

    files: list[str] = Setting(min_length=1)
    """Files or patterns such as ``runs/*.xyz``, relative to the BUILD.toml; read in the order of their names."""

    fields: list[FieldSettings] = Setting(default_factory=list)
    """The fields of the store."""

    laplacian_encoding: int = Setting(default=0, ge=0)
    """Numbers of the node field ``laplacian_encoding``, eigenvectors of the graph's Laplacian: where a node sits; 0 for none."""

    random_walk_encoding: int = Setting(default=0, ge=0)
    """Numbers of the node field ``random_walk_encoding``, chances to be back after 1, 2, ... steps of a random walk; 0 for none."""

    attributes: dict[str, Any] = Setting(default_factory=dict)
    """Anything worth keeping with the store: method, licence, citation."""


class AseBuild(_Build):
    """Atoms in any format that ASE reads, extended XYZ (also compressed) above all."""

    kind: Literal["ase"] = "ase"

    cutoff: float = Setting(gt=0)
    """Pairs within this distance are edges, Angstrom."""

    max_neighbours: int | None = Setting(default=None, ge=1)
    """Keep only so many nearest neighbours of each atom."""

    index: str = ":"
    """Which structures of each file, as a Python slice: ``:`` all, ``::10`` every tenth, ``-1`` the last."""

    format: str | None = None
    """ASE's name of the format, where the file name does not tell."""


class PygBuild(_Build):
    """A list of torch_geometric ``Data`` (or a saved InMemoryDataset) in ``.pt`` files; loaded without running code."""

    kind: Literal["pyg"] = "pyg"


class NpzBuild(_Build):
    """Flat numpy arrays with counts, or rectangular arrays, in ``.npz`` files."""

    kind: Literal["npz"] = "npz"

    nodes: str | None = None
    """Array with the number of nodes of each graph; absent where every graph has equally many: [graphs, nodes, ...]."""

    positions: str | None = None
    """Array of positions: all nodes end to end, or [graphs, nodes, dim], or [nodes, dim] shared by all graphs."""

    edges: str | None = None
    """Array of node pairs [pairs, 2] (sender, receiver), numbered inside each graph; shared by all graphs if ``edge_counts`` is absent."""

    edge_counts: str | None = None
    """Array with the number of pairs of each graph."""

    undirected: bool = False
    """Add the reverse of every pair."""

    cutoff: float | None = Setting(default=None, gt=0)
    """Make edges between nodes within this distance instead of reading them."""

    max_neighbours: int | None = Setting(default=None, ge=1)
    """Keep only so many nearest neighbours of each node; with ``cutoff``."""

    cell: str | list[float] | None = None
    """Array of cells ([graphs, 3, 3], [graphs, 3], [3, 3] or [3]), or the three lengths of one box."""

    periodic: bool | list[bool] = False
    """Which axes repeat."""

    @model_validator(mode="after")
    def _check(self) -> "NpzBuild":
        if self.cutoff is not None and (self.positions is None or self.edges is not None):
            raise ValueError("cutoff makes edges from positions: give positions and no edges")
        if self.edge_counts and not self.edges:
            raise ValueError("edge_counts needs edges")
        return self


class MeshBuild(_Build):
    """Meshes with nodal fields in any format that meshio reads."""

    kind: Literal["mesh"] = "mesh"

    labels: str | None = None
    """CSV file with a column ``file`` (name of the mesh file) and one column per graph field."""

    tags: list[str] | None = None
    """Physical groups that become fields ``tag_<name>``; all of them if absent."""

    cell_centred: bool = False
    """Nodes are cells instead of vertices."""


class GrainsBuild(_Build):
    """Grains in tables: ``files`` holds one row per grain, ``edges`` one row per contact, ``graphs`` one row per microstructure.

    Tables are CSV files with a header, or npz files with one array per column. The column ``graph`` says to which
    microstructure a row belongs.
    """

    kind: Literal["grains"] = "grains"

    edges: str
    """Table with columns ``graph``, ``sender``, ``receiver`` (grain numbers inside the microstructure, from 0)."""

    graphs: str | None = None
    """Table with a column ``graph`` and the graph fields."""

    positions: list[str] = Setting(default_factory=list)
    """Columns with the coordinates of grain centres; empty for grains without geometry."""

    undirected: bool = True
    """Add the reverse of every contact."""


BuildSettings = AseBuild | PygBuild | NpzBuild | MeshBuild | GrainsBuild
KINDS: dict[str, type[BuildSettings]] = {
    "ase": AseBuild,
    "pyg": PygBuild,
    "npz": NpzBuild,
    "mesh": MeshBuild,
    "grains": GrainsBuild,
}


def read_build_settings(table: dict[str, Any], origin: Path) -> BuildSettings:
    """The source that a parsed BUILD.toml describes; paths count from the folder of ``origin``.

    InputError naming the key and the remedy.
    """
    kind = table.get("kind")
    if kind not in KINDS:
        hint = nearest(str(kind), list(KINDS)) if kind else f"add one of {', '.join(KINDS)}"
        raise InputError(f"{origin}: kind = {kind!r} is no kind of source; {hint}")
    settings = KINDS[kind].parse(table, source=str(origin))
    folder = origin.parent
    paths: dict[str, Any] = {"files": [str(Path(escape(str(folder))) / file) for file in settings.files]}
    for key in ("labels", "edges", "graphs"):
        value = getattr(settings, key, None)
        if value is not None and not isinstance(settings, NpzBuild):
            paths[key] = str(folder / value)
    return settings.model_copy(update=paths)
