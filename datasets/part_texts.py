"""Texts of a part: one gzip member of JSON per block."""

import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_inside
from hydragnn.base.limits import Unpacker
from hydragnn.graphs.texts import Texts

SUFFIX = ".texts.gz"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextsInfo:
    """File of a part's texts, as the manifest describes it."""

    graphs: dict[str, int]
    """Number of graphs with a text, by key."""
    members: list[int]
    """Bytes of every block; 0 where none of its graphs has a text."""
    blake2b: str

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return sum(self.members)


def texts_path(part: Path) -> Path:
    """Return the file with the texts of a part."""
    return part.with_name(f"{part.name}{SUFFIX}")


class TextsWriter:
    """Appends the texts of blocks; the file begins with the first text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.graphs: dict[str, int] = {}
        self.members: list[int] = []

    def append(self, texts: Mapping[str, Texts]) -> None:
        """Append the texts of a block; OSError where there is no space."""
        columns = {key: list(values) for key, values in texts.items() if any(values)}
        content = gzip.compress(json.dumps(columns, ensure_ascii=False).encode(), mtime=0) if columns else b""
        if content:
            with self.path.open("ab") as file:
                file.write(content)
        self.members.append(len(content))
        for key, values in columns.items():
            self.graphs[key] = self.graphs.get(key, 0) + sum(map(bool, values))


class TextsReader:
    """Reader of texts by block, with a cache of the last few."""

    def __init__(self, path: Path, info: TextsInfo, graphs: Sequence[int]) -> None:
        """Describe the file of a part with so many ``graphs`` per block."""
        self._path, self._info, self._graphs = path, info, graphs
        self._first = np.concatenate([[0], np.cumsum(graphs, dtype=np.int64)])
        self._begin = np.concatenate([[0], np.cumsum(info.members, dtype=np.int64)])
        self._block = lru_cache(maxsize=4)(self._read_block)

    def check(self) -> None:
        """Raise InputError where the file is missing, cut off or outside."""
        check_inside(self._path, self._path.parent)
        size = self._path.stat().st_size if self._path.is_file() else None
        if self._info.bytes and size != self._info.bytes:
            have = "is missing" if size is None else f"has {size} bytes where {self._info.bytes} were written"
            raise InputError(f"{self._path} {have}; copy the whole store again")

    def read(self, key: str, graphs: Int64[ndarray, " chosen"]) -> list[str]:
        """Return texts by numbers in the part, empty where there are none."""
        blocks = np.searchsorted(self._first, graphs, side="right") - 1
        places = (graphs - self._first[blocks]).tolist()
        texts = []
        for block, place in zip(blocks.tolist(), places):
            column = self._block(block).get(key)
            texts.append("" if column is None else column[place])
        return texts

    def _read_block(self, block: int) -> dict[str, list[str]]:
        size = self._info.members[block]
        if not size:
            return {}
        try:
            with self._path.open("rb") as file:
                content = os.pread(file.fileno(), size, int(self._begin[block]))
            columns = json.loads(Unpacker(partial(zlib.decompressobj, 31), size).decompress(content))
            if any(len(values) != self._graphs[block] or {*map(type, values)} != {str} for values in columns.values()):
                raise ValueError("it has not one text per graph")
        except (OSError, EOFError, ValueError, TypeError, AttributeError, RecursionError, zlib.error) as error:
            raise InputError(f"{self._path} cannot be read ({error}); copy the store again") from error
        return dict(columns)
