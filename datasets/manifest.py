"""Manifest of a store: parts, their contents and checksums."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import field as member
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_inside, read_sealed, write_sealed
from hydragnn.base.imports import REFERENCE
from hydragnn.base.places import MANIFEST, check_store, is_public
from hydragnn.datasets.arrays import array_specs
from hydragnn.datasets.part_texts import TextsInfo
from hydragnn.graphs.defects import Defect
from hydragnn.graphs.field import Field, field_from_json
from hydragnn.graphs.units import LENGTH_UNIT

FORMAT = "hydragnn-store"
VERSION = 1

CHANGED_BY = "graphs of the store were changed, as it was built, by "
"""Begin of the note on a store's transform, whose name ends it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChecksum:
    """Size and BLAKE2b hash of one file of a part."""

    bytes: int
    blake2b: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartInfo:
    """One part: its name, its counts, its blocks and its files.

    ``blocks`` holds graphs, nodes and edges of every block in the order of writing. ``stored`` names, for arrays that are
    not stored in every block, the blocks that have them; they are zero in the others.
    """

    name: str
    graphs: int
    nodes: int
    edges: int
    blocks: list[tuple[int, int, int]]
    stored: dict[str, list[int]]
    masked: list[str]
    files: dict[str, FileChecksum]
    texts: TextsInfo | None = None
    """None where no graph has a text."""
    defects: dict[str, Defect] = member(default_factory=dict)
    """Oddities of its graphs by name, counted from the first graph of the part."""
    missing: dict[str, int] = member(default_factory=dict)
    """Missing numbers of targets in graphs that have them; only where some are."""

    def to_json(self) -> dict[str, Any]:
        """Return the part as plain JSON."""
        return {key: value for key, value in asdict(self).items() if key not in ("texts", "missing") or value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Layout of an array of a part on disk."""

    rows: tuple[int, ...]
    """Rows of every block that stores the array, in order."""
    reach: int
    """Rows of all blocks up to the last one that stores it."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)

    def check(self, where: str, counts: tuple[int, int], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raise InputError unless counts, shape and dtype agree."""
        if counts[0] != counts[1] or (shape, dtype) != (self.shape, self.dtype):
            raise InputError(
                f"{where} has {counts[0]} rows of shape {shape} and dtype {dtype}, expected are {counts[1]} of shape "
                f"{self.shape} and dtype {self.dtype}; copy the store again"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreManifest:
    """Manifest of a store; a store without one is incomplete."""

    backend: str
    """Name of the store engine."""
    dim: int
    fields: tuple[Field, ...]
    parts: list[PartInfo]
    fingerprint: str
    attributes: dict[str, Any] = member(default_factory=dict)
    version: int = VERSION

    @property
    def graphs(self) -> int:
        """Graphs of all parts."""
        return sum(part.graphs for part in self.parts)


def transform_of(attributes: Mapping[str, Any]) -> str | None:
    """Return the transform of stores; empty for none, None where unknown."""
    rule, own, merged = (attributes.get(key) for key in ("build", "transform", "merged"))
    named = rule.get("transform") if isinstance(rule, Mapping) else own
    if isinstance(named, str) and REFERENCE.fullmatch(named):
        return named
    found = [transform_of(one) for one in merged if isinstance(one, Mapping)] if isinstance(merged, list) else []
    known = rule is not None or "source" in attributes or any(one is not None for one in found)
    return next(filter(None, found), "") if known else None


def transform_in(notes: Iterable[str], branch: str = "") -> str | None:
    """Return the transform that notes of a run name."""
    begin = (f"branch {branch}: " if branch else "") + CHANGED_BY
    return next((note.removeprefix(begin) for note in notes if note.startswith(begin)), None)


def other_rule(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return how the graphs of two stores were made otherwise; else empty."""
    for key in ("cutoff", "max_neighbours", LENGTH_UNIT):
        if one.get(key) != other.get(key):
            return f"{key} is {one.get(key)} and {other.get(key)}"
    first, second = transform_of(one), transform_of(other)
    if None in (first, second) or first == second:
        return ""
    return f"their transforms are {first or 'none'} and {second or 'none'}"


def cutoff_of(attributes: Mapping[str, Any]) -> float | None:
    """Return the cutoff that made a store's edges; None where none did."""
    value = attributes.get("cutoff")
    valid = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if valid and value is not None else None


def write_manifest(folder: Path, manifest: StoreManifest) -> None:
    """Make the store in ``folder`` complete."""
    fields, parts = [field.to_json() for field in manifest.fields], [part.to_json() for part in manifest.parts]
    table = {"format": FORMAT, **asdict(manifest), "fields": fields, "parts": parts}
    write_sealed(folder / MANIFEST, {**table, "graphs": manifest.graphs})


def read_manifest(folder: Path) -> StoreManifest:
    """Return a store's manifest; InputError where missing, damaged, foreign or newer."""
    check_store(folder)
    path = folder / MANIFEST
    if is_public(folder):
        raise InputError(f"{folder} is a set of the public HydraGNN; make a store of it with: hydragnn data convert")
    table = read_sealed(path)
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise InputError(f"{path} does not describe a store of this program; check the path")
    if not isinstance(table.get("version"), int) or table["version"] > VERSION:
        problem = f"{folder} has format version {table.get('version')}, this program reads up to {VERSION}"
        raise InputError(f"{problem}; update the program")
    return _manifest(table, path)


def _manifest(table: dict[str, Any], path: Path) -> StoreManifest:
    try:
        if not table["parts"]:
            raise ValueError("it names no part")
        if table["dim"] not in (0, 2, 3):
            raise ValueError(f"dim {table['dim']}")
        bare = msgspec.convert({"attributes": None, **table, "fields": (), "parts": ()}, StoreManifest)
        fields = tuple(field_from_json(field) for field in table["fields"])
        manifest = replace(bare, fields=fields, parts=[part_from_json(part) for part in table["parts"]])
        _check_counts(manifest, table["graphs"])
        return manifest
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, msgspec.ValidationError) as error:
        raise InputError(f"{path} is damaged ({error!r}); write the store again") from error


def _check_counts(manifest: StoreManifest, graphs: int) -> None:
    arrays = array_specs(manifest.dim, manifest.fields)
    fields = {field.name for field in manifest.fields}
    if len(fields) < len(manifest.fields):
        raise ValueError("two fields have one name")
    for part in manifest.parts:
        counts = (part.graphs, part.nodes, part.edges)
        in_blocks = tuple(sum(column) for column in zip(*part.blocks, (0, 0, 0)))
        if in_blocks != counts:
            raise ValueError(f"{part.name} counts {counts} graphs, nodes and edges, its blocks {in_blocks}")
        if part.graphs < 1 or any(count < 0 for block in part.blocks for count in block):
            raise ValueError(f"{part.name} counts less than there can be")
        if not part.files or not fields.issuperset(part.masked) or not arrays.keys() >= part.stored.keys():
            raise ValueError(f"{part.name} has no files, or names arrays that are not there")
        for defect in part.defects.values():
            if not (0 < defect.graphs <= part.graphs and 0 <= defect.first < part.graphs):
                raise ValueError(f"{part.name} counts defects of graphs that it does not have")
        if not fields >= part.missing.keys() or any(count < 1 for count in part.missing.values()):
            raise ValueError(f"{part.name} counts missing labels of fields that it does not have")
        for name, stored in part.stored.items():
            if stored != sorted({*stored}.intersection(range(len(part.blocks)))):
                raise ValueError(f"{part.name} stores {name} in blocks that it does not have")
    if graphs != manifest.graphs or not manifest.parts:
        raise ValueError(f"graphs is {graphs}, but the parts have {manifest.graphs}")


def part_from_json(table: dict[str, Any]) -> PartInfo:
    """Return the part that ``to_json`` gave; ValueError and msgspec's errors for damage."""
    part = msgspec.convert(table, PartInfo)
    if any(Path(name).name != name for name in (part.name, *part.files)):
        raise ValueError(f"part {part.name} lies outside the store")
    if part.texts and (len(part.texts.members) != len(part.blocks) or min(part.texts.members) < 0):
        raise ValueError("texts are not those of the blocks")
    return part


def checksum(path: Path, alive: Callable[[], None] = lambda: None) -> FileChecksum:
    """Return size and hash of a file; ``alive`` is called between reads."""
    state = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            alive()
            state.update(chunk)
    return FileChecksum(bytes=path.stat().st_size, blake2b=state.hexdigest())


def part_files(path: Path) -> dict[str, Path]:
    """Return the files of a part by name."""
    if path.is_dir():
        return {file.name: file for file in sorted(path.iterdir())}
    return {path.name: path}


def check_part_files(path: Path, part: PartInfo) -> None:
    """Raise InputError where a part's file misses bytes or leaves the store.

    Small descriptive files of ADIOS2 are compared with their hash. The engines hang or crash on files that are cut off,
    so this comes before they see them.
    """
    for name, expected in part.files.items():
        file = path if name == path.name else path / name
        check_inside(file, path.parent)
        if not file.is_file():
            raise InputError(f"{file} is missing; copy the whole store again")
        size = file.stat().st_size
        if size != expected.bytes:
            raise InputError(
                f"{file} has {size} bytes where {expected.bytes} were written: it was cut off or changed; copy it again"
            )
        if path.is_dir() and not name.startswith("data.") and checksum(file) != expected:
            raise InputError(f"{file} was changed after it was written; copy the store again")
