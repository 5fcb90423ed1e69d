"""Writing of stores in blocks; parts and stores are complete or absent."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.files import alone_in_folder, flush_directory, read_sealed, write_sealed
from hydragnn.datasets import manifest
from hydragnn.datasets.arrays import Array, FlatGraphs, array_name, array_specs, flat_graphs, join, mask_name
from hydragnn.datasets.fingerprint import fingerprint_of, graph_digests
from hydragnn.datasets.formats.engine import PartWriter, engine_named, engine_of, part_name
from hydragnn.datasets.part_texts import TextsInfo, TextsWriter, texts_path
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.defects import Defect, graph_defects, joined_defects
from hydragnn.graphs.field import Field, field_from_json, is_labelled
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.units import angstrom_of
from hydragnn.graphs.validate import numbers_of, validate

BLOCK_GRAPHS = 4096
BLOCK_BYTES = 1 << 26

UNFINISHED_MANIFEST = rf"\.{re.escape(manifest.MANIFEST)}\.\d+\.tmp"
UNFINISHED_PART = r"\.?(\d+\.)?part-\d{5,}\.\w+(\.texts\.gz)?(\.json)?(\.\d+\.tmp)?"
"""Names of files that a writer makes before the store is complete."""


class StoreWriter:
    """Writer of graphs into a store, used with ``with``.

    One writer makes the whole store. Several writers (``part=0``, ``part=1``, ...; in any processes) make a part each, and
    ``finish_store`` then makes the store. A store that exists is never overwritten; what a killed writer left is.
    """

    def __init__(
        self,
        path: Path | str,
        fields: Sequence[Field],
        *,
        dim: int,
        attributes: Mapping[str, Any] | None = None,
        part: int | None = None,
        first: int = 0,
        texts: Sequence[str] = (),
    ) -> None:
        """Open a store for these fields; the suffix decides the engine.

        Errors count graphs from ``first``, the number that the first one will have in the store. A store in which no graph
        has a text of each key in ``texts`` is not made.

        InputError where the place is taken or cannot be written, Busy where another process makes a store there.
        """
        path = Path(path)
        self.path = path
        self.backend = engine_of(path)
        self.fields = tuple(fields)
        self.dim = dim
        self.attributes = dict(attributes or {})
        self.graphs = 0
        self.texts = tuple(texts)
        self._part, self._first = part, first
        self.name = part_name(part or 0, self.backend)
        self._temporary = path / f".{os.getpid()}.{self.name}"
        self._texts = TextsWriter(texts_path(self._temporary))
        self._waiting: list[FlatGraphs] = []
        self._waiting_bytes = 0
        self._blocks: list[tuple[int, int, int]] = []
        self._stored: dict[str, list[int]] = {}
        self._masked: set[str] = set()
        self._missing: dict[str, int] = {}
        self._digests: list[Array] = []
        self._defects: dict[str, Defect] = {}
        self._rows = dict.fromkeys(("node", "edge", "graph"), 0)
        self._engine: PartWriter | None = None
        self._alone = ExitStack()
        if part is None:
            self._alone.enter_context(alone_in_folder(path, "makes"))
        with self._alone:
            _prepare(path, self.name, alone=part is None)
            self._alone = self._alone.pop_all()

    def write(self, batch: GraphBatch) -> None:
        """Add the graphs of a batch; InputError for invalid ones."""
        self._add(*self._checked(batch))

    def write_graphs(self, graphs: Sequence[GraphBatch]) -> None:
        """Add graphs together, faster than by ``write``; errors name the graph."""
        try:
            flat, defects = self._checked(graphs[0] if len(graphs) == 1 else concatenate(graphs))
        except InputError:
            for graph in graphs:
                self.write(graph)
        else:
            self._add(flat, defects)

    def _checked(self, batch: GraphBatch) -> tuple[FlatGraphs, dict[str, Defect]]:
        number = self._first + self.graphs
        try:
            batch = batch.mapped(lambda one: numbers_of(one, "the batch").cpu())  # own code may leave gradients
            angstrom = angstrom_of(self.attributes, self.fields)
            valid = validate(batch, number, cutoff=manifest.cutoff_of(self.attributes), angstrom=angstrom)
            flat = flat_graphs(valid, self.fields, checked=True)
        except InputError as error:
            raise InputError(f"{error} (in what was written from graph {number} on)") from error
        if flat.dim != self.dim:
            raise InputError(f"graph {number} has dimension {flat.dim}, the store {self.dim}; keep them apart")
        return flat, graph_defects(batch)

    def _add(self, flat: FlatGraphs, defects: dict[str, Defect]) -> None:
        self._defects = joined_defects([(self._defects, 0), (defects, self.graphs)])
        self._waiting.append(flat)
        self._waiting_bytes += sum(array.nbytes for array in flat.arrays.values())
        self.graphs += len(flat)
        if self.graphs - self._rows["graph"] >= BLOCK_GRAPHS or self._waiting_bytes >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        flat = join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        digests = graph_digests(flat)
        arrays = _disk_arrays(flat, digests, self._rows)
        number = len(self._blocks)
        specs = array_specs(self.dim, self.fields)
        locations = {name: specs[name].location if name in specs else "graph" for name in arrays}
        try:
            if self._engine is None:
                self._engine = engine_named(self.backend).writer(self._temporary)
            self._engine.write_block(arrays, {name: self._rows[location] for name, location in locations.items()})
            self._texts.append(flat.texts)
        except OSError as error:
            raise self._failed(error) from error
        for name in specs:
            if name in arrays:
                self._stored.setdefault(name, []).append(number)
        self._masked |= {field.name for field in self.fields if mask_name(field) in flat.arrays}
        for field in self.fields:
            count = int((~is_labelled(flat.arrays[array_name(field)], field)).sum()) if field.role == "target" else 0
            self._missing |= {field.name: self._missing.get(field.name, 0) + count} if count else {}
        counts = (len(flat), int(flat.node_offsets[-1]), int(flat.edge_offsets[-1]))
        self._blocks.append(counts)
        self._digests.append(digests)
        for location, count in zip(("graph", "node", "edge"), counts):
            self._rows[location] += count

    def _failed(self, error: OSError) -> InputError:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return InputError(f"cannot write {self.path}: {reason}; free space or choose another place, then run it again")

    def _finish_part(self) -> manifest.PartInfo:
        """Close the part, flush it to disk and give it its name."""
        final = self.path / self.name
        files: dict[str, manifest.FileChecksum] = {}
        texts = None
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close()
            for file in manifest.part_files(self._temporary).values():
                _flush_file(file)
            for name, file in manifest.part_files(self._temporary).items():
                files[self.name if name == self._temporary.name else name] = manifest.checksum(file)
            if self._texts.graphs:
                _flush_file(self._texts.path)
                whole = manifest.checksum(self._texts.path)
                texts = TextsInfo(graphs=self._texts.graphs, members=self._texts.members, blake2b=whole.blake2b)
                self._texts.path.rename(texts_path(final))
            self._temporary.rename(final)
            flush_directory(self.path)
        stored = {name: self._stored.get(name, []) for name in array_specs(self.dim, self.fields)}
        return manifest.PartInfo(
            name=self.name,
            graphs=self.graphs,
            nodes=self._rows["node"],
            edges=self._rows["edge"],
            blocks=self._blocks,
            stored={name: blocks for name, blocks in stored.items() if len(blocks) < len(self._blocks)},
            masked=sorted(self._masked),
            files=files,
            texts=texts,
            defects=self._defects,
            missing=self._missing,
        )

    def close(self) -> None:
        """Complete the part or the store; InputError without graphs or space."""
        try:
            self._flush()
            table = {
                "backend": self.backend,
                "dim": self.dim,
                "fields": [field.to_json() for field in self.fields],
                "attributes": self.attributes,
                "texts": list(self.texts),
                "part": self._finish_part().to_json(),
            }
            digests = np.concatenate(self._digests) if self._digests else np.zeros((0, 16), dtype=np.uint8)
            if self._part is None:
                _complete(self.path, [table], digests)
                self._alone.close()
            else:
                write_sealed(self.path / f"{self.name}.json", {**table, "digests": digests.tobytes().hex()})
        except OSError as error:
            failure = self._failed(error)
            self.abort()
            raise failure from error
        except InputError:
            self.abort()
            raise

    def abort(self) -> None:
        """Take back what this writer made."""
        engine, self._engine = self._engine, None
        if engine is not None:
            with suppress(OSError, RuntimeError):
                engine.close()
        _remove(self._temporary)
        _remove(self._texts.path)
        if self._part is None and not (self.path / manifest.MANIFEST).exists():
            _remove(self.path / self.name)
            _remove(texts_path(self.path / self.name))
            with suppress(OSError):
                self.path.rmdir()  # where it is empty
        self._alone.close()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abort()


def _disk_arrays(flat: FlatGraphs, digests: Array, rows: dict[str, int]) -> dict[str, Array]:
    """Return a block's arrays as stored: bool as uint8, offsets per part."""
    arrays = {name: array for name, array in flat.arrays.items() if 0 not in array.shape[1:]}
    for field in flat.fields:
        arrays.setdefault(mask_name(field), np.ones(len(flat), dtype=np.bool_))
    arrays["node_stops"] = flat.node_offsets[1:] + rows["node"]
    arrays["edge_stops"] = flat.edge_offsets[1:] + rows["edge"]
    arrays["digests"] = digests
    return {name: array.view(np.uint8) if array.dtype == np.bool_ else array for name, array in arrays.items()}


def _prepare(path: Path, name: str, alone: bool) -> None:
    """Make the folder without remains; InputError where something else is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / manifest.MANIFEST).exists():
            raise InputError(f"{path} is a store already; choose another path or remove it first")
        for entry in path.iterdir():
            unfinished = re.fullmatch(UNFINISHED_MANIFEST, entry.name) is not None
            if not unfinished and not re.fullmatch(UNFINISHED_PART, entry.name):
                raise InputError(f"{path} holds {entry.name}, which belongs to no store; choose another path")
            if unfinished or alone or name in entry.name:
                _remove(entry)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def clear_unfinished(path: Path, *, folder: bool = False) -> None:
    """Remove the remains of writers at ``path``, and an empty ``folder``."""
    if folder and not path.is_dir():
        return
    _prepare(path, part_name(0, engine_of(path)), alone=True)
    if folder:
        with suppress(OSError):
            path.rmdir()  # where it is empty


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _flush_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _complete(path: Path, tables: Sequence[Mapping[str, Any]], digests: Array) -> None:
    """Write the manifest of described parts; InputError without graphs or texts."""
    first, parts = tables[0], [manifest.part_from_json(table["part"]) for table in tables]
    parts = [part for part in parts if part.graphs]
    if not parts:
        raise InputError(f"{path}: no graphs were written, and a store without graphs is of no use")
    keys = sorted({key for part in parts if part.texts for key in part.texts.graphs})
    for key in first["texts"]:
        if key not in keys:
            raise InputError(f"{path}: no graph has a text {key}; {nearest(key, keys) if keys else 'remove the key'}")
    fields = tuple(field_from_json(field) for field in first["fields"])
    prints = fingerprint_of(first["dim"], fields, digests)
    same = {key: first[key] for key in ("backend", "dim", "attributes")}
    manifest.write_manifest(path, manifest.StoreManifest(fields=fields, parts=parts, fingerprint=prints, **same))


def finish_store(
    path: Path | str, parts: int | Sequence[int], *, alike: Sequence[str] = ("dim", "fields", "attributes")
) -> None:
    """Make one store of its parts, by their count or numbers.

    InputError where a part is missing, or where the writers did not agree on fields, dimension or attributes.
    """
    path, numbers = Path(path), range(parts) if isinstance(parts, int) else parts
    files = {number: path / f"{part_name(number, engine_of(path))}.json" for number in numbers}
    for number, file in files.items():
        if not file.exists():
            raise InputError(f"{path}: part {number} of {len(files)} is missing; run its writer again")
    tables = [read_sealed(file) for file in files.values()]
    first = tables[0]
    for number, other in zip(numbers, tables):
        for key in alike:
            if other[key] != first[key]:
                raise InputError(f"{path}: parts 0 and {number} differ in {key}; write them with the same settings")
    digests = np.frombuffer(bytes.fromhex("".join(table["digests"] for table in tables)), dtype=np.uint8)
    _complete(path, tables, digests.reshape(-1, 16))
    for file in files.values():
        file.unlink()
