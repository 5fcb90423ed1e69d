"""What a BUILD.toml may say: one typed model per kind of source."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field as Setting
from pydantic import field_validator, model_validator

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import class_named, is_allowed
from hydragnn.base.settings import ActsWith, Settings, refuse_idle
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Dtype, Field, Location, Parity, Role
from hydragnn.graphs.levels import with_contracted_levels, with_mesh_levels, with_voxel_levels
from hydragnn.graphs.texts import NAME, as_text, name_among

Make = Callable[[], GraphBatch]
"""What makes one graph of a source; InputError where that one cannot be made."""


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
    """float32, float64 or int64. Absent: float64 for targets that are one number per graph, such as energies, since float32 holds 7 digits."""

    key: str | list[str] | None = None
    """Name in the source (default: the field's own name); several names become the last axis of the value."""

    column: int | None = Setting(default=None, ge=0)
    """Take this column of an array whose last axis holds several quantities (npz only)."""

    scale: float = 1.0
    """Factor on the source's values, for units and signs."""

    convert: Literal["virial"] | None = None
    """virial: the source has virials (-stress x volume, in the unit of energies), which become a stress by -1/volume."""

    optional: bool = False
    """True where graphs may lack the field; else a missing value is an error."""

    @model_validator(mode="before")
    @classmethod
    def _number_of_a_graph(cls, value: Any) -> Any:
        """Energies have more digits than float32 holds."""
        if not isinstance(value, dict) or "dtype" in value or value.get("classes"):
            return value
        is_one = value.get("on") == "graph" and value.get("role") == "target" and not value.get("shape")
        return {**value, "dtype": "float64"} if is_one else value

    @model_validator(mode="after")
    def _check(self) -> "FieldSettings":
        field = self.field
        if self.convert and (field.on != "graph" or field.shape != (3, 3)):
            raise ValueError(
                f'field {self.name}: a virial is a 3 x 3 tensor of a graph; say on = "graph", shape = [3, 3]'
            )
        if _is_virial(self.keys[0]) and not _is_virial(self.name) and self.convert is None and self.scale == 1.0:
            raise ValueError(
                f'field {self.name}: {self.keys[0]} is not yet {self.name}; say convert = "virial" to divide it by minus the volume, or '
                "call the field virial, too"
            )
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


def _is_virial(name: str) -> bool:
    return "virial" in name.lower() and "stress" not in name.lower()


class CoarseningSettings(Settings):
    """Coarser levels of every graph, for models that pool: the node field ``clusters``."""

    by: Literal["voxels", "contraction", "mesh levels"]
    """voxels: nodes in one cube of space are one; contraction: pairs of neighbours are one, the closest ones first; mesh levels: nested meshes
    of nodes that are no neighbours, and every other node is one with the closest of them."""

    levels: int = Setting(default=1, ge=1, le=16)
    """How many; every level is made of the last."""

    side: float | None = Setting(default=None, gt=0)
    """Of the smallest voxels, in the unit of positions; each level doubles it. Absent: twice the mean length of each graph's edges."""

    @model_validator(mode="after")
    def _check(self) -> "CoarseningSettings":
        if self.side is not None and self.by != "voxels":
            raise ValueError('side is that of voxels; leave it out, or set by = "voxels"')
        return self

    def applied(self, batch: GraphBatch) -> GraphBatch:
        """The batch with its levels; InputError where it has none such."""
        if self.by == "voxels":
            return with_voxel_levels(batch, self.levels, self.side)
        by_neighbours = {"contraction": with_contracted_levels, "mesh levels": with_mesh_levels}
        return by_neighbours[self.by](batch, self.levels)


class _Build(Settings):
    """What every kind of source has."""

    beside: ClassVar[tuple[str, ...]] = ()
    """Settings that name other files, beside ``files``."""

    files: list[str] = Setting(min_length=1)
    """Files or patterns such as ``runs/*.xyz``, relative to the BUILD.toml; read in the order of their names."""

    fields: list[FieldSettings] = Setting(default_factory=list)
    """The fields of the store."""

    name_key: str | None = None
    """Entry with the name of every graph: of ``atoms.info``, of the ``Data``, an array or a column. Absent: ``name``, ``id``,
    ``material_id`` or the like of atoms and ``Data`` that have one; else file and number."""

    texts: list[str] = Setting(default_factory=list)
    """Entries with other texts to keep, such as ``config_type``: a split can group by them."""

    laplacian_encoding: int = Setting(default=0, ge=0)
    """Numbers of the node field ``laplacian_encoding``, eigenvectors of the graph's Laplacian: where a node sits; 0 for none."""

    random_walk_encoding: int = Setting(default=0, ge=0)
    """Numbers of the node field ``random_walk_encoding``, chances to be back after 1, 2, ... steps of a random walk; 0 for none."""

    coarsening: CoarseningSettings | None = None
    """Coarser levels of every graph, for models that pool; absent: none."""

    attributes: dict[str, Any] = Setting(default_factory=dict)
    """Anything worth keeping with the store: method, licence, citation."""

    @field_validator("fields")
    @classmethod
    def _one_of_each_name(cls, fields: list[FieldSettings]) -> list[FieldSettings]:
        names = [field.name for field in fields]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"the field {twice[0]} is declared {names.count(twice[0])} times; keep one, or give the others names of their own"
            )
        return fields

    @model_validator(mode="after")
    def _check_texts(self) -> "_Build":
        taken = {NAME, *(field.name for field in self.fields)}.intersection(self.texts)
        if taken:
            raise ValueError(f"texts: {sorted(taken)[0]} is the name or a field already; use name_key, or remove one")
        return self

    @property
    def text_keys(self) -> list[str]:
        """Entries that texts are read from."""
        return [*([self.name_key] if self.name_key else []), *self.texts]

    def texts_of(self, entries: Mapping[str, Any], number: str) -> dict[str, list[str]]:
        """Return the texts of a graph among its entries; its name is ``number`` where none has one.

        InputError where it lacks the entry that the settings name.
        """
        name = as_text(entries.get(self.name_key)) if self.name_key else name_among(entries) or number
        if not name:
            hint = nearest(str(self.name_key), [str(key) for key in entries])
            raise InputError(f"{number} has no text or whole number {self.name_key} for its name; {hint}")
        return {NAME: [name], **{key: [as_text(entries.get(key))] for key in self.texts}}

    @classmethod
    def one_file(cls) -> bool:
        """Return True where the files say it all, so that a store remembers how other such files become graphs."""
        return not any(cls.model_fields[name].is_required() for name in cls.beside)


class AseBuild(_Build):
    """Atoms in any format that ASE reads, extended XYZ (also compressed) above all."""

    keeps_atoms: ClassVar[bool] = False
    """True where graphs keep everything that structures have, as a text."""

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

    acts_with: ClassVar = {
        "max_neighbours": ActsWith(words="with cutoff", remedy="give one", holds=lambda build: build.cutoff),
        "undirected": ActsWith(words="with edges", remedy="name their array", holds=lambda build: build.edges),
    }

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
    """Add the reverse of every pair: for arrays that list each pair once. Those that list both directions leave it out."""

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

    beside: ClassVar[tuple[str, ...]] = ("labels",)

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

    beside: ClassVar[tuple[str, ...]] = ("edges", "graphs")

    kind: Literal["grains"] = "grains"

    edges: str
    """Table with columns ``graph``, ``sender``, ``receiver`` (grain numbers inside the microstructure, from 0)."""

    graphs: str | None = None
    """Table with a column ``graph`` and the graph fields."""

    positions: list[str] = Setting(default_factory=list)
    """Columns with the coordinates of grain centres; empty for grains without geometry."""

    undirected: bool = False
    """Add the reverse of every contact: for tables that list each contact from one side. Those that list both sides leave it out."""


class OwnBuild(_Build, ABC):
    """Files that a class of your own reads: ``kind = "package.module:Name"``; its settings are the class's attributes."""

    kind: str = ""
    """The class, in an installed package or one on PYTHONPATH."""

    @abstractmethod
    def graphs(self) -> Iterator[Make]:
        """Return what makes the graphs of ``files`` one by one; InputError where a file is no such source."""


BuildSettings = AseBuild | PygBuild | NpzBuild | MeshBuild | GrainsBuild | OwnBuild
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
    settings = _kind_of(table.get("kind"), str(origin)).parse(table, source=str(origin))
    refuse_idle(settings, str(origin))
    _refuse_other_names(settings, str(origin))
    folder = origin.parent
    paths: dict[str, Any] = {"files": [str(Path(escape(str(folder))) / file) for file in settings.files]}
    for key in settings.beside:
        value = getattr(settings, key, None)
        if value is not None:
            paths[key] = str(folder / value)
    return settings.model_copy(update=paths)


def _refuse_other_names(settings: BuildSettings, origin: str) -> None:
    """InputError for columns and several keys of fields where a source takes the values of one name as they are."""
    if isinstance(settings, NpzBuild | OwnBuild):
        return
    for field in settings.fields:
        if field.column is not None:
            raise InputError(
                f"{origin}: field {field.name}: column is for npz; leave it out, and declare the shape of the whole value"
            )
        joins = isinstance(settings, GrainsBuild) or (isinstance(settings, MeshBuild) and field.on == "graph")
        if len(field.keys) > 1 and not joins:
            raise InputError(
                f"{origin}: field {field.name}: this source takes one key per field, not {len(field.keys)}; declare a field for each"
            )


def _kind_of(kind: Any, origin: str) -> type[BuildSettings]:
    """The settings of a kind of source; InputError where there is none such."""
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind]
    if isinstance(kind, str) and ":" in kind:
        where = f"{origin}: kind = {kind!r}"
        return class_named(kind, OwnBuild, where=where, noun="source", parent="hydragnn.datasets.OwnBuild")
    hint = nearest(str(kind), list(KINDS)) if kind else f"add one of {', '.join(KINDS)}"
    raise InputError(f"{origin}: kind = {kind!r} is no kind of source; {hint}")


def rule_of(settings: BuildSettings) -> dict[str, Any]:
    """How a file becomes graphs, whatever it is called, as JSON: what a store remembers; empty where one file is not enough."""
    if not settings.one_file():
        return {}
    rule = settings.model_dump(mode="json", exclude={"files", "attributes", *settings.beside}, exclude_defaults=True)
    return {**rule, "kind": settings.kind}


def settings_of_rule(rule: Any, file: Path, source: str) -> BuildSettings:
    """The settings by which ``file`` becomes graphs as those of a store did; ``source`` says where the rule was found.

    InputError where the rule is damaged or names a class that no file may: it may come from a stranger.
    """
    kind = rule.get("kind") if isinstance(rule, dict) else None
    known = [name for name in KINDS if KINDS[name].one_file()]
    module = kind.partition(":")[0] if isinstance(kind, str) and ":" in kind else ""
    if kind not in known and not (module and is_allowed(module)):
        trust = f", or --allow-code {module}" if module else ""
        raise InputError(
            f"{source} has graphs made by {kind!r}, which is no source of this package; give a BUILD.toml{trust}"
        )
    settings_class = _kind_of(kind, source)
    own = {key: value for key, value in rule.items() if key not in (*settings_class.beside, "attributes")}
    if isinstance(own.get("fields"), list):  # a rule names every dtype but float32, whatever is the default today
        own["fields"] = [{"dtype": "float32", **one} if isinstance(one, dict) else one for one in own["fields"]]
    settings = settings_class.parse({**own, "files": ["new"]}, source)
    return settings.model_copy(update={"files": [str(file)]})


def for_prediction(settings: BuildSettings, inputs: Collection[str]) -> BuildSettings:
    """The settings without the fields that are no ``inputs``, such as labels, and without tables that hold only these."""
    fields = [field for field in settings.fields if field.name in inputs]
    needless = () if any(field.on == "graph" for field in fields) else settings.beside
    absent = {key: None for key in needless if not type(settings).model_fields[key].is_required()}
    return settings.model_copy(update={"fields": fields, "name_key": None, "texts": [], **absent})
