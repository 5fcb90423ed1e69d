"""Stores that become one, and stores that grow."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.files import alone_in_folder, flush_directory
from hydragnn.datasets.build import build_store
from hydragnn.datasets.copies import copy_labels
from hydragnn.datasets.disk import DiskStore
from hydragnn.datasets.formats.engine import engine_named, part_name
from hydragnn.datasets.manifest import read_manifest, write_manifest
from hydragnn.datasets.part_texts import texts_path
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.datasets.store import stored_label
from hydragnn.datasets.tools import convert_store
from hydragnn.datasets.writer import UNFINISHED_MANIFEST, UNFINISHED_PART


def append_store(
    path: Path, source: BuildSettings | Path, progress: Callable[[int], None] | None = None
) -> tuple[str, ...]:
    """Append graphs of files or a store; return a note on copies.

    The store has all of them, or none if the process ends before. InputError where they differ from its own in fields, dimension or cutoff.
    Busy where another process appends.
    """
    before = DiskStore(path)
    suffix = engine_named(before.manifest.backend).suffixes[0]
    if isinstance(source, Path) and source.resolve() == path.resolve():
        raise InputError(f"{path} would be appended to itself; every graph would be there twice")
    with alone_in_folder(path, "appends to"):
        fresh = path.with_name(f".{path.name}.append{suffix}")  # one name, so that remains are found
        rmtree(fresh, ignore_errors=True)
        try:
            if isinstance(source, Path):
                convert_store(source, fresh)
            else:
                build_store(source, fresh, progress)
            _adopt(DiskStore(path), fresh)
        finally:
            rmtree(fresh, ignore_errors=True)
    return copies_note(DiskStore(path), len(before))


def _adopt(store: DiskStore, fresh: Path) -> None:
    """Move parts into another store; its manifest comes last."""
    try:
        joined = DiskStore(store.path, fresh)
    except InputError as error:
        raise InputError(str(error).replace(f"{fresh}", "what is appended")) from error
    own, digests = store.manifest.parts, joined.digests()
    first = 2 * len(store) - len(joined)  # of as many graphs at the end
    ends = np.cumsum([part.graphs for part in own])
    if first in ends and np.array_equal(digests[first : len(store)], digests[len(store) :]):
        raise InputError(
            f"the last {len(store) - first} graphs of {store.path} are what is appended: it was appended before, and nothing was added now; "
            "copies are kept by hydragnn data merge"
        )
    number = 1 + max(int(Path(part.name).stem.rpartition("-")[2]) for part in own)
    parts = []
    try:
        _clear(store.path)  # of an append that was killed
        for place, part in enumerate(joined.manifest.parts[len(own) :]):
            name = part_name(number + place, store.manifest.backend)
            (fresh / part.name).replace(store.path / name)
            with suppress(FileNotFoundError):
                texts_path(fresh / part.name).replace(texts_path(store.path / name))
            files = {name if file == part.name else file: content for file, content in part.files.items()}
            parts.append(replace(part, name=name, files=files))
        flush_directory(store.path)
        write_manifest(store.path, replace(joined.manifest, parts=[*own, *parts]))
    except (InputError, OSError) as error:
        with suppress(InputError, OSError):
            _clear(store.path)
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot write {store.path}: {error.strerror or error}; nothing was appended; free space, then append again"
        ) from error


def _clear(path: Path) -> None:
    """Remove what the manifest of a store does not name."""
    stored = {name for part in read_manifest(path).parts for name in (part.name, texts_path(Path(part.name)).name)}
    for entry in path.iterdir():
        if entry.name not in stored and re.fullmatch(f"{UNFINISHED_PART}|{UNFINISHED_MANIFEST}", entry.name):
            rmtree(entry) if entry.is_dir() else entry.unlink()


def merge_stores(stores: Sequence[Path], out: Path) -> tuple[str, ...]:
    """Copy several stores into one; return a note on copies.

    InputError where they differ in fields, dimension or cutoff.
    """
    if len({path.resolve() for path in stores}) < max(2, len(stores)):
        raise InputError(
            "merge takes two stores or more and names each store once; copy one with hydragnn data convert"
        )
    convert_store(stores, out)
    return copies_note(DiskStore(out), len(DiskStore(stores[0])))


def copies_note(store: DiskStore, first: int) -> tuple[str, ...]:
    """Return a note on copies among graphs from ``first`` on."""
    labels = copy_labels(store)
    _, original = np.unique(labels, return_index=True)
    copies = np.flatnonzero(original[labels] < np.arange(len(labels)))
    copies = copies[copies >= first]
    if not len(copies):
        return ()
    number = int(copies[0])
    return (
        f"{len(copies)} of the {len(store) - first} added graphs are exact copies of earlier ones, such as "
        f"{stored_label(store, number)} (number {number}) of number {original[labels[number]]}; a random split would leak, and split.group = "
        '"duplicates" keeps copies together',
    )
