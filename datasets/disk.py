"""Stores on disk, opened lazily and read in runs of neighbouring graphs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.files import allow_many_files, digest
from hydragnn.base.places import StorePlace, as_path, is_public
from hydragnn.datasets import manifest
from hydragnn.datasets.access import Access, attribute_at
from hydragnn.datasets.arrays import Array, ArraySpec, FlatGraphs, array_name, array_specs, join, mask_name, offsets_of
from hydragnn.datasets.fingerprint import fingerprint_of, graph_digests
from hydragnn.datasets.formats.engine import PartReader, engine_named
from hydragnn.datasets.formats.memory import check_fields, checked_indices, field_named
from hydragnn.datasets.gather import GAP, gather, no_graphs, take_graphs
from hydragnn.datasets.part_texts import TextsReader, texts_path
from hydragnn.datasets.public import PublicStore
from hydragnn.datasets.store import Column, Numbers, Sizes
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.texts import Texts
from hydragnn.graphs.units import CLOSE_NUCLEI, FAILED_STEPS

COLUMNS = {"graph": 0, "node": 1, "edge": 2}  # columns of the blocks of a part that count its items
SHARE = 16
"""One part may be open for so many files that the process may open: it takes up to four, and there may be other stores and files."""


class OpenParts:
    """Open parts of a store, no more than the system's files allow."""

    def __init__(self) -> None:
        # the last used one comes last; a part that nobody holds closes its files at once
        self._parts: WeakKeyDictionary[PartFile, None] = WeakKeyDictionary()
        self._most = 1  # until there are more, and the system is asked

    def use(self, part: "PartFile") -> None:
        """Note the use of a part; close the oldest if necessary."""
        self._parts.pop(part, None)
        self._parts[part] = None
        if len(self._parts) > self._most:
            self._most = max(1, allow_many_files() // SHARE)
            if len(self._parts) > self._most:
                next(iter(self._parts)).close()

    def forget(self, part: "PartFile") -> None:
        """Note that the files of a part are closed."""
        self._parts.pop(part, None)


class PartFile:
    """One part of a store, opened when it is first read."""

    def __init__(self, folder: Path, info: manifest.PartInfo, store: manifest.StoreManifest, opened: OpenParts) -> None:
        """The part ``info`` of the store in ``folder``; nothing is opened yet."""
        self._opened = opened
        self.info = info
        self.path = folder / info.name
        self.specs = disk_specs(store.dim, store.fields)
        self._manifest = store
        self._reader: PartReader | None = None
        self.texts: TextsReader | None = None
        """None where no graph has a text."""
        if info.texts is not None:
            self.texts = TextsReader(texts_path(self.path), info.texts, [graphs for graphs, _, _ in info.blocks])

    @property
    def reader(self) -> PartReader:
        """The engine; InputError where the part is cut off, changed or missing."""
        self._opened.use(self)  # first, so that there is room for the files
        if self._reader is None:
            self.check_files()
            columns = {name: COLUMNS[spec.location] for name, spec in self.specs.items()}
            self._reader = engine_named(self._manifest.backend).reader(self.path, self.info, columns)
            self._reader.check(self.layout)
        return self._reader

    @property
    def layout(self) -> dict[str, manifest.Layout]:
        """The arrays that must be on disk, by name."""
        layouts = {}
        for name, spec in self.specs.items():
            if 0 not in spec.shape and self.stores(name):
                rows = [block[COLUMNS[spec.location]] for block in self.info.blocks]
                stored = self.info.stored.get(name, range(len(rows)))
                stored_rows, reach = tuple(rows[block] for block in stored), sum(rows[: max(stored) + 1])
                layouts[name] = manifest.Layout(rows=stored_rows, reach=reach, shape=spec.shape, dtype=spec.dtype)
        return layouts

    def check_files(self) -> None:
        """Raise InputError where files are missing, cut off, changed or too small.

        So nothing of the size that a manifest claims is allocated before its files have that size.
        """
        manifest.check_part_files(self.path, self.info)
        if self.texts is not None:
            self.texts.check()
        least = sum(sum(array.rows) * array.row_bytes for array in self.layout.values())
        present = sum(file.bytes for file in self.info.files.values())
        if present < least:
            raise InputError(
                f"{self.path} has {present} bytes, but {self.info.graphs} graphs with {self.info.nodes} nodes and "
                f"{self.info.edges} edges, as the manifest counts, take at least {least}; copy the store again"
            )

    @cached_property
    def offsets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first node and the first edge of every graph."""
        stops = (self.rows(name, 0, self.info.graphs) for name in ("node_stops", "edge_stops"))
        nodes, edges = (np.concatenate([[0], one]) for one in stops)
        for what, offsets, total in (("node", nodes, self.info.nodes), ("edge", edges, self.info.edges)):
            if (np.diff(offsets) < 0).any() or offsets[-1] != total:
                raise InputError(f"{self.path}: {what} offsets do not rise to {total}; copy the store again")
        return nodes, edges

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows of an array in its dtype in memory."""
        return self.runs(name, np.array([start]), np.array([stop]))

    def runs(self, name: str, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Array:
        """Several runs of rows of an array, end to end."""
        spec = self.specs[name]
        if 0 not in spec.shape:
            joined = self.reader.joined(name, spec.dtype, starts, stops)
            if joined is not None:
                return np.frombuffer(joined, dtype=spec.dtype).reshape(-1, *spec.shape)
        runs = list(zip(starts.tolist(), stops.tolist()))
        out = np.zeros((sum(stop - start for start, stop in runs), *spec.shape), dtype=spec.dtype)
        place = 0
        for start, stop in runs:
            if stop > start and 0 not in spec.shape:
                self.reader.fill(name, out[place : place + stop - start], start)
            place += stop - start
        return out

    def stores(self, name: str) -> bool:
        """Return True where any block stores the array; else it is zero."""
        return bool(self.info.stored.get(name, [0]))

    def read(self, graphs: Int64[ndarray, " chosen"], fields: Sequence[Field]) -> FlatGraphs:
        """The graphs with these ascending numbers inside the part."""
        nodes, edges = self.offsets
        breaks = np.flatnonzero(np.diff(graphs) > (1 if self.reader.direct else GAP)) + 1
        heads = graphs[np.r_[0, breaks]]
        tails = graphs[np.r_[breaks, len(graphs)] - 1] + 1
        spans = {"graph": (heads, tails), "node": (nodes[heads], nodes[tails]), "edge": (edges[heads], edges[tails])}
        arrays = {
            name: self.runs(name, *spans[spec.location])
            for name, spec in array_specs(self._manifest.dim, fields).items()
            if self.stores(name)
        }
        for field in fields:
            if field.name in self.info.masked:
                arrays[mask_name(field)] = self.runs(mask_name(field), heads, tails) != 0
        if "periodic" in arrays:
            arrays["periodic"] = arrays["periodic"] != 0
        read = graphs if self.reader.direct else np.concatenate([np.arange(a, b) for a, b in zip(heads, tails)])
        flat = FlatGraphs(
            dim=self._manifest.dim,
            fields=tuple(fields),
            node_offsets=offsets_of(nodes[read + 1] - nodes[read]),
            edge_offsets=offsets_of(edges[read + 1] - edges[read]),
            arrays=arrays,
        )
        return flat if len(read) == len(graphs) else take_graphs(flat, np.searchsorted(read, graphs))

    def digests(self, graphs: Int64[ndarray, " chosen"]) -> UInt8[ndarray, "chosen 16"]:
        """Return the written digests of the graphs with these ascending numbers."""
        first = int(graphs[0])
        return self.rows("digests", first, int(graphs[-1]) + 1)[graphs - first]

    def close(self) -> None:
        """Let go of the files."""
        self._opened.forget(self)
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def disk_specs(dim: int, fields: Sequence[Field]) -> dict[str, ArraySpec]:
    """Return all arrays of a part in their dtype on disk."""
    specs = dict(array_specs(dim, fields))
    byte, index, count = np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64)
    for name in ("senders", "receivers"):
        specs[name] = ArraySpec(name=name, location="edge", dtype=index, shape=())
    specs["periodic"] = ArraySpec(name="periodic", location="graph", dtype=byte, shape=(3,))
    for field in fields:
        specs[mask_name(field)] = ArraySpec(name=mask_name(field), location="graph", dtype=byte, shape=())
    for name in ("node_stops", "edge_stops"):
        specs[name] = ArraySpec(name=name, location="graph", dtype=count, shape=())
    specs["digests"] = ArraySpec(name="digests", location="graph", dtype=byte, shape=(16,))
    return specs


class DiskStore(Access):
    """Store of parts on disk; several processes may read it at once."""

    attributes: Mapping[str, Any] = attribute_at("manifest.attributes")
    dim: int = attribute_at("manifest.dim")
    fingerprint: str = attribute_at("manifest.fingerprint")

    def __init__(self, path: Path, *more: Path) -> None:
        """Open a store, and others whose graphs follow, as one.

        InputError where one is foreign, damaged, incomplete or newer, or they differ in their schema.
        """
        self.path, self.paths = path, (path, *more)
        manifests = [manifest.read_manifest(one) for one in self.paths]
        self.manifest = manifests[0]
        opened = OpenParts()
        self.parts: list[PartFile] = []
        for folder, own in zip(self.paths, manifests):
            engine_named(own.backend)
            check_schema(self.path, manifests[0], folder, own)
            own = replace(own, fields=manifests[0].fields)
            self.parts += [PartFile(folder, info, own, opened) for info in own.parts]
        for part in self.parts:
            part.check_files()
        if more:
            prints = fingerprint_of(self.manifest.dim, self.manifest.fields, self.digests())
            infos, notes = [part.info for part in self.parts], joined_attributes([one.attributes for one in manifests])
            self.manifest = replace(self.manifest, parts=infos, fingerprint=prints, attributes=notes)
        self._sizes: Sizes | None = None
        self._first = offsets_of(np.array([part.info.graphs for part in self.parts], dtype=np.int64))

    def place_and_time(self) -> str:
        """Return a hash of the path, sizes and times of the files.

        For what is kept outside it: a fingerprint is what a manifest claims, and another store may claim the same.
        InputError where a file is gone.
        """
        files = [path / manifest.MANIFEST for path in self.paths]
        files += [file for part in self.parts for file in manifest.part_files(part.path).values()]
        try:
            stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}; copy the whole store again") from error
        place = [str(path.resolve()) for path in self.paths]
        return digest({"place": place, "files": stamps, "fingerprint": self.fingerprint})

    def __len__(self) -> int:
        return self.manifest.graphs

    def __reduce__(self) -> tuple[type["DiskStore"], tuple[Path, ...]]:
        """Return its paths: processes of a loader open it anew."""
        return DiskStore, self.paths

    def fields(self) -> tuple[Field, ...]:
        """Return the fields of all graphs."""
        return self.manifest.fields

    @property
    def direct(self) -> bool:
        """True for graphs copied out of the system's cache of files."""
        parts = self.parts if len(self.paths) > 1 else self.parts[:1]  # one engine per store
        return all(part.reader.direct for part in parts)

    def sizes(self) -> Sizes:
        """Nodes and edges of every graph."""
        if self._sizes is None:
            counts = [[np.diff(offsets) for offsets in part.offsets] for part in self.parts]
            nodes, edges = (np.concatenate([count[column] for count in counts]) for column in range(2))
            self._sizes = Sizes(nodes=nodes, edges=edges)
        return self._sizes

    def read(self, indices: Numbers, fields: Collection[str] | None = None) -> GraphBatch:
        """Return these graphs in this order, repeats allowed, with the named fields."""
        check_fields(self.fields(), fields)
        numbers = checked_indices(indices, len(self))
        unique, order = np.unique(numbers, return_inverse=True)
        return gather(self.read_flat(unique, fields), order.reshape(-1))

    def read_flat(self, graphs: Int64[ndarray, " chosen"], fields: Collection[str] | None = None) -> FlatGraphs:
        """The graphs with these ascending numbers as flat arrays."""
        wanted_fields = [field for field in self.fields() if fields is None or field.name in fields]
        pieces = [part.read(numbers, wanted_fields) for part, numbers in self._shares(graphs)]
        flat = join(pieces or [no_graphs(self.dim, wanted_fields)])
        return replace(flat, texts={key: texts.select(graphs) for key, texts in self.texts.items()})

    def digests(self) -> UInt8[ndarray, "graphs 16"]:
        """Return the digest of every graph as it was written."""
        return np.concatenate([part.rows("digests", 0, part.info.graphs) for part in self.parts])

    @cached_property
    def texts(self) -> Mapping[str, Texts]:
        """Return one text per graph and key, read on first use."""
        keys = dict.fromkeys(key for info in self.manifest.parts if info.texts for key in info.texts.graphs)
        return {key: Texts.unread(partial(self._read_texts, key), len(self)) for key in keys}

    def _read_texts(self, key: str, graphs: Int64[ndarray, " chosen"]) -> list[str]:
        order = np.argsort(graphs, kind="stable")
        column = np.empty(len(graphs), dtype=object)
        texts = [
            part.texts.read(key, numbers) if part.texts is not None else [""] * len(numbers)
            for part, numbers in self._shares(graphs[order])
        ]
        column[order] = [text for some in texts for text in some]
        return list(column)

    def read_checked(
        self, indices: Numbers, fields: Collection[str] | None = None
    ) -> tuple[GraphBatch, Bool[ndarray, " chosen"]]:
        """Return graphs, and which of them are not as they were written."""
        check_fields(self.fields(), fields)
        unique, order = np.unique(checked_indices(indices, len(self)), return_inverse=True)
        flat = self.read_flat(unique)
        written = [part.digests(numbers) for part, numbers in self._shares(unique)]
        changed = (graph_digests(flat) != np.concatenate([np.zeros((0, 16), dtype=np.uint8), *written])).any(axis=1)
        return gather(flat, order.reshape(-1), fields), changed[order.reshape(-1)]

    def _shares(self, graphs: Int64[ndarray, " chosen"]) -> list[tuple[PartFile, NDArray[np.int64]]]:
        """Return the parts of ascending graphs, with their numbers inside each part."""
        cuts = np.searchsorted(graphs, self._first)
        return [
            (part, graphs[a:b] - first)
            for part, a, b, first in zip(self.parts, cuts[:-1], cuts[1:], self._first)
            if b > a
        ]

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Column:
        """Return the field ``name`` of consecutive graphs without reading anything else."""
        field = field_named(self.fields(), name)
        spec = array_specs(self.dim, [field])[array_name(field)]
        stop = len(self) if stop is None else stop
        values, present = [np.zeros((0, *spec.shape), dtype=spec.dtype)], [np.zeros(0, dtype=np.bool_)]
        for part, first in zip(self.parts, self._first):
            a, b = (int(np.clip(graph - first, 0, part.info.graphs)) for graph in (start, stop))
            if b > a:
                nodes, edges = part.offsets
                rows = {"graph": (a, b), "node": (nodes[a], nodes[b]), "edge": (edges[a], edges[b])}[field.on]
                values.append(part.rows(spec.name, int(rows[0]), int(rows[1])))
                present.append(part.rows(mask_name(field), a, b) != 0)
        return Column(values=np.concatenate(values), present=np.concatenate(present))

    def close(self) -> None:
        """Let go of all files; reading opens them again."""
        for part in self.parts:
            part.close()


def check_schema(path: Path, first: manifest.StoreManifest, other: Path, own: manifest.StoreManifest) -> None:
    """Raise InputError for stores whose graphs differ in kind."""
    problem, mine, fields = "", {f.name: f for f in first.fields}, {f.name: f for f in own.fields}
    if mine != fields:
        name = min(name for name in {*mine, *fields} if mine.get(name) != fields.get(name))
        problem = f"the field {name} is in one of them alone, or has another shape, unit, role or dtype"
    elif first.dim != own.dim:
        problem = f"their dimensions are {first.dim} and {own.dim}"
    if problem := problem or manifest.other_rule(first.attributes, own.attributes):
        raise InputError(
            f"{path} and {other} are no one data set: {problem}; build them alike, or train them as branches"
        )


def joined_attributes(attributes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what attributes share; the others stand under ``merged``.

    >>> joined_attributes([{"cutoff": 5.0, "files": ["a"]}, {"cutoff": 5.0, "files": ["b"], "by": "me"}])
    {'cutoff': 5.0, 'files': ['a', 'b'], 'merged': [{}, {'by': 'me'}]}
    """
    first = attributes[0]
    shared = {key: value for key, value in first.items() if all(key in one and one[key] == value for one in attributes)}
    if all("files" in one for one in attributes):
        shared |= {"files": [file for one in attributes for file in one["files"]]}
    if left := [note for one in attributes for note in one.get(FAILED_STEPS, [])]:
        shared[FAILED_STEPS] = left
    rest = [{key: value for key, value in one.items() if key not in shared} for one in attributes]
    close = {CLOSE_NUCLEI: True} if any(one.get(CLOSE_NUCLEI) for one in attributes) else {}
    return {**shared, **close, **({"merged": rest} if any(rest) else {})}


def open_store(path: StorePlace | str | Sequence[Path | str]) -> DiskStore | PublicStore:
    """Return a store, or several as one, whose graphs follow each other.

    InputError where it is foreign, damaged, incomplete or newer, or where stores differ in their schema.
    """
    paths = [as_path(one) for one in path] if isinstance(path, list | tuple) and path else [as_path(path)]
    if len(paths) == 1 and is_public(paths[0]):
        return PublicStore.at(paths[0])
    return DiskStore(*paths)
