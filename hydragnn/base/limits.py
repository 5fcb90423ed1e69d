"""Limits of files from outside, checked before a library reads them."""

import bz2
import errno
import gzip
import lzma
import os
import stat
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from functools import lru_cache
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile, ZipFile

from hydragnn.base.errors import InputError

FLOOR, RATIO = 2**28, 300
"""Bytes that any file may become in memory, and times its size that a larger one may. Zeros shrink to a thousandth."""
WITH_MARK = (".csv", ".dat", ".json", ".toml", ".tsv", ".txt")
"""Suffixes of text that is read with and without a byte order mark of UTF-8."""
STREAMS: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""Functions that unpack a file, by its first bytes."""
UNPACKED = (
    ".csv .parquet .npz .npy .pt .db .graphml .gml .vtu .vtk .xdmf .msh .ctf .ang .tess .tesr .tif .tiff .png .vti .nc"
)
"""Suffixes of files whose readers do not unpack them, unlike those of structures and JSON."""

DAMAGED_ARRAYS: tuple[type[Exception], ...] = (BadZipFile, EOFError, KeyError, lzma.LZMAError, OSError)
DAMAGED_ARRAYS += (RuntimeError, SyntaxError, TokenError, ValueError, zlib.error)
"""Errors of reading an npz file whose bytes are not those that were written; every array in it has a checksum."""


def check_readable(path: Path) -> None:
    """Raise InputError for a file whose reading might not end.

    That is a device, a pipe or a socket, also inside a folder that is one file to its reader. And a file whose content claims,
    or unpacks to, much more than its bytes. What is missing or damaged is left to the reader.
    """
    status = status_of(path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        for file in path.iterdir():
            check_readable(file)
    elif status is not None and not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is no regular file, and reading it might not end; copy its content into a file")
    elif status is not None and ".zarr" not in [one.suffix for one in path.parents]:  # whose chunks say nothing
        _check_content(path, status.st_ino, status.st_size, status.st_mtime_ns)


def status_of(path: Path) -> os.stat_result | None:
    """Return a file's status or None; InputError for an impossible name."""
    try:
        return path.stat()
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            return None
        name = f"{str(path)!r:.80} of {len(str(path))} characters"
        raise InputError(f"the path {name} is none that a file can have; check it") from error


def most_of(size: int) -> int:
    """Return the bytes that a file of this size may become."""
    return max(FLOOR, RATIO * size)


def check_claim(path: Path, claim: int) -> None:
    """Raise InputError where the content of a file claims to be large."""
    if claim > most_of(size := path.stat().st_size):
        raise InputError(
            f"{path} has {size:,} bytes and would take {claim:,} or more when it is read, more than {RATIO} times as many; "
            "check where it comes from, and unpack it, or write it without compression"
        )


@lru_cache(maxsize=2**16)
def _check_content(path: Path, _inode: int, size: int, _changed: int) -> None:
    try:
        with path.open("rb") as file:
            begin = file.read(8)
            check_mark(path, begin)
            if begin.startswith(b"\x93NUMPY"):
                file.seek(0)
                _check_rows(path, file, size, "the array")
        if begin.startswith(b"PK"):
            with ZipFile(path) as archive:
                check_claim(path, sum(one.file_size for one in archive.infolist()))
                for one in [one for one in archive.infolist() if one.filename.endswith(".npy")]:
                    with archive.open(one) as member:
                        _check_rows(path, member, one.file_size, one.filename.removesuffix(".npy"))
        if begin.startswith(b"\x89HDF"):
            import h5py

            sizes: list[int] = []
            with h5py.File(path, "r") as arrays:
                arrays.visititems(lambda _, item: sizes.append(getattr(item, "nbytes", 0)))
            check_claim(path, sum(sizes))
        for unpack in (one for mark, one in STREAMS.items() if begin.startswith(mark)):
            if {*UNPACKED.split()} & {*path.suffixes[-2:]}:
                raise InputError(f"{path} is compressed, and only structures and .json.gz are read so; unpack it")
            total = 0
            with unpack(path) as content:
                while total <= most_of(size) and (piece := content.read(2**20)):
                    total += len(piece)
            check_claim(path, total)
    except InputError:
        raise
    except DAMAGED_ARRAYS:
        return  # the reader says what is wrong


def check_mark(path: Path, begin: bytes) -> None:
    """Raise InputError for UTF-16, or a mark that few readers know."""
    halves = (begin[::2], begin[1::2]), (begin[1::2], begin[::2])
    double = any(text and zeros and not any(zeros) and min(text) > 8 for text, zeros in halves)
    of_utf8, xml = begin.startswith(BOM_UTF8), b"<" in begin[2:5]
    if not xml and (
        begin[:2] in (BOM_UTF16_BE, BOM_UTF16_LE) or double or (of_utf8 and path.suffix.lower() not in WITH_MARK)
    ):
        name = "UTF-8 with a byte order mark" if of_utf8 else "UTF-16"
        raise InputError(f"{path} is text in {name}; save it as plain UTF-8, as every editor can")


def _check_rows(path: Path, file: Any, size: int, name: str) -> None:
    """Raise InputError where a header of numpy counts more than is there."""
    from numpy.lib import format as npy

    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if not dtype.hasobject and (claim := prod(shape) * max(1, dtype.itemsize)) > size:
        raise InputError(
            f"{path}: {name} has the shape {shape}, which takes {claim:,} bytes, and there are {size:,}; write it again"
        )


class Unpacker:
    """Decompressor for all pieces of a file; ValueError beyond its limit."""

    def __init__(self, new: Callable[[], Any], size: int) -> None:
        self._new, self._left = new, most_of(size)

    def decompress(self, data: bytes) -> bytes:
        """Return what ``data`` unpacks to."""
        one = self._new()
        content: bytes = one.decompress(data, self._left + 1)
        self._left -= len(content)
        if self._left < 0 or not one.eof:
            raise ValueError(f"it was cut off, or unpacks to more than {RATIO} times its bytes")
        return content
