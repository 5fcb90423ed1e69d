"""The entries of indices: what a process has finished, where it lies in its file, and how damage is noticed."""

import os
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.files import open_regular
from hydragnn.distributed.launch import host_name

WORK, INDEX = ".work", ".index"
"""Suffixes of the file of a process and of its index."""

FIRST, LATER = "-first", "-later"
"""How the names of the first file of a process end, and of those that it begins after ``end``."""


def own_name(*, first: bool) -> str:
    """A name for a file of this process that no other file has, which says whether it is the first one."""
    return f"{unique_name()}-{time.time_ns():x}{FIRST if first else LATER}"


def is_first(name: str) -> bool:
    """Return True where the index is that of the first file of a process."""
    return name.endswith(f"{FIRST}{INDEX}")


def unique_name() -> str:
    """A name that no other process on any machine has."""
    return f"{host_name()}-{os.getpid()}"


ENTRY = np.dtype(
    [
        ("chunk", "<i8"),
        ("member", "<i8"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("units", "<i8"),
        ("seconds", "<f8"),
        ("largest", "<f8"),
        ("sizes", "<i8", (11,)),
        ("work", "<i8"),
        ("check", "<u8"),
        ("digest", "V16"),
    ]
)
"""``member`` is ``ALL`` where it is what all members together say of a chunk; a chunk ``END`` says that the file grows no more.
``units`` were predicted for it in so many ``seconds``, of which the ``largest`` is that of one unit. ``sizes`` are those of a piece,
as the file needs them; ``work`` is left to whoever gathers entries of several files. The ``check`` is that of all before it."""

ALL, END = -1, -1


def checks(entries: NDArray[Any]) -> NDArray[np.uint64]:
    """A number that follows from the fields before it: another one where a bit of them has turned, or where all are zero."""
    fields = np.frombuffer(entries.tobytes(), dtype="<u8").reshape(len(entries), -1)[:, :_CHECKED]
    odd = np.arange(1, _CHECKED + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C14) | np.uint64(1)
    return (fields * odd).sum(axis=1, dtype=np.uint64) + np.uint64(_CHECKED)


_CHECKED = int(ENTRY.fields["check"][1]) // 8 if ENTRY.fields else 0


def digest_of(entry: Any, content: bytes) -> bytes:
    """The digest of an entry, but for its ``work``, and of what it tells of."""
    told = entry.copy()
    told["work"] = 0
    state = blake2b(told.tobytes()[: -ENTRY["digest"].itemsize], digest_size=ENTRY["digest"].itemsize)
    state.update(content)
    return state.digest()


NOTHING: NDArray[Any] = np.zeros(0, dtype=ENTRY)


@dataclass(slots=True)
class Log:
    """What is known of the file of one process, whose index is called ``name``."""

    name: str
    entries: NDArray[Any] = field(default_factory=lambda: NOTHING)
    read: int = 0
    """Bytes of the index that were looked at."""
    ended: bool = False

    @property
    def work(self) -> str:
        """What the file is called."""
        return f"{self.name.removesuffix(INDEX)}{WORK}"

    def growth(self, folder: str) -> bytes:
        """The whole entries that were added to the index in a folder since it was looked at."""
        try:
            file = open_regular(f"{folder}/{self.name}")  # one of thousands, and a Path would take as long as the file
        except OSError:
            return b""
        try:
            content = os.pread(file, os.fstat(file).st_size - self.read, self.read)
        finally:
            os.close(file)
        return content[: len(content) // ENTRY.itemsize * ENTRY.itemsize]
