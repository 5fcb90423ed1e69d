"""Tools for whole stores: look, check, convert."""

import math
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.places import text_of
from hydragnn.base.shown import Shown
from hydragnn.datasets.arrays import mask_name
from hydragnn.datasets.disk import DiskStore, OpenParts, PartFile, open_store
from hydragnn.datasets.fingerprint import fingerprint_of
from hydragnn.datasets.fit import precision_notes
from hydragnn.datasets.manifest import checksum, cutoff_of, part_files, read_manifest
from hydragnn.datasets.packing import Budget, pack
from hydragnn.datasets.part_texts import texts_path
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.datasets.sources.labels import parted_settings
from hydragnn.datasets.store import GraphStore, changed_sentence, read_checked, stored_label
from hydragnn.datasets.views import disk_store
from hydragnn.datasets.writer import StoreWriter
from hydragnn.graphs.batch import GraphBatch, graph_label, volumes
from hydragnn.graphs.defects import Defects, graph_defects, joined_defects
from hydragnn.graphs.field import Field, is_labelled
from hydragnn.graphs.problems import graph_problems, nearest_nuclei
from hydragnn.graphs.texts import NAME
from hydragnn.graphs.units import FAILED_STEPS, angstrom_of
from hydragnn.graphs.validate import check_structure

BLOCK = 4096

LISTED = 10  # graphs that are named where many of a block are not valid


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeSummary:
    """Sizes of the graphs of a store, in nodes or edges."""

    total: int
    min: int
    mean: float
    max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreInfo(Shown):
    """Contents of a store, from its manifest."""

    path: Path
    backend: str
    """``hdf5`` or ``adios2``."""
    version: int
    """Version of the layout on disk (docs/format.md)."""
    graphs: int
    nodes: SizeSummary
    edges: SizeSummary
    dim: int
    """Number of coordinates of a node: 2 or 3."""
    fields: tuple[Field, ...]
    present: Mapping[str, int]
    """Graphs that have each field."""
    labels: Mapping[str, tuple[int, int]]
    """Numbers of each field that are there, and that are missing."""
    attributes: Mapping[str, Any]
    """Notes of its maker, such as the cutoff in Angstrom."""
    parts: int
    """Part files, one per writer."""
    bytes: int
    """Size on disk."""
    fingerprint: str
    """Digest of the graphs; equal in every copy, whatever its backend and parts."""
    texts: Mapping[str, int]
    """Keys of texts, such as ``name``, and how many graphs have one."""
    notes: tuple[str, ...] = ()
    """Oddities of its graphs, noticed when they were written."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, with counts of graphs and labels by field."""
        table = {**asdict(replace(self, fields=())), "path": str(self.path), "notes": list(self.notes)}
        counts = [
            {"present": (present := self.present[one.name]), "missing": self.graphs - present}
            | dict(zip(("labels", "missing_labels"), self.labels[one.name]))
            for one in self.fields
        ]
        fields = [{**field.to_json(), **count} for field, count in zip(self.fields, counts)]
        unsaid = {"present", "labels", *(() if self.notes else ("notes",))}
        return {name: fields if name == "fields" else value for name, value in table.items() if name not in unsaid}

    def __str__(self) -> str:
        names = ", ".join(field.name for field in self.fields)
        return f"{self.path}: {self.graphs} graphs, {self.nodes.total} nodes, {self.edges.total} edges; {names}"


def store_info(path: Path | str) -> StoreInfo:
    """Return the contents of a store; InputError where there is none."""
    path = Path(path)
    store = DiskStore(path)
    sizes = store.sizes()
    parts = store.manifest.parts
    return StoreInfo(
        path=path,
        backend=store.manifest.backend,
        version=store.manifest.version,
        graphs=len(store),
        nodes=_size_summary(sizes.nodes),
        edges=_size_summary(sizes.edges),
        dim=store.dim,
        fields=tuple(store.fields()),
        present={field.name: int(present_graphs(store, field).sum()) for field in store.fields()},
        labels={field.name: label_numbers(store, field) for field in store.fields()},
        attributes=dict(store.attributes),
        parts=len(parts),
        bytes=sum(file.bytes for part in parts for file in part.files.values())
        + sum(part.texts.bytes for part in parts if part.texts),
        texts={key: sum(part.texts.graphs.get(key, 0) for part in parts if part.texts) for key in store.texts},
        fingerprint=store.fingerprint,
        notes=store_notes(store),
    )


def store_notes(store: DiskStore) -> tuple[str, ...]:
    """Return a sentence for each defect that the manifest counts."""
    parts = store.manifest.parts
    starts = accumulate((part.graphs for part in parts), initial=0)
    defects = joined_defects((part.defects, start) for part, start in zip(parts, starts))
    return (*store.attributes.get(FAILED_STEPS, []), *_notes(store, defects))


def _notes(store: DiskStore, defects: Defects) -> tuple[str, ...]:
    return tuple(one.sentence(name, len(store), stored_label(store, one.first)) for name, one in defects.items())


def present_graphs(store: GraphStore, field: Field) -> NDArray[np.bool_]:
    """Return which graphs have a field, from the manifest where possible."""
    disk = disk_store(store)
    if disk is None:
        return store.column(field.name).present
    present = [np.ones(part.info.graphs, dtype=np.bool_) for part in disk.parts]
    for own, part in zip(present, disk.parts):
        if field.name in part.info.masked:
            own[:] = part.rows(mask_name(field), 0, part.info.graphs) != 0
    return np.concatenate(present)


def label_numbers(store: DiskStore, field: Field) -> tuple[int, int]:
    """Return how many numbers of a field are there, and are missing."""
    sizes, present = store.sizes(), present_graphs(store, field)
    items = sizes.counts(field.on)
    labels = int(items[present].sum()) * field.width
    labels -= sum(part.missing.get(field.name, 0) for part in store.manifest.parts)
    return labels, int(items.sum()) * field.width - labels


def missing_in_graphs(store: GraphStore, field: Field) -> NDArray[np.int64]:
    """Return missing numbers of a target by graph, read where necessary."""
    missing, items = np.zeros(len(store), dtype=np.int64), store.sizes().counts(field.on)
    disk = disk_store(store)
    if field.role != "target" or (disk is not None and not any(field.name in part.info.missing for part in disk.parts)):
        return missing
    for start in range(0, len(store), BLOCK):
        stop = min(start + BLOCK, len(store))
        column = store.column(field.name, start, stop)
        lacking = (~is_labelled(column.values, field)).reshape(len(column.values), field.width).sum(axis=1)
        owner = np.repeat(np.arange(stop - start), items[start:stop])
        missing[start:stop] = np.bincount(owner, lacking, minlength=stop - start)
    return missing


def refuse_useless(path: Path, settings: BuildSettings) -> None:
    """Remove a new store that is of no use and raise InputError."""
    store = DiskStore(path)
    absent = [field.name for field in store.fields() if not present_graphs(store, field).any()]
    sizes, cutoff = store.sizes(), cutoff_of(store.attributes)
    several = int((sizes.nodes > 1).sum())
    labels = parted_settings(settings)[1]
    problem = labels.shared_row(store.texts, settings.parts) if labels else ""
    store.close()
    if absent:
        problem = f"no graph has the field {absent[0]}, so that no store was made; name the right key for it in the build file, or leave the field out"
    elif cutoff is not None and several and not sizes.edges.any():
        problem = (
            f"no two nodes of any of the {several} graphs of several nodes are within the cutoff of {cutoff:.12g}, so that no store was made; "
            "give the cutoff in the unit of positions (Angstrom for atoms)"
        )
    if problem:
        shutil.rmtree(path)
        raise InputError(problem)


def _size_summary(counts: np.ndarray[Any, np.dtype[np.int64]]) -> SizeSummary:
    total, low, high = int(counts.sum()), int(counts.min()), int(counts.max())
    return SizeSummary(total=total, min=low, mean=round(total / len(counts), 3), max=high)


def convert_store(source: Path | str | Sequence[Path | str], target: Path | str) -> None:
    """Copy a store, or several as one; the suffix decides the engine."""
    target = Path(target)
    store = open_store(source)
    with StoreWriter(target, store.fields(), dim=store.dim, attributes=store.attributes) as writer:
        for start in range(0, len(store), BLOCK):
            numbers = np.arange(start, min(start + BLOCK, len(store)))
            batch, changed = read_checked(store, numbers)
            writer.write(batch)
            if changed.any():
                raise InputError(f"{text_of(store.paths)}: {changed_sentence(start + int(changed.argmax()))}")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreCheck:
    """Findings of reading a whole store, one sentence each."""

    problems: list[str]
    """Empty where every bit is as it was written and every graph is valid."""
    notes: list[str]
    """Defects of valid graphs, each with a count and an example, and fields that have lost digits."""
    nearest: list[str]
    """Smallest distance in the edges of every pair of elements, and its graph."""


def check_store(path: Path | str) -> list[str]:
    """Return the faults of a store, one sentence each; empty where none."""
    return examine_store(path).problems


def examine_store(path: Path | str) -> StoreCheck:
    """Read all of a store and return its faults and oddities.

    Files are compared with their size and hash before an engine sees them; then every graph with its digest, and its
    values with the rules of graphs (indices in range, edges sorted, finite numbers, classes in range, shifts of its cell, edges within
    the cutoff). InputError where there is no store to check.
    """
    path = Path(path)
    manifest = read_manifest(path)
    parts = [PartFile(path, info, manifest, OpenParts()) for info in manifest.parts]
    if broken := [problem for part in parts for problem in _broken_files(part)]:
        return StoreCheck(problems=broken, notes=[], nearest=[])
    store = DiskStore(path)
    cutoff, angstrom = cutoff_of(manifest.attributes), angstrom_of(manifest.attributes, manifest.fields)
    problems: list[str] = []
    defects: list[tuple[Defects, int]] = []
    nearest: dict[str, tuple[float, int]] = {}
    for start in range(0, len(store), BLOCK):
        numbers = np.arange(start, min(start + BLOCK, len(store)))
        where = f"{path}, graphs {start} to {numbers[-1]}"
        try:
            batch, changed = store.read_checked(numbers)
            if changed.any():
                problems.append(f"{where}: {changed_sentence(start + int(changed.argmax()))}")
            check_structure(batch)
            wrong = graph_problems(batch, numbers, cutoff=cutoff, angstrom=angstrom)
            problems += [f"{path}, {problem}" for problem in list(wrong.values())[:LISTED]]
            if len(wrong) > LISTED:
                problems.append(f"{where}: {len(wrong) - LISTED} more are not valid")
            if not wrong:
                for pair, (length, graph) in nearest_nuclei(batch, cutoff).items():
                    nearest[pair] = min(nearest.get(pair, (math.inf, 0)), (length, start + graph))
                defects.append((graph_defects(batch), start))
        except InputError as error:
            problems.append(f"{where}: {error}")
    if not problems and fingerprint_of(manifest.dim, manifest.fields, store.digests()) != manifest.fingerprint:
        problems.append(f"{path}: the fingerprint of the graphs is not the one in the manifest; write the store again")
    notes = [*_notes(store, joined_defects(defects)), *(() if problems else precision_notes(store))]
    pairs = sorted(nearest.items(), key=lambda item: item[1])
    shown = [f"{pair} {length:.4g} in {stored_label(store, graph)}" for pair, (length, graph) in pairs]
    return StoreCheck(problems=problems, notes=notes, nearest=shown)


def check_graphs(
    store: GraphStore,
    graphs: Int64[ndarray, " chosen"],
    fields: Collection[str],
    *,
    needed: Collection[str] = (),
    stress: Collection[str] = (),
    alive: Callable[[], None] = lambda: None,
) -> None:
    """Raise InputError for graphs that are not valid or were changed.

    Every graph must have the fields ``needed``, and where it has one of the fields ``stress`` also a volume. ``alive`` is called between reads, for whoever watches.
    """
    sizes, ascending = store.sizes(), np.sort(graphs)
    edges = max(BLOCK * 1024, int(sizes.edges.max(initial=0)))
    collected: list[str] = []
    for numbers in pack(sizes, ascending, Budget(max_graphs=BLOCK, max_edges=edges)):
        alive()
        batch, changed = read_checked(store, numbers, fields)
        problems = {place: changed_sentence(int(numbers[place])) for place in np.flatnonzero(changed).tolist()}
        problems |= graph_problems(batch, numbers, needed=needed, cutoff=cutoff_of(store.attributes))
        problems |= _flat_stress(batch, numbers, stress)
        collected += [problems[place] for place in sorted(problems)]
    if len(collected) > 1:
        raise InputError(f"{collected[0]} (and {len(collected) - 1} more graphs; hydragnn data check lists them)")
    if collected:
        raise InputError(collected[0])


def _flat_stress(batch: GraphBatch, numbers: Int64[ndarray, " graphs"], stress: Collection[str]) -> dict[int, str]:
    flat = (volumes(batch) == 0).numpy()
    return {
        place: (
            f"{graph_label(batch, place, int(numbers[place]))} has a label of {name} and no volume (no periodic axis, or a cell vector of "
            "length zero), where no stress is defined; give its cell, or take the label away"
        )
        for name in stress
        for place in np.flatnonzero(flat & batch.present(name).numpy()).tolist()
    }


def files_are_whole(store: DiskStore, parts: slice, alive: Callable[[], None] = lambda: None) -> bool:
    """Return True where every bit of some part files is as written."""
    return all(
        checksum(file, alive) == part.info.files.get(name)
        for part in store.parts[parts]
        for name, file in part_files(part.path).items()
        if name in part.info.files
    )


def _broken_files(part: PartFile) -> Iterator[str]:
    try:
        part.check_files()
    except InputError as error:
        yield str(error)
        return
    for name, file in part_files(part.path).items():
        if name in part.info.files and checksum(file) != part.info.files[name]:
            yield f"{file} was changed after it was written; copy the store again"
    texts = texts_path(part.path)
    if part.info.texts is not None and checksum(texts).blake2b != part.info.texts.blake2b:
        yield f"{texts} was changed after it was written; copy the store again"
    elif part.texts is not None:
        try:
            part.texts.read(NAME, np.cumsum([0, *(graphs for graphs, _, _ in part.info.blocks)])[:-1])
        except InputError as error:
            yield str(error)
