"""Base of all data sources: settings together with the makers of graphs."""

import re
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field as Setting
from pydantic import PrivateAttr, field_validator, model_validator

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.places import distinct_names, matching_files
from hydragnn.base.settings import Settings
from hydragnn.datasets.sources.fields import CoarseningSettings, FieldSettings
from hydragnn.datasets.sources.table_files import find_files
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import LOCATIONS, Location
from hydragnn.graphs.objects import entries_of, graphs_in
from hydragnn.graphs.parts import PARTS
from hydragnn.graphs.problems import GEOMETRY, ROUNDING
from hydragnn.graphs.texts import FILE, FOLDER, NAME, as_text, name_among, naming, one_line, text_of
from hydragnn.graphs.units import unit_factor
from hydragnn.graphs.validate import graph_from_arrays

Make = Callable[[], GraphBatch]
"""Function that makes one graph of a source; InputError where that graph cannot be made."""

Item = TypeVar("Item")

TIME, LEAD = "time", "lead_time"  # keys of a frame's time, and of that to a later one
RUN = "run"  # key of the text with the time series of a frame
TOGETHER, NODES_TOGETHER = 256, 2**11
"""At most so many graphs, with so many nodes, are made at once where their makers can."""


@dataclass(frozen=True, slots=True)
class MakerOfMany:
    """Maker of one graph, or with others of several graphs at once."""

    graphs: Callable[[Sequence[Any]], GraphBatch | None]
    """Function of items; of several it may return None, or raise InputError, to make their graphs singly."""
    item: Any
    nodes: int
    """Nodes of the graph."""

    def __call__(self) -> GraphBatch:
        """Return the graph; InputError where it cannot be made."""
        graph = self.graphs([self.item])
        assert graph is not None
        return graph


def nodes_of(make: Make) -> int:
    """Return a graph's nodes before making; ``NODES_TOGETHER`` if made singly."""
    return make.nodes if isinstance(make, MakerOfMany) else NODES_TOGETHER


def made_together(makers: Sequence[Make]) -> GraphBatch | None:
    """Return the makers' graphs as one batch; None to make them singly."""
    alike = [one for one in makers if isinstance(one, MakerOfMany)]
    if len({one.graphs for one in alike}) != 1 or len(alike) < max(2, len(makers)):
        return None
    try:
        return alike[0].graphs([one.item for one in alike])
    except InputError:
        return None


FEW = 8
"""Graphs that are made one by one where they cannot be made together; more are halved first, to find what hinders it."""


def pieces_of(makers: Sequence[Make]) -> Iterator[tuple[Sequence[Make], GraphBatch | None]]:
    """Yield makers in order with their graphs; None to make them singly."""
    batch = made_together(makers)
    if batch is None and len(makers) > FEW:
        yield from pieces_of(makers[: len(makers) // 2])
        yield from pieces_of(makers[len(makers) // 2 :])
    else:
        yield makers, batch


def grouped(
    items: Iterable[Item], sizes: Callable[[Item], tuple[int, int]], most: tuple[int, int]
) -> Iterator[list[Item]]:
    """Yield consecutive items whose sums of two sizes are at ``most`` these.

    >>> list(grouped([3, 1, 1, 5], lambda number: (1, number), (2, 4)))
    [[3, 1], [1], [5]]
    """
    some: list[Item] = []
    count = size = 0
    for item in items:
        one, more = sizes(item)
        if some and (count + one > most[0] or size + more > most[1]):
            yield some
            some, count, size = [], 0, 0
        some.append(item)
        count, size = count + one, size + more
    if some:
        yield some


def groups_of_makers(makers: Iterable[Make]) -> Iterator[list[Make]]:
    """Yield consecutive makers whose graphs are made at once."""
    return grouped(makers, lambda make: (1, nodes_of(make)), (TOGETHER, NODES_TOGETHER))


def made(makers: Iterable[Make]) -> Iterator[GraphBatch]:
    """Yield the graphs of makers in order; InputError for the first fault."""
    for group in groups_of_makers(makers):
        for some, batch in pieces_of(group):
            yield from ([batch] if batch is not None else (make() for make in some))


class BuildSettings(Settings, ABC):
    """Settings of a data source, and the graphs of its files."""

    beside: ClassVar[tuple[str, ...]] = ("labels",)
    """Settings that name other files, beside ``files``."""

    former: ClassVar[dict[str, Any]] = {}
    """Values of keys that rules of 0.2.0 lack; rules name these keys now."""

    takes_columns: ClassVar[bool] = False
    """True where fields may take columns of an array."""

    takes_steps: ClassVar[bool] = False
    """True where fields may take values of later frames."""

    joins: ClassVar[frozenset[Location]] = frozenset()
    """Locations of fields whose values may be joined from several keys."""

    files: list[str] = Setting(min_length=1)
    """Files, folders or patterns such as ``runs/*.xyz``, relative to the BUILD.toml; read in the order of their names."""

    labels: str | None = None
    """CSV or npz file with graph fields that the files lack, one row per graph. The column ``file`` holds names of files, with or without
    suffix; without it ``name``, ``id``, ``material_id`` or the like holds names of graphs. Graphs without a row lack optional fields."""

    fields: list[FieldSettings] = Setting(default_factory=list)
    """The fields of the store."""

    name_key: str | None = None
    """Entry with the name of every graph: of ``atoms.info``, of the ``Data``, an array or a column. Absent: ``name``, ``id``,
    ``material_id`` or the like of atoms and ``Data`` that have one; else file and number."""

    texts: list[str] = Setting(default_factory=list)
    """Entries with other texts to keep, such as ``config_type``: a split can group by them."""

    node_split: list[str] | None = Setting(default=None, min_length=2, max_length=len(PARTS))
    """Node fields with the masks of training, validation, and perhaps test and calibration, in this order: every graph is stored once
    for each, with the labels of its nodes alone and the number of the part in the graph field ``part``; absent: graphs are not parted."""

    laplacian_encoding: int = Setting(default=0, ge=0)
    """Numbers of the node field ``laplacian_encoding``, eigenvectors of the graph's Laplacian: where a node sits; 0 for none."""

    random_walk_encoding: int = Setting(default=0, ge=0)
    """Numbers of the node field ``random_walk_encoding``, chances to be back after 1, 2, ... steps of a random walk; 0 for none."""

    close_nuclei: bool = False
    """True where nuclei may be nearer than half the sum of their covalent radii (at most 1 Angstrom each), as in scans of repulsion."""

    coarsening: CoarseningSettings | None = None
    """Coarser levels of every graph, for models that pool; absent: none."""

    transform: str | None = None
    """Function of your own, ``package.module:name``, that takes a ``GraphBatch`` of one graph and returns the one to store."""

    attributes: dict[str, Any] = Setting(default_factory=dict)
    """Anything worth keeping with the store: method, licence, citation."""

    kind: str
    """Name of the source in a BUILD.toml."""

    @field_validator("fields")
    @classmethod
    def _one_of_each_name(cls, fields: list[FieldSettings]) -> list[FieldSettings]:
        names = [field.name for field in fields]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            problem = f"the field {twice[0]} is declared {names.count(twice[0])} times"
            raise ValueError(f"{problem}; keep one, or give the others names of their own")
        return fields

    @model_validator(mode="after")
    def _check_texts(self) -> "BuildSettings":
        doubles = {NAME, *(field.name for field in self.fields)}.intersection(self.texts)
        if doubles:
            raise ValueError(f"texts: {sorted(doubles)[0]} is the name or a field already; use name_key, or remove one")
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        """Raise TypeError for a source that lacks a method or its ``kind``."""
        super().__pydantic_init_subclass__(**more)
        if ABC in cls.__bases__:
            return
        if cls.__abstractmethods__:
            raise TypeError(f"source {cls.__name__} lacks {', '.join(sorted(cls.__abstractmethods__))}")
        if cls.model_fields["kind"].is_required():
            raise TypeError(f"source {cls.__name__} has no kind; give its name as the default")

    @abstractmethod
    def makers(self) -> Iterator[Make]:
        """Yield a maker for each graph; InputError for an unreadable file."""

    def named_files(self) -> list[tuple[Path, str]]:
        """Return the files with their names, and folders where names repeat."""
        paths = find_files(self.files)
        return [*zip(paths, distinct_names(paths))]

    def graph_of(
        self,
        positions: Any,
        senders: Any,
        receivers: Any,
        values: Mapping[str, Any],
        **more: Any,
    ) -> GraphBatch:
        """Return a graph of arrays and ``values`` by field.

        More arguments are those of ``graph_from_arrays``, which checks all of them.
        """
        on = {at: {one.name: values[one.name] for one in self.fields if one.on == at} for at in LOCATIONS}
        fields = [one.field for one in self.fields]
        more |= {"fields": fields, "nodes": on["node"], "edges": on["edge"], "graphs": on["graph"]}
        return graph_from_arrays(positions, senders, receivers, optional=self.optional, **more)

    def count(self) -> int | None:
        """Return the number of graphs; None where only making them would tell."""
        return sum(1 for _ in self.makers())

    def notes(self) -> Mapping[str, Any]:
        """Return what files say about the whole set, for the store's attributes."""
        return {}

    def check_fields(self, origin: str) -> None:
        """Raise InputError for columns and several keys where the source has neither."""
        for field in self.fields:
            if field.column is not None and not self.takes_columns:
                problem = f"{origin}: field {field.name}: column is for npz, mesh and pyg"
                raise InputError(f"{problem}; leave it out, and declare the shape of the whole value")
            if field.step and not self.takes_steps:
                raise InputError(f"{origin}: field {field.name}: step is for time series (mesh, npz); leave it out")
            if len(field.keys) > 1 and field.on not in self.joins and not (self.labels and field.on == "graph"):
                problem = f"{origin}: field {field.name}: this source takes one key per field, not {len(field.keys)}"
                raise InputError(f"{problem}; declare a field for each")

    def check_geometry(self, names: Iterable[str], where: str) -> None:
        """Raise InputError for geometry that the settings do not name."""
        for name in names:
            setting = next((key for key, form in GEOMETRY.items() if re.fullmatch(form, name, re.IGNORECASE)), None)
            if not setting or setting in self.model_fields_set:
                continue
            if repr(name) not in repr([*self.model_dump().values()]):
                own = f"say {setting}" if setting in type(self).model_fields else f"kind = {self.kind!r} reads none"
                raise InputError(
                    f"{where} has {name}, which describes geometry and would not be used; {own}, or leave it out"
                )

    def check_units(self, units: Mapping[str, str], where: str) -> None:
        """Raise InputError for fields in other units than their values."""
        for field, key in [(one, key) for one in self.fields for key in one.keys]:
            unit = units.get(key, "")
            factor = unit_factor(unit, field.unit) if field.unit and field.unit != unit else 1.0
            if unit and field.unit and (factor is None or abs(abs(field.scale) / factor - 1) > ROUNDING):
                scale = f", or scale = {factor:.8g}" if factor not in (None, 1.0) else " without scale"
                raise InputError(f'{where}: {key} is in {unit}, not {field.unit}; say unit = "{unit}"{scale}')

    @property
    def parts(self) -> int:
        """Graphs of the store for each graph of the files."""
        return len(self.node_split or [""])

    @property
    def optional(self) -> list[str]:
        """Fields that graphs may lack."""
        return [field.name for field in self.fields if field.optional]

    @property
    def text_keys(self) -> list[str]:
        """Entries that texts are read from."""
        return [*([self.name_key] if self.name_key else []), *self.texts]

    @cached_property
    def folders(self) -> dict[str, str]:
        """Return the folder of every file by the file's name."""
        found = [] if getattr(self, "_objects", None) is not None else map(matching_files, self.files)
        paths = [*dict.fromkeys(chain.from_iterable(found))]
        parents = {path.parent: path.parent.resolve() for path in paths}
        places = [*dict.fromkeys(parents.values())]
        names = dict(zip(places, distinct_names(places)))
        return {file: names[parents[path.parent]] for file, path in zip(distinct_names(paths), paths)}

    def graph_with_texts(self, entries: Mapping[str, Any], number: str, make: Make) -> GraphBatch:
        """Return a graph with its texts."""
        texts = self.texts_of(entries, number)
        with naming(texts):
            return make().with_texts(texts)

    def texts_of(self, entries: Mapping[str, Any], number: str) -> dict[str, list[str]]:
        """Return a graph's texts; ``number`` is its name by default.

        It has its file and folder, too. InputError where it lacks the entry that the settings name, and where an entry is no text.
        """
        name = as_text(entries.get(self.name_key)) if self.name_key else name_among(entries) or number
        if not name:
            hint = nearest(str(self.name_key), [str(key) for key in entries])
            raise InputError(f"{number} has no text or whole number {self.name_key} for its name; {hint}")
        texts = {NAME: name, **{key: text_of(entries.get(key), key, number) for key in self.texts}}
        file = number if number in self.folders else number.rpartition("#")[0]
        if file in self.folders:
            places, own = {FILE: file, FOLDER: self.folders[file]}, {field.name for field in self.fields}
            texts = {key: one_line(text) for key, text in places.items() if key not in own} | texts
        return {key: [text] for key, text in texts.items()}

    @property
    def first_number(self) -> str:
        """Return the number in the name of a file's first graph."""
        return str(-min([0, *(field.step for field in self.fields)]))

    def check_times(self, times: Sequence[float], where: str) -> None:
        """Raise InputError for times that fall, or unequal ones unseen by models."""
        gaps, read = np.diff(times), {field.keys[0] for field in self.fields}
        if not (rises := (gaps > 0) & np.isfinite(gaps)).all():
            place = int(rises.argmin())
            problem = f"{where}: frame {place + 1} has time {times[place + 1]} after {times[place]}"
            raise InputError(f"{problem}; write each run as a file of its own, in order of time")
        if len(gaps) and np.ptp(gaps) > ROUNDING * gaps.mean() and not {TIME, LEAD} & read:
            place = int(np.abs(gaps - np.median(gaps)).argmax())
            raise InputError(
                f"{where}: frames are not equally spaced in time (times {[*times[place : place + 2]]} of frames {place} and {place + 1}), so that a step "
                "has no one meaning; write equal steps, or declare the graph field time, with the same step, as inputs"
            )

    def lead_time(self, field: FieldSettings, times: Any, frame: int, where: str) -> float:
        """Return the time from a frame to that of a step."""
        lead = float(times[frame + field.step] - times[frame])
        if lead <= 0:
            raise InputError(
                f"{where}: {field.name} is {lead:g}, and leads to no later frame; give it the step of the target"
            )
        return lead

    @classmethod
    def one_file(cls) -> bool:
        """Return True where stores remember the rule: no table is required beside."""
        return not any(cls.model_fields[name].is_required() for name in cls.beside)


class ObjectsBuild(BuildSettings, ABC):
    """Base of sources whose graphs are objects, in files or in Python."""

    _objects: Any = PrivateAttr(None)

    @abstractmethod
    def load(self, path: Path) -> Iterable[Any]:
        """Return the objects of a file, None for those left out.

        InputError where it is unreadable.
        """

    @abstractmethod
    def graph(self, one: Any, first: Any, name: str, number: int) -> GraphBatch:
        """Return the graph of an object, the ``number``-th of its file.

        ``first`` is the first object of all.
        """

    def maker(self, one: Any, first: Any, name: str, number: int) -> Make:
        """Return the maker of an object's graph."""
        make = partial(self.graph, one, first, name, number)
        return partial(self.graph_with_texts, entries_of(one), f"{name}#{number}", make)

    def of_objects(self, objects: Any) -> "ObjectsBuild":
        """Return the settings for graphs in memory, as ``graphs_in`` takes them."""
        copy = self.model_copy(update={"files": ["data"]})
        copy._objects = objects
        return copy

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each object; InputError for an unreadable file."""
        first = None
        for name, objects in self._groups():
            for number, one in enumerate(objects):
                first = one if first is None else first
                if one is not None:
                    yield self.maker(one, first, name, number)

    def _groups(self) -> Iterator[tuple[str, Iterable[Any]]]:
        if self._objects is not None:
            yield "data", graphs_in(self._objects)
            return
        yield from ((name, self.load(path)) for path, name in self.named_files())


class OwnBuild(BuildSettings, ABC):
    """Base of your own sources: settings are attributes, ``graphs`` reads files."""

    takes_columns: ClassVar[bool] = True
    joins: ClassVar[frozenset[Location]] = frozenset(("node", "edge", "graph"))

    kind: str = ""
    """The class, in an installed package or one on PYTHONPATH."""

    @abstractmethod
    def graphs(self) -> Iterator[Make]:
        """Yield a maker for each graph; InputError for an unreadable file."""

    def count(self) -> None:
        """Return None: graphs are counted as they are made."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each graph; whatever the class raises becomes InputError."""

        def one_graph(make: Make, number: int) -> GraphBatch:
            with self._errors(f"graph {number}"):
                graph = make()
                if not isinstance(graph, GraphBatch) or len(graph) != 1:
                    raise TypeError(f"it made {graph!r:.80}, which is not one graph")
                return graph

        makers: Iterator[Make] | None = None
        for number in count():
            with self._errors(f"before graph {number}"):
                makers = makers or iter(self.graphs())
                make = next(makers, None)
            if make is None:
                return
            yield partial(one_graph, make, number)

    @contextmanager
    def _errors(self, graph: str) -> Iterator[None]:
        """Turn errors of the class into InputError with their line."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # whatever the user's code raises
            lines = traceback.extract_tb(error.__traceback__)
            own = sys.modules[type(self).__module__].__file__
            line = next((one for one in reversed(lines) if one.filename == own), lines[-1])
            raise InputError(
                f"{', '.join(self.files)}, {graph}: the source {self.kind} raised {type(error).__name__}: {error} "
                f"({Path(line.filename).name}, line {line.lineno}); repair it, or the file"
            ) from error
