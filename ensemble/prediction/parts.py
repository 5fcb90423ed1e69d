"""Finished work in part files, so that an interrupted prediction continues.

A part file is HDF5. It has consecutive batches, a segment, as arrays of the output. Its name holds the batches and a digest of its bytes. A file whose
digest does not match, torn by a power cut or changed by a disk, counts as absent.
"""

import io
import os
import re
import shutil
import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Bool

from hydragnn.base.errors import InputError
from hydragnn.base.files import file_errors, lock_file, open_regular, read_json, write_json
from hydragnn.datasets.formats.hdf5 import VERSIONS
from hydragnn.distributed.launch import unique_name
from hydragnn.ensemble.prediction.formats.hdf5 import array_names, create_array
from hydragnn.ensemble.prediction.formats.sink import UNFINISHED, Piece

LOCK = "lock"

COUNTS = ("graphs", "failed", "outside_training_domain")
"""Counts of every segment; the others are its reasons."""

_NAME = re.compile(r"(\d+)-(\d+)\.([0-9a-f]{32})\.h5")

Counts = Mapping[str, int]


class Parts:
    """The folder of a prediction."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which may not exist yet."""
        self.folder = folder
        self._names: set[str] = set()
        self._segments: list[tuple[int, int, str]] = []

    @contextmanager
    def entered(self, lock: ExitStack, *, resume: bool) -> Iterator[bool]:
        """Lock the folder until ``lock`` closes; give True if it is new.

        Bad input removes a new folder. InputError where another prediction works there, or where an earlier one was
        interrupted and ``resume`` is False.
        """
        exists = self.folder.exists()
        self._check_own()
        with suppress(OSError):  # a later write reports what is wrong
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = lock_file(self.folder / LOCK)
            if descriptor is None:
                raise InputError(f"another prediction works in {self.folder}; wait for it, or choose another --out")
            lock.callback(os.close, descriptor)
        if exists and not resume:
            raise InputError(
                f"{self.folder} holds an interrupted prediction; add --resume to continue it, or delete the folder"
            )
        try:
            yield not exists
        except InputError:
            if not exists:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _check_own(self) -> None:
        """Raise InputError where the folder holds something else."""
        if not self.folder.exists() or (self.folder / "identity.json").is_file():
            return
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else ["no folder"]
        foreign = [name for name in names if not name.startswith((".identity.json.", LOCK))]
        if foreign:
            problem = f"{self.folder} holds {foreign[0]}, which belongs to no prediction"
            raise InputError(f"{problem}; choose another --out, or move it away")

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return what the folder was begun with; empty of a new one."""
        path = self.folder / "identity.json"
        entries = read_json(path) if path.is_file() else {}
        return entries if isinstance(entries, dict) else {}

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Write the prediction that owns the folder; InputError where another does."""
        path = self.folder / "identity.json"
        if not path.is_file():
            write_json(path, dict(identity))
            return
        entries = self.identity
        other = [name for name, value in identity.items() if entries.get(name) != value]
        if other:
            problem = f"{self.folder} was begun with another {' and another '.join(other)}"
            raise InputError(f"{problem}; repeat that command, delete the folder, or choose another --out")

    def clean(self) -> list[str]:
        """Remove unfinished and damaged files of an earlier sitting."""
        for path in self.folder.glob(f".*{UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        self.look()
        for name in sorted(self._names):
            self.segment(name)
        return sorted(self._names)

    def look(self, names: Iterable[str] | None = None) -> None:
        """List the part files that were written meanwhile, or take these ``names``."""
        if names is None:
            with suppress(FileNotFoundError):
                names = [entry.name for entry in os.scandir(self.folder)]
        for name in set(names or ()) - self._names:
            if match := _NAME.fullmatch(name):
                first, stop, _ = match.groups()
                self._names.add(name)
                insort(self._segments, (int(first), int(stop), name))

    def finished(self, chunks: int) -> Bool[np.ndarray, " chunks"]:
        """Return which batches are finished."""
        marks = np.zeros(chunks, dtype=np.bool_)
        for first, stop, _ in self._segments:
            marks[first:stop] = True
        return marks

    def has(self, chunk: int) -> bool:
        """Return True where a batch is finished."""
        place = bisect_left(self._segments, (chunk + 1,)) - 1
        return place >= 0 and self._segments[place][1] > chunk

    def keep_segment(self, first: int, stop: int, counts: Counts, piece: Piece) -> None:
        """Keep output and counts of consecutive batches; InputError without space."""
        content = part_bytes(piece, counts)
        name = f"{first:012d}-{stop:012d}.{_digest(content)}.h5"
        temporary = self.folder / f".{name}.{unique_name()}"
        with file_errors(f"cannot write into {self.folder}", "free space, then --resume"):
            try:
                temporary.write_bytes(content)
                temporary.rename(self.folder / name)
            finally:
                with suppress(OSError):
                    temporary.unlink()
        self.look([name])

    def segment_at(self, chunk: int) -> tuple[int, str] | None:
        """Return stop and name of the longest segment that begins here."""
        place = bisect_left(self._segments, (chunk + 1,)) - 1
        return self._segments[place][1:] if place >= 0 and self._segments[place][0] == chunk else None

    def segment(self, name: str) -> tuple[Counts, Piece] | None:
        """Return counts and output of a segment; None where it is damaged."""
        try:
            with os.fdopen(open_regular(self.folder / name), "rb") as file:
                content = file.read()
        except OSError:
            content = b""
        match = _NAME.fullmatch(name)
        assert match is not None
        first, stop, checksum = match.groups()
        if _digest(content) != checksum:
            self._names.discard(name)
            with suppress(ValueError):
                self._segments.remove((int(first), int(stop), name))
            with suppress(OSError):
                (self.folder / name).unlink()
            return None
        return read_part(content)

    def delete(self, keep: Sequence[str] = ()) -> None:
        """Remove the folder, but for the files to ``keep``."""
        for _ in range(50):
            if keep:
                for path in [path for path in self.folder.iterdir() if path.name not in keep]:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                break
            time.sleep(0.02)


def part_bytes(arrays: Piece, counts: Counts) -> bytes:
    """Return a part file as bytes, with counts as attributes.

    >>> read_part(part_bytes({"a": np.zeros((0, 3)), "b": ["ok", ""]}, {"graphs": 2}))
    ({'graphs': 2}, {'a': array([], shape=(0, 3), dtype=float64), 'b': ['ok', '']})
    """
    content = io.BytesIO()
    with h5py.File(content, "w", libver=VERSIONS) as file:
        for name, column in arrays.items():
            create_array(file, name, column)
        file.attrs.update(counts)
    return content.getvalue()


def read_part(content: bytes) -> tuple[Counts, Piece]:
    """Return counts and arrays of a part file."""
    with h5py.File(io.BytesIO(content)) as file:
        arrays = {
            name: file[name].asstr()[:].tolist() if file[name].dtype.kind == "O" else file[name][()]
            for name in array_names(file)
        }
        return {name: int(value) for name, value in file.attrs.items()}, arrays


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
