"""Limits of files of users and strangers, checked before a library reads them.

Every source opens files by ``check_readable``. A file may grow while it is read, but not without end.
"""

import bz2
import errno
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Callable
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from hydragnn.base.errors import InputError

FLOOR, RATIO = 2**28, 300
"""Bytes that any file may become in memory, and times its size that a larger one may. Zeros shrink to a thousandth."""

PIECE = 2**20


def check_readable(path: Path) -> None:
    """Raise InputError for a file whose reading might not end.

    That is a device, a pipe or a socket, also inside a folder that is one file to its reader. And a file whose content claims,
    or unpacks to, much more than its bytes. What is missing or damaged is left to the reader.
    """
    status = status_of(path)
    if status is None:
        return
    if stat.S_ISDIR(status.st_mode):
        for file in path.iterdir():
            check_readable(file)
    elif not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is no regular file, and reading it might not end; copy its content into a file")
    else:
        _check_content(path, status.st_ino, status.st_size, status.st_mtime_ns)


def status_of(path: Path) -> os.stat_result | None:
    """Return the status of a file, None without one; InputError for a name that no file can have."""
    try:
        return path.stat()
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            return None
        length = len(str(path))
        raise InputError(
            f"the path {str(path)!r:.80} of {length} characters is none that a file can have; check it"
        ) from error


def check_claim(path: Path, claim: int) -> None:
    """Raise InputError where the content of a file claims to be very large."""
    size = path.stat().st_size
    if claim > max(FLOOR, RATIO * size):
        raise InputError(
            f"{path} has {size:,} bytes and would take {claim:,} or more when it is read, more than {RATIO} times as many; "
            "check where it comes from, and unpack it, or write it without compression"
        )


@lru_cache(maxsize=2**16)
def _check_content(path: Path, _inode: int, size: int, _changed: int) -> None:
    with path.open("rb") as file:
        begin = file.read(8)
    measure = next((one for mark, one in MEASURES.items() if begin.startswith(mark)), None)
    if measure is not None:
        try:
            claim = measure(path, max(FLOOR, RATIO * size))
        except InputError:
            raise
        except (BadZipFile, EOFError, lzma.LZMAError, OSError, RuntimeError, ValueError, zlib.error, KeyError):
            return  # the reader says what is wrong
        check_claim(path, claim)


def _of_stream(unpacked: Callable[[Path], Any]) -> Callable[[Path, int], int]:
    """Return the measure of a compressed file, read up to a limit."""

    def measure(path: Path, most: int) -> int:
        total = 0
        with unpacked(path) as file:
            while total <= most and (piece := file.read(PIECE)):
                total += len(piece)
        return total

    return measure


def _of_zip(path: Path, most: int) -> int:
    with ZipFile(path) as archive:
        total = sum(one.file_size for one in archive.infolist())
        for one in archive.infolist() if total <= most else []:
            if one.filename.endswith(".npy"):
                with archive.open(one) as file:
                    _check_rows(path, file, one.file_size, one.filename.removesuffix(".npy"))
    return total


def _of_npy(path: Path, _most: int) -> int:
    with path.open("rb") as file:
        _check_rows(path, file, path.stat().st_size, "the array")
    return 0


def _check_rows(path: Path, file: Any, size: int, name: str) -> None:
    """Raise InputError where a header of numpy counts more than is there."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    claim = prod(shape) * max(1, dtype.itemsize)
    if not dtype.hasobject and claim > size:
        raise InputError(
            f"{path}: {name} has the shape {shape}, which takes {claim:,} bytes, and there are {size:,}; write it again"
        )


def _of_hdf5(path: Path, _most: int) -> int:
    import h5py

    sizes: list[int] = []
    with h5py.File(path, "r") as file:
        file.visititems(lambda _, item: sizes.append(item.nbytes) if isinstance(item, h5py.Dataset) else None)
    return sum(sizes)


MEASURES: dict[bytes, Callable[[Path, int], int]] = {
    b"\x1f\x8b": _of_stream(gzip.open),
    b"BZh": _of_stream(bz2.open),
    b"\xfd7zXZ\0": _of_stream(lzma.open),
    b"PK": _of_zip,
    b"\x93NUMPY": _of_npy,
    b"\x89HDF": _of_hdf5,
}
"""How many bytes a file claims or unpacks to, by its first bytes; the second argument is where counting may stop."""


class Unpacker:
    """Decompressor of zlib, gzip or lzma up to a number of bytes in all."""

    def __init__(self, new: Callable[[], Any], most: int) -> None:
        self._new, self._left = new, most

    def decompress(self, data: bytes) -> bytes:
        """Return what ``data`` unpacks to; ValueError beyond the limit."""
        one = self._new()
        content: bytes = one.decompress(data, self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"it unpacks to {RATIO} times its bytes or more")
        if not one.eof:
            raise ValueError("it was cut off")
        return content
