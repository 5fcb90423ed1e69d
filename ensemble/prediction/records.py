"""Finished work on disk: a file of arrays per process that only grows, and an index of it; whatever ends a process, what it finished stays.

An entry of the index is written after what it tells of. Nothing is flushed to disk, which would cost more than predicting: every
entry has a digest of itself and of its arrays, so that what a power cut tore, or a disk changed, counts as not there.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from safetensors.numpy import load, save

from hydragnn.ensemble.prediction.claims import unique_name
from hydragnn.errors import InputError
from hydragnn.files import open_regular

Arrays = Mapping[str, NDArray[Any]]

ENTRY = np.dtype(
    [
        ("chunk", "<i8"),
        ("member", "<i8"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("units", "<i8"),
        ("seconds", "<f8"),
        ("largest", "<f8"),
        ("digest", "V16"),
    ]
)
"""``member`` is ``ALL`` where it is what all members together say of a chunk; a chunk ``END`` says that the file grows no more.
``units`` were predicted for it in so many ``seconds``, of which the ``largest`` is that of one unit."""

ALL, END = -1, -1

WORK, INDEX = ".work", ".index"

OPEN = 256
"""Files that are kept open for reading."""

LOOKED_AT = 256
"""Files whose size is asked for in one look, at most: the others have their turn in the next ones."""


@dataclass(slots=True)
class _Log:
    """What is known of the file of one process."""

    work: Path
    entries: NDArray[Any]
    read: int = 0
    ended: bool = False


class Records:
    """What all processes that ever worked for a prediction have finished, as far as this one has looked."""

    def __init__(self, folder: Path) -> None:
        """The folder may not exist yet."""
        self.folder = folder
        self._logs: dict[str, _Log] = {}
        self._turn = 0
        self._own: tuple[int, int] | None = None
        self._keys: NDArray[np.int64] | None = None
        self._open: dict[Path, int] = {}

    def append(self, chunk: int, member: int, arrays: Arrays, seconds: Sequence[float]) -> None:
        """Keep what a member, or ``ALL``, says about a chunk, and what units took that were done for it; InputError where there is no space."""
        work, index = self._own = self._own or self._begun()
        content = save_arrays(arrays)
        offset = os.lseek(work, 0, os.SEEK_END)
        entry = np.zeros(1, dtype=ENTRY)
        entry[0] = (chunk, member, offset, len(content), len(seconds), sum(seconds), max(seconds, default=0.0), b"")
        entry["digest"] = _digest(entry[0], content)
        self._write(work, content)
        self._write(index, entry.tobytes())

    def end(self) -> None:
        """Tell that this process adds no more to its file; what it appends later goes into another one."""
        if self._own is None:
            return
        entry = np.zeros(1, dtype=ENTRY)
        entry["chunk"] = END
        entry["digest"] = _digest(entry[0], b"")
        self._write(self._own[1], entry.tobytes())
        self._close()

    def _begun(self) -> tuple[int, int]:
        name = f"{unique_name()}-{time.time_ns():x}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            return open_regular(self.folder / f"{name}{WORK}", flags), open_regular(
                self.folder / f"{name}{INDEX}", flags
            )
        except OSError as error:
            raise self._refusal(error) from error

    def _write(self, file: int, content: bytes) -> None:
        try:
            if os.write(file, content) < len(content):
                os.write(file, content[:1])  # a full disk says so when it has taken nothing
                raise OSError("the disk took only a part")
        except OSError as error:
            self._close()  # the rest of a torn file is never looked at
            raise self._refusal(error) from error

    def _close(self) -> None:
        for file in self._own or ():
            os.close(file)
        self._own = None

    def _refusal(self, error: OSError) -> InputError:
        return InputError(f"cannot write into {self.folder}: {error.strerror or error}; free space, then --resume")

    def look(self, *, all_files: bool = False) -> None:
        """See what was finished meanwhile: a look into the folder, and into files that may have grown."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(INDEX))
        except FileNotFoundError:
            return
        growing = [name for name in names if name not in self._logs or not self._logs[name].ended]
        count = len(growing) if all_files else min(LOOKED_AT, len(growing))
        for place in range(self._turn, self._turn + count):
            self._read(growing[place % len(growing)])
        self._turn += count

    def _read(self, name: str) -> None:
        log = self._logs.setdefault(
            name, _Log(work=self.folder / f"{name.removesuffix(INDEX)}{WORK}", entries=np.zeros(0, dtype=ENTRY))
        )
        try:
            file = open_regular(self.folder / name)
        except OSError:
            return
        try:
            whole = os.fstat(file).st_size // ENTRY.itemsize * ENTRY.itemsize
            if whole <= log.read:
                return
            content = os.pread(file, whole - log.read, log.read)
        finally:
            os.close(file)
        new = np.frombuffer(content[: len(content) // ENTRY.itemsize * ENTRY.itemsize], dtype=ENTRY)
        log.read += new.nbytes
        log.ended = bool(len(new)) and int(new["chunk"][-1]) == END
        log.entries = np.concatenate([log.entries, new[new["chunk"] >= 0]])
        self._keys = None

    def counts(self) -> dict[str, int]:
        """The indices that were read, and how many entries of each."""
        return {name: len(log.entries) for name, log in self._logs.items()}

    def entries(self, besides: Mapping[str, int] | None = None) -> NDArray[Any]:
        """All entries that are known, index after index; none of those ``besides``."""
        known = [log.entries for name, log in self._logs.items() if name not in (besides or {})]
        return np.concatenate([np.zeros(0, dtype=ENTRY), *known])

    def marks(
        self, chunks: int, members: int, only: Mapping[str, int] | None = None
    ) -> Bool[NDArray[np.bool_], "chunks members"]:
        """Which units are finished, whole or torn; as far as so many entries of the indices ``only`` say."""
        marks = np.zeros((chunks, members), dtype=np.bool_)
        counts = self.counts() if only is None else only
        for name, count in counts.items():
            entries = self._logs[name].entries[:count] if name in self._logs else np.zeros(0, dtype=ENTRY)
            chunk, member = entries["chunk"], entries["member"]
            fits = (chunk < chunks) & (member >= ALL) & (member < members)
            whole = fits & (member == ALL)
            marks[chunk[whole]] = True
            marks[chunk[fits & ~whole], member[fits & ~whole]] = True
        return marks

    def combined(self, chunks: int) -> Bool[NDArray[np.bool_], " chunks"]:
        """The chunks of which all members together have spoken, whole or torn."""
        marks = np.zeros(chunks, dtype=np.bool_)
        for log in self._logs.values():
            chunk = log.entries["chunk"][log.entries["member"] == ALL]
            marks[chunk[chunk < chunks]] = True
        return marks

    def read(self, chunk: int, member: int) -> dict[str, NDArray[Any]] | None:
        """What was kept, bit for bit; None where it is not there, or torn."""
        for log, entry in self._candidates(chunk, member):
            content = self._content(log.work, entry)
            if content is not None:
                return content
        return None

    def _candidates(self, chunk: int, member: int) -> Iterator[tuple[_Log, Any]]:
        if self._keys is None:
            self._sort()
        assert self._keys is not None
        wanted = np.int64((chunk << 20) + member)
        first, last = np.searchsorted(self._keys, [wanted, wanted + 1])
        for place in self._order[first:last].tolist():
            number = int(np.searchsorted(self._stops, place, side="right"))
            log = self._sorted[number]
            yield log, log.entries[place - (self._stops[number - 1] if number else 0)]

    def _sort(self) -> None:
        self._sorted = list(self._logs.values())
        self._stops: Int[NDArray[np.int64], " logs"] = np.cumsum([len(log.entries) for log in self._sorted])
        every = self.entries()
        keys = (every["chunk"] << 20) + every["member"]
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def _content(self, work: Path, entry: Any) -> dict[str, NDArray[Any]] | None:
        """The arrays of an entry; None where they are torn."""
        offset, length = int(entry["offset"]), int(entry["length"])
        try:
            file = self._opened(work)
            if offset < 0 or length < 0 or offset + length > os.fstat(file).st_size:
                return None
            content = os.pread(file, length, offset)
        except OSError:
            return None
        if _digest(entry, content) != entry["digest"].tobytes():
            return None
        return load_arrays(content)

    def _opened(self, work: Path) -> int:
        if work not in self._open:
            if len(self._open) >= OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[work] = open_regular(work)
        return self._open[work]

    def close(self) -> None:
        """Let go of all files."""
        self._close()
        while self._open:
            os.close(self._open.popitem()[1])


def _digest(entry: Any, content: bytes) -> bytes:
    """The digest of an entry and of what it tells of."""
    state = blake2b(entry.tobytes()[: -ENTRY["digest"].itemsize], digest_size=ENTRY["digest"].itemsize)
    state.update(content)
    return state.digest()


def save_arrays(arrays: Arrays) -> bytes:
    """Arrays of numbers, truth values and texts, in their order, as bytes that hold no code.

    >>> load_arrays(save_arrays({"b": np.array(["ok", ""]), "a": np.zeros((0, 3))}))
    {'b': array(['ok', ''], dtype='<U2'), 'a': array([], shape=(0, 3), dtype=float64)}
    """
    named = {}
    for number, (name, values) in enumerate(arrays.items()):
        if values.dtype.kind == "U":
            letters = np.ascontiguousarray(values).view(np.uint32).reshape(*values.shape, -1)
            named[f"{number:04d} text {name}"] = letters
        else:
            named[f"{number:04d} {values.dtype.kind} {name}"] = np.ascontiguousarray(values).reshape(values.shape)
    return bytes(save(named))


def load_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that ``save_arrays`` made bytes of."""
    arrays = {}
    for key, values in sorted(load(content).items()):
        _, kind, name = key.split(" ", 2)
        arrays[name] = values.view(f"<U{values.shape[-1]}")[..., 0] if kind == "text" else values
    return arrays
