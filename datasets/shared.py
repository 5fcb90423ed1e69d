"""Whole stores in memory, one copy per machine for several ranks."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest, knows_locks, try_lock, wait_for_lock
from hydragnn.datasets.arrays import FlatGraphs, mask_name
from hydragnn.datasets.disk import DiskStore
from hydragnn.datasets.formats.memory import MemoryStore
from hydragnn.datasets.store import GraphStore
from hydragnn.datasets.views import disk_store
from hydragnn.graphs.field import Field


def load_into_memory(store: GraphStore, shared_by_node: bool = False) -> MemoryStore:
    """Return all graphs of a store in memory.

    With ``shared_by_node`` the processes of this user and machine share one copy.

    The first process copies the arrays into shared memory, the others map them; the last one to leave removes them. Where that
    place knows no locks, nobody could tell which is the last, and each process has its own copy.
    InputError where shared memory is full.
    """
    if isinstance(store, MemoryStore) and not shared_by_node:
        return store
    folder = shared_folder(store)
    if not shared_by_node or not knows_locks(folder.parent):
        return MemoryStore(_flat(store), store.attributes)
    with _alone(folder) as users:
        try:
            if not folder.is_dir():
                _copy_into(folder, _flat(store))
            flat = replace(_map(folder, store.dim, store.fields()), texts=store.texts)
        except OSError as error:
            raise InputError(
                f"cannot keep the store in shared memory at {folder}: {error.strerror or error}; read it from disk instead"
            ) from error
        descriptor = os.open(users, os.O_RDWR | os.O_CREAT, 0o600)
        try_lock(descriptor, shared=True)  # held as long as this process uses the copy
    shared = MemoryStore(flat, store.attributes)
    weakref.finalize(shared, _leave, descriptor, folder)
    return shared


def shared_folder(store: GraphStore) -> Path:
    """Return the folder of the common copy of a store."""
    disk = disk_store(store)
    place = "" if disk is None else disk.place_and_time()
    names = [field.name for field in store.fields()]
    key = digest({"fingerprint": store.fingerprint, "place": place, "fields": names})
    return _shared_root() / f"hydragnn-{os.getuid()}-{key}"


def _flat(store: GraphStore) -> FlatGraphs:
    everything = np.arange(len(store))
    if isinstance(store, DiskStore):
        return store.read_flat(everything)
    return MemoryStore(store.read(everything)).flat


def _shared_root() -> Path:
    """Return shared memory, or the temporary folder where there is none."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """Let one process at a time make or remove the copy.

    Gives the file that its users hold a lock on.
    """
    descriptor = _gate(folder.with_suffix(".lock"))
    try:
        yield folder.with_suffix(".users")
    finally:
        os.close(descriptor)


def _gate(path: Path) -> int:
    """Open and lock the lock file; try again where it was removed meanwhile."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        wait_for_lock(descriptor)
        if _inode(path) == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _copy_into(folder: Path, flat: FlatGraphs) -> None:
    """One npy file per array, in a folder that appears complete."""
    temporary = folder.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    arrays = {"node_offsets": flat.node_offsets, "edge_offsets": flat.edge_offsets, **flat.arrays}
    try:
        for name, array in arrays.items():
            with (temporary / f"{name.replace('/', '.')}.npy").open("wb") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _map(folder: Path, dim: int, fields: tuple[Field, ...]) -> FlatGraphs:
    names = {mask_name(field).replace("/", "."): mask_name(field) for field in fields}
    names |= {f"{field.on}.{field.name}": f"{field.on}/{field.name}" for field in fields}
    arrays = {
        names.get(file.stem, file.stem): np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
        for file in folder.glob("*.npy")
    }
    node_offsets, edge_offsets = arrays.pop("node_offsets"), arrays.pop("edge_offsets")
    return FlatGraphs(dim=dim, fields=fields, node_offsets=node_offsets, edge_offsets=edge_offsets, arrays=arrays)


def _leave(descriptor: int, folder: Path) -> None:
    """Remove the shared copy if no other process uses it."""
    try:
        with _alone(folder) as users:
            if not try_lock(descriptor):
                return  # another process still reads it, and will remove it
            shutil.rmtree(folder, ignore_errors=True)
            users.unlink(missing_ok=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)
    finally:
        os.close(descriptor)
